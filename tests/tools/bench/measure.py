"""What processes cost, read from outside: CPU to the nanosecond, memory, and what everybody else used meanwhile."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from proxy.errors import LocalError

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


@contextmanager
def awaiting(what: str) -> Iterator[None]:
    """Say what was waited for when the operating system reports an error. Raises LocalError."""
    try:
        yield
    except OSError as error:
        raise LocalError(f"no {what}: {type(error).__name__}: {error}") from error


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has begun, of all of its threads; none if it has ended."""
    found: list[int] = []
    for begun in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found += map(int, begun.read_text().split())
    return found


def family(pid: int) -> list[int]:
    """``pid`` and every process below it; none if it has ended."""
    found = [pid] if Path(f"/proc/{pid}").exists() else []
    return found + [below for child in children(pid) for below in family(child)]


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU that the processes have used since their start: all threads, also ended ones, with the kernel's work."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):  # it has ended
            total += time.clock_gettime(~pid << 3 | 2)  # the kernel's number for the CPU clock of another process
    return total


def reset_peaks(pids: Sequence[int]) -> None:
    """Let ``peak_mib`` of the processes begin anew."""
    for pid in pids:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """Most resident memory that a process had, in MiB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0.0)


def cpu_ticks(pids: Sequence[int]) -> tuple[int, int]:
    """User and system time of the processes by the kernel's account, which is coarser than ``cpu_seconds``."""
    user = system = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            user, system = user + int(fields[11]), system + int(fields[12])
    return user, system


class Memory(NamedTuple):
    """MiB of resident memory; ``pss`` counts pages shared by n processes as one nth."""

    rss: float
    pss: float


def memory(pids: Sequence[int]) -> Memory:
    found = Counter[str]()
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                found[line.partition(":")[0]] += int(line.split()[1])
    return Memory(found["Rss"] / 1024, found["Pss"] / 1024)


def busy_seconds() -> float:
    """CPU that everything on this machine has used since it started, all CPUs, time stolen by the host included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICK


@dataclass(frozen=True)
class Clock:
    """One reading: wall time, CPU of the measured processes, of the whole set-up with them, and of the machine.
    ``user``, ``system``: ticks of the measured ones."""

    wall: float
    measured: float
    ours: float
    machine: float
    user: int = 0
    system: int = 0

    @classmethod
    def read(cls, measured: Sequence[int], others: Sequence[int]) -> Clock:
        """``others``: pids of the rest of the set-up. Children that have ended are counted as part of it."""
        used = cpu_seconds(measured)
        children = os.times()
        ours = used + cpu_seconds([*others, os.getpid()]) + children.children_user + children.children_system
        return cls(time.monotonic(), used, ours, busy_seconds(), *cpu_ticks(measured))

    def cores(self, before: Clock) -> float:
        """CPU of the measured processes since ``before``, as a share of one."""
        return (self.measured - before.measured) / (self.wall - before.wall)

    def system_share(self, before: Clock) -> float:
        """Share of system time in what the measured processes have used since ``before``; 0 where that is nothing."""
        user, system = self.user - before.user, self.system - before.system
        return system / (user + system) if user + system else 0.0

    def foreign(self, before: Clock) -> float:
        """CPU used since ``before`` by others than the set-up, as a share of one CPU."""
        passed = self.wall - before.wall
        return max(0.0, (self.machine - before.machine - (self.ours - before.ours)) / passed)
