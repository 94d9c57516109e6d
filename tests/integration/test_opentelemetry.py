"""The audit's events as OpenTelemetry logs: the exporter before a collector that does what it should not, and the same
events, and accounts of loss, as on the audit topic."""

import ssl
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from structlog.testing import capture_logs

from observers.event_blocks import RecordWriter
from observers.examples import encode_event
from observers.http_connection import MAX_RESPONSE_BYTES, HttpConnection
from observers.otlp_encoding import LogsEncoder
from observers.otlp_exporter import MAX_RECORD_BYTES, OtlpExporter
from observers.otlp_settings import check_settings
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.collector import OK, Answer, Collector, byte_by_byte, hang_up, response, say_nothing, without_end
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, running, until
from tests.tools.authority import Authority
from tests.tools.topic import messages

TIMEOUT = 60.0
"""Seconds for a request, where nothing is to wait for it: one more costs a test its counts."""

WAITED_FOR = 0.5
"""Seconds for a request, where the end of its time is waited for."""

Report = tuple[Any, str | None, bool, bool, int | None]


def record(first: int = 41, size: int = 0) -> bytes:
    """The value of a record of one event, larger by ``size`` bytes of a text."""
    event = encode_event("gap").replace(b'"seq":48', b'"seq":%d' % first)
    event = event.replace(b'"observer_queue"', b'"observer_queue%b"' % (b"x" * size))
    writer = RecordWriter("cluster", 1, "boot", "0.1.0")
    return writer.encode_record(first, first, event, level=1, dropped=0, sent_at=1_795_260_700_000_000)


class Desk:
    def __init__(self, endpoint: str, *, max_bytes: int = 1 << 24, timeout: float = TIMEOUT, **settings: Any) -> None:
        checked = check_settings({"endpoint": endpoint, **settings}, shows_headers=False)
        headers = [("content-encoding", "gzip")] if checked.compresses else []
        self.connection = HttpConnection(checked.url, [*headers, *checked.headers], timeout, checked.make_tls_context)
        self.reports: list[Report] = []
        self.exporter = OtlpExporter(
            self.connection,
            LogsEncoder(checked.resource_attributes),
            lambda load, reason, retriable, large, lost=None: self.reports.append(
                (load, reason, retriable, large is not None, lost)
            ),
            max_bytes=max_bytes,
            compresses=checked.compresses,
            get_cluster_id=lambda: "cluster",
        )
        self.exporter.start()

    def send(self, count: int = 1, *, size: int = 0) -> None:
        for n in range(count):
            assert self.exporter.send(record(n + 1, size), n + 1)

    def settle(self, count: int = 1) -> list[Report]:
        def done() -> bool:
            self.exporter.poll(0.05)
            return len(self.reports) >= count

        until(done)
        assert self.exporter.queued == self.exporter.queued_bytes == 0
        return self.reports


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def desk_of():
    made: list[Desk] = []

    def make(endpoint, **settings):
        made.append(Desk(endpoint, **settings))
        return made[-1]

    yield make
    for desk in made:
        desk.exporter.close(0)
        desk.exporter._thread.join(60)
        assert not desk.exporter._thread.is_alive()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("observers.otlp_response.FIRST_RETRY_DELAY", 0.01)
    monkeypatch.setattr("observers.otlp_response.LAST_RETRY_DELAY", 0.05)


@pytest.mark.promise("opentelemetry.md", "Records arrive in order over one connection, with the headers.")
def test_records_arrive_in_order_over_one_connection(collector, desk_of):
    for compression in ("none", "gzip"):
        collector.requests.clear()
        collector.taken.clear()
        collector.connections = 0
        desk = desk_of(collector.endpoint, compression=compression, headers="authorization=Bearer%20x,x-a=b")
        desk.send(20)
        assert desk.settle(20) == [(n + 1, None, False, False, None) for n in range(20)], compression
        assert [event["seq"] for _, event in collector.events()] == list(range(1, 21))
        assert collector.connections == 1
        assert {one.target for one in collector.requests} == {"/v1/logs"}
        headers = collector.requests[0].headers
        assert (headers["host"], headers["authorization"]) == (f"127.0.0.1:{collector.port}", "Bearer x")
        assert desk.exporter.records_delivered == 20
        desk.exporter.close(0)


