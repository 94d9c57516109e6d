"""Hundreds of groups over three sidecars, beside a third of them on one: whether a fleet carries three times as many.

Three brokers, and a sidecar of one worker before each; everything shares all CPUs, so what is compared is the CPU that
a consumer costs. After the three have been watched, two are ended, and the third one coordinates all groups there are.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from proxy.coordinator.records import partition_of
from proxy.errors import LocalError
from proxy.local import cluster
from proxy.local.ports import HOST
from proxy.local.state import ClusterState
from tests.tools.bench.contestants import Contestant, Running
from tests.tools.bench.group_members import CoordinatedMember
from tests.tools.bench.group_scale import check_descriptors, lateness_p99, register
from tests.tools.bench.groups import TOPIC, BenchGroup, coordinating_keys, port_of
from tests.tools.bench.kafka import create_topic
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage

PARTITIONS = 12
"""Of ``__brokerside_groups``, as configured by default: each sidecar holds a third of them."""

SESSION_TIMEOUT_MS = 10_000
PERIOD = SESSION_TIMEOUT_MS / 3000
"""Seconds from one ping to the next."""

OWNED = 4
"""Partitions of each member."""

MOST = 1.4
"""Consumers of a sidecar at most, as a multiple of the mean."""

SPREAD_TIMEOUT = 240.0
"""Seconds until each sidecar holds what its broker leads; it has to run for 30 before it takes that from another."""


class GroupSpread(Scenario):
    """CPU of each sidecar over the same fleet with one consumer, and of each consumer."""

    name, whom = "groups-fleet", ("brokerside",)

    def rounds(self, sizes: Sizes) -> int:
        return 1

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        max_consumers = int(MOST * stage.sizes.fleet_groups * stage.sizes.fleet_members / 3)
        check_descriptors(stage, max_consumers)
        with ExitStack() as stack:
            stack.enter_context(stage.everywhere())
            state = stack.enter_context(_started_brokers(stage))
            running = {}
            for node in state.nodes:
                keys = coordinating_keys(node, max_consumers) | {"broker.id": node.id}
                port = port_of(node.advertised)
                running[node.id] = stage.start(contestant, cpus=stage.cpus, keys=keys, listen=port)
                stack.callback(stage.stop, running[node.id])
            pids = [pid for one in running.values() for pid in one.pids]
            before = stage.read(pids)
            figures = asyncio.run(_Spread(stage, running).run())
            return Measured(figures, stage.read(pids).foreign(before))


@contextmanager
def _started_brokers(stage: Stage) -> Iterator[ClusterState]:
    folder = Path(mkdtemp(prefix="groups-fleet-", dir=stage.folder))
    state = cluster.up(folder, nodes=3, progress=False)
    try:
        create_topic(state.internal_bootstrap, TOPIC, OWNED * stage.sizes.fleet_members)
        with stage.belonging([node.pid for node in state.nodes]):
            yield state
    finally:
        cluster.discard(folder)


class _Spread:
    def __init__(self, stage: Stage, running: dict[int, Running]) -> None:
        self._stage = stage
        self._sizes = stage.sizes
        self._running = running

    async def run(self) -> Figures:
        share = PARTITIONS // len(self._running)
        await self._until_held(lambda held: all(len(each) == share for each in held.values()))
        three = await self._side("three", self._sizes.fleet_groups)
        for broker_id in list(self._running)[1:]:
            await asyncio.to_thread(self._stage.stop, self._running.pop(broker_id))
        await self._until_held(lambda held: all(len(each) == PARTITIONS for each in held.values()))
        one = await self._side("one", self._sizes.fleet_groups // 3)
        ratio = three["three_cpu_us_consumer"] / one["one_cpu_us_consumer"]
        return three | one | {"three_cpu_ratio": ratio}

    async def _side(self, name: str, count: int) -> Figures:
        names = [f"{name}-{number:03}" for number in range(count)]
        by_sidecar = spread(names, self._held())
        groups = {
            broker_id: [self._group(group, self._running[broker_id].port) for group in own]
            for broker_id, own in by_sidecar.items()
        }
        every = [group for own in groups.values() for group in own]
        try:
            await every[0].start(1)  # the fleet has its levels
            idle = await self._watch()
            seconds = await register(every, self._sizes.fleet_members)
            await asyncio.sleep(PERIOD)
            begun = time.monotonic()
            used = await self._watch()
            members = [member for group in every for member in group.members.values()]
            late = lateness_p99([[at for at in one.pings if at >= begun] for one in members], PERIOD)
            failures = sum(member.ends for member in members)
        finally:
            for group in every:
                group.close()
            await asyncio.sleep(0)
        over = [used[broker_id] - idle[broker_id] for broker_id in used]
        sizes = [len(own) for own in groups.values()]
        figures = {
            "consumers": len(members),
            "groups_least": min(sizes),
            "groups_most": max(sizes),
            "consumers_least": min(sizes) * self._sizes.fleet_members,
            "consumers_most": max(sizes) * self._sizes.fleet_members,
            "register_s": seconds,
            "cpu_ms_s": sum(over) * 1e3,
            "cpu_least_ms_s": min(over) * 1e3,
            "cpu_most_ms_s": max(over) * 1e3,
            "cpu_us_consumer": sum(over) / len(members) * 1e6,
            "failures": failures,
        }
        if late is not None:
            figures["lateness_p99_ms"] = late * 1e3
        return {f"{name}_{figure}": value for figure, value in figures.items()}

    def _group(self, name: str, port: int) -> BenchGroup[CoordinatedMember]:
        partitions = OWNED * self._sizes.fleet_members
        more = {"session_timeout_ms": SESSION_TIMEOUT_MS, "consumes": False}
        return BenchGroup(name, partitions, port, CoordinatedMember, **more)

    async def _watch(self) -> dict[int, float]:
        """Cores that each sidecar uses, by broker id."""
        before = {broker_id: self._stage.read(one.pids) for broker_id, one in self._running.items()}
        await asyncio.sleep(self._sizes.scale_seconds)
        after = {broker_id: self._stage.read(one.pids) for broker_id, one in self._running.items()}
        return {
            broker_id: (now.measured - before[broker_id].measured) / (now.wall - before[broker_id].wall)
            for broker_id, now in after.items()
        }

    async def _until_held(self, condition: Callable[[Mapping[int, set[int]]], bool]) -> None:
        deadline = time.monotonic() + SPREAD_TIMEOUT
        while True:
            with suppress(OSError):  # no answer in time from a sidecar that is busy
                if condition(await asyncio.to_thread(self._held)):
                    return
            if time.monotonic() > deadline:
                raise LocalError(f"the partitions of groups were not held as expected within {SPREAD_TIMEOUT:.0f} s")
            await asyncio.sleep(0.5)

    def _held(self) -> dict[int, set[int]]:
        """The partitions that each sidecar holds. Raises OSError."""
        return {broker_id: _held(running) for broker_id, running in self._running.items()}


def _held(running: Running) -> set[int]:
    with urllib.request.urlopen(f"http://{HOST}:{running.wiring.admin}/coordinator", timeout=60) as response:
        return {one["partition"] for one in json.load(response)["held"]}


def spread(groups: Iterable[str], held: Mapping[int, Iterable[int]]) -> dict[int, list[str]]:
    """The groups of each sidecar. ``held``: all partitions of the topic of groups, by sidecar."""
    holders = {partition: sidecar for sidecar, own in held.items() for partition in own}
    found: dict[int, list[str]] = {sidecar: [] for sidecar in held}
    for group in groups:
        found[holders[partition_of(group, len(holders))]].append(group)
    return found
