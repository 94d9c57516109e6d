"""Which partitions a sidecar gets and loses, before a registry that only this process knows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from proxy.coordinator.events import Event, PartitionAssigned, PartitionLost
from proxy.coordinator.view import GroupsView
from proxy.features.catalog import COORDINATOR_PROTOCOL, LevelRange
from proxy.features.records import SupportedRange
from proxy.features.view import FeaturesView
from proxy.fleet import group_poller
from proxy.fleet.group_poller import GroupPoller
from proxy.fleet.membership import Member, RegistryContent
from proxy.fleet.sidecar_record import SidecarRecord
from proxy.fleet.view import OwnGroups

LEVEL = {COORDINATOR_PROTOCOL: LevelRange(1, 1)}
FEATURES = FeaturesView(LEVEL, LEVEL, 1, group_partitions=3)
SUPPORTS = {COORDINATOR_PROTOCOL: SupportedRange(1, 1)}


class Registry:
    """It has what sidecar 1 registers at once, and what ``others`` are said to hold."""

    boot_id = "own"
    group_leaders: Sequence[int | None] = (1, 2, 1)

    def __init__(self) -> None:
        self.report: Callable[[RegistryContent, bool], None] = lambda content, end: None
        self.own = OwnGroups()
        self.others: dict[int, Mapping[str, int]] = {}
        self._reads = 0

    def on_registry(self, callback: Callable[[RegistryContent, bool], None]) -> None:
        self.report = callback

    def update_groups(self, groups: OwnGroups) -> None:
        if groups != self.own:
            self.own = groups
            asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> None:
        self._reads += 1
        own = {1: self._record(1, self.own.holds, coordinates=self.own.coordinates)}
        others = {one: self._record(one, holds, coordinates=True) for one, holds in self.others.items()}
        members = {one: Member(record, alive=True) for one, record in {**own, **others}.items()}
        self.report(RegistryContent(members, {}, {f"sidecar/{one}": self._reads for one in members}), True)

    def _record(self, one: int, holds: Mapping[str, int], *, coordinates: bool) -> SidecarRecord:
        boot = self.boot_id if one == 1 else "other"
        fields = {"features": SUPPORTS, "boot_id": boot, "holds": holds, "coordinates": coordinates}
        return SidecarRecord({}, (), f"kafka-{one}", 9092, "1", **fields)


class Polling:
    """The poller of sidecar 1. ``full``: partitions that have records; ``dialled``: addresses, all of which refuse."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.events: list[Event] = []
        self.came = asyncio.Event()
        self.views: list[GroupsView] = [GroupsView()]
        self.full: set[int] = set()
        self.dialled: list[str] = []
        self.poller = GroupPoller(1, self.registry, self._take, self.views.append, self._check_empty)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self.came.set()

    def _check_empty(self, partition: int, done: Callable[[bool], None]) -> None:
        asyncio.get_running_loop().call_soon(done, partition not in self.full)

    async def refuse(self, host: str, port: int) -> bool:
        self.dialled.append(host)
        return True

    @property
    def view(self) -> GroupsView:
        return self.views[-1]

    async def settle(self) -> list[Event]:
        """Wait until nothing goes on any more; return the events since the last call."""
        for _ in range(20):
            await asyncio.sleep(0)
        events, self.events[:] = list(self.events), []
        return events

    async def begin(self) -> list[Event]:
        self.poller.start()
        self.registry.read()
        self.poller.mark_ready()
        self.poller.update_features(FEATURES)
        return await self.settle()


@pytest_asyncio.fixture
async def polling(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Polling]:
    one = Polling()
    monkeypatch.setattr("proxy.fleet.suspicion.refuses_connections", one.refuse)
    monkeypatch.setattr(group_poller, "TICK_INTERVAL", 30.0)  # a tick dials by itself, and puts off the next dial
    yield one
    await one.poller.close()


async def test_partitions_are_assigned_once_their_number_is_known_and_the_own_record_is_read(polling: Polling) -> None:
    polling.full = {2}
    polling.poller.start()
    polling.registry.read()
    polling.poller.mark_ready()
    polling.poller.update_features(FeaturesView(LEVEL, LEVEL, 1))
    assert await polling.settle() == []
    assert polling.registry.own.coordinates  # so that the feature controller looks for the topic
    polling.poller.update_features(FEATURES)
    assert await polling.settle() == [
        PartitionAssigned(0, True),
        PartitionAssigned(1, True),
        PartitionAssigned(2, False),
    ]
    assert polling.registry.own == OwnGroups(coordinates=True)
    assert polling.view == GroupsView(3, {0: 1, 1: 1, 2: 1}, frozenset({0, 1, 2}), 1)


