"""What the coordinator of groups relies on, of brokers and of librdkafka (docs/decisions/0037-groups-in-kafka.md)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from proxy.config import load
from proxy.coordinator.effects import ReadCommittedOffsets
from proxy.coordinator.events import CommittedOffsetsRead, Event, OrdinaryMembersFound, PartitionOffsets
from proxy.fleet.fenced_writer import RETRY_BACKOFF_MS
from proxy.fleet.group_metadata import group_metadata, read_template
from proxy.fleet.group_queries import GroupQueries
from proxy.interceptors.consumer_rights import Rights, ask_rights
from proxy.local import cluster as local_cluster
from tests.integration.authorizer import secured_properties
from tests.integration.quotas import Peer, text

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("GROUPS_FULL"), reason="measures for minutes: GROUPS_FULL=1"),
]

FIND_COORDINATOR = 10
METADATA = group_metadata(read_template())
TOPIC = "t"


class Broker:
    """A broker with an authorizer. ``sasl``: where clients log in; ``version``: of Kafka."""

    def __init__(self, version: str, bootstrap: str, sasl: str) -> None:
        self.version, self.bootstrap, self.sasl = version, bootstrap, sasl
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def producer(self, transactional_id: str = "test") -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": transactional_id}
        producer = Producer({**settings, "retry.backoff.ms": RETRY_BACKOFF_MS, "log_level": 0})
        producer.init_transactions(30)
        return producer

    def offset(self, group: str, *, stable: bool = False) -> int | KafkaError | None:
        """The committed offset of partition 0."""
        found = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], require_stable=stable)
        for one in found[group].result(30).topic_partitions:
            return one.error or one.offset
        return None


@pytest.fixture(scope="module", params=["3.9.2", "4.3.1", "4.4.0"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("groups")
    node = local_cluster.up(folder, kafka_version=request.param, progress=False).nodes[0]
    local_cluster.down(folder)
    properties, sasl, _ = secured_properties(node, ["guest"])
    try:
        local_cluster.up(folder, kafka_version=request.param, broker_properties=properties, progress=False)
        made = Broker(request.param, node.internal, sasl)
        made.admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        with Peer(made.bootstrap) as peer:  # librdkafka may wait for it for minutes (decision 0037)
            until(lambda: peer.ask(FIND_COORDINATOR, 0, text("any"))[:2] == b"\0\0")
        yield made
    finally:
        local_cluster.down(folder)


def until(fits: Callable[[], Any]) -> None:
    """A transaction is acknowledged before its offsets are there."""
    deadline = time.monotonic() + 20
    while not fits():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def commit(producer: Producer, offset: int, *groups: str) -> None:
    producer.begin_transaction()
    for group in groups:
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], METADATA(group), 20)
    producer.commit_transaction(20)


def test_offsets_of_many_groups_are_committed_in_one_transaction(broker: Broker) -> None:
    producer = broker.producer()
    groups = [f"new-{number}" for number in range(25)]
    commit(producer, 5, *groups)  # they do not exist
    until(lambda: all(broker.offset(group, stable=True) == 5 for group in groups))
    commit(producer, 6, *groups)  # they are empty
    until(lambda: all(broker.offset(group, stable=True) == 6 for group in groups))


@pytest.mark.parametrize("count", [0, 1, 25])
def test_how_long_a_transaction_with_offsets_of_groups_takes(broker: Broker, count: int) -> None:
    """It prints the times; none is asserted."""
    producer = broker.producer("time")
    times = []
    for number in range(50):
        began = time.perf_counter()
        producer.begin_transaction()
        producer.produce(TOPIC, b"record")
        for group in range(count):
            producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, number)], METADATA(f"time-{group}"), 20)
        producer.commit_transaction(20)
        times.append(1000 * (time.perf_counter() - began))
    until(lambda: all(broker.offset(f"time-{group}", stable=True) == 49 for group in range(count)))
    times.sort()
    print(f"Kafka {broker.version}, offsets of {count} groups: p50 {times[25]:.0f} ms, max {times[49]:.0f} ms")


def test_how_long_partitions_take_to_be_unassigned_and_assigned(broker: Broker) -> None:
    """One while the others wait for messages, and all; as the client does it. It prints the times; none is asserted."""
    count = 50
    every = [TopicPartition("many", number, 0) for number in range(count)]
    broker.admin.create_topics([NewTopic("many", count, 1)])["many"].result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for one in every:
        producer.produce(one.topic, b"record", partition=one.partition)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "many", "enable.auto.commit": False})

    def poll(which: list[TopicPartition]) -> None:
        got = {message.partition() for _ in which if (message := consumer.poll(20)) is not None}
        assert got == {one.partition for one in which}

    def move(which: list[TopicPartition]) -> list[float]:
        times = [time.perf_counter()]
        for step in (consumer.incremental_unassign, consumer.incremental_assign, poll):
            step(which)
            times.append(time.perf_counter())
        return [1000 * (after - before) for before, after in pairwise(times)]

    consumer.incremental_assign(every)
    poll(every)
    for what, rounds in (("one", [move([one]) for one in every]), ("all", [move(every) for _ in range(10)])):
        shown = [f"p50 {median(each):.1f}, max {max(each):.1f}" for each in zip(*rounds, strict=True)]
        steps = ("unassign", "assign", "its messages after that")
        print(
            f"Kafka {broker.version}, {what} of {count}, ms: "
            + "; ".join(map(" ".join, zip(steps, shown, strict=True)))
        )
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_do_not_hinder_a_transaction_and_are_found_by_asking(broker: Broker, protocol: str) -> None:
    if protocol == "consumer" and broker.version == "3.9.2":
        pytest.skip("its brokers have that protocol as a preview only")
    group = f"members-{protocol}"
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    until(lambda: consumer.poll(0.1) or consumer.assignment())
    described = broker.admin.describe_consumer_groups([group])[group].result(30)
    assert (described.state.name, len(described.members)) == ("STABLE", 1)
    commit(broker.producer(), 7, group)
    until(lambda: broker.offset(group, stable=True) == 7)
    consumer.close()
    described = broker.admin.describe_consumer_groups([group])[group].result(30)
    assert (described.state.name, len(described.members)) == ("EMPTY", 0)
    unknown = broker.admin.describe_consumer_groups(["unknown"])["unknown"].result(30)
    assert (unknown.state.name, len(unknown.members)) == ("DEAD", 0)


def test_an_open_transaction_is_told_where_stable_offsets_are_asked_for(broker: Broker) -> None:
    producer = broker.producer("stable")
    commit(producer, 1, "stable")
    until(lambda: broker.offset("stable", stable=True) == 1)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 2)], METADATA("stable"), 20)
    pending = broker.offset("stable", stable=True)
    assert isinstance(pending, KafkaError)
    assert pending.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    assert broker.offset("stable") == 1
    producer.abort_transaction(20)
    until(lambda: broker.offset("stable", stable=True) == 1)


def test_an_open_transaction_with_the_first_offset_is_told_only_where_its_partition_is_named(broker: Broker) -> None:
    producer = broker.producer("first")
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 2)], METADATA("first"), 20)
    assert broker.offset("first", stable=True) is None
    named = ConsumerGroupTopicPartitions("first", [TopicPartition(TOPIC, 0)])
    found = broker.admin.list_consumer_group_offsets([named], require_stable=True)["first"].result(30)
    [pending] = found.topic_partitions
    assert pending.error is not None
    assert pending.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    producer.abort_transaction(20)


@pytest.mark.parametrize("group", ["grüße", "a\tb", "\x7f"])
def test_librdkafka_commits_no_offsets_of_a_group_whose_id_is_not_printable_ascii(broker: Broker, group: str) -> None:
    producer = broker.producer("ids")
    producer.begin_transaction()
    with pytest.raises(KafkaException, match="group id is not safe"):
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 1)], METADATA(group), 20)
    producer.abort_transaction(20)
    every = "".join(chr(code) for code in range(0x20, 0x7F))
    commit(producer, 2, every)
    until(lambda: broker.offset(every, stable=True) == 2)


def test_a_commit_that_commits_nothing_tells_who_may_read_a_group_and_topics(broker: Broker) -> None:
    def rights(user: tuple[str, str] | None, group: str) -> Rights:
        with Peer(broker.sasl if user else broker.bootstrap, user=user) as peer:

            async def call(key: int, version: int, body: bytes) -> bytes:
                return peer.ask(key, version, body)

            return asyncio.run(ask_rights(call, group, [TOPIC, "nosuch"]))

    guest = ("guest", "guest-secret")
    commit(broker.producer("rights"), 7, "used")
    assert rights(guest, "used") == Rights(False)
    literal, read, allow = ResourcePatternType.LITERAL, AclOperation.READ, AclPermissionType.ALLOW
    allowed = AclBinding(ResourceType.GROUP, "used", literal, "User:guest", "*", read, allow)
    broker.admin.create_acls([allowed])[allowed].result(30)
    until(lambda: rights(guest, "used") == Rights(True, frozenset({TOPIC, "nosuch"})))
    assert rights(None, "used") == rights(None, "unused") == Rights(True)
    until(lambda: broker.offset("used", stable=True) == 7)
    groups = broker.admin.list_consumer_groups().result(30).valid
    assert "unused" not in {one.group_id for one in groups}


class Asking:
    """Asks as the coordinator does. ``events``: what was reported."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        path = folder / "sidecar.yaml"
        path.write_text(
            f"broker.id: 1\ninternal.bootstrap.servers: {broker.bootstrap}\ncoordinator: {{enabled: true}}\n"
            "listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: 'k:1'}]\n"
        )
        self.events = asyncio.Queue[Event]()
        self.queries = GroupQueries(load(path), "test", self.events.put_nowait)

    async def has_members(self, group: str) -> bool | None:
        self.queries.find_ordinary_members(group)
        event = await asyncio.wait_for(self.events.get(), 30)
        assert isinstance(event, OrdinaryMembersFound)
        return event.has_members

    async def offsets(self, group: str) -> PartitionOffsets | None:
        self.queries.read_committed_offsets(ReadCommittedOffsets(0, group, 1))
        event = await asyncio.wait_for(self.events.get(), 30)
        assert isinstance(event, CommittedOffsetsRead)
        return event.offsets