@pytest.mark.promise("opentelemetry.md", "A request that fails for a time is sent again until it is taken.")
def test_a_record_is_sent_again_until_it_is_taken(collector, desk_of):
    def no_http(connection, _):
        connection.sendall(b"SSH-2.0-x\r\n\r\n")

    def cut_headers(connection, _):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-le")

    for what, answer, timeout in (
        *((str(status), response(status), TIMEOUT) for status in (429, 502, 503, 504)),
        ("hang up", hang_up, TIMEOUT),
        ("say nothing", say_nothing, WAITED_FOR),
        ("byte by byte", byte_by_byte, WAITED_FOR),
        ("no HTTP", no_http, TIMEOUT),
        ("cut headers", cut_headers, WAITED_FOR),
        ("headers without end", without_end(b"HTTP/1.1 200 OK\r\nx: "), TIMEOUT),
        ("a pause that it asks for", response(503, headers=[("retry-after", "1")]), TIMEOUT),
        ("503 without end", without_end(b"HTTP/1.1 503 X\r\ncontent-length: 999999999999\r\n\r\n"), TIMEOUT),
    ):
        collector.requests.clear()
        collector.taken.clear()
        collector.script += [answer, answer]
        desk, begun = desk_of(collector.endpoint, timeout=timeout), time.monotonic()
        with capture_logs() as logged:
            desk.send(2)
            assert [reason for _, reason, *_ in desk.settle(2)] == [None, None], what
        assert [event["seq"] for _, event in collector.events()] == [1, 2], what
        assert len(collector.requests) >= 4, what
        assert time.monotonic() - begun > (0.9 if "pause" in what else 0), what
        said = [one["event"] for one in logged]
        assert said[:2] == ["opentelemetry_export_failed", "opentelemetry_export_works_again"], what
        desk.exporter.close(0)


@pytest.mark.promise("opentelemetry.md", "Another status is a loss, as http_401, and no redirect is followed.")
def test_another_status_is_a_loss_with_its_reason_and_the_next_record_goes(collector, desk_of):
    """So is what a response says was rejected."""
    elsewhere = Collector()
    moved = [("location", f"{elsewhere.endpoint}/v1/logs")]
    cases: list[tuple[Answer, str | None, int | None]] = [
        *(
            (response(status, headers=moved), f"http_{status}", None)
            for status in (300, 302, 307, 400, 401, 403, 404, 415, 500, 501, 505)
        ),
        (response(200, b'{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"no"}}'), "rejected", 3),
        (response(200, b'{"partialSuccess":{"rejectedLogRecords":2}}'), "rejected", 2),
        (response(200, b'{"partialSuccess":{"errorMessage":"a hint"}}'), None, None),
        (response(200, b'{"partialSuccess":{"rejectedLogRecords":"many"}}'), None, None),
        (response(200, b'{"partialSuccess":{"rejectedLogRecords":-5}}'), None, None),
        (response(200, b'{"partialSuccess":null}'), None, None),
        *((response(200, body), None, None) for body in (b"", b"\x0a\x00")),
    ]
    collector.script.extend(answer for answer, *_ in cases)
    desk = desk_of(collector.endpoint)
    desk.send(len(cases))
    expected = [(reason, False, False, lost) for _, reason, lost in cases]
    assert [one[1:] for one in desk.settle(len(cases))] == expected
    assert desk.exporter.records_delivered == 8
    assert elsewhere.connections == 0
    elsewhere.close()


@pytest.mark.promise("opentelemetry.md", "A response of more than 1 MiB is a loss and costs no memory.")
def test_a_response_without_end_is_a_loss_and_costs_no_memory(collector, desk_of):
    sent = [0]

    def huge(connection, _):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65_536)
            sent[0] += 65_536

    collector.script.append(huge)
    desk = desk_of(collector.endpoint, timeout=20)
    desk.send(2)
    assert [reason for _, reason, *_ in desk.settle(2)] == ["response_too_large", None]
    assert sent[0] < MAX_RESPONSE_BYTES + 16 * 1024 * 1024, "but for what sockets buffer"


@pytest.mark.promise("opentelemetry.md", "An event of more than 4 MiB is lost as too_large.")
def test_a_request_that_is_too_large_is_said_to_be(collector, desk_of):
    """Also by a collector that answers before it has read the request. One above the bound is not even sent."""
    until_done = threading.Event()

    def refuse(connection, _):
        response(413, headers=[("connection", "close")])(connection, _)
        until_done.wait(10)
        raise ConnectionError

    collector.usual = refuse
    for reads_bodies in (True, False):
        collector.reads_bodies = reads_bodies
        desk = desk_of(collector.endpoint, timeout=10)
        desk.send(size=MAX_RECORD_BYTES - 1000)
        assert desk.settle() == [(1, "too_large", False, True, None)], reads_bodies
    until_done.set()
    requests = len(collector.requests)
    desk = desk_of(collector.endpoint)
    desk.send(size=MAX_RECORD_BYTES)
    assert desk.settle() == [(1, "too_large", False, True, None)]
    assert len(collector.requests) == requests


