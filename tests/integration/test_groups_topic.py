"""The topic of groups on a real broker: who writes it, what a successor reads, and what becomes of offsets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # untyped
from structlog.testing import capture_logs

from proxy.config import hmac_keys, load
from proxy.coordinator.effects import ClosePartition, HoldPartition, OpenPartition, ReadCommittedOffsets, WriteRecords
from proxy.coordinator.events import (
    CommittedOffsetsRead,
    Event,
    PartitionAssigned,
    PartitionLost,
    PartitionOffsets,
    PartitionOpened,
    WriteAborted,
    WriteCommitted,
)
from proxy.coordinator.records import (
    GenerationRecord,
    GenerationValue,
    GroupRecord,
    MemberRecord,
    MemberValue,
    OwnersRecord,
    OwnersValue,
)
from proxy.coordinator.view import GroupsView
from proxy.core.authentication import Authenticator, read_keys
from proxy.core.encode import encode as encode_message
from proxy.core.protected_topics import FEATURES, GROUPS, REGISTRY
from proxy.core.schema import layout
from proxy.features.records import GROUPS_KEY, GroupsPartitions, encode
from proxy.features.view import FeaturesView
from proxy.fleet.boottime import boottime_ms
from proxy.fleet.fenced_writer import RETRY_BACKOFF_MS
from proxy.fleet.group_cluster import GroupCluster
from proxy.fleet.group_metadata import group_metadata, read_template
from proxy.fleet.group_partitions import MUTE_SECONDS
from proxy.fleet.group_queries import GroupQueries
from proxy.interceptors.broker_metadata import FleetView
from proxy.local import cluster as local_cluster
from proxy.local.state import ClusterState, Node
from proxy.rpc.messages import flexible_response
from tests.integration.feature_sidecars import FeatureSidecar, committed, delete_topics, running
from tests.integration.quotas import Peer, text
from tests.integration.sidecars import until, until_async
from tests.integration.topics import described_by
from tests.tools.topic import create

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

MEMBER = MemberValue('{"t":2}', True, "smallest", 6000, 1, "client", "User:alice", "CLIENT")
GIVEN_UP_SECONDS = 5 + MUTE_SECONDS
"""After so long a writer is given up that commits nothing, with the default of ``state.write.timeout.ms``."""

RECORDS: list[GroupRecord] = [
    GenerationRecord("g", GenerationValue(1, "starting", 1)),
    MemberRecord("g", "c/1", MEMBER),
    OwnersRecord("g", "t", OwnersValue(1, "id", {"c/1-0": (0, 2), "c/1-1": (1,)})),
]


AnyEvent = TypeVar("AnyEvent")


class GroupSidecar(FeatureSidecar):
    """A sidecar without a machine that coordinates. ``events`` and ``group_views``: what it has reported."""

    def __init__(self, node: Node, *, partitions: int = 3, **settings: Any) -> None:
        super().__init__(node, coordinator={"enabled": True, "partitions": partitions}, **settings)
        self.events: list[Event] = []
        self.group_views: list[GroupsView] = [GroupsView()]
        self.groups = GroupCluster(self.config, self.fleet, self.events.append, self.group_views.append)
        self._writes = 0

    def _on_fleet_view(self, view: FleetView) -> None:
        self.groups.update_fleet_view(view)

    def _on_features_view(self, view: FeaturesView) -> None:
        super()._on_features_view(view)
        self.groups.update_features(view)

    @property
    def view(self) -> GroupsView:
        return self.group_views[-1]

    def start(self) -> None:
        super().start()
        self.groups.start()

    async def stop(self) -> None:
        await self.groups.resign()
        await self.groups.close()
        await super().stop()

    def found(self, kind: type[AnyEvent], **fields: object) -> list[AnyEvent]:
        return [
            one
            for one in self.events
            if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())
        ]

    async def heard(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        """The last event of a class with these fields, once there is one."""
        return (await until_async(lambda: self.found(kind, **fields)))[-1]

    async def open(self, partition: int) -> PartitionOpened:
        """Open an assigned partition, and register it."""
        await until_async(lambda: partition in self.view.own)
        before = self.found(PartitionOpened, partition=partition)
        self.groups.perform(OpenPartition(partition))
        await until_async(lambda: self.found(PartitionOpened, partition=partition) != before or self.lost(partition))
        assert not self.lost(partition)
        opened = self.found(PartitionOpened, partition=partition)[-1]
        self.groups.perform(HoldPartition(partition, opened.claim))
        return opened

    def lost(self, partition: int) -> list[str]:
        """Why a partition was lost since it was assigned last."""
        reasons: list[str] = []
        for event in self.events:
            if isinstance(event, PartitionAssigned) and event.partition == partition:
                reasons.clear()
            elif isinstance(event, PartitionLost) and event.partition == partition:
                reasons.append(event.reason)
        return reasons

    def begin_write(
        self, partition: int, records: list[GroupRecord], offsets: Mapping[str, PartitionOffsets] | None = None
    ) -> int:
        number, self._writes = self._writes, self._writes + 1
        self.groups.perform(WriteRecords(partition, number, records, offsets or {}))
        return number

    async def write(
        self, partition: int, records: list[GroupRecord], offsets: Mapping[str, PartitionOffsets] | None = None
    ) -> WriteCommitted | WriteAborted:
        return await self.written(self.begin_write(partition, records, offsets))

    async def written(self, number: int) -> WriteCommitted | WriteAborted:
        [found] = await until_async(
            lambda: [*self.found(WriteCommitted, write=number), *self.found(WriteAborted, write=number)]
        )
        return found


def admin_of(state: ClusterState) -> AdminClient:
    return AdminClient({"bootstrap.servers": state.internal_bootstrap, "log_level": 0})


@pytest.fixture
def admin(cluster: ClusterState) -> AdminClient:
    return admin_of(cluster)


@pytest.fixture
def clean(cluster: ClusterState, admin: AdminClient) -> Iterator[ClusterState]:
    """A cluster with the topic ``t`` of three partitions, and nothing of sidecars of before."""
    delete_topics(admin, FEATURES, REGISTRY, GROUPS)
    create(admin, NewTopic("t", 3, 1))
    described_by(cluster, "t")
    yield cluster
    delete_topics(admin, FEATURES, REGISTRY, GROUPS, "t")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new fleet waits for its sidecars for a moment instead of ten seconds; who has lost a partition likewise."""
    monkeypatch.setattr("proxy.features.controller.BOOTSTRAP_AFTER_MS", 500)
    monkeypatch.setattr("proxy.fleet.election.AWAY_AFTER_LOSS_MS", 500)


