"""What a client does with the entry of a broker; the connections are in the integration tests."""

import socket
import subprocess
import sys
import threading

import pytest

from proxy.client import BrokerEntry, BrokerMetadataClient, endpoints, producer_settings, protocol_range, versions_for
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.fleet.connection import BrokerUnreachable
from proxy.protocol.versions import ranges, release_range
from tests.cases import each


def entry(**tags: str) -> BrokerEntry:
    found = release_range("4.3")
    return BrokerEntry(
        1, "kafka-1.example", 9092, found.min, found.max, {k.replace("_", "."): v for k, v in tags.items()}
    )


@pytest.mark.promise(
    "protocol.md", "`versions_for` returns the first and the last version of each api that a broker's range promises."
)
def test_versions_are_chosen_by_the_broker_s_range():
    found = protocol_range(entry(protocol_version_exact="true"))

    assert found == release_range("4.3")
    assert ranges(versions_for(found)) == found
    assert versions_for(protocol_range(BrokerEntry(1, "", -1, -1, -1))) == {}


@pytest.mark.promise(
    "broker-metadata.md", "`producer_settings` gives a producer the largest message that the broker takes."
)
def test_a_producer_takes_what_the_broker_takes():
    assert producer_settings(entry(message_max_bytes="1048588")) == {"message.max.bytes": 1_048_588}
    assert producer_settings(entry()) == {}


@pytest.mark.promise("broker-metadata.md", "`endpoints` gives the first address of each security protocol of a broker.")
def test_endpoints_by_protocol_the_first_of_each():
    found = endpoints(entry(endpoints="plaintext://a:1,ssl://[fd00::7]:2,plaintext://b:3"))

    assert found == {"plaintext": Endpoint("a", 1), "ssl": Endpoint("fd00::7", 2)}
    assert endpoints(entry()) == {}


def test_tags_that_are_not_known_are_kept():
    assert entry(x_y="z").tags == {"x.y": "z"}


def test_an_address_that_is_none():
    with pytest.raises(LocalError, match="'nowhere' is not host:port"):
        BrokerMetadataClient("nowhere")


@pytest.mark.promise("broker-metadata.md", "`proxy.client` needs neither the observers nor Spark.")
def test_it_needs_neither_observers_nor_spark():
    code = (
        "import sys, proxy.client\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'observers', 'spark_jobs', 'pyspark', "
        "'confluent_kafka'}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)

    assert done.stdout == "[]\n"


@each("node_id", [-2, 99_999_999_999])
def test_what_is_no_node_id(node_id):
    with (
        BrokerMetadataClient("127.0.0.1:1") as client,
        pytest.raises(LocalError, match=f"broker {node_id}: allowed are node ids up to 2147483647, and -1"),
    ):
        client.brokers([node_id])


@pytest.mark.promise(
    "broker-metadata.md", "A connection that closes is explained: there may be no sidecar, or one that wants a login."
)
def test_a_connection_that_is_closed_says_what_that_may_mean():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_one() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1)

        thread = threading.Thread(target=close_one)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with BrokerMetadataClient(address) as client, pytest.raises(BrokerUnreachable) as raised:
            client.brokers()
        thread.join()

    assert str(raised.value).startswith(address)
    assert str(raised.value).endswith("; there may be no sidecar at that address, or one that wants a login")
