"""What processes cost, read from outside: CPU to the nanosecond, memory, and what everybody else used meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
        try:
            total += time.clock_gettime(~pid << 3 | 2)  # the kernel's number for the CPU clock of another process
        except OSError:
            continue  # it has ended
    return total


def thread_seconds(pid: int) -> dict[int, tuple[str, float]]:
    """Name, of at most 15 bytes, and CPU seconds so far of each thread that a process has now; by its id."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            name, times = ((thread / each).read_text().strip() for each in ("comm", "schedstat"))
        except OSError:
            continue  # it has ended
        found[int(thread.name)] = (name, int(times.split()[0]) / 1e9)
    return found


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
        try:
            part = parse_ticks(Path(f"/proc/{pid}/stat").read_text())
        except OSError:
            continue
        user, system = user + part[0], system + part[1]
    return user, system


def parse_ticks(text: str) -> tuple[int, int]:
    """Ticks in user and in system mode, of the content of ``/proc/<pid>/stat``."""
    fields = text.rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


@dataclass(frozen=True)
class Memory:
    """KiB of resident memory; ``pss`` counts pages shared by n processes as one nth."""

    rss: int
    pss: int


def memory(pids: Sequence[int]) -> Memory:
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

    def system_share(self, before: Clock) -> float:
        """Share of system time in what the measured processes have used since ``before``; 0 where that is nothing."""
        user, system = self.user - before.user, self.system - before.system
        return system / (user + system) if user + system else 0.0

    def foreign(self, before: Clock) -> float:
        """CPU used since ``before`` by others than the set-up, as a share of one CPU."""
        passed = self.wall - before.wall
        return max(0.0, (self.machine - before.machine - (self.ours - before.ours)) / passed)