async def committed_offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    """Of topic t, once no transaction is open. Kafka answers for a first offset that is pending only if it is named."""
    named = [TopicPartition("t", partition) for partition in range(3)]
    while True:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, named)], require_stable=True)
        found = (await asyncio.to_thread(asked[group].result, 30)).topic_partitions
        if not any(one.error for one in found):
            return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}
        await asyncio.sleep(0.05)


@pytest.mark.promise(
    "coordinator.md", "The number of partitions is written down when the topic is first seen, and holds for ever."
)
async def test_groups_are_spread_over_the_partitions_that_the_topic_had_at_first(
    clean: ClusterState, admin: AdminClient
) -> None:
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await until_async(lambda: sidecar.view.own == {0, 1, 2})
        assert [sidecar.found(PartitionAssigned, partition=each) for each in range(3)] == [
            [PartitionAssigned(each, is_empty=True)] for each in range(3)
        ]
        assert (sidecar.view.partitions, sidecar.view.level) == (3, 2)
        assert sidecar.view.holders == {0: 1, 1: 1, 2: 1}
        described = admin.list_topics(GROUPS, timeout=20).topics[GROUPS]
        assert len(described.partitions) == 3
        admin.create_partitions([NewPartitions(GROUPS, 5)])[GROUPS].result(180)
        await until_async(lambda: len(sidecar.fleet.group_leaders) == 5)
    assert (GROUPS_KEY, encode(GroupsPartitions(3))) in committed(clean.internal_bootstrap)
    async with running(later := GroupSidecar(clean.nodes[0], partitions=12)):
        await until_async(lambda: later.view.own == {0, 1, 2})
        assert later.view.partitions == 3


