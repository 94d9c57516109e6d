"""The metrics of the built-in observer of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate
from typing import Any

from prometheus_client.core import BucketSpan, Exemplar, NativeHistogram

from observers.event import ROLLUP_BUCKETS
from observers.request_metrics_stats import NATIVE_SCHEMA, ApiStats, Durations, LabelStats, RequestStats
from proxy.telemetry.metric_definition import MetricDefinition, Samples, api_label
from proxy.telemetry.snapshot import Snapshot, add_counters

BUCKET_ENDS = (*(f"{end / 1e6:.6g}" for end in ROLLUP_BUCKETS), "+Inf")
"""Label ``le`` of each bucket, in seconds."""

ZERO_THRESHOLD = 2.0**-128
"""Seconds up to which a native histogram takes a duration for 0; the default of Prometheus' own clients."""


ALL_BUCKETS = range(len(ROLLUP_BUCKETS))
"""Places of all buckets: those of the whole durations, as ``brokerside export prometheus`` needs any of them."""

PART_BUCKETS = range(0, len(ROLLUP_BUCKETS), 4)
"""Places of the buckets of the parts of a duration, on which no rule is written. Each ends four times as late as the
one before."""


def _apis(s: Snapshot) -> Iterator[tuple[str, str, list[ApiStats]]]:
    """Yield each listener and label of an api, and the numbers of all apis with this label."""
    for listener, by_key in s.requests.apis.items():
        by_label: dict[str, list[ApiStats]] = {}
        for key, stats in by_key.items():
            by_label.setdefault(api_label(s, key), []).append(stats)
        for label, found in by_label.items():
            yield listener, label, found


def _by_api(read: Callable[[ApiStats], int]) -> Callable[[Snapshot], Samples]:
    return lambda s: (((listener, label), sum(map(read, found))) for listener, label, found in _apis(s))


