"""What processes cost, read from outside: CPU to the nanosecond, memory, and what everybody else used meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLOCK_TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """Let this process, and what it starts meanwhile, run on ``cpus`` only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family(pid: int) -> list[int]:
    """``pid`` and every process below it; none if it has ended."""
    found = [pid] if Path(f"/proc/{pid}").exists() else []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [below for child in children.read_text().split() for below in family(int(child))]
        except OSError:
            continue
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU that the processes have used since their start: all threads, also ended ones, with the kernel's work."""
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime(~pid << 3 | 2)  # the kernel's number for the CPU clock of another process
        except OSError:
            continue  # it has ended
    return total


@dataclass(frozen=True)
class Memory:
    """KiB of resident memory; ``pss`` counts pages shared by n processes as one nth."""

    rss: int
    pss: int


def memory(pids: Sequence[int]) -> Memory:
    """Sum over the processes."""
    rss = pss = 0
    for pid in pids:
        try:
            part = parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:
            continue
        rss, pss = rss + part.rss, pss + part.pss
    return Memory(rss, pss)


def parse_rollup(text: str) -> Memory:
    """Read the content of ``/proc/<pid>/smaps_rollup``."""
    fields = {line.split(":")[0]: line.split() for line in text.splitlines()[1:]}
    return Memory(int(fields["Rss"][1]), int(fields["Pss"][1]))


def busy_seconds() -> float:
    """CPU that everything on this machine has used since it started, all CPUs."""
    return parse_busy(Path("/proc/stat").read_text()) / CLOCK_TICK


def parse_busy(text: str) -> int:
    """Ticks not idle in the first line of ``/proc/stat``, time stolen by the host included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, text.split()[1:9])
    return user + nice + system + irq + softirq + steal


@dataclass(frozen=True)
class Clock:
    """One reading: wall time, CPU of the measured processes, of the whole set-up with them, and of the machine."""

    wall: float
    measured: float
    ours: float
    machine: float

    @classmethod
    def read(cls, measured: Sequence[int], others: Sequence[int]) -> Clock:
        """``others``: pids of the rest of the set-up. Children that have ended are counted as part of it."""
        used = cpu_seconds(measured)
        children = os.times()
        ours = used + cpu_seconds([*others, os.getpid()]) + children.children_user + children.children_system
        return cls(time.monotonic(), used, ours, busy_seconds())

    def foreign(self, before: Clock) -> float:
        """CPU used since ``before`` by others than the set-up, as a share of one CPU."""
        passed = self.wall - before.wall
        return max(0.0, (self.machine - before.machine - (self.ours - before.ours)) / passed)
