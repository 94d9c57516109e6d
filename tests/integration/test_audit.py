"""The audit observer against a real broker: what it emits arrives, and what does not arrive is counted."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # public, but without __all__
from confluent_kafka.cimpl import NewTopic

from observers.account_events import GapEvent, StatusEvent
from observers.audit import AuditObserver
from observers.cluster_events import InventoryEvent
from observers.dispatch import Dispatcher
from observers.event import ConnectionEvent, Envelope, RequestEvent, RollupEvent, ThrottleEvent, decoder
from observers.event import TopicPartition as PartitionOfEvent
from observers.event_observer import AuditStats
from observers.kafka_admin import AUDIT_PARTITIONS, KafkaAdmin
from observers.topic_names import TopicNames
from proxy.core.apis import APIS
from proxy.core.exchange import ConnectionTransition
from proxy.local import cluster as local
from proxy.local.state import ClusterState
from tests.tools.topic import messages
from tests.unit.observers.samples import connection, exchange, fetch, produce, report

pytestmark = pytest.mark.kafka

NOBODY = "127.0.0.1:1"
"""A port where no broker is."""


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def configs(bootstrap: str, topic: str, **audit: Any) -> dict[str, Any]:
    """Of a second worker, which emits no inventory."""
    return {
        "worker": 2,
        "broker.id": 1,
        "boot.id": f"boot-{topic}",
        "sidecar.version": "0.1.0",
        "internal": {"bootstrap.servers": bootstrap},
        "topic.names": TopicNames(KafkaAdmin({"bootstrap.servers": bootstrap}, "test").list_topic_names),
        "audit": {"topic": topic, **audit},
        "api.names": {key: api.name for key, api in APIS.items()},
    }


def auditing(bootstrap: str, topic: str, **audit: Any) -> AuditObserver:
    observer = AuditObserver()
    observer.configure(configs(bootstrap, topic, **audit))
    return observer


def accounted(stats: AuditStats) -> bool:
    return stats.emitted == stats.delivered + sum(stats.dropped.values()) + stats.spooled + stats.queued


def envelopes(bootstrap: str, topic: str) -> list[Envelope]:
    """Every record of ``topic``, by first number."""
    read: list[Envelope] = []
    for message in messages(bootstrap, topic):
        assert message.key() is None
        read.append(decoder.decode(message.value() or b""))
    return sorted(read, key=lambda e: e.first_seq)


def events(read: list[Envelope], kind: Any = object) -> list[Any]:
    """Events of this kind but for statuses in between, by number."""
    reported = [event for e in read for event in e.events]
    return [
        event
        for event in reported
        if isinstance(event, kind) and not (isinstance(event, StatusEvent) and not event.last)
    ]


def touched(read: list[Envelope]) -> list[PartitionOfEvent]:
    """Every partition in an event."""
    return [part for e in read for event in e.events if isinstance(event, RequestEvent) for part in event.topics]


def gaps(read: list[Envelope]) -> int:
    """Sum of the gaps between records; fails on an overlap or on a record that is not what it says."""
    missing, expected = 0, 1
    for envelope in read:
        assert envelope.first_seq >= expected
        assert [e.seq for e in envelope.events] == list(range(envelope.first_seq, envelope.last_seq + 1))
        missing += envelope.first_seq - expected
        expected = envelope.last_seq + 1
    return missing


def topic_id(admin: AdminClient, name: str) -> bytes:
    """The id of a topic that was just created, as the wire has it."""
    until(lambda: known_id(admin, name) is not None)
    return urlsafe_b64decode(f"{known_id(admin, name)}==")


def known_id(admin: AdminClient, name: str) -> str | None:
    """The id of a topic; None where the broker does not know of it, yet or any more."""
    try:
        return str(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)
    except KafkaException:
        return None


@pytest.fixture(autouse=True)
def _few_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one at the end alone, however long a test takes."""
    monkeypatch.setattr("observers.event_observer.STATUS_INTERVAL", 3600.0)


@pytest.fixture
def bootstrap(cluster: ClusterState) -> str:
    return cluster.internal_bootstrap