@pytest_asyncio.fixture
async def asking(broker: Broker, tmp_path: Path) -> AsyncIterator[Asking]:
    made = Asking(broker, tmp_path)
    yield made
    await made.queries.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer", "share"])
async def test_members_of_any_type_are_found(broker: Broker, asking: Asking, protocol: str) -> None:
    """S1-80."""
    if protocol != "classic" and broker.version == "3.9.2":
        pytest.skip("its brokers have that protocol as a preview only")
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": f"asked-{protocol}"}
    if protocol == "share":
        consumer: Any = ShareConsumer(settings)
    else:
        consumer = Consumer({**settings, "group.protocol": protocol})
    assert await asking.has_members(f"asked-{protocol}") is False  # there is no such group
    consumer.subscribe([TOPIC])
    async with asyncio.timeout(30):
        while not await asking.has_members(f"asked-{protocol}"):
            await asyncio.to_thread(consumer.poll, 0.1)
    await asyncio.to_thread(consumer.close)
    async with asyncio.timeout(30):
        while await asking.has_members(f"asked-{protocol}"):
            pass


async def test_offsets_are_read_once_the_transaction_with_them_is_over(broker: Broker, asking: Asking) -> None:
    """S1-73."""
    assert await asking.offsets("read") == {}
    producer = broker.producer("read")
    await asyncio.to_thread(commit, producer, 1, "read")
    async with asyncio.timeout(20):
        while await asking.offsets("read") == {}:  # of an open transaction with the first offsets nothing is said
            pass
    assert await asking.offsets("read") == {(TOPIC, 0): 1}
    producer.begin_transaction()
    await asyncio.to_thread(producer.send_offsets_to_transaction, [TopicPartition(TOPIC, 0, 2)], METADATA("read"), 20)
    found = asyncio.create_task(asking.offsets("read"))
    await asyncio.sleep(0.3)
    assert not found.done()
    await asyncio.to_thread(producer.commit_transaction, 20)
    assert await found == {(TOPIC, 0): 2}
    assert await asking.has_members("read") is False