@pytest.mark.promise(
    "coordinator.md", "A partition changes owners at the offsets committed last, also those just committed."
)
async def test_offsets_that_were_just_committed_are_waited_for(clean: ClusterState, admin: AdminClient) -> None:
    """The first ones may be passed over (decision 0037): the coordinator remembers what it has committed."""
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await sidecar.open(0)
        assert isinstance(await sidecar.write(0, [], {"g": {("t", 0): 0}}), WriteCommitted)
        assert await committed_offsets(admin, "g") == {("t", 0): 0}
        for number in range(1, 5):
            assert isinstance(await sidecar.write(0, [], {"g": {("t", 0): number}}), WriteCommitted)
            sidecar.groups.perform(ReadCommittedOffsets(0, "g", number))
            found = await sidecar.heard(CommittedOffsetsRead, read=number)
            assert found.offsets == {("t", 0): number}


@pytest.mark.promise("coordinator.md", "A coordinator that was fenced can write no owner and no offset.")
async def test_neither_records_nor_offsets_of_a_fenced_writer_take_effect(
    clean: ClusterState, admin: AdminClient
) -> None:
    one = GroupSidecar(clean.nodes[0])
    other = GroupSidecar(clean.nodes[0])
    async with running(one):
        await one.open(0)
        assert isinstance(await one.write(0, RECORDS, {"g": {("t", 0): 1}}), WriteCommitted)
        other.groups.start()
        await until_async(lambda: other.groups._kafka)
        other.groups.perform(OpenPartition(0))
        await until_async(lambda: other.events)
        number = one.begin_write(0, [GenerationRecord("g", GenerationValue(9, "stable", 1))], {"g": {("t", 0): 99}})
        await until_async(lambda: one.found(PartitionLost, partition=0))
        assert one.found(PartitionLost, partition=0)[0] == PartitionLost(0, "fenced")
        assert one.found(WriteCommitted, write=number) + one.found(WriteAborted, write=number) == []
        assert isinstance(await other.write(0, [MemberRecord("g", "c/1", None)], {"g": {("t", 1): 4}}), WriteCommitted)
        assert await committed_offsets(admin, "g") == {("t", 0): 1, ("t", 1): 4}
        other.groups.perform(ClosePartition(0))
        await other.groups.resign()
        await other.groups.close()
        opened = await one.open(0)
        assert opened.claim == 3
        assert sorted(opened.records, key=str) == sorted([RECORDS[0], RECORDS[2]], key=str)


async def test_a_partition_with_a_record_that_cannot_be_read_does_not_open(clean: ClusterState) -> None:
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await sidecar.heard(PartitionAssigned, partition=2)
        producer = Producer({"bootstrap.servers": clean.internal_bootstrap, "log_level": 0})
        producer.produce(GROUPS, key=b"g/registry", value=b'{"version":2}', partition=2)
        assert producer.flush(60) == 0
        sidecar.groups.perform(OpenPartition(2))
        await sidecar.heard(PartitionLost, partition=2, reason="open_failed")
        assert 2 not in sidecar.view.own
        await until_async(lambda: len(sidecar.found(PartitionAssigned, partition=2)) == 2)  # it is tried again


@pytest.mark.promise(
    "security.md", "With `registry.hmac.keys.file` records of groups that no sidecar has signed are ignored."
)
async def test_records_that_nobody_has_signed_are_ignored(clean: ClusterState) -> None:
    """With ``registry.hmac.keys.file``."""
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await until_async(lambda: sidecar.groups._kafka)
        signing = Authenticator(hmac_keys.GROUPS, read_keys("one:" + 32 * "k"))
        sidecar.groups._kafka = sidecar.groups._kafka._replace(authenticator=signing)
        await sidecar.open(0)
        assert isinstance(await sidecar.write(0, RECORDS), WriteCommitted)
        producer = Producer({"bootstrap.servers": clean.internal_bootstrap, "log_level": 0})
        for forged in ({"headers": None}, {"headers": [signing.header(b"g/registry", b"{}")]}):
            producer.produce(GROUPS, key=b"g/registry", value=None, partition=0, **forged)
        assert producer.flush(60) == 0
        sidecar.groups.perform(ClosePartition(0))
        with capture_logs() as logs:
            opened = await sidecar.open(0)
        assert sorted(opened.records, key=str) == sorted(RECORDS, key=str)
        [dropped] = [one for one in logs if one["event"] == "group_records_dropped"]
        assert (dropped["unsigned"], dropped["bad_signature"]) == (1, 1)


