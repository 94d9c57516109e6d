"""Groups of consumers that a sidecar coordinates, beside Kafka's own (KIP-848), with its defaults and tuned.

One broker and one sidecar, on all CPUs; all groups read one topic. The members are raw ones (``group_members``), in the
process of the bench, so what is measured is who owns a partition, and when; not what librdkafka adds. The broker's
members dial the broker itself. Each event happens to one member of a group that is at rest; of events that take a
session timeout of 45 s others are measured meanwhile.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Generic, TypeVar

from proxy.core.encode import encode
from proxy.core.schema import layout
from proxy.errors import LocalError
from proxy.local.state import Node
from tests.integration.quotas import Peer
from tests.tools.bench.contestants import Contestant, listener
from tests.tools.bench.group_members import CoordinatedMember, KafkaMember, Member, Ownership
from tests.tools.bench.results import rotated
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage, port_of

TOPIC = "bench-groups"
SETTLE_TIMEOUT = 240.0
"""Seconds until a group must be at rest; the longest, a session timeout by default and two heartbeats, takes 55, and
more on a busy machine."""

REST = 1.5
"""Seconds between two events of a group. The broker computes no two assignments within one."""

RESTART_AFTER = 1.0
"""Seconds from a sidecar's kill to its restart."""

TUNED = {"consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "2000"}
"""Of a group: the same times as those of the coordinated groups (T, T/3)."""

INCREMENTAL_ALTER_CONFIGS, GROUP_RESOURCE, SET = 44, 32, 0

AnyMember = TypeVar("AnyMember", bound=Member)


@dataclass(frozen=True)
class Event:
    """Seconds. ``until``: all partitions are owned as computed; ``moved`` and ``others``: the longest time without an
    owner of a partition that has another one afterwards, and of one that has not."""

    until: float
    moved: float
    others: float

    def figures(self, name: str) -> Figures:
        """By the names of the report; times without an owner in ms."""
        return {f"{name}_s": self.until, f"{name}_moved_ms": self.moved * 1e3, f"{name}_others_ms": self.others * 1e3}


class BenchGroup(Generic[AnyMember]):
    """The members of one group, by name. ``kind`` makes one."""

    def __init__(self, name: str, partitions: int, port: int, kind: Callable[..., AnyMember], **more: Any) -> None:
        self.ownership = Ownership(partitions, name)
        self.members: dict[str, AnyMember] = {}
        self.gone: list[AnyMember] = []
        self.name = name
        self._port = port
        self._kind = kind
        self._more = more

    async def join(self, count: int = 1) -> None:
        first = len(self.members) + len(self.gone)
        for number in range(first, first + count):
            name = f"{self.name}-{number:04}"
            self.members[name] = self._kind(self._port, self.name, name, TOPIC, self.ownership, **self._more)
            await self.members[name].start()

    def remove(self) -> AnyMember:
        """Take one out of the group's members, which is still to go."""
        self.gone.append(self.members.pop(list(self.members)[len(self.members) // 2]))
        return self.gone[-1]

    async def start(self, count: int) -> float:
        """Add the first members; return the seconds until each has its share."""
        begun = time.monotonic()
        await self.join(count)
        return await self.ownership.until_settled(self.members, SETTLE_TIMEOUT) - begun

    async def event(self, change: Callable[[], Awaitable[None] | None]) -> Event:
        """Let something happen, and measure until the members of then have their shares. Raises LocalError."""
        await asyncio.sleep(REST)
        before, begun = list(self.ownership.owners), time.monotonic()
        if (waits := change()) is not None:
            await waits
        until = await self.ownership.until_settled(self.members, SETTLE_TIMEOUT)
        gaps = self.ownership.gaps(begun, before)
        moved = [old != new for old, new in zip(before, self.ownership.owners, strict=True)]
        longest = {
            kind: max((gap for gap, is_moved in zip(gaps, moved, strict=True) if is_moved == kind), default=0.0)
            for kind in (True, False)
        }
        return Event(until - begun, longest[True], longest[False])


@asynccontextmanager
async def closing(groups: Iterable[BenchGroup[Any]]) -> AsyncIterator[None]:
    """End the connections of all members there have been after the block."""
    try:
        yield
    finally:
        for group in groups:
            for member in [*group.members.values(), *group.gone]:
                member.kill()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Side(Generic[AnyMember]):
    """The groups of one side, by what happens to them: none is at two events at the same time."""

    name: str
    joins: BenchGroup[AnyMember]
    killed: BenchGroup[AnyMember]
    frozen: BenchGroup[AnyMember]

    @property
    def groups(self) -> tuple[BenchGroup[AnyMember], ...]:
        return self.joins, self.killed, self.frozen

    async def come_and_go(self) -> Figures:
        joined = await self.joins.event(self.joins.join)
        left = await self.joins.event(lambda: self.joins.remove().leave())
        return joined.figures(f"join_{self.name}") | left.figures(f"leave_{self.name}")

    async def kill_and_freeze(self) -> Figures:
        """One is killed, and one of another group stands still."""
        killed, frozen = await asyncio.gather(
            self.killed.event(lambda: self.killed.remove().kill()),
            self.frozen.event(lambda: self.frozen.remove().freeze()),
        )
        return killed.figures(f"kill_{self.name}") | frozen.figures(f"freeze_{self.name}")

    @property
    def overlaps(self) -> int:
        """How often one of its partitions had two owners at a time."""
        return sum(group.ownership.overlaps for group in self.groups)


class GroupEvents(Scenario):
    name, whom, most_rounds = "groups", ("brokerside",), 3

    def __init__(self) -> None:
        self._turns = count()

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        with ExitStack() as stack:
            stack.enter_context(stage.everywhere())
            node = stack.enter_context(stage.broker(TOPIC))
            sidecar = Sidecar(stage, contestant, node)
            stack.callback(sidecar.stop)
            before = stage.read([])
            figures = asyncio.run(_Round(stage.sizes, node, sidecar).run(next(self._turns)))
            return Measured(figures, stage.read([]).foreign(before))


def coordinating_keys(node: Node, max_consumers: int) -> dict[str, Any]:
    return {
        "internal.bootstrap.servers": node.internal,
        "coordinator": {"enabled": True, "max.consumers": max_consumers},
        "listeners": [listener("CLIENT", node.advertised, node.upstream)],
    }


class Sidecar:
    """One on all CPUs that can be killed and started again, with the same configuration and at the same port."""

    def __init__(self, stage: Stage, contestant: Contestant, node: Node) -> None:
        self.port = port_of(node.advertised)
        self._stage = stage
        keys = coordinating_keys(node, 10 * stage.sizes.group_members)
        self._start = partial(stage.start, contestant, cpus=stage.cpus, keys=keys, listen=self.port)
        self.start()

    def start(self) -> None:
        self._running = self._start()

    def kill(self) -> None:
        self._running.kill()
        self.stop()

    def stop(self) -> None:
        self._stage.stop(self._running)


class _Round:
    """One round: all sides have their groups at the same time, and mostly one event follows the other."""

    def __init__(self, sizes: Sizes, node: Node, sidecar: Sidecar) -> None:
        self._sizes = sizes
        self._sidecar = sidecar
        self._broker = node.upstream
        self._ours = self._side("ours", CoordinatedMember)
        self._tuned = self._side("tuned", KafkaMember)
        self._default = self._side("default", KafkaMember)
        self._patient = self._group("ours-patient", CoordinatedMember, session_timeout_ms=10_000)

    def _side(self, name: str, kind: type[AnyMember]) -> Side[AnyMember]:
        return Side(name, *(self._group(f"{name}-{event}", kind) for event in ("joins", "killed", "frozen")))

    def _group(self, name: str, kind: type[AnyMember], **more: Any) -> BenchGroup[AnyMember]:
        port = self._sidecar.port if kind is CoordinatedMember else port_of(self._broker)
        return BenchGroup(name, self._sizes.group_partitions, port, kind, **more)

    async def run(self, turn: int) -> Figures:
        """Return all figures. ``turn``: which of the sides is the first one."""
        sides: list[Side[Any]] = [self._ours, self._tuned]
        if self._sizes.group_slow:
            sides.append(self._default)
        for group in self._tuned.groups:
            tune(self._broker, group.name)
        async with closing([self._patient, *(group for side in sides for group in side.groups)]):
            figures = await self._start(sides)
            figures |= await self._events(sides, turn)
            return figures | {f"overlaps_{side.name}": side.overlaps for side in sides}

    async def _events(self, sides: list[Side[Any]], turn: int) -> Figures:
        figures: Figures = {}
        async with asyncio.TaskGroup() as tasks:
            slow = [tasks.create_task(side.kill_and_freeze()) for side in sides if side is self._default]
            for side in rotated(sides, turn):
                figures |= await side.come_and_go()
            joins = self._ours.joins
            figures |= (await joins.event(lambda: joins.remove().leave_with_offsets())).figures("leave_reporting_ours")
            for side in rotated([side for side in sides if side is not self._default], turn):
                figures |= await side.kill_and_freeze()
            figures |= await self._restart()
        for task in slow:
            figures |= task.result()
        return figures

    async def _start(self, sides: list[Side[Any]]) -> Figures:
        """Start all groups; the first one of the sidecar's waits until the fleet has its levels, and is not timed."""
        await self._patient.start(self._sizes.group_members)
        figures: Figures = {}
        for side in sides:
            started = await asyncio.gather(*(group.start(self._sizes.group_members) for group in side.groups))
            figures[f"start_{side.name}_s"] = median(started)
        return figures

    async def _restart(self) -> Figures:
        """Kill the sidecar, and start it again: groups with T = 6 s and T = 10 s, until all fetch on its word again."""
        await asyncio.sleep(REST)
        groups = {"restart": self._ours.joins, "restart_patient": self._patient}
        before = {name: (list(group.ownership.owners), _stops(group)) for name, group in groups.items()}
        killed = time.monotonic()
        await asyncio.to_thread(self._sidecar.kill)
        await asyncio.sleep(RESTART_AFTER)
        await asyncio.to_thread(self._sidecar.start)
        figures: Figures = {}
        for name, group in groups.items():
            members = list(group.members.values())
            what = "all members have their assignment again, after the sidecar's restart"
            resumed = partial(_all_started, members, killed)
            await group.ownership.until(resumed, SETTLE_TIMEOUT, what)
            await group.ownership.until_settled(group.members, SETTLE_TIMEOUT)
            owners, stops = before[name]
            figures |= {
                f"{name}_registered_s": max(one.registered_at for one in members) - killed,
                f"{name}_resumed_s": max(one.started_at for one in members) - killed,
                f"{name}_gap_ms": max(group.ownership.gaps(killed, owners)) * 1e3,
                f"{name}_stops": _stops(group) - stops,
            }
        return figures


def _all_started(members: Collection[CoordinatedMember], after: float) -> bool:
    return all(one.started_at > after for one in members)


def _stops(group: BenchGroup[CoordinatedMember]) -> int:
    return sum(one.stops for one in group.members.values())


def tune(broker: str, group: str) -> None:
    """Give a group of the broker the times of ``TUNED``. Raises LocalError."""
    configs = [{"Name": key, "ConfigOperation": SET, "Value": value} for key, value in TUNED.items()]
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": group, "Configs": configs}
    body = encode(layout(INCREMENTAL_ALTER_CONFIGS, 0, response=False), {"Resources": [resource]})
    with Peer(broker) as peer:
        code = struct.unpack_from(">h", peer.ask(INCREMENTAL_ALTER_CONFIGS, 0, body), 8)[0]
    if code:
        raise LocalError(f"the broker refuses the settings of a group with error {code}")
