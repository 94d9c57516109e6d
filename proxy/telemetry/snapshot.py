"""What is read at one moment: plain values that can be added up and sent from one process to another."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from msgspec import Struct, field

from observers.lane import ObserverStats
from proxy.core.tally import Tally
from proxy.limits.model import QuotasState
from proxy.reload import ReloadState

_STAT = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)  # now: there may be no descriptor for it later


class ProcessCounts(Struct):
    """What the kernel counts of a process. ``started_at``: seconds since 1970, UTC."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    virtual_bytes: int = 0
    open_fds: int = 0
    max_fds: int = 0
    started_at: float = 0.0


class QuotaSource(Struct):
    """How it goes with asking the cluster for its quotas. ``last_ok_at``: seconds since 1970; NaN before the first.

    ``problem``: whether they limit the sidecar itself, or are not told where they should count.
    """

    ok: bool
    last_ok_at: float
    problem: bool


class Snapshot(Struct):
    """Counts of one process of the sidecar, or the sum over all of them."""

    tallies: dict[str, Tally]
    """By listener."""
    process: ProcessCounts = field(default_factory=ProcessCounts)
    loop_lag: float = 0.0
    """Seconds by which the loop's last beat was late; of several processes the worst."""
    draining: bool = False
    memory_charged: int = 0
    """Bytes of ``proxy.core.budget``."""
    memory_limit: int = 0
    memory_waits: int = 0
    observers: dict[str, ObserverStats] = field(default_factory=dict)
    """By name, in the order of ``observer.class.names``."""
    audit: dict[str, Any] = field(default_factory=dict)
    """The fields of ``observers.audit.AuditStats``; empty without the built-in audit observer."""
    workers: dict[int, int] = field(default_factory=dict)
    """Open connections by the worker's number."""
    log_lines_dropped: dict[str, int] = field(default_factory=dict)
    """By level."""
    worker_restarts: int = 0
    throttle_reports_lost: int = 0
    """Reports of throttled connections that no worker could take, and no observer was told of."""
    quotas: QuotasState | None = None
    """This and what follows is set by the main process, after the sum."""
    reload: ReloadState | None = None
    private_apis: dict[int, str] = field(default_factory=dict)
    """Names of what the sidecar answers itself, by api key."""
    registry_dropped: dict[str, int] = field(default_factory=dict)
    """Records of the fleet's registry that were not taken, by reason."""
    source: QuotaSource | None = None
    """None where the cluster is not asked for quotas."""


def total(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Add up at least one snapshot, the main process's first; what a sum says nothing of is said in ``Snapshot``."""
    parts = list(snapshots)
    summed: Snapshot = reduce(added, parts)
    summed.loop_lag = max(part.loop_lag for part in parts)
    summed.process.max_fds = parts[0].process.max_fds
    summed.process.started_at = parts[0].process.started_at
    return summed


def added(one: Any, other: Any) -> Any:
    """Return a new value: numbers summed, flags or-ed, mappings and structs field by field; text is the same."""
    if isinstance(one, bool):
        return one or other
    if isinstance(one, int | float):
        return one + other
    if isinstance(one, Mapping):
        return {**one, **other, **{key: added(one[key], other[key]) for key in one if key in other}}
    if isinstance(one, Struct):
        return type(one)(**{name: added(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__})
    return one or other


def process_counts() -> ProcessCounts:
    """Read ``/proc`` about this process."""
    stat = os.pread(_STAT, 4096, 0).decode().rpartition(")")[2].split()  # the name before may hold anything
    max_fds = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        open_fds = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))  # 0 before Linux 6.2
    except OSError:
        open_fds = max_fds  # so none is left to look with
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    return ProcessCounts(
        cpu_seconds=time.process_time(),
        resident_bytes=int(stat[21]) * resource.getpagesize(),
        virtual_bytes=int(stat[20]),
        open_fds=open_fds,
        max_fds=max_fds,
        started_at=time.time() - age,
    )