@pytest.mark.promise("opentelemetry.md", "No more than queue.max.bytes of events wait in memory.")
def test_no_more_waits_than_there_is_room_for(collector, desk_of):
    collector.usual = say_nothing
    desk = desk_of(collector.endpoint, max_bytes=10_000, timeout=0.5)
    taken = 0
    while desk.exporter.send(record(taken + 1), taken):
        taken += 1
    assert desk.exporter.queued == taken
    assert 9_000 < desk.exporter.queued_bytes <= 10_000
    collector.usual = OK
    assert len(desk.settle(taken)) == taken
    assert desk.exporter.send(record(), 0)


def test_its_end_waits_for_no_pause_and_for_nothing_to_be_halved(collector, desk_of):
    for answer in (response(503, headers=[("retry-after", "300")]), response(413)):
        collector.usual = answer
        desk = desk_of(collector.endpoint)
        desk.send()
        until(lambda: desk.exporter._is_failing or len(collector.requests) > 1)  # noqa: B023
        desk.exporter.close(0.1)
        assert desk.reports == [(1, "closed", True, False, None)]
        desk.exporter._thread.join(60)
        assert not desk.exporter._thread.is_alive()


@pytest.fixture
def secured(tmp_path):
    """With its context, and the file of its authority."""
    context, authority = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), Authority(tmp_path)
    context.load_cert_chain(*authority.issue("collector"))
    made = Collector(context)
    yield made, context, str(authority.ca)
    made.close()


@pytest.mark.promise("opentelemetry.md", "A collector over https is trusted by its certificate alone.")
def test_a_collector_is_trusted_by_its_certificate(secured, desk_of):
    collector, _, ca = secured
    desk = desk_of(collector.endpoint, certificate=ca, timeout=10)
    desk.send(3, size=1_000_000)
    assert {reason for _, reason, *_ in desk.settle(3)} == {None}
    assert (collector.connections, len(collector.requests)) == (1, 3)
    for endpoint, reason in (
        (collector.endpoint, "SSLCertVerificationError"),
        ("http://no-such-host.invalid:4318", "gaierror"),  # a name without an address is tried again
    ):
        with capture_logs() as logged:
            desk = desk_of(endpoint, timeout=10)
            desk.send()
            until(lambda: desk.exporter._is_failing)  # noqa: B023
        assert logged[0]["reason"] == reason
    assert len(collector.requests) == 3


@pytest.mark.promise("opentelemetry.md", "A renewed client certificate needs no restart.")
def test_a_renewed_client_certificate_is_used_with_the_next_connection(secured, desk_of, tmp_path):
    collector, context, ca = secured
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(new.ca)
    own = old.issue("own")
    paths = {"client.certificate": str(own.certificate), "client.key": str(own.key), "certificate": ca}
    desk = desk_of(collector.endpoint, timeout=10, **paths)
    desk.send()
    until(lambda: desk.exporter._is_failing)
    for source, target in zip(new.issue("own"), own, strict=True):
        source.replace(target)
    assert desk.settle()[0][1] is None


OBSERVER = "observers.opentelemetry:OpenTelemetryLogsObserver"
AUDIT = "observers.audit:AuditObserver"
SMALL_BATCHES: dict[str, str | int] = {"linger.ms": 0, "batch.num.messages": 1}
"""A request for each record."""

Event = dict[str, Any]


@pytest.fixture
def start(cluster, collector, tmp_path):
    """The sidecar before the broker with both observers, an audit topic of its own, and settings as given."""
    topic = f"audit-{uuid.uuid4().hex[:8]}"

    def start(*, workers=1, patience_ms=20_000, **settings):
        spool = str(tmp_path / "collector")
        own = {"endpoint": collector.endpoint, "timeout.ms": 500, "spool.path": spool, **settings}
        config = config_of(cluster.nodes[0], workers=workers, observers={OBSERVER: own})
        config["observer.class.names"] = [AUDIT, OBSERVER]
        config["audit"] = {"topic": topic, "spool.path": str(tmp_path / "topic")}
        config["observer.shutdown.timeout.ms"] = patience_ms
        return running(config, tmp_path)

    return start


def audited(cluster: ClusterState, path: Path) -> list[tuple[str, Event]]:
    """Boot id and event of everything on the audit topic of a sidecar; the same one again is left out."""
    topic = yaml.safe_load(path.read_text())["audit"]["topic"]
    found = {}
    for message in messages(cluster.internal_bootstrap, topic):
        envelope = msgspec.json.decode(message.value() or b"")
        for event in envelope["events"]:
            found[envelope["boot_id"], event["seq"]] = event
    return [(boot_id, found[boot_id, seq]) for boot_id, seq in sorted(found)]


def comparable(events: list[tuple[str, Event]]) -> Counter[str]:
    """Events of requests and connections, without the numbers that their observer gave and the time by its clock."""
    left_out = ("seq", "ts", "ts_request")
    return Counter(
        msgspec.json.encode([boot_id, *sorted((k, v) for k, v in event.items() if k not in left_out)]).decode()
        for boot_id, event in events
        if event["kind"] in ("request", "connection")
    )