async def test_what_is_held_is_registered(polling: Polling) -> None:
    await polling.begin()
    polling.poller.hold(0, 0)
    polling.poller.hold(1, 7)
    assert polling.registry.own == OwnGroups(True, {"groups/0": 0, "groups/1": 7})
    polling.poller.lost(1, "fenced")
    assert await polling.settle() == [PartitionLost(1, "fenced")]
    assert polling.registry.own == OwnGroups(True, {"groups/0": 0})
    polling.poller.hold(1, 8)  # an effect from before it was lost
    assert polling.registry.own == OwnGroups(True, {"groups/0": 0})


@pytest.mark.promise(
    "coordinator.md", "Partitions of `__brokerside_groups` that are added later are passed over, and logged once."
)
async def test_partitions_that_were_added_later_are_passed_over_and_logged_once(polling: Polling) -> None:
    polling.registry.group_leaders = (1, 2, 1, 1, 2)
    with capture_logs() as logs:
        assert len(await polling.begin()) == 3
        polling.registry.others = {2: {}}
        polling.registry.read()
        await polling.settle()
    assert [one for one in logs if one["event"] == "group_partitions_ignored"] == [
        {"event": "group_partitions_ignored", "log_level": "warning", "partitions": 3, "there": 5}
    ]


@pytest.mark.parametrize(
    "features",
    [
        FeaturesView(LEVEL, {}, 1, group_partitions=3),
        FeaturesView(LEVEL, {COORDINATOR_PROTOCOL: LevelRange(1, 2)}, 2, group_partitions=3),
        FeaturesView(LEVEL, LEVEL, 1, group_partitions=4),
        FeaturesView(LEVEL, LEVEL, 1),
    ],
    ids=["not finalized", "a level that it lacks", "another number of partitions", "no number of partitions"],
)
async def test_a_sidecar_that_is_not_fit_any_more_loses_all(polling: Polling, features: FeaturesView) -> None:
    await polling.begin()
    polling.poller.update_features(features)
    assert await polling.settle() == [PartitionLost(partition, "not_fit") for partition in range(3)]
    assert polling.registry.own == OwnGroups()
    assert polling.view.own == set()
    assert polling.view.partitions == 3


@pytest.mark.promise(
    "coordinator.md", "A sidecar that is stopped or evacuated keeps its partitions until others hold them, for a while."
)
async def test_who_leaves_waits_for_the_others(polling: Polling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_poller, "LEAVE_WITHIN_MS", 600_000)
    polling.registry.others = {2: {}}
    await polling.begin()
    held = sorted(polling.view.own)
    assert len(held) == 2  # sidecar 2 is to hold the partition that its broker leads
    polling.poller.evacuate()
    assert await polling.settle() == []
    assert polling.registry.own == OwnGroups()
    polling.registry.others = {2: {f"groups/{held[0]}": 0}}
    polling.registry.read()
    assert await polling.settle() == [PartitionLost(held[0], "evacuated")]
    monkeypatch.setattr(group_poller, "LEAVE_WITHIN_MS", 1)
    polling.came.clear()
    polling.poller.evacuate()
    await asyncio.wait_for(polling.came.wait(), 60)
    assert await polling.settle() == [PartitionLost(held[1], "evacuated")]


async def test_the_end_does_not_wait_for_nobody_and_is_final(polling: Polling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_poller, "LEAVE_WITHIN_MS", 600_000)
    await polling.begin()
    stopping = asyncio.create_task(polling.poller.resign())
    await asyncio.sleep(0)
    polling.poller.evacuate()
    polling.poller.return_()
    await asyncio.wait_for(stopping, 60)
    assert await polling.settle() == [PartitionLost(partition, "stopping") for partition in range(3)]


async def test_a_coordinator_that_is_looked_for_is_dialled_at_once(polling: Polling) -> None:
    """The consumers of a killed one ask every other sidecar for it."""
    polling.registry.others = {2: {"groups/1": 3, "groups/2": 3}}
    assert await polling.begin() == [PartitionAssigned(0, True)]
    assert (polling.view.holders, polling.view.own) == ({0: 1, 1: 2, 2: 2}, {0})
    polling.poller.expect_coordinator()
    polling.poller.expect_coordinator()
    assert await polling.settle() == [PartitionAssigned(partition, True) for partition in (1, 2)]
    assert polling.dialled == ["kafka-2"]
    assert polling.view.holders == {0: 1, 1: 1, 2: 1}