@contextmanager
def cluster_with_topic(folder: Path, **arguments: Any) -> Iterator[ClusterState]:
    """A cluster with the topic ``t``."""
    try:
        state = local_cluster.up(folder, progress=False, **arguments)
        admin = admin_of(state)
        create(admin, NewTopic("t", 3, 1))
        yield state
    finally:
        local_cluster.discard(folder)


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterState]:
    """One with these properties."""
    with cluster_with_topic(tmp_path / "cluster", broker_properties=request.param) as state:
        yield state


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        pytest.param({}, id="commits_nothing"),
        pytest.param({"offsets.topic.replication.factor": "3"}, id="does_not_return"),
    ],
    indirect=True,
)
async def test_a_writer_that_is_stuck_is_given_up_and_the_partition_opened_again(
    own: ClusterState, request: pytest.FixtureRequest
) -> None:
    """The broker stands still within a commit, which librdkafka goes on waiting for; or the cluster cannot make the
    topic of offsets, and librdkafka waits for a group's coordinator without an end (decision 0037)."""
    broker = own.nodes[0].pid
    stands_still = "commits_nothing" in request.node.name
    async with running(sidecar := GroupSidecar(own.nodes[0])):
        before = await sidecar.open(0)
        if stands_still:
            assert isinstance(await sidecar.write(0, RECORDS[:1]), WriteCommitted)
            os.kill(broker, signal.SIGSTOP)
        try:
            began = boottime_ms()
            lost_write = sidecar.begin_write(0, RECORDS[1:2], {"g": {("t", 0): 42}})
            await until_async(lambda: sidecar.lost(0), GIVEN_UP_SECONDS + 30)
            given_up = boottime_ms()
        finally:
            os.kill(broker, signal.SIGCONT)
        assert sidecar.lost(0) == ["stuck"]
        assert given_up - began >= 1000 * GIVEN_UP_SECONDS
        for _ in range(2):  # the first successor was fenced once, while Kafka ended what the stuck writer had left
            after = await sidecar.open(0)
            print(f"given up after {given_up - began} ms, open again {boottime_ms() - given_up} ms later")
            assert after.claim > before.claim
            written = sidecar.begin_write(0, RECORDS[1:], {"g": {("t", 0): 43}} if stands_still else None)
            await until_async(lambda write=written: sidecar.found(WriteCommitted, write=write) or sidecar.lost(0))
            if sidecar.found(WriteCommitted, write=written):
                break
            assert sidecar.lost(0) == ["fenced"]
            await until_async(lambda: not sidecar.lost(0))
        assert sidecar.found(WriteCommitted, write=written)
        assert not sidecar.found(WriteCommitted, write=lost_write)


# ---- what the coordinator relies on, of brokers and of librdkafka (docs/decisions/0037-groups-in-kafka.md) ----

FIND_COORDINATOR, STREAMS_HEARTBEAT = 10, 88
METADATA = group_metadata(read_template())