class TestDelivery:
    def test_every_event_arrives_once_and_in_sequence(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-arrives")
        for n in range(50):
            observer.record_exchanges([produce([(b"orders", 0, 100, 3)], correlation_id=n) for _ in range(61)], 0)
        observer.close(60)
        stats = observer.stats()
        assert stats.emitted == stats.delivered
        assert (stats.dropped, stats.queued) == ({}, 0)
        read = envelopes(bootstrap, "audit-arrives")
        assert gaps(read) == 0
        assert len(events(read, RequestEvent)) == 3050
        assert (events(read)[-1].last, events(read)[-1].seq) == (True, stats.emitted)
        assert len(read) == stats.records_delivered
        assert {(e.schema_level, e.broker_id, e.boot_id, e.dropped) for e in read} == {(1, 1, "boot-audit-arrives", 0)}
        assert {len(e.cluster_id) for e in read} == {22}
        assert sum(part.records for part in touched(read)) == 3 * 3050

    def test_events_arrive_without_further_traffic(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-quiet")
        observer.record_exchanges([exchange()], 0)
        until(lambda: observer.stats().delivered >= 1)
        observer.close(5)

    def test_what_the_dispatcher_lost_shows_as_a_gap_and_in_dropped(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-gap")
        observer.record_exchanges([exchange()] * 5, 0)
        observer.record_exchanges([exchange()] * 5, 40)
        observer.close(60)
        stats = observer.stats()
        assert (stats.emitted - stats.delivered, stats.dropped) == (40, {"observer_queue": 40})
        read = envelopes(bootstrap, "audit-gap")
        assert [event.seq for event in events(read, RequestEvent)] == [1, 2, 3, 4, 5, 46, 47, 48, 49, 50]
        assert gaps(read) == read[-1].dropped == 40

    def test_a_loss_is_reported_with_its_reason(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-emitted-gap")
        observer.record_exchanges([exchange()] * 5, 40)
        until(lambda: observer.stats().delivered >= 6)
        observer.close(60)
        (gap,) = events(envelopes(bootstrap, "audit-emitted-gap"), GapEvent)
        assert (gap.reason, gap.lost_boot_id) == ("observer_queue", "boot-audit-emitted-gap")
        assert (gap.lost_first_seq, gap.lost_last_seq, gap.seq) == (1, 40, 46)

    def test_excluded_topics_alone_give_no_event(self, bootstrap: str) -> None:
        """Not the audit topic: who reads it, or tries to write to it, is what an auditor wants to know."""
        observer = auditing(bootstrap, "audit-self", **{"exclude.topics": ["secret"], "exclude.principals": []})
        topic = b"audit-self"
        observer.record_exchanges(
            [
                produce([(topic, 0, 10, 1)]),
                fetch([(topic, 0)], [(topic, 0, 10, 1, 0)]),
                produce([(b"secret", 0, 10, 1)]),
                produce([(b"secret", 0, 10, 1), (topic, 0, 10, 1)]),
                exchange(client_id="brokerside-audit-1"),
                exchange(client_id="app"),
            ],
            0,
        )
        observer.close(60)
        assert observer.stats().hidden == 1
        read = envelopes(bootstrap, "audit-self")
        assert len(events(read, RequestEvent)) == 5
        status = events(read, StatusEvent)[-1]
        assert status.hidden_by == status.partly_hidden_by == {"topic secret": 1}

    def test_a_topic_id_is_resolved_to_its_name(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        observer = auditing(bootstrap, "audit-ids")
        for name in ("ids-a", "ids-b"):
            admin.create_topics([NewTopic(name, 1, 1)])[name].result()
            raw = topic_id(admin, name)
            observer.record_exchanges([produce([(raw, 0, 10, 1)], ids=True)] * 3, 0)
        observer.close(60)
        read = envelopes(bootstrap, "audit-ids")
        assert [part.topic for part in touched(read)] == ["ids-a"] * 3 + ["ids-b"] * 3
        assert observer.stats().topic_look_ups >= 2

    def test_each_kind_arrives_and_the_last_status_balances(self, bootstrap: str) -> None:
        observer = AuditObserver()
        topic = "audit-kinds"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("kinds", 3, 1)])["kinds"].result()
        topic_id(admin, "kinds")
        observer.configure(
            {**configs(bootstrap, topic, **{"inventory.interval.ms": 100, "exclude.topics": ["secret"]}), "worker": 1}
        )
        observer.observed[0] = 4
        observer.record_exchanges([exchange(), produce([(b"secret", 0, 10, 1)])], 0)
        observer.record_changes([ConnectionTransition(connection(), "closed", 1.0)], 0)
        observer.record_throttles([report()], 0)
        until(lambda: observer.stats().delivered >= 4)
        observer.close(60)
        read = envelopes(bootstrap, topic)
        assert {type(event) for event in events(read)} == {
            RequestEvent, ConnectionEvent, ThrottleEvent, InventoryEvent, StatusEvent,
        }  # fmt: skip
        listed = {topic.topic: topic for topic in events(read, InventoryEvent)[-1].inventory}
        assert listed["kinds"].partitions == 3
        assert topic not in listed
        (status,) = events(read, StatusEvent)
        assert (status.seen, status.hidden, status.waiting, status.last) == (4, 1, 0, True)
        assert status.emitted == status.seq - 1 == len(events(read)) - 1

    def test_an_idle_cluster_gives_nothing_but_statuses(self, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("observers.event_observer.STATUS_INTERVAL", 0.5)
        observer = AuditObserver()
        observer.configure({**configs(bootstrap, "audit-idle", **{"inventory.interval.ms": 100}), "worker": 1})
        until(lambda: observer.stats().delivered >= 5)
        until(lambda: bool(events(envelopes(bootstrap, "audit-idle"), InventoryEvent)))  # a thread of its own asks
        observer.close(60)
        reported = [type(event) for e in envelopes(bootstrap, "audit-idle") for event in e.events]
        assert reported.count(StatusEvent) >= 4
        assert set(reported) - {StatusEvent} == {InventoryEvent}
        assert reported.count(InventoryEvent) <= 2, "other tests may have made a topic meanwhile"

    def test_rollups_arrive_with_their_level(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-rollups", **{"mode": "rollup", "rollup.interval.ms": 200})
        for n in range(50):
            observer.record_exchanges([produce([(b"orders", 0, 100, 3)], correlation_id=n) for _ in range(61)], 0)
        observer.close(60)
        read = envelopes(bootstrap, "audit-rollups")
        assert gaps(read) == 0
        assert {e.schema_level for e in read} == {2}
        rollups = events(read, RollupEvent)
        assert not events(read, RequestEvent)
        assert sum(event.requests for event in rollups) == 3050
        assert sum(topic.records for event in rollups for topic in event.per_topic) == 3 * 3050
        assert len(rollups) < 50


class TestThrottles:
    def test_they_arrive_in_sequence_among_the_requests(self, bootstrap: str) -> None:
        name = "observers.audit:AuditObserver"
        dispatcher = Dispatcher([name], configs(bootstrap, "audit-throttles"))
        dispatcher.start()
        begun = time.time()
        for n in range(100):
            dispatcher.record_exchange(exchange(correlation_id=n))
            at = time.monotonic()
            dispatcher.record_throttles([report(count=n + 1, first_at=at, last_at=at + 0.5)] * 2)
        dispatcher.close(60)
        audit = dispatcher.observers[name]
        assert isinstance(audit, AuditObserver)
        stats = audit.stats()
        assert stats.emitted == stats.delivered
        assert (stats.dropped, stats.queued, stats.observed) == ({}, 0, 200)
        read = envelopes(bootstrap, "audit-throttles")
        assert gaps(read) == 0
        reported = events(read, RequestEvent | ThrottleEvent)
        assert [type(event) for event in reported] == [RequestEvent, ThrottleEvent, ThrottleEvent] * 100
        throttles = [event for event in reported if isinstance(event, ThrottleEvent)]
        assert [event.count for event in throttles] == [1 + n // 2 for n in range(200)]
        assert {event.ts_last - event.ts_first for event in throttles} <= {500_000, 500_001, 499_999}
        assert all(begun - 1 < event.ts_first / 1e6 < begun + 60 for event in throttles)

    def test_those_that_were_lost_show_as_a_gap_and_in_dropped(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-throttles-gap")
        observer.record_exchanges([exchange()], 0)
        observer.record_throttles([report(), report(observed=float("nan")), report()], 10)
        observer.close(60)
        stats = observer.stats()
        assert accounted(stats)
        assert stats.dropped == {"observer_queue": 10, "failed": 1}
        read = envelopes(bootstrap, "audit-throttles-gap")
        assert [event.seq for event in events(read, RequestEvent | ThrottleEvent)] == [1, 12, 14]
        assert gaps(read) == read[-1].dropped == 11


class TestTopic:
    def test_it_is_created_once_with_its_settings_even_by_two_sidecars_at_once(self, bootstrap: str) -> None:
        observers = [auditing(bootstrap, "audit-created") for _ in range(2)]
        for observer in observers:
            observer.record_exchanges([exchange()], 0)
        for observer in observers:
            observer.close(60)
            assert observer.stats().delivered == observer.stats().emitted
        admin = AdminClient({"bootstrap.servers": bootstrap})
        listed = admin.list_topics(timeout=20).topics["audit-created"].partitions
        assert len(listed) == AUDIT_PARTITIONS
        assert {len(p.replicas) for p in listed.values()} == {1}
        resource = ConfigResource(ConfigResource.Type.TOPIC, "audit-created")
        config = admin.describe_configs([resource])[resource].result()
        assert config["cleanup.policy"].value == "delete"
        assert config["message.timestamp.type"].value == "LogAppendTime"
        assert config["min.insync.replicas"].value == "1"

    def test_a_deleted_topic_is_made_again_and_the_loss_counted(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("audit-deleted", 1, 1)])["audit-deleted"].result()
        topic_id(admin, "audit-deleted")  # what a broker does not know for half a second is lost here
        observer = auditing(bootstrap, "audit-deleted", producer={"topic.metadata.propagation.max.ms": 500})
        observer.record_exchanges([exchange()] * 10, 0)
        until(lambda: observer.stats().delivered >= 10)
        before, deleted = observer.stats().delivered, known_id(admin, "audit-deleted")
        admin.delete_topics(["audit-deleted"])["audit-deleted"].result()
        until(lambda: known_id(admin, "audit-deleted") != deleted)  # till then the broker takes records for it

        def delivered_again() -> bool:
            observer.record_exchanges([exchange()], 0)
            return observer.stats().delivered > before

        until(delivered_again)
        observer.close(60)
        stats = observer.stats()
        assert accounted(stats)
        assert stats.queued == 0
        assert sum(len(e.events) for e in envelopes(bootstrap, "audit-deleted")) == stats.delivered - before


class TestFaults:
    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[tuple[Path, ClusterState]]:
        """A broker of this test's own, which it may stop."""
        state = local.up(tmp_path, advertise="broker", progress=False)
        yield tmp_path, state
        local.down(tmp_path)

    def test_a_broker_that_is_away_at_the_start_and_again_later(self, own: tuple[Path, ClusterState]) -> None:
        folder, state = own
        node = state.nodes[0].id
        local.stop_node(folder, node)
        observer = auditing(state.internal_bootstrap, "audit-away", producer={"queue.buffering.max.kbytes": 256})
        observer.record_exchanges([exchange()] * 500, 0)
        assert observer.stats().queued >= 500
        local.start_node(folder, node)
        until(lambda: observer.stats().delivered >= 500)

        local.stop_node(folder, node)
        for _ in range(10):
            observer.record_exchanges([exchange()] * 200, 0)
        stats = observer.stats()
        assert accounted(stats)
        lost = stats.dropped["queue_full"]
        assert 0 < lost < 2000
        local.start_node(folder, node)
        until(lambda: observer.stats().queued == 0)
        observer.record_exchanges([exchange()], 0)
        observer.close(60)

        stats = observer.stats()
        assert (stats.emitted - stats.delivered, stats.dropped) == (lost, {"queue_full": lost})
        read = envelopes(state.internal_bootstrap, "audit-away")
        assert gaps(read) == read[-1].dropped == lost
        assert sum(len(e.events) for e in read) == stats.delivered

    def test_without_a_cluster_nothing_blocks_and_every_loss_has_its_reason(self) -> None:
        begun = time.monotonic()
        observer = auditing(NOBODY, "audit-nobody")
        for _ in range(300):
            observer.record_exchanges([exchange()] * 100, 0)
        assert time.monotonic() - begun < 60, "each of the calls would wait for a cluster"
        stats = observer.stats()
        assert accounted(stats)
        assert stats.queued == stats.emitted
        begun = time.monotonic()
        observer.close(0.5)
        assert time.monotonic() - begun < 60
        stats = observer.stats()
        assert (stats.delivered, stats.dropped, stats.queued) == (0, {"no_cluster": stats.emitted}, 0)

    def test_a_record_too_large_is_counted_and_the_next_one_goes(self, bootstrap: str) -> None:
        observer = auditing(bootstrap, "audit-large", producer={"message.max.bytes": 2000})
        many = produce([(b"a", n, 100, 1) for n in range(100)])
        observer.record_exchanges([many, exchange()], 0)
        until(lambda: observer.stats().queued == 0)
        observer.record_exchanges([exchange()], 0)
        observer.close(60)
        stats = observer.stats()
        assert stats.dropped == {"too_large": 2}, "the request, and the ends of its partitions"
        assert stats.delivered == stats.emitted - 2
