"""What the coordinator of groups relies on, of brokers and of librdkafka (docs/decisions/0037-groups-in-kafka.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.config import load
from proxy.coordinator.events import Event, OrdinaryMembersFound
from proxy.fleet.fenced_writer import RETRY_BACKOFF_MS
from proxy.fleet.group_metadata import group_metadata, read_template
from proxy.fleet.group_queries import GroupQueries
from proxy.local import cluster as local_cluster
from tests.integration.quotas import Peer, text
from tests.integration.sidecars import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

FIND_COORDINATOR = 10
METADATA = group_metadata(read_template())
TOPIC = "t"


class Broker:
    """``version``: of Kafka."""

    def __init__(self, version: str, bootstrap: str) -> None:
        self.version, self.bootstrap = version, bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def producer(self) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": "test"}
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
    folder: Path = tmp_path_factory.mktemp("groups") / "cluster"
    try:
        state = local_cluster.up(folder, kafka_version=request.param, progress=False)
        made = Broker(request.param, state.internal_bootstrap)
        made.admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        with Peer(made.bootstrap) as peer:  # librdkafka may wait for it for minutes (decision 0037)
            until(lambda: peer.ask(FIND_COORDINATOR, 0, text("any"))[:2] == b"\0\0")
        yield made
    finally:
        local_cluster.discard(folder)


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


async def test_members_of_any_type_do_not_hinder_a_transaction_and_are_found_by_asking(
    broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(
        f"broker.id: 1\ninternal.bootstrap.servers: {broker.bootstrap}\ncoordinator: {{enabled: true}}\n"
        "listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: 'k:1'}]\n"
    )
    events = asyncio.Queue[Event]()
    queries = GroupQueries(load(path), "test", events.put_nowait)

    async def has_members(group: str) -> bool | None:
        queries.find_ordinary_members(group)
        event = await asyncio.wait_for(events.get(), 30)
        assert isinstance(event, OrdinaryMembersFound)
        return event.has_members

    # Brokers of 3.9 have the other protocols as a preview only.
    for protocol in ("classic",) if broker.version == "3.9.2" else ("classic", "consumer", "share"):
        group = f"asked-{protocol}"
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": group}
        consumer: Any = (
            ShareConsumer(settings) if protocol == "share" else Consumer({**settings, "group.protocol": protocol})
        )
        assert await has_members(group) is False, "there is no such group"
        consumer.subscribe([TOPIC])
        async with asyncio.timeout(60):
            while not await has_members(group):
                await asyncio.to_thread(consumer.poll, 0.1)
        if protocol != "share":
            await asyncio.to_thread(commit, broker.producer(), 7, group)
            await asyncio.to_thread(until, lambda group=group: broker.offset(group, stable=True) == 7)
        await asyncio.to_thread(consumer.close)
        async with asyncio.timeout(60):
            while await has_members(group):
                pass
    await queries.close()