@pytest.fixture(scope="module", params=["3.9.2", "4.4.0"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    with cluster_with_topic(tmp_path_factory.mktemp("groups") / "cluster", kafka_version=request.param) as state:
        with Peer(state.internal_bootstrap) as peer:  # librdkafka may wait for it for minutes (decision 0037)
            until(lambda: peer.ask(FIND_COORDINATOR, 0, text("any"))[:2] == b"\0\0")
        yield state


def transactional(broker: ClusterState) -> Producer:
    settings = {"bootstrap.servers": broker.internal_bootstrap, "transactional.id": "test"}
    producer = Producer({**settings, "retry.backoff.ms": RETRY_BACKOFF_MS, "log_level": 0})
    producer.init_transactions(30)
    return producer


def commit(producer: Producer, offset: int, *groups: str) -> None:
    producer.begin_transaction()
    for group in groups:
        producer.send_offsets_to_transaction([TopicPartition("t", 0, offset)], METADATA(group), 20)
    producer.commit_transaction(20)


@pytest.mark.slow
@pytest.mark.promise(
    "decisions/0037-groups-in-kafka.md", "Kafka commits offsets of groups that it does not know in one transaction."
)
async def test_offsets_of_many_groups_are_committed_in_one_transaction(broker: ClusterState) -> None:
    producer, admin = transactional(broker), admin_of(broker)
    groups = [f"new-{number}" for number in range(25)]
    for offset in (5, 6):  # first they do not exist, then they are empty
        commit(producer, offset, *groups)
        assert [await committed_offsets(admin, group) for group in groups] == [{("t", 0): offset}] * len(groups)
    for group in ("grüße", "a\tb", "\x7f"):
        producer.begin_transaction()
        with pytest.raises(KafkaException, match="group id is not safe"):  # librdkafka: it is not printable ASCII
            producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], METADATA(group), 20)
        producer.abort_transaction(20)
    every = "".join(chr(code) for code in range(0x20, 0x7F))
    commit(producer, 2, every)
    assert await committed_offsets(admin, every) == {("t", 0): 2}


@pytest.mark.slow
async def test_members_of_any_type_do_not_hinder_a_transaction_and_are_found_by_asking(
    broker: ClusterState, tmp_path: Path
) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(
        f"broker.id: 1\ninternal.bootstrap.servers: {broker.internal_bootstrap}\ncoordinator: {{enabled: true}}\n"
        "listeners: [{name: CLIENT, bind: '127.0.0.1:9092', upstream: 'k:1'}]\n"
    )
    events = asyncio.Queue[Event]()
    queries = GroupQueries(load(path), "test", events.put_nowait)

    async def has_members(group: str) -> bool | None:
        queries.find_ordinary_members(group)
        event = await asyncio.wait_for(events.get(), 30)
        return event.has_members

    # Brokers of 3.9 have the other protocols as a preview only.
    for protocol in ("classic",) if broker.kafka_version == "3.9.2" else ("classic", "consumer", "share"):
        group = f"asked-{protocol}"
        settings = {"bootstrap.servers": broker.internal_bootstrap, "group.id": group}
        consumer: Any = (
            ShareConsumer(settings) if protocol == "share" else Consumer({**settings, "group.protocol": protocol})
        )
        assert await has_members(group) is False, "there is no such group"
        consumer.subscribe(["t"])
        async with asyncio.timeout(60):
            while not await has_members(group):
                await asyncio.to_thread(consumer.poll, 0.1)
        if protocol != "share":
            await asyncio.to_thread(commit, transactional(broker), 7, group)
            assert await committed_offsets(admin_of(broker), group) == {("t", 0): 7}
        await asyncio.to_thread(consumer.close)
        async with asyncio.timeout(60):
            while await has_members(group):
                pass
    if broker.kafka_version != "3.9.2":
        assert await has_members("asked-streams") is False
        assert streams_heartbeat(broker, 0) == 0
        assert await has_members("asked-streams") is True
        assert streams_heartbeat(broker, -1) == 0
        assert await has_members("asked-streams") is False
    await queries.close()


def streams_heartbeat(broker: ClusterState, epoch: int) -> int:
    """Send what a Streams application sends that joins (0) or leaves (-1); return Kafka's error code."""
    values: dict[str, Any] = {"GroupId": "asked-streams", "MemberId": "m-1", "MemberEpoch": epoch}
    if epoch == 0:
        values |= {"RebalanceTimeoutMs": 60_000, "ProcessId": "p", "ClientTags": ()}
        values |= dict.fromkeys(("ActiveTasks", "StandbyTasks", "WarmupTasks"), ())
        values["Topology"] = {"Subtopologies": [{"SubtopologyId": "0", "SourceTopics": ["t"]}]}
    with Peer(broker.internal_bootstrap) as peer:
        answer = peer.ask(STREAMS_HEARTBEAT, 0, encode_message(layout(STREAMS_HEARTBEAT, 0, response=False), values))
    code: int = flexible_response(STREAMS_HEARTBEAT, 0, answer).get("ErrorCode")
    return code
