"""What the coordinator of groups relies on, of brokers and of librdkafka (docs/decisions/0037-groups-in-kafka.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
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
from tests.brokers import secured_broker
from tests.integration.quotas import Peer, text

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

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


@pytest.fixture(scope="module", params=["3.9.2", "4.4.0"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("groups")
    with secured_broker(folder, request.param) as found:
        made = Broker(request.param, found.node.internal, found.listeners["OWN"].address)
        made.admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        with Peer(made.bootstrap) as peer:  # librdkafka may wait for it for minutes (decision 0037)
            until(lambda: peer.ask(FIND_COORDINATOR, 0, text("any"))[:2] == b"\0\0")
        yield made


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


@pytest.mark.promise(
    "decisions/0037-groups-in-kafka.md", "Kafka commits offsets of groups that it does not know in one transaction."
)
def test_offsets_of_many_groups_are_committed_in_one_transaction(broker: Broker) -> None:
    producer = broker.producer()
    groups = [f"new-{number}" for number in range(25)]
    for offset in (5, 6):  # first they do not exist, then they are empty
        commit(producer, offset, *groups)
        until(lambda: all(broker.offset(group, stable=True) == offset for group in groups))  # noqa: B023
    for group in ("grüße", "a\tb", "\x7f"):
        producer.begin_transaction()
        with pytest.raises(KafkaException, match="group id is not safe"):  # librdkafka: it is not printable ASCII
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
async def test_members_of_any_type_do_not_hinder_a_transaction_and_are_found_by_asking(
    broker: Broker, asking: Asking, protocol: str
) -> None:
    if protocol != "classic" and broker.version == "3.9.2":
        pytest.skip("its brokers have that protocol as a preview only")
    group = f"asked-{protocol}"
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group}
    if protocol == "share":
        consumer: Any = ShareConsumer(settings)
    else:
        consumer = Consumer({**settings, "group.protocol": protocol})
    assert await asking.has_members(group) is False  # there is no such group
    consumer.subscribe([TOPIC])
    async with asyncio.timeout(60):
        while not await asking.has_members(group):
            await asyncio.to_thread(consumer.poll, 0.1)
    if protocol != "share":
        await asyncio.to_thread(commit, broker.producer(), 7, group)
        async with asyncio.timeout(60):
            while await asking.offsets(group) != {(TOPIC, 0): 7}:
                pass
    await asyncio.to_thread(consumer.close)
    async with asyncio.timeout(60):
        while await asking.has_members(group):
            pass


async def test_offsets_are_read_once_the_transaction_with_them_is_over(broker: Broker, asking: Asking) -> None:
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
