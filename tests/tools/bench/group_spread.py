"""Hundreds of groups over three sidecars, beside a third of them on one: whether a fleet carries three times as many.

Three brokers, and a sidecar of one worker before each; everything shares all CPUs, so what is compared is the CPU that
a consumer costs. After the three have been watched, two are ended, and the third one coordinates all groups there are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from proxy.coordinator.records import partition_of
from proxy.errors import LocalError
from proxy.local.workload import create_topics
from tests.tools.bench.contestants import Contestant, Running
from tests.tools.bench.group_members import CoordinatedMember
from tests.tools.bench.group_scale import PER_CONSUMER, lateness_p99, register
from tests.tools.bench.groups import TOPIC, BenchGroup, closing, coordinating_keys
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Stage, port_of

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

    name, whom, most_rounds = "groups-fleet", ("brokerside",), 1

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        max_consumers = int(MOST * stage.sizes.fleet_groups * stage.sizes.fleet_members / 3)
        stage.check_descriptors(PER_CONSUMER * max_consumers)
        with ExitStack() as stack:
            stack.enter_context(stage.everywhere())
            state = stack.enter_context(stage.brokers(3))
            create_topics(state.internal_bootstrap, {TOPIC: {}}, OWNED * stage.sizes.fleet_members)
            running = {}
            for node in state.nodes:
                where = {"cpus": stage.cpus, "listen": port_of(node.advertised)}
                keys = coordinating_keys(node, max_consumers) | {"broker.id": node.id}
                running[node.id] = stack.enter_context(stage.started(contestant, keys=keys, **where))
            pids = [pid for one in running.values() for pid in one.pids]
            before = stage.read(pids)
            figures = asyncio.run(_Spread(stage, running).run())
            return Measured(figures, stage.read(pids).foreign(before))


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
        partitions, more = (
            OWNED * self._sizes.fleet_members,
            {"session_timeout_ms": SESSION_TIMEOUT_MS, "consumes": False},
        )
        holders = {partition: sidecar for sidecar, own in self._held().items() for partition in own}
        sizes = dict.fromkeys(self._running, 0)
        every = []
        for group_id in (f"{name}-{number:03}" for number in range(count)):
            holder = holders[partition_of(group_id, len(holders))]
            sizes[holder] += 1
            every.append(BenchGroup(group_id, partitions, self._running[holder].port, CoordinatedMember, **more))
        async with closing(every):
            await every[0].start(1)  # the fleet has its levels
            idle = await self._watch()
            seconds = await register(every, self._sizes.fleet_members)
            await asyncio.sleep(PERIOD)
            begun = time.monotonic()
            used = await self._watch()
            members = [member for group in every for member in group.members.values()]
            late = lateness_p99([[at for at in one.pings if at >= begun] for one in members], PERIOD)
            failures = sum(member.ends for member in members)
        over = [used[broker_id] - idle[broker_id] for broker_id in used]
        figures = {
            "groups_least": min(sizes.values()),
            "groups_most": max(sizes.values()),
            "consumers_least": min(sizes.values()) * self._sizes.fleet_members,
            "consumers_most": max(sizes.values()) * self._sizes.fleet_members,
            "register_s": seconds,
            "cpu_least_ms_s": min(over) * 1e3,
            "cpu_most_ms_s": max(over) * 1e3,
            "cpu_us_consumer": sum(over) / len(members) * 1e6,
            "failures": failures,
        }
        if late is not None:
            figures["lateness_p99_ms"] = late * 1e3
        return {f"{name}_{figure}": value for figure, value in figures.items()}

    async def _watch(self) -> dict[int, float]:
        before = {broker_id: self._stage.read(one.pids) for broker_id, one in self._running.items()}
        await asyncio.sleep(self._sizes.scale_seconds)
        return {
            broker_id: self._stage.read(one.pids).cores(before[broker_id]) for broker_id, one in self._running.items()
        }

    async def _until_held(self, condition: Callable[[Mapping[int, set[int]]], bool]) -> None:
        deadline = time.monotonic() + SPREAD_TIMEOUT
        while True:
            with suppress(OSError, LocalError):  # no answer in time from a sidecar that is busy
                if condition(await asyncio.to_thread(self._held)):
                    return
            if time.monotonic() > deadline:
                raise LocalError(f"the partitions of groups were not held as expected within {SPREAD_TIMEOUT:.0f} s")
            await asyncio.sleep(0.5)

    def _held(self) -> dict[int, set[int]]:
        """The partitions that each sidecar holds. Raises LocalError."""
        return {
            broker_id: {one["partition"] for one in json.loads(running.get("/coordinator"))["held"]}
            for broker_id, running in self._running.items()
        }
