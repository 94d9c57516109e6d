"""What a client does with the entry of a broker; the connections are in the integration tests."""

import subprocess
import sys

import pytest

from proxy.client import BrokerEntry, BrokerMetadataClient, endpoints, producer_settings, protocol_range, versions_for
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.protocol.versions import ranges, release_range


def entry(**tags: str) -> BrokerEntry:
    found = release_range("4.3")
    return BrokerEntry(
        1, "kafka-1.example", 9092, found.min, found.max, {k.replace("_", "."): v for k, v in tags.items()}
    )


def test_versions_are_chosen_by_the_broker_s_range():
    found = protocol_range(entry(protocol_version_exact="true"))

    assert found == release_range("4.3")
    assert ranges(versions_for(found)) == found
    assert versions_for(protocol_range(BrokerEntry(1, "", -1, -1, -1))) == {}


def test_a_producer_takes_what_the_broker_takes():
    assert producer_settings(entry(message_max_bytes="1048588")) == {"message.max.bytes": 1_048_588}
    assert producer_settings(entry()) == {}


def test_endpoints_by_protocol_the_first_of_each():
    found = endpoints(entry(endpoints="plaintext://a:1,ssl://[fd00::7]:2,plaintext://b:3"))

    assert found == {"plaintext": Endpoint("a", 1), "ssl": Endpoint("fd00::7", 2)}
    assert endpoints(entry()) == {}


def test_tags_that_are_not_known_are_kept():
    assert entry(x_y="z").tags == {"x.y": "z"}


def test_an_address_that_is_none():
    with pytest.raises(LocalError, match="'nowhere' is not host:port"):
        BrokerMetadataClient("nowhere")


def test_it_needs_neither_observers_nor_spark():
    code = (
        "import sys, proxy.client\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'observers', 'spark_jobs', 'pyspark', "
        "'confluent_kafka'}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"
