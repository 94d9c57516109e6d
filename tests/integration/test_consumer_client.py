"""``proxy.client.consumer`` with a real broker, and a coordinator that does what the test says."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.client.consumer import CommitRefused, ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer import consumer as consumer_module
from proxy.client.consumer.streams import MessageStream
from proxy.local.cluster import ClusterState
from tests.integration.scripted_coordinator import SECONDS, ScriptedCoordinator

pytestmark = pytest.mark.kafka

SMALLEST = -2

SESSION_TIMEOUT_MS = 60_000
"""The coordinator of the tests does not ping."""


@pytest.fixture
def topic(cluster: ClusterState) -> str:
    """Two partitions, with 100 messages each."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    produce(cluster, name)
    return name


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    before = set(threading.enumerate())
    with ScriptedCoordinator() as scripted:
        yield scripted
    assert {one.name for one in set(threading.enumerate()) - before} == set()


def produce(cluster: ClusterState, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.internal_bootstrap})
    for number in range(200):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(30) == 0


def consumer_of(coordinator: ScriptedCoordinator, cluster: ClusterState, **arguments: Any) -> CoordinatedConsumer:
    kafka = {"bootstrap.servers": cluster.internal_bootstrap}
    group = f"g-{uuid.uuid4().hex[:8]}"
    return CoordinatedConsumer(
        coordinator.address, group, "c1", kafka=kafka, session_timeout_ms=SESSION_TIMEOUT_MS, **arguments
    )


def begin(consumer: CoordinatedConsumer, coordinator: ScriptedCoordinator, topic: str) -> MessageStream:
    """Register the consumer, and start it at the first message of partition 0; its stream."""
    (stream,) = consumer.create_message_streams({topic: 1})[topic]
    coordinator.register()
    coordinator.start([(topic, 0, 0)])
    return stream


def take(stream: MessageStream, count: int) -> list[int | None]:
    """The offsets of the next messages."""
    messages = [stream.poll(SECONDS) for _ in range(count)]
    return [None if one is None else one.offset() for one in messages]


