"""Whatever clients ask, every frame gives one event, of its size and with its records: by the clients' own counts.

Kafka's Java clients count requests, responses and bytes themselves; of the others the sidecar's counters are compared,
which count frames before anything reads them.
"""

import random
import subprocess
import time
import uuid
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from observers.event import RequestEvent
from proxy.local.jars import java, resolve
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.topics import PARTITIONS, new_topic
from tests.interop.clients import BUILDING, CLIENTS, Client, digest
from tests.interop.conftest import DELIVERY_TIMEOUT, Proxied
from tests.interop.wire import audited_requests, records, row, wait_audited
from tests.tools.topic import create

pytestmark = pytest.mark.kafka

RECORDS = 200
"""Records for each codec."""

NEEDED = ("kafka-clients", "zstd-jni", "snappy-java", "lz4-java", "slf4j", "reload4j", "log4j", "jackson")
"""Jars of a set that its clients need."""

JAVA_CLIENTS = ("kafka-clients-2.8.2", "kafka-3.9.2", "kafka-4.3.1", "kafka-4.4.0")


class Counted(msgspec.Struct, forbid_unknown_fields=True):
    client_id: str
    request_total: int
    response_total: int
    outgoing_byte_total: int
    incoming_byte_total: int
    record_send_total: int = 0


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        modules = subprocess.run([str(java()), "--list-modules"], capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        modules = str(error)
    if "jdk.compiler@" not in modules:
        pytest.skip("this Java has no compiler (jdk.compiler): a JRE")
    return Path(__file__).parent / "java_clients" / "Everything.java"


@pytest.mark.slow
@pytest.mark.parametrize("jars", JAVA_CLIENTS)
def test_java_clients_counted_the_same(proxied: Proxied, program: Path, jars: str) -> None:
    prefix = f"every-{jars}-{uuid.uuid4().hex[:8]}"
    topic = f"{prefix}-topic"
    found = [jar for jar in resolve(jars, progress=False) if jar.name.startswith(NEEDED)]
    done = subprocess.run(
        [
            str(java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, found)),
            str(program), proxied.state.bootstrap, topic, prefix, str(RECORDS),
        ],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counted = [msgspec.json.decode(line, type=Counted) for line in done.stdout.splitlines()]
    assert len(counted) == 9

    for client in counted:
        events = wait_audited(proxied, client.client_id, client.request_total)
        assert sum(event.request_bytes for event in events) == client.outgoing_byte_total, client
        answered = [event for event in events if event.outcome == "answered"]
        received = sum(event.response_bytes for event in answered)
        if client.response_total == len(answered):
            assert received == client.incoming_byte_total, client
        else:  # it went away before the last ones came
            assert client.response_total < len(answered)
            assert received > client.incoming_byte_total
        produced = [part for event in events if event.api == "Produce" for part in event.topics]
        # A batch that the broker refuses at first, as the leader of a new topic may, is sent and counted again.
        assert sum(part.records for part in produced) == client.record_send_total
        assert sum(part.records for part in produced if part.error_code == 0) == (RECORDS if produced else 0)
        touched = [part for event in events for part in event.topics]
        assert {part.topic for part in touched} <= {topic}
        if client.record_send_total:
            assert touched
        assert not [event for event in events if event.decode in ("malformed", "unsupported")]


@pytest.mark.promise("audit-event.md", "Events have the requests, bytes and records that clients counted.")
@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.slow), "consumer"])
def test_librdkafka(proxied: Proxied, protocol: str) -> None:
    before = proxied.quiet()
    topic = f"every-rdkafka-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": proxied.state.bootstrap})
    create(admin, NewTopic(topic, 2, 1))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [f"{codec} {n}".encode() * 20 for n in range(RECORDS)]
        assert produce(proxied.state.bootstrap, topic, values, **{"compression.type": codec}) == RECORDS
    assert len(consume(proxied.state.bootstrap, topic, 5 * RECORDS, **{"group.protocol": protocol})) == 5 * RECORDS
    admin.delete_topics([topic])[topic].result(180)
    del admin  # its connections end with it
    after = proxied.quiet()

    def grown(name: str, **labels: str) -> int:
        return int(sample(after, name, **labels) - sample(before, name, **labels))

    events = newest(proxied, grown("brokerside_requests_total"))
    by_api = Counter(event.api for event in events)
    assert {api: grown("brokerside_requests_total", api=api) for api in by_api} == dict(by_api)
    from_client, from_broker = (
        grown("brokerside_bytes_total", direction=way) for way in ("client_to_broker", "broker_to_client")
    )
    assert sum(event.request_bytes for event in events) == from_client
    answered = sum(event.response_bytes - added(event) for event in events)
    if any(event.outcome == "connection_lost" for event in events):
        assert answered <= from_broker  # a client may leave while its answer comes in
    else:
        assert answered == from_broker
    assert grown("brokerside_frames_invalid_total") == 0
    assert records(events, "Produce", topic) == 5 * RECORDS
    assert records(events, "Fetch", topic) >= 5 * RECORDS
    assert not [part for event in events for part in event.topics if part.topic.startswith("id:")]
    assert not [event for event in events if event.decode in ("malformed", "unsupported")]