def _by_api_and_class(s: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    for listener, label, found in _apis(s):
        yield (listener, label, "failure"), sum(stats.errors for stats in found)
        yield (listener, label, "retriable"), sum(stats.retriable for stats in found)
        yield (listener, label, "protocol"), sum(stats.protocol for stats in found)


def _durations(
    read: Callable[[ApiStats], Durations], places: Sequence[int], *, exemplars: bool = False
) -> Callable[[Snapshot], Samples]:
    """Return a reader of a histogram of each api with a request that was measured.

    ``places``: of the buckets that classic histograms have beside the one without an end.
    """

    def samples(s: Snapshot) -> Iterator[tuple[tuple[str, ...], *tuple[Any, ...]]]:
        for listener, label, found in _apis(s):
            measured = [stats for stats in found if stats.latency.buckets]
            if measured:
                stats = reduce(add_counters, measured)
                given = {n: _exemplar(*exemplar) for n, exemplar in stats.exemplars.items()} if exemplars else {}
                yield (listener, label), *_histogram(read(stats), places, given)

    return samples


def _histogram(durations: Durations, places: Sequence[int], exemplars: Mapping[int, Exemplar]) -> tuple[Any, ...]:
    """Return the buckets, the sum in seconds and a function that returns the native histogram."""
    reached = [*accumulate(durations.buckets.get(n, 0) for n in range(len(BUCKET_ENDS)))]
    buckets = [(BUCKET_ENDS[n], reached[n], exemplars.get(n)) for n in (*places, len(BUCKET_ENDS) - 1)]
    return buckets, durations.sum_us / 1e6, partial(_native_histogram, durations, [*exemplars.values()])


def _exemplar(connection_id: str, us: int, at: float) -> Exemplar:
    return Exemplar({"connection_id": connection_id}, us / 1e6, round(at, 3))


def _native_histogram(durations: Durations, exemplars: list[Exemplar]) -> NativeHistogram:
    """Return it with a span for each run of buckets, whose counts are differences from one to the next."""
    spans: list[BucketSpan] = []
    deltas: list[int] = []
    last_place, last_count = 0, 0
    for place, count in sorted(durations.native.items()):
        if spans and place == last_place + 1:
            spans[-1] = BucketSpan(spans[-1].offset, spans[-1].length + 1)
        else:
            spans.append(BucketSpan(place - last_place - 1 if spans else place, 1))
        deltas.append(count - last_count)
        last_place, last_count = place, count
    total = sum(durations.native.values()) + durations.zeros
    return NativeHistogram(
        total,
        durations.sum_us / 1e6,
        NATIVE_SCHEMA,
        ZERO_THRESHOLD,
        durations.zeros,
        spans,
        None,
        deltas,
        None,
        exemplars,
    )


def _by_label(
    pick: Callable[[RequestStats], Mapping[str, LabelStats]], read: Callable[[LabelStats], int]
) -> Callable[[Snapshot], Samples]:
    return lambda s: [((name,), read(stats)) for name, stats in pick(s.requests).items()]


def _label_metrics(
    label: str, of: str, pick: Callable[[RequestStats], Mapping[str, LabelStats]], size: str
) -> Iterator[MetricDefinition]:
    """Yield the metrics of the busiest values of a label."""
    rest = f"of the busiest {label}s; `other` has all others."
    parts: tuple[tuple[str, str, str, Callable[[LabelStats], int]], ...] = (
        ("requests", "requests", f"Requests {of}, {rest}", lambda stats: stats.requests),
        ("request_errors", "requests", f"Requests {of} with a failure, {rest}", lambda stats: stats.errors),
        ("received_bytes", "bytes", f"{size} from clients, {rest}", lambda stats: stats.received_bytes),
        ("sent_bytes", "bytes", f"{size} to clients, {rest}", lambda stats: stats.sent_bytes),
    )
    for name, unit, meaning, read in parts:
        yield MetricDefinition(f"{label}_{name}_total", "counter", (label,), unit, meaning, _by_label(pick, read))


_DURATION = (
    "of requests that the broker answered, also as a native histogram; fetches that found no data and answers of the "
    "sidecar itself are left out."
)

REQUEST_METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        "request_errors_total",
        "counter",
        ("listener", "api", "class"),
        "requests",
        "Requests with an error, of the whole or of an item, by the worst class: `failure`, `retriable` (a leader or "
        "coordinator moves) or `protocol` (a step of one, as a rebalance).",
        _by_api_and_class,
    ),
    MetricDefinition(
        "request_bytes_total",
        "counter",
        ("listener", "api"),
        "bytes",
        "Bytes of whole requests.",
        _by_api(lambda stats: stats.request_bytes),
    ),
    MetricDefinition(
        "response_bytes_total",
        "counter",
        ("listener", "api"),
        "bytes",
        "Bytes of whole responses.",
        _by_api(lambda stats: stats.response_bytes),
    ),
    MetricDefinition(
        "request_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"From the last byte of the request read to the last byte of the response written, {_DURATION} "
        "Exemplars have the connection id.",
        _durations(lambda stats: stats.latency, ALL_BUCKETS, exemplars=True),
    ),
    MetricDefinition(
        "request_upstream_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The broker's part of it, {_DURATION}",
        _durations(lambda stats: stats.upstream, PART_BUCKETS),
    ),
    MetricDefinition(
        "request_sidecar_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The sidecar's own part of it, {_DURATION}",
        _durations(lambda stats: stats.sidecar, PART_BUCKETS),
    ),
    MetricDefinition(
        "request_service_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"All of it but what the client let the broker wait for data, and what a quota made it wait, {_DURATION}",
        _durations(lambda stats: stats.service, ALL_BUCKETS),
    ),
    *_label_metrics("principal", "of a principal", lambda stats: stats.principals, "Bytes"),
    *_label_metrics("topic", "that touched a topic", lambda stats: stats.topics, "Bytes of record sets"),
    *_label_metrics("group", "of a group", lambda stats: stats.groups, "Bytes"),
)
