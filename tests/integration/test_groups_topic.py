"""The topic of groups on a real broker: who writes it, what a successor reads, and what becomes of offsets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # untyped
from structlog.testing import capture_logs

from proxy.config import hmac_keys
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
from proxy.core.protected_topics import FEATURES, GROUPS, REGISTRY
from proxy.features.records import GROUPS_KEY, GroupsPartitions, encode
from proxy.features.view import FeaturesView
from proxy.fleet.boottime import boottime_ms
from proxy.fleet.group_cluster import GroupCluster
from proxy.fleet.group_partitions import MUTE_SECONDS
from proxy.interceptors.broker_metadata import FleetView
from proxy.local import cluster as local_cluster
from proxy.local.state import ClusterState, Node
from tests.integration.feature_sidecars import FeatureSidecar, committed, delete_topics, running, until
from tests.integration.topics import described_by

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
        await until(lambda: self.found(kind, **fields))
        return self.found(kind, **fields)[-1]

    async def open(self, partition: int) -> PartitionOpened:
        """Open an assigned partition, and register it."""
        await until(lambda: partition in self.view.own)
        before = len(self.found(PartitionOpened, partition=partition))
        self.groups.perform(OpenPartition(partition))
        await until(lambda: len(self.found(PartitionOpened, partition=partition)) > before or self.lost(partition))
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

        def done() -> list[WriteCommitted | WriteAborted]:
            return [*self.found(WriteCommitted, write=number), *self.found(WriteAborted, write=number)]

        await until(done)
        return done()[0]


@pytest.fixture
def admin(cluster: ClusterState) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.internal_bootstrap, "log_level": 0})


@pytest.fixture
def clean(cluster: ClusterState, admin: AdminClient) -> Iterator[ClusterState]:
    """A cluster with the topic ``t`` of three partitions, and nothing of sidecars of before."""
    delete_topics(admin, FEATURES, REGISTRY, GROUPS)
    admin.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
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
        await until(lambda: sidecar.view.own == {0, 1, 2})
        assert [sidecar.found(PartitionAssigned, partition=each) for each in range(3)] == [
            [PartitionAssigned(each, is_empty=True)] for each in range(3)
        ]
        assert (sidecar.view.partitions, sidecar.view.level) == (3, 2)
        assert sidecar.view.holders == {0: 1, 1: 1, 2: 1}
        described = admin.list_topics(GROUPS, timeout=20).topics[GROUPS]
        assert len(described.partitions) == 3
        admin.create_partitions([NewPartitions(GROUPS, 5)])[GROUPS].result(30)
        await until(lambda: len(sidecar.fleet.group_leaders) == 5)
    assert (GROUPS_KEY, encode(GroupsPartitions(3))) in committed(clean.internal_bootstrap)
    async with running(later := GroupSidecar(clean.nodes[0], partitions=12)):
        await until(lambda: later.view.own == {0, 1, 2})
        assert later.view.partitions == 3


@pytest.mark.promise(
    "coordinator.md", "A partition changes owners at the offsets committed last, also those just committed."
)
async def test_offsets_that_were_just_committed_are_waited_for(clean: ClusterState) -> None:
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await sidecar.open(0)
        for number in range(4):
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
        await until(lambda: other.groups._kafka)
        other.groups.perform(OpenPartition(0))
        await until(lambda: other.events)
        number = one.begin_write(0, [GenerationRecord("g", GenerationValue(9, "stable", 1))], {"g": {("t", 0): 99}})
        await until(lambda: one.found(PartitionLost, partition=0))
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


async def test_of_many_writes_only_the_one_that_cannot_be_committed_is_aborted(
    clean: ClusterState, admin: AdminClient
) -> None:
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await sidecar.open(0)
        groups = [f"g{number}" for number in range(8)]
        writes = {
            group: sidecar.begin_write(
                0,
                [GenerationRecord(group, GenerationValue(1, "stable", 1))],
                {group: {("nosuch" if group == "g3" else "t", 0): 3}},
            )
            for group in groups
        }
        for group, number in writes.items():
            written = await sidecar.written(number)
            assert isinstance(written, WriteAborted if group == "g3" else WriteCommitted)
        assert await committed_offsets(admin, "g2") == {("t", 0): 3}
        assert await committed_offsets(admin, "g3") == {}
        assert sidecar.lost(0) == []
        sidecar.groups.perform(ClosePartition(0))
        opened = await sidecar.open(0)
        assert {one.group for one in opened.records} == {*groups} - {"g3"}


async def test_a_partition_with_a_record_that_cannot_be_read_does_not_open(clean: ClusterState) -> None:
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await sidecar.heard(PartitionAssigned, partition=2)
        producer = Producer({"bootstrap.servers": clean.internal_bootstrap, "log_level": 0})
        producer.produce(GROUPS, key=b"g/registry", value=b'{"version":2}', partition=2)
        assert producer.flush(60) == 0
        sidecar.groups.perform(OpenPartition(2))
        await sidecar.heard(PartitionLost, partition=2, reason="open_failed")
        assert 2 not in sidecar.view.own
        await until(lambda: len(sidecar.found(PartitionAssigned, partition=2)) == 2)  # it is tried again


@pytest.mark.promise(
    "security.md", "With `registry.hmac.keys.file` records of groups that no sidecar has signed are ignored."
)
async def test_records_that_nobody_has_signed_are_ignored(clean: ClusterState) -> None:
    """With ``registry.hmac.keys.file``."""
    async with running(sidecar := GroupSidecar(clean.nodes[0])):
        await until(lambda: sidecar.groups._kafka)
        assert sidecar.groups._kafka is not None
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


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterState]:
    """A cluster with these properties, and the topic ``t``."""
    folder = tmp_path / "cluster"
    try:
        state = local_cluster.up(folder, broker_properties=request.param, progress=False)
        admin = AdminClient({"bootstrap.servers": state.internal_bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        yield state
    finally:
        local_cluster.discard(folder)


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
    assert broker is not None
    stands_still = "commits_nothing" in request.node.name
    async with running(sidecar := GroupSidecar(own.nodes[0])):
        before = await sidecar.open(0)
        if stands_still:
            assert isinstance(await sidecar.write(0, RECORDS[:1]), WriteCommitted)
            os.kill(broker, signal.SIGSTOP)
        try:
            began = boottime_ms()
            lost_write = sidecar.begin_write(0, RECORDS[1:2], {"g": {("t", 0): 42}})
            await until(lambda: sidecar.lost(0), GIVEN_UP_SECONDS + 30)
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
            await until(lambda write=written: sidecar.found(WriteCommitted, write=write) or sidecar.lost(0))
            if sidecar.found(WriteCommitted, write=written):
                break
            assert sidecar.lost(0) == ["fenced"]
            await until(lambda: not sidecar.lost(0))
        assert sidecar.found(WriteCommitted, write=written)
        assert not sidecar.found(WriteCommitted, write=lost_write)
