"""Many idle consumers of one sidecar, and what they cost it and the clients that it serves beside them.

The sidecar has one worker, alone on the first CPU. Its consumers are raw ones (``group_members``), in the process of
the bench, in groups that all read one topic; a load generator and the stub broker share the other CPUs with them
and with Kafka. While the load runs, the consumers have the lowest priority there: they stand for machines of their own,
and what they take from the load generator is not the sidecar's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median, quantiles
from typing import NamedTuple

from proxy.local.ports import HOST, free_ports
from tests.tools.bench.contestants import Contestant, Running, listener
from tests.tools.bench.group_members import CoordinatedMember
from tests.tools.bench.groups import TOPIC, BenchGroup, closing, coordinating_keys
from tests.tools.bench.measure import memory
from tests.tools.bench.scenarios import CONNECTIONS, RATE, Figures, Measured, Scenario
from tests.tools.bench.stage import Stage, port_of

PERIOD = 2.0
"""Seconds from one ping to the next: a third of T = 6 s."""

PER_CONSUMER = 3
"""Descriptors that a sidecar allows for each: a third of those it has is for consumers."""

SPARE_CONSUMERS = 100
"""That a sidecar takes beside those that are idle."""

AT_A_TIME = 4
"""Groups that register at the same time."""

REBALANCES = 6
"""Of one group: one joins, one leaves, in turn."""

LOADS = 3
"""Of small requests, without and with the consumers: so many turns each."""

LOWEST_PRIORITY = 19


class GroupScale(Scenario):
    """CPU, memory, lateness of pings, rebalances of one group, and p99 of small requests."""

    name, whom, most_rounds = "groups-scale", ("brokerside",), 1

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        consumers = stage.sizes.scale_consumers + SPARE_CONSUMERS
        stage.check_descriptors(PER_CONSUMER * consumers)
        with stage.broker(TOPIC) as node:
            (port,) = free_ports(1)
            keys = coordinating_keys(node, consumers)
            keys["listeners"].append(listener("MEASURED", f"{HOST}:{port}", f"{HOST}:{stage.stub_port}"))
            with stage.started(contestant, keys=keys, listen=port) as running:
                before = stage.read(running.pids)
                scale = _Scale(stage, running, port_of(node.advertised))
                with ThreadPoolExecutor(1) as thread:  # whose priority ends with it
                    figures = thread.submit(lambda: asyncio.run(scale.run())).result()
                return Measured(figures, stage.read(running.pids).foreign(before))


class _Scale:
    def __init__(self, stage: Stage, running: Running, port: int) -> None:
        self._stage = stage
        self._running = running
        self._sizes = stage.sizes
        self._load_thread = ThreadPoolExecutor(1)  # begins with the first load, and keeps the priority that it had then
        self._groups = [
            BenchGroup(f"idle-{number:03}", self._sizes.group_partitions, port, CoordinatedMember, consumes=False)
            for number in range(self._sizes.scale_consumers // self._sizes.group_members)
        ]

    async def run(self) -> Figures:
        with self._load_thread:
            async with closing(self._groups):
                await self._groups[0].start(1)  # the fleet has its levels, and a partition is open
                figures = await self._load("without")
                before = await self._watch(self._sizes.watch)
                figures["register_s"] = await register(self._groups, self._sizes.group_members)
                await asyncio.sleep(PERIOD)
                begun = time.monotonic()
                idle = await self._watch(self._sizes.scale_seconds)
                pings = [[at for at in member.pings if at >= begun] for member in self._members()]
                figures |= {
                    "cpu_ms_s": (idle.cpu - before.cpu) * 1e3,
                    "cpu_us_ping": (idle.cpu - before.cpu) * PERIOD / len(pings) * 1e6,
                    "rss_mib": idle.rss - before.rss,
                }
                if (late := lateness_p99(pings, PERIOD)) is not None:
                    figures["lateness_p99_ms"] = late * 1e3
                group, seconds = self._groups[0], []
                for _ in range(REBALANCES // 2):
                    seconds.append((await group.event(group.join)).until)
                    seconds.append((await group.event(lambda: group.remove().leave())).until)
                figures["rebalance_s"] = median(seconds)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
                figures |= await self._load("with")
                figures["p99_ratio"] = figures["with_p99_us"] / figures["without_p99_us"]
                figures["failures"] = sum(member.ends for member in self._members())  # all consumers answer
        return figures

    def _members(self) -> list[CoordinatedMember]:
        return [member for group in self._groups for member in group.members.values()]

    async def _watch(self, seconds: float) -> Used:
        pids = self._running.pids
        before = self._stage.read(pids)
        await asyncio.sleep(seconds)
        return Used(self._stage.read(pids).cores(before), memory(pids).rss)

    async def _load(self, name: str) -> Figures:
        load = partial(self._stage.load, self._running, "requests", "small", conns=CONNECTIONS, rate=RATE)
        loop = asyncio.get_running_loop()
        p99 = [(await loop.run_in_executor(self._load_thread, load)).load["p99_us"] for _ in range(LOADS)]
        return {f"{name}_p99_us": median(p99)}


async def register(groups: Iterable[BenchGroup[CoordinatedMember]], members: int) -> float:
    """Let each group have so many members; return the seconds until all have their assignment. Raises LocalError."""
    begun = time.monotonic()
    slots = asyncio.Semaphore(AT_A_TIME)

    async def start(group: BenchGroup[CoordinatedMember]) -> None:
        async with slots:
            await group.start(members - len(group.members))

    await asyncio.gather(*(start(group) for group in groups))
    return time.monotonic() - begun


class Used(NamedTuple):
    """``cpu``: cores; ``rss``: MiB."""

    cpu: float
    rss: float


def lateness_p99(arrivals: Iterable[Sequence[float]], period: float) -> float | None:
    """The 99th percentile of how late pings came, in the unit of ``period``; None of fewer than two pings.

    A member's pings are due one ``period`` after the other, and the one of them that came soonest was on time. A ping
    that was left out makes all after it late by a period.
    """
    late: list[float] = []
    for times in arrivals:
        offsets = [at - number * period for number, at in enumerate(times)]
        late += [offset - min(offsets) for offset in offsets]
    return quantiles(late, n=100)[98] if len(late) > 1 else None
