"""All counters at one moment, as plain values that can be summed and sent between processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from msgspec import Struct, field, structs

from observers.observer_thread import ObserverStats
from observers.request_metrics_stats import MAX_LABELS, OTHER, Exemplar, LabelStats, RequestStats
from proxy.coordinator.status import CoordinatorStatus
from proxy.core.counters import ListenerCounters
from proxy.features.status import FeaturesStatus
from proxy.limits.model import QuotasState
from proxy.reload import ReloadState

_STAT = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)  # opened now, since descriptors may run out later
_DESCRIPTORS = os.open("/proc/self/fd", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)


def _read_stat() -> list[str]:
    """Return the fields of ``/proc/self/stat`` from the third on."""
    return os.pread(_STAT, 4096, 0).decode().rpartition(")")[2].split()  # the name before may contain any character


# Computed once: whoever looks for restarts takes each other value for one, however little it differs.
_STARTED_AT = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - int(_read_stat()[19]) / os.sysconf("SC_CLK_TCK"))


class ProcessCounts(Struct):
    """Counters of the kernel about a process. ``started_at``: seconds since 1970, UTC."""

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    virtual_bytes: int = 0
    open_fds: int = 0
    max_fds: int = 0
    started_at: float = 0.0


class QuotaSource(Struct):
    """Whether reading quotas from the cluster works. ``last_ok_at``: seconds since 1970; NaN before the first answer.

    ``problem``: whether the quotas limit the sidecar itself, or cannot be read although they should apply.
    """

    ok: bool
    last_ok_at: float
    problem: bool


class Snapshot(Struct):
    """Counters of one process of the sidecar, or their sum over all processes."""

    listener_counters: dict[str, ListenerCounters]
    """Counters by listener name."""
    process: ProcessCounts = field(default_factory=ProcessCounts)
    loop_lag: float = 0.0
    """Seconds by which the last tick of the event loop was late; the maximum of several processes."""
    draining: bool = False
    memory_charged: int = 0
    """Bytes charged to ``proxy.core.budget``."""
    memory_limit: int = 0
    memory_waits: int = 0
    observers: dict[str, ObserverStats] = field(default_factory=dict)
    """By observer name, in the order of ``observer.class.names``."""
    audit: dict[str, Any] = field(default_factory=dict)
    """The fields of ``observers.event_observer.AuditStats``; empty without the built-in audit observer."""
    opentelemetry: dict[str, Any] = field(default_factory=dict)
    """The same of the built-in OpenTelemetry observer."""
    requests: RequestStats = field(default_factory=RequestStats)
    """Empty without the built-in observer of requests."""
    workers: dict[int, int] = field(default_factory=dict)
    """Open connections by worker number."""
    log_lines_dropped: dict[str, int] = field(default_factory=dict)
    """Dropped log lines by level."""
    worker_restarts: int = 0
    throttle_reports_lost: int = 0
    """Throttle reports that no worker could receive, so that no observer got them."""
    quotas: QuotasState | None = None
    """The state of the quotas. The main process sets this field and the following ones after summing."""
    predecessor_connections: int = 0
    """Open connections of the sidecar that this one has taken over from."""
    reload: ReloadState | None = None
    certificate_expiry: dict[tuple[str, str], float] = field(default_factory=dict)
    """When certificates expire, in seconds since 1970, by listener and the side that is shown the certificate."""
    private_apis: dict[int, str] = field(default_factory=dict)
    """Names of the sidecar's own apis by api key."""
    registry_dropped: dict[str, int] = field(default_factory=dict)
    """Dropped records of the fleet's registry, by reason."""
    broker_id_taken: bool = False
    """Whether another sidecar, started later, has the same ``broker.id``."""
    features: FeaturesStatus | None = None
    """The feature versions of the fleet."""
    coordinator: CoordinatorStatus | None = None
    """The groups of consumers that this sidecar coordinates."""
    source: QuotaSource | None = None
    """None if quotas are not read from the cluster."""


def sum_snapshots(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the sum of at least one snapshot. The first one is that of the main process.

    The docstrings of ``Snapshot`` name the fields that are not summed.
    """
    parts = list(snapshots)
    summed: Snapshot = reduce(add_counters, parts)
    summed.loop_lag = max(part.loop_lag for part in parts)
    summed.process.max_fds = parts[0].process.max_fds
    summed.process.started_at = parts[0].process.started_at
    return summed


def sum_exited(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the sum of workers that have exited, with no more principals, topics and groups than one worker has.

    ``other`` has the counts of the less busy ones.
    """
    summed = sum_snapshots(snapshots)
    requests = summed.requests
    summed.requests = structs.replace(
        requests,
        principals=_keep_busiest(requests.principals),
        topics=_keep_busiest(requests.topics),
        groups=_keep_busiest(requests.groups),
    )
    return summed


def _keep_busiest(counts: dict[str, LabelStats]) -> dict[str, LabelStats]:
    names = sorted(counts.keys() - {OTHER}, key=lambda name: (-counts[name].requests, name))
    kept = {name: counts[name] for name in names[:MAX_LABELS]}
    rest = [counts[name] for name in names[MAX_LABELS:]]
    if OTHER in counts or rest:
        kept[OTHER] = reduce(add_counters, rest, counts.get(OTHER, LabelStats(0, 0, 0, 0)))
    return kept


def add_counters(one: Any, other: Any) -> Any:
    """Return a new value: numbers are added, flags or-ed, mappings and structs added field by field, texts kept.

    Of two exemplars it is the newer one.
    """
    if isinstance(one, bool):
        return one or other
    if isinstance(one, int | float):
        return one + other
    if isinstance(one, Exemplar):
        return max(one, other, key=lambda exemplar: exemplar.answered_at)
    if isinstance(one, Mapping):
        return {**one, **other, **{key: add_counters(one[key], other[key]) for key in one if key in other}}
    if isinstance(one, Struct):
        return type(one)(
            **{name: add_counters(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__}
        )
    return one or other


def reported_descriptors() -> int:
    """Return how many descriptors this process has open, as the kernel reports it; 0 before Linux 6.2."""
    return os.fstat(_DESCRIPTORS).st_size


def open_descriptors() -> int:
    """Return how many descriptors this process has open. Before Linux 6.2 that takes 0.4 microseconds for each."""
    try:
        return reported_descriptors() or len(os.listdir(_DESCRIPTORS))
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # EMFILE: all of them are in use


def process_counts() -> ProcessCounts:
    """Read ``/proc`` for this process."""
    stat = _read_stat()
    return ProcessCounts(
        cpu_seconds=time.process_time(),
        resident_bytes=int(stat[21]) * resource.getpagesize(),
        virtual_bytes=int(stat[20]),
        open_fds=open_descriptors(),
        max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        started_at=_STARTED_AT,
    )