def shut_down(consumer: CoordinatedConsumer, coordinator: ScriptedCoordinator) -> dict[tuple[str, int], int]:
    """Leave, and return the offsets that the coordinator has heard last: none if it leaves before a ping."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(consumer.shutdown)
        responses = coordinator.ping_until_end()
        done.result(SECONDS)
    last = responses[-1].offsets if responses else None
    return {(one.topic, one.partition): one.offset for one in last or ()}


@pytest.mark.promise("consumer.md", "Each partition belongs to one of a consumer's streams, and `shutdown` ends them.")
def test_two_streams_iterate_and_shutdown_reports_the_last_offsets(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster) as consumer:
        first, second = consumer.create_message_streams({topic: 2})[topic]
        registered = coordinator.register()
        assert registered.topic_count == f'{{"{topic}":2}}'
        assert coordinator.start([(topic, 0, SMALLEST)], [(topic, 1, 40)]).error_code == 0
        assert take(first, 100) == list(range(100))
        assert take(second, 60) == list(range(40, 100))
        assert shut_down(consumer, coordinator) == {(topic, 0): 100, (topic, 1): 100}
        assert list(first) == list(second) == []


@pytest.mark.promise(
    "consumer.md", "A consumer reports exact offsets with StopFetcher, and hands out nothing of what was stopped."
)
def test_nothing_is_handed_out_after_stop_fetcher(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        coordinator.register()
        coordinator.start([(topic, 0, 0), (topic, 1, 0)])
        taken = [stream.poll(SECONDS) for _ in range(30)]
        stopped = coordinator.stop()
        assert stream.poll(0) is None
        counts = Counter((topic, one.partition()) for one in taken if one is not None)
        assert {(one.topic, one.partition): one.offset for one in stopped.offsets or ()} == counts
        produce(cluster, topic)
        assert stream.poll(0.2) is None
        coordinator.start([(topic, which, counts[topic, which]) for which in (0, 1)])
        again = [stream.poll(SECONDS) for _ in range(370)]
        offsets = sorted((one.partition(), one.offset()) for one in [*taken, *again] if one is not None)
        assert offsets == [(which, offset) for which in (0, 1) for offset in range(200)]
        shut_down(consumer, coordinator)


def test_a_paused_process_hands_out_nothing_after_its_lease(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_ms = 0
    clock = consumer_module.boottime_ms
    monkeypatch.setattr(consumer_module, "boottime_ms", lambda: clock() + pause_ms)
    with consumer_of(coordinator, cluster) as consumer:
        stream = begin(consumer, coordinator, topic)
        assert take(stream, 10) == list(range(10))
        pause_ms = SESSION_TIMEOUT_MS
        assert stream.poll(0) is None
        assert coordinator.receives_end()
        coordinator.hang_up()
        coordinator.register()
        reported = coordinator.ping()
        assert [(one.partition, one.offset) for one in reported.offsets or ()] == [(0, 10)]
        assert stream.poll(0) is None
        coordinator.start([(topic, 0, 10)])
        assert take(stream, 90) == list(range(10, 100))
        shut_down(consumer, coordinator)


@pytest.mark.promise(
    "consumer.md",
    "A consumer whose application takes nothing for `max_poll_interval_ms` leaves, and its streams raise.",
)
def test_an_application_that_stands_still_leaves_its_group(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_ms = 0
    clock = consumer_module.boottime_ms
    monkeypatch.setattr(consumer_module, "boottime_ms", lambda: clock() + passed_ms)
    with consumer_of(coordinator, cluster, max_poll_interval_ms=30_000) as consumer:
        stream = begin(consumer, coordinator, topic)
        assert take(stream, 10) == list(range(10))
        passed_ms = 30_000
        last = coordinator.ping_until_end()[-1]
        assert [(one.partition, one.offset) for one in last.offsets or ()] == [(0, 10)]
        with pytest.raises(ConsumerFailed, match="max_poll_interval_ms"):
            next(stream)


@pytest.mark.promise("consumer.md", "An offset that is not there any more begins anew by `auto_offset_reset`.")
def test_an_offset_out_of_range_is_reset_after_a_reconnect(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        coordinator.register()
        coordinator.start([(topic, 0, 5000)])
        assert coordinator.receives_end()
        coordinator.hang_up()
        coordinator.register()
        coordinator.start([(topic, 0, 5000)])
        assert take(stream, 100) == list(range(100))
        shut_down(consumer, coordinator)


@pytest.mark.promise("consumer.md", "A full stream does not hold up another one.")
def test_a_full_stream_does_not_hold_up_the_other_one(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.client.consumer.streams.MAX_STREAM_MESSAGES", 20)
    monkeypatch.setattr("proxy.client.consumer.fetching.MAX_BATCH", 5)
    with consumer_of(coordinator, cluster) as consumer:
        first, second = consumer.create_message_streams({topic: 2})[topic]
        coordinator.register()
        coordinator.start([(topic, 0, 0)], [(topic, 1, 0)])
        assert take(second, 100) == list(range(100))
        assert take(first, 100) == list(range(100))
        shut_down(consumer, coordinator)


@pytest.mark.promise(
    "consumer.md", "With `auto_commit=False` the application commits, also in `on_revoked`, and not what it has lost."
)
def test_offsets_are_committed_by_the_application_also_while_partitions_are_revoked(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.client.consumer.streams.MAX_STREAM_MESSAGES", 5)  # a stream is full meanwhile
    calls: list[tuple[str, list[tuple[str, int]]]] = []

    def revoked(partitions: list[tuple[str, int]]) -> None:
        calls.append(("revoked", partitions))
        consumer.commit_offsets()

    def assigned(partitions: list[tuple[str, int]]) -> None:
        calls.append(("assigned", partitions))

    with consumer_of(coordinator, cluster, auto_commit=False, on_assigned=assigned, on_revoked=revoked) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        group = coordinator.register().group_id
        with pytest.raises(CommitRefused, match="nothing is assigned"):
            consumer.commit_offsets()
        coordinator.start([(topic, 0, 0)])
        for number in range(0, 90, 30):
            assert take(stream, 30) == list(range(number, number + 30))
            consumer.commit_offsets()
            assert committed(cluster, group, topic) == number + 30
        assert take(stream, 1) == [90]
        stopped = coordinator.stop()
        assert (stopped.error_code, stopped.offsets) == (0, None)
        assert committed(cluster, group, topic) == 91
        assert calls == [("assigned", [(topic, 0)]), ("revoked", [(topic, 0)])]
        with pytest.raises(CommitRefused, match="nothing is assigned"):
            consumer.commit_offsets()
        shut_down(consumer, coordinator)


def test_a_commit_beside_other_members_is_refused(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster, auto_commit=False) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        group = coordinator.register().group_id
        coordinator.start([(topic, 0, 0)])
        assert take(stream, 10) == list(range(10))
        classic = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": group})
        try:
            joined = threading.Event()
            classic.subscribe([topic], on_assign=lambda *_: joined.set())
            while not joined.is_set():
                classic.poll(0.1)
            with pytest.raises(CommitRefused, match=f"group {group} has members of Kafka's own group protocols"):
                consumer.commit_offsets()
        finally:
            classic.close()
        shut_down(consumer, coordinator)


def committed(cluster: ClusterState, group: str, topic: str) -> int:
    """What the broker has for partition 0."""
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (found,) = admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions
    return int(found.offset)
