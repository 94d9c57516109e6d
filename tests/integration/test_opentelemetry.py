"""The audit's events as OpenTelemetry logs, beside the audit topic: the same events, and the same accounts of loss."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.collector import OK, Collector, byte_by_byte, hang_up, response, say_nothing, without_end
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, running, until
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

OBSERVER = "observers.opentelemetry:OpenTelemetryLogsObserver"
AUDIT = "observers.audit:AuditObserver"
SMALL_BATCHES: dict[str, str | int] = {"linger.ms": 0, "batch.num.messages": 1}
"""A request for each record."""

Event = dict[str, Any]
Start = Callable[..., AbstractContextManager[SidecarProcess]]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def start(cluster: ClusterState, collector: Collector, tmp_path: Path) -> Start:
    """The sidecar before the broker with both observers, an audit topic of its own, and settings as given."""
    topic = f"audit-{uuid.uuid4().hex[:8]}"

    def start(
        *, workers: int = 1, patience_ms: int = 20_000, **settings: Any
    ) -> AbstractContextManager[SidecarProcess]:
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


def missing(events: list[tuple[str, Event]], boot_id: str) -> tuple[set[int], set[int]]:
    """Numbers of a run that did not arrive, and those that ``gap`` events name, of whatever run these are."""
    numbers = {event["seq"] for boot, event in events if boot == boot_id}
    gaps = [event for _, event in events if event["kind"] == "gap" and event["lost_boot_id"] == boot_id]
    named = {n for gap in gaps for n in range(gap["lost_first_seq"], gap["lost_last_seq"] + 1)}
    return set(range(1, max(numbers | named) + 1)) - numbers, named


def waiting(sidecar: SidecarProcess) -> float:
    text = sidecar.metrics()
    return sample(text, "brokerside_opentelemetry_queued") + sample(text, "brokerside_opentelemetry_spooled")


def balanced(text: str) -> bool:
    """Whether the accounts of the OpenTelemetry logs agree."""
    names = ("delivered_total", "dropped_total", "spooled", "queued", "left_total")
    counts = [sample(text, f"brokerside_opentelemetry_{name}") for name in names]
    return sample(text, "brokerside_opentelemetry_emitted_total") == sum(counts)


@pytest.mark.promise("opentelemetry.md", "Every event of the audit topic is a log record at the collector.")
@pytest.mark.promise("opentelemetry.md", "Nothing that a collector does reaches a client.")
def test_every_event_on_the_topic_is_a_log_record_whatever_becomes_of_the_collector(
    start: Start, cluster: ClusterState, collector: Collector, topic: str, tmp_path: Path
) -> None:
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
        assert [missing(events, boot_id) for boot_id in boots] == [(set(), set())] * 2
        last = [event for _, event in events if event.get("last")]
        assert [event["emitted"] == event["seq"] - 1 for event in last] == [True] * 2
        assert sum(event["seen"] for event in last) == sum(comparable(events).values())
        assert sum(event.get("waiting", 0) + event.get("hidden", 0) for event in last) == 0
    assert list((tmp_path / "collector").iterdir()) == [], "all was delivered"


@pytest.mark.promise("opentelemetry.md", "A collector that says nothing does not hold up the end.")
@pytest.mark.slow
def test_a_collector_that_says_nothing_does_not_hold_up_the_end(
    start: Start, cluster: ClusterState, collector: Collector, topic: str, tmp_path: Path
) -> None:
    collector.usual = say_nothing
    with start(patience_ms=8000, **{"timeout.ms": 600_000}):  # it ends within the time to drain and to close
        assert produce(cluster.bootstrap, topic, [b"v"] * 300, **SMALL_BATCHES) == 300
        until(lambda: collector.requests)
    collector.usual = OK
    with start() as again:
        until(lambda: sample(again.metrics(), "brokerside_opentelemetry_replayed_total") > 300 and waiting(again) == 0)
    received, expected = collector.events(), audited(cluster, again.config)
    assert comparable(received) == comparable(expected)
