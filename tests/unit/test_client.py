"""What a client does with the entry of a broker; the connections are in the integration tests."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.client import (
    BrokerEntry,
    BrokerMetadataClient,
    FeaturesClient,
    FeatureUpdate,
    UnsupportedRequestError,
    endpoints,
    producer_settings,
    protocol_range,
    versions_for,
)
from proxy.commands.client_settings import client_settings
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.features.catalog import LevelRange
from proxy.fleet.connection import BrokerUnreachable
from proxy.fleet.security import Security
from proxy.protocol.versions import ranges, release_range
from tests import frames
from tests.cases import each
from tests.unit.rpc.test_feature_messages import AUDIT, DESCRIBED


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


@pytest.mark.promise("broker-metadata.md", "`proxy.client` needs neither the observers nor Spark.")
def test_it_needs_neither_observers_nor_spark():
    code = (
        "import sys, proxy.client\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'observers', 'spark_jobs', 'pyspark', "
        "'confluent_kafka'}))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.promise("consumer.md", "To import the consumer loads little: not asyncio, TLS or the configuration.")
def test_the_consumer_is_a_thin_client():
    heavy = {"pydantic", "structlog", "rich", "yaml", "asyncio", "uvloop", "ssl", "confluent_kafka", "observers"}
    code = f"import sys, proxy.client.consumer; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[]\n"


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


LOGIN = 'org.apache.kafka.common.security.%s required username="al\\\\"ice" password="c4n4ry=;";'


def settings_of(folder: Path, *lines: str) -> dict[str, str]:
    path = folder / "client.properties"
    path.write_text("\n".join(lines) + "\n")
    return client_settings(path)


@pytest.mark.promise("commands.md", "Commands log in with the properties file of Kafka's tools.")
@each(("mechanism", "module"), [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")])
def test_a_login_of_java_s(tmp_path: Path, mechanism: str, module: str) -> None:
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={LOGIN % module}"]
    security = Security.from_settings(settings_of(tmp_path, *lines))
    assert (security.mechanism, security.user, security.password) == (mechanism, 'al"ice', "c4n4ry=;")


def test_stores_in_pem(tmp_path: Path) -> None:
    found = settings_of(
        tmp_path,
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        "ssl.truststore.location=/etc/kafka/ca.pem",
        "ssl.keystore.type=PEM",
        "ssl.keystore.location=/etc/kafka/client.pem",
        "ssl.endpoint.identification.algorithm=",
    )
    assert found == {
        "security.protocol": "SSL",
        "ssl.ca.location": "/etc/kafka/ca.pem",
        "ssl.certificate.location": "/etc/kafka/client.pem",
        "ssl.key.location": "/etc/kafka/client.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    lines = ["security.protocol=sasl_ssl", "sasl.username=alice", "sasl.password=secret", "ssl.ca.location=/ca.pem"]
    assert settings_of(tmp_path, *lines) == dict(line.split("=") for line in lines), "as librdkafka names them"


@pytest.mark.promise("commands.md", "A property without a counterpart is named, and its value is not shown.")
@each(
    ("line", "said"),
    [
        (
            "ssl.truststore.location=/trust.jks",
            "ssl.truststore.location is not supported (allowed: with ssl.truststore.",
        ),
        ("ssl.keystore.location=/key.p12\nssl.keystore.type=PKCS12", "ssl.keystore.location is not supported"),
        (f"sasl.jaas.config={LOGIN % 'oauthbearer.OAuthBearerLoginModule'}", "allowed: PlainLoginModule, ScramLogin"),
        ("sasl.jaas.config=c4n4ry", "sasl.jaas.config is not supported"),
        ('sasl.jaas.config=x.PlainLoginModule required username="c4n4ry";', "needs username and password"),
    ],
)
def test_what_has_no_counterpart_is_named_without_its_value(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(LocalError) as raised:
        settings_of(tmp_path, line)
    assert said in str(raised.value)
    assert "c4n4ry" not in str(raised.value)


UPDATE, DESCRIBE = 57, 18
TOO_NEW = bytes.fromhex("0023 00000001 0012 0000 0003")
RAISE = FeatureUpdate(AUDIT, 2)

Answers = Mapping[tuple[int, int], bytes | None]
"""The body of the response by api key and version; None closes the connection."""


@contextmanager
def peer(answers: Answers) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Serve one connection; gives the address, and the api keys and versions of the requests."""
    asked: list[tuple[int, int]] = []

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted, accepted.makefile("rb") as reader:
            while size := reader.read(4):
                frame = reader.read(int.from_bytes(size, "big"))
                asked.append((int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")))
                body = answers[asked[-1]]
                if body is None:
                    return
                accepted.sendall(frames.response(int.from_bytes(frame[4:8], "big"), body))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        thread.join()


def test_a_broker_that_does_not_know_version_4_is_asked_again() -> None:
    with (
        peer({(DESCRIBE, 4): TOO_NEW, (DESCRIBE, 3): DESCRIBED}) as (address, asked),
        FeaturesClient(address) as client,
    ):
        assert client.describe().finalized[AUDIT] == LevelRange(1, 2)
    assert asked == [(DESCRIBE, 4), (DESCRIBE, 3)]


@pytest.mark.promise(
    "features.md", "`FeaturesClient` raises UnsupportedRequestError where the broker has no UpdateFeatures version 1."
)
def test_a_broker_that_has_no_update_of_version_1_is_not_asked_for_one() -> None:
    for versions in [bytes.fromhex("0039 0000 0000"), bytes.fromhex("0038 0000 0002")]:
        described = DESCRIBED.replace(bytes.fromhex("0039 0000 0002"), versions)
        with (
            peer({(DESCRIBE, 4): described}) as (address, asked),
            FeaturesClient(address) as client,
            pytest.raises(UnsupportedRequestError, match="Request not supported by server: UpdateFeatures v1"),
        ):
            client.update([RAISE])
        assert asked == [(DESCRIBE, 4)], versions


@pytest.mark.promise(
    "features.md",
    "`FeaturesClient.update` raises BrokerUnreachable for an update without an answer, which may have been made.",
)
def test_an_update_without_an_answer_may_have_been_made() -> None:
    with (
        peer({(DESCRIBE, 4): DESCRIBED, (UPDATE, 1): None}) as (address, _),
        FeaturesClient(address) as client,
        pytest.raises(BrokerUnreachable) as raised,
    ):
        client.update([RAISE])
    assert str(raised.value) == (
        f"{address}: the connection was closed; the listener may want a login; the update may have been made all the "
        "same: describe it"
    )
