"""Thousands of consumers that come back after their sidecar was killed, and was started again at once.

The sidecar limits the rate of connections of their listener, as it should (docs/coordinator.md, "Limits"). One worker,
alone on the first CPU; the consumers are raw ones (``group_members``), in the process of the bench, which shares the
other CPUs with Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.tools.bench.contestants import Contestant, sum_of
from tests.tools.bench.group_members import CoordinatedMember
from tests.tools.bench.group_scale import SPARE_CONSUMERS, check_descriptors, register
from tests.tools.bench.groups import (
    SETTLE_TIMEOUT,
    BenchGroup,
    Sidecar,
    all_started,
    coordinating_keys,
    port_of,
    started_broker,
)
from tests.tools.bench.scenarios import Figures, Measured, Scenario
from tests.tools.bench.stage import Sizes, Stage

SESSION_TIMEOUTS_MS = {"short": 6_000, "long": 10_000}
"""T, by the name of its figures."""

RATE_LIMIT = 1_500
"""Connections per second: 5,000 consumers take 3.3 s of the 5.7 s that their lease lasts with T = 6 s."""

REST = 4.0
"""Seconds after the last assignment until the kill: every consumer has had a ping."""

PROBES = 1
"""Connections that are opened and closed again to see whether a sidecar accepts."""


class GroupTakeover(Scenario):
    """Until all are registered and have their assignment again, and who was stopped or turned away meanwhile."""

    name, whom = "groups-takeover", ("brokerside",)

    def rounds(self, sizes: Sizes) -> int:
        return sizes.footprint_rounds

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        check_descriptors(stage, stage.sizes.scale_consumers + SPARE_CONSUMERS)
        figures: Figures = {}
        foreign = []
        for name, timeout_ms in SESSION_TIMEOUTS_MS.items():
            with started_broker(stage) as node:
                keys = coordinating_keys(node, stage.sizes.scale_consumers + SPARE_CONSUMERS)
                keys["quotas"] = {"listener.name.client.max.connection.creation.rate": RATE_LIMIT}
                with Sidecar(stage, contestant, keys, port_of(node.advertised), stage.cpus[:1]) as sidecar:
                    before = stage.read(sidecar.running.pids)
                    found = asyncio.run(_measure(stage.sizes, sidecar, timeout_ms))
                    foreign.append(stage.read(sidecar.running.pids).foreign(before))
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
        return Measured(figures, max(foreign))


async def _measure(sizes: Sizes, sidecar: Sidecar, timeout_ms: int) -> Figures:
    more: dict[str, Any] = {"session_timeout_ms": timeout_ms, "consumes": False}
    groups = [
        BenchGroup(f"takeover-{number:03}", sizes.group_partitions, sidecar.port, CoordinatedMember, **more)
        for number in range(sizes.scale_consumers // sizes.group_members)
    ]
    try:
        await register(groups, sizes.group_members)
        await asyncio.sleep(REST)
        return await _take_over(sidecar, groups)
    finally:
        for group in groups:
            group.close()
        await asyncio.sleep(0)


async def _take_over(sidecar: Sidecar, groups: Sequence[BenchGroup[CoordinatedMember]]) -> Figures:
    """Kill the sidecar and start it again; wait until all groups are at rest."""
    members = [member for group in groups for member in group.members.values()]
    owners = [list(group.ownership.owners) for group in groups]
    before = Counts.of(members)
    killed = time.monotonic()
    await asyncio.to_thread(sidecar.kill)
    await asyncio.to_thread(sidecar.start)
    accepts = time.monotonic()
    what = "all members have their assignment again, after the sidecar's restart"
    for group in groups:
        own = list(group.members.values())
        await group.ownership.until(partial(all_started, own, killed), SETTLE_TIMEOUT, what)
        await group.ownership.until_settled(group.members, SETTLE_TIMEOUT)
    found = Counts.of(members)
    gaps = [max(group.ownership.gaps(killed, own)) for group, own in zip(groups, owners, strict=True)]
    metrics = await asyncio.to_thread(sidecar.running.metrics)
    return {
        "consumers": len(members),
        "accepts_s": accepts - killed,
        "registered_s": max(one.registered_at for one in members) - killed,
        "assigned_s": max(one.started_at for one in members) - killed,
        "stops": found.stops - before.stops,
        "leases_ended": found.leases_ended - before.leases_ended,
        "gap_ms": max(gaps) * 1e3,
        "delayed": sum_of(metrics, "brokerside_connections_throttled_total"),
        "closed": sum_of(metrics, "brokerside_connections_closed_total") - PROBES,
    }


@dataclass(frozen=True)
class Counts:
    """Of all members together."""

    stops: int
    leases_ended: int

    @classmethod
    def of(cls, members: Sequence[CoordinatedMember]) -> Counts:
        return cls(sum(one.stops for one in members), sum(one.leases_ended for one in members))
