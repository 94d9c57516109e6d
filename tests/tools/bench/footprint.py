"""What a contestant costs without traffic: to start, to idle, for each connection that only stays open."""

from __future__ import annotations

import time
from dataclasses import dataclass

from proxy.errors import LocalError
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.measure import memory
from tests.tools.bench.scenarios import Measured
from tests.tools.bench.stage import Sizes, Stage

DESCRIPTORS_BESIDE = 100
"""Descriptors that a proxy may need beside two for each connection."""


@dataclass(frozen=True)
class Footprint:
    """Start to the first accepted connection, memory and CPU of a process that nobody has used yet."""

    name: str = "footprint"

    def rounds(self, sizes: Sizes) -> int:
        return sizes.footprint_rounds

    def impossible(self) -> str:
        return ""

    def takes(self, contestant: Contestant) -> bool:
        return contestant.command is not None

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        running = stage.start(contestant)
        try:
            time.sleep(stage.sizes.calm)
            pids = running.pids
            before = stage.read(pids)
            time.sleep(stage.sizes.watch)
            after = stage.read(pids)
            used = memory(pids)
        finally:
            stage.stop(running)
        idle = (after.measured - before.measured) / (after.wall - before.wall) * 1000
        figures = {
            "start_ms": running.start_ms,
            "rss_mib": used.rss / 1024,
            "pss_mib": used.pss / 1024,
            "idle_ms_s": idle,
        }
        return Measured(figures, after.foreign(before))


@dataclass(frozen=True)
class Idle:
    """Memory for each of many connections that have had one request and then stay open."""

    name: str = "idle"

    def rounds(self, sizes: Sizes) -> int:
        return sizes.footprint_rounds

    def impossible(self) -> str:
        return ""

    def takes(self, contestant: Contestant) -> bool:
        return contestant.command is not None

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        running = stage.start(contestant)
        figures: dict[str, float] = {}
        error = ""
        try:
            stage.load(running, "requests", "small", conns=8, warm=0.0, secs=0.2)
            time.sleep(stage.sizes.calm)
            pids = running.pids
            empty = memory(pids).rss
            for count in stage.sizes.idle:
                if 2 * count + DESCRIPTORS_BESIDE > stage.descriptors:
                    error = f"{count} connections need more descriptors than the {stage.descriptors} allowed here"
                    break
                holder = stage.hold_idle(running, count)
                time.sleep(0.5)
                figures[f"kib_{count}"] = (memory(pids).rss - empty) / count
                holder.communicate()
                time.sleep(0.5)
        except LocalError as reason:
            error = str(reason)
        finally:
            stage.stop(running)
        return Measured(figures, 0.0, error)