def waiting(sidecar: SidecarProcess) -> float:
    text = sidecar.metrics()
    return sample(text, "brokerside_opentelemetry_queued") + sample(text, "brokerside_opentelemetry_spooled")


def balanced(text: str) -> bool:
    names = ("delivered_total", "dropped_total", "spooled", "queued", "left_total")
    counts = [sample(text, f"brokerside_opentelemetry_{name}") for name in names]
    return sample(text, "brokerside_opentelemetry_emitted_total") == sum(counts)


@pytest.mark.kafka
@pytest.mark.promise("opentelemetry.md", "Every event of the audit topic is a log record at the collector.")
@pytest.mark.promise("opentelemetry.md", "Nothing that a collector does reaches a client.")
def test_every_event_on_the_topic_is_a_log_record_whatever_becomes_of_the_collector(
    start, cluster, collector, topic, tmp_path
):
    with start(workers=2, compression="gzip") as sidecar:
        assert produce(cluster.bootstrap, topic, [b"v"] * 500, **SMALL_BATCHES) == 500
        until(lambda: bool(collector.taken) and waiting(sidecar) == 0)
        before = sidecar.metric("process_resident_memory_bytes")
        for answer in (
            say_nothing,
            byte_by_byte,
            hang_up,
            response(503, headers=[("retry-after", "1")]),
            without_end(b"HTTP/1.1 503 X\r\ncontent-length: 999999999999\r\n\r\n"),
            without_end(b"HTTP/1.1 200 OK\r\nx: "),
        ):
            collector.usual, asked = answer, len(collector.requests)
            assert produce(cluster.bootstrap, topic, [b"v"] * 200, **SMALL_BATCHES) == 200
            until(lambda: len(collector.requests) > asked)  # noqa: B023  # called at once
            assert sidecar.ready()
        collector.close()
        assert produce(cluster.bootstrap, topic, [b"v"] * 300, **SMALL_BATCHES) == 300
        assert len(consume(cluster.bootstrap, topic, 2000)) == 2000
        until(lambda: sample(sidecar.metrics(), "brokerside_opentelemetry_spooled") > 1500)
        assert balanced(text := sidecar.metrics())
        assert sample(text, "process_resident_memory_bytes") - before < 48 * 1024 * 1024
        collector.usual = OK
        collector.open()
        until(lambda: sample(sidecar.metrics(), "brokerside_opentelemetry_spooled") == 0)
        text = sidecar.metrics()
        assert sample(text, "brokerside_opentelemetry_dropped_total") == 0
        assert sample(text, "brokerside_opentelemetry_spool_failed") == 0
    received, expected = collector.events(), audited(cluster, sidecar.config)
    assert comparable(received) == comparable(expected)
    assert sum(comparable(received).values()) > 2000
    assert {"key": "messaging.kafka.cluster.id", "value": {"stringValue": cluster.cluster_id}} in (
        msgspec.json.decode(collector.taken[-1].body)["resourceLogs"][0]["resource"]["attributes"]
    )
    boots = {boot_id for boot_id, _ in expected}
    assert len(boots) == 2
    for events in (received, expected):
        assert {boot_id for boot_id, _ in events} == boots
        assert "gap" not in {event["kind"] for _, event in events}
        for boot_id in boots:
            numbers = [event["seq"] for boot, event in events if boot == boot_id]
            assert numbers == list(range(1, len(numbers) + 1))
        last = [event for _, event in events if event.get("last")]
        assert [event["emitted"] == event["seq"] - 1 for event in last] == [True] * 2
        assert sum(event["seen"] for event in last) == sum(comparable(events).values())
        assert sum(event.get("waiting", 0) + event.get("hidden", 0) for event in last) == 0
    assert list((tmp_path / "collector").iterdir()) == [], "all was delivered"


@pytest.mark.kafka
@pytest.mark.promise("opentelemetry.md", "A collector that says nothing does not hold up the end.")
@pytest.mark.slow
def test_a_collector_that_says_nothing_does_not_hold_up_the_end(start, cluster, collector, topic, tmp_path):
    collector.usual = say_nothing
    with start(patience_ms=8000, **{"timeout.ms": 600_000}):  # it ends within the time to drain and to close
        assert produce(cluster.bootstrap, topic, [b"v"] * 300, **SMALL_BATCHES) == 300
        until(lambda: collector.requests)
    collector.usual = OK
    with start() as again:
        until(lambda: sample(again.metrics(), "brokerside_opentelemetry_replayed_total") > 300 and waiting(again) == 0)
    received, expected = collector.events(), audited(cluster, again.config)
    assert comparable(received) == comparable(expected)