def added(event: RequestEvent) -> int:
    """Bytes by which the response is longer than the broker's: those of the sidecar's own api in a list of apis."""
    if event.api != "ApiVersions" or event.outcome != "answered" or event.error_code:
        return 0
    return 7 if event.api_version >= 3 else 6


def newest(proxied: Proxied, count: int) -> list[RequestEvent]:
    """The last ``count`` events in the order of their numbers, once every frame has one."""
    deadline = time.monotonic() + DELIVERY_TIMEOUT
    total = int(sample(proxied.sidecar.metrics(), "brokerside_requests_total"))
    while len(events := audited_requests(proxied.state.internal_bootstrap, "brokerside-audit")) < total:
        assert time.monotonic() < deadline, f"{total} requests, {len(events)} events"
        time.sleep(0.3)
    assert len(events) == total
    return sorted(events, key=lambda event: event.seq)[total - count :]


# ---- clients of other languages produce and consume unchanged --------------------------------------------------------

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"


def lines(client: Client) -> list[str]:
    """2,000 records of 0 to 1,200 bytes that compress, and one of 300 kB that does not."""
    values = [(f'{{"client":"{client.name}"}} ' * 50)[: n % 1201] for n in range(2000)]
    values.append(random.Random(client.name).randbytes(150_000).hex())
    return [f"{n:06d}\t{value}" for n, value in enumerate(values)]


@BUILDING
@pytest.mark.slow
@pytest.mark.promise("clients.md", "Clients of five other libraries produce and read with all their codecs.")
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_client(proxied: Proxied, client: Client, protocol: str, pytestconfig: pytest.Config) -> None:
    if protocol == "SSL" and not pytestconfig.getoption("--interop-tls"):
        pytest.skip("the clients over TLS take 40 s more: make interop")
    sent = lines(client)
    client_id = f"interop-{client.name}-{protocol}"
    bootstrap, ca = (proxied.state.bootstrap, None) if protocol == "PLAINTEXT" else (proxied.tls_bootstrap, proxied.ca)
    topic = new_topic(proxied.state, client_id)
    requests = sample(proxied.quiet(), "brokerside_requests_total")
    connections = proxied.metric("brokerside_connections_accepted_total")
    handshakes = proxied.metric("brokerside_tls_handshakes_total")

    report = client.run([bootstrap, topic, f"{topic}-group", client_id, str(PARTITIONS)], sent, ca)

    assert report.partitions == PARTITIONS
    assert (report.produced, report.consumed, report.committed) == (len(sent), len(sent), len(sent))
    assert report.sha256 == digest(sent)
    assert proxied.metric("brokerside_connections_accepted_total") > connections
    assert (proxied.metric("brokerside_tls_handshakes_total") > handshakes) == (protocol == "SSL")
    assert proxied.metric("brokerside_frames_invalid_total") == 0
    events = wait_audited(proxied, client_id, int(sample(proxied.quiet(), "brokerside_requests_total") - requests))
    assert records(events, "Produce", topic) == len(sent)
    assert records(events, "Fetch", topic) >= len(sent)
    assert {event.decode for event in events if event.api in ("Produce", "Fetch")} == {"full"}
    expected = row(report, events)
    assert expected in DOCUMENT.read_text(encoding="utf-8").splitlines(), f"docs/clients.md lacks the line\n{expected}"
