"""The metrics of the built-in observer of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import BucketSpan, Exemplar, NativeHistogram

from observers.event import ROLLUP_BUCKETS
from observers.request_metrics_stats import NATIVE_SCHEMA, ApiStats, Durations, LabelStats, RequestStats
from observers.request_metrics_stats import Exemplar as RequestExemplar
from proxy.telemetry.metric_definition import MetricDefinition, Samples, api_label
from proxy.telemetry.snapshot import Snapshot, add_counters

BUCKET_ENDS = (*(f"{end / 1e6:.6g}" for end in ROLLUP_BUCKETS), "+Inf")
"""Label ``le`` of each bucket, in seconds."""

ZERO_THRESHOLD = 2.0**-128
"""Seconds up to which a native histogram takes a duration for 0; the default of Prometheus' own clients."""


def _apis(s: Snapshot) -> Iterator[tuple[str, str, ApiStats]]:
    """Yield the numbers of each listener and label of an api."""
    for listener, by_key in s.requests.apis.items():
        by_label: dict[str, ApiStats] = {}
        for key, stats in by_key.items():
            label = api_label(s, key)
            by_label[label] = add_counters(by_label[label], stats) if label in by_label else stats
        for label, stats in by_label.items():
            yield listener, label, stats


def _by_api(read: Callable[[ApiStats], tuple[Any, ...]]) -> Callable[[Snapshot], Samples]:
    return lambda s: [((listener, label), *read(stats)) for listener, label, stats in _apis(s)]


def _by_api_and_class(s: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    for listener, label, stats in _apis(s):
        for name, count in (("failure", stats.errors), ("retriable", stats.retriable), ("protocol", stats.protocol)):
            yield (listener, label, name), count


def _histogram(durations: Durations, exemplars: Mapping[int, RequestExemplar]) -> tuple[Any, ...]:
    """Return the buckets, the sum in seconds and the native histogram."""
    reached = accumulate(durations.buckets.get(n, 0) for n in range(len(BUCKET_ENDS)))
    given = {n: _exemplar(*exemplar) for n, exemplar in exemplars.items()}
    buckets = [(end, count, given.get(n)) for n, (end, count) in enumerate(zip(BUCKET_ENDS, reached, strict=True))]
    return buckets, durations.sum_us / 1e6, _native_histogram(durations, [*given.values()])


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
    "of answered requests, in the buckets of the table `latency` and as a native histogram; fetches that found no data "
    "are left out."
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
        _by_api(lambda stats: (stats.request_bytes,)),
    ),
    MetricDefinition(
        "response_bytes_total",
        "counter",
        ("listener", "api"),
        "bytes",
        "Bytes of whole responses.",
        _by_api(lambda stats: (stats.response_bytes,)),
    ),
    MetricDefinition(
        "request_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"From the last byte of the request read to the last byte of the response written, {_DURATION} "
        "Exemplars have the connection id.",
        _by_api(lambda stats: _histogram(stats.latency, stats.exemplars)),
    ),
    MetricDefinition(
        "request_upstream_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The broker's part of it, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.upstream, {})),
    ),
    MetricDefinition(
        "request_sidecar_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The sidecar's own part of it, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.sidecar, {})),
    ),
    MetricDefinition(
        "request_service_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"All of it but what the client let the broker wait for data, and what a quota made it wait, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.service, {})),
    ),
    *_label_metrics("principal", "of a principal", lambda stats: stats.principals, "Bytes"),
    *_label_metrics("topic", "that touched a topic", lambda stats: stats.topics, "Bytes of record sets"),
    *_label_metrics("group", "of a group", lambda stats: stats.groups, "Bytes"),
)
