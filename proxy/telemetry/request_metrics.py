"""The metrics of the built-in observer of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from observers.event import ROLLUP_BUCKETS
from observers.request_metrics_stats import ApiStats, LabelStats, RequestStats
from proxy.telemetry.metric_definition import MetricDefinition, Samples, api_label
from proxy.telemetry.snapshot import Snapshot, add_counters

BUCKET_ENDS = (*(f"{end / 1e6:.6g}" for end in ROLLUP_BUCKETS), "+Inf")
"""Label ``le`` of each bucket, in seconds."""


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


def _histogram(counts: Mapping[int, int], total_us: int) -> tuple[Any, ...]:
    """Return pairs of bucket end and cumulative count, and the sum in seconds."""
    reached = accumulate(counts.get(n, 0) for n in range(len(BUCKET_ENDS)))
    return list(zip(BUCKET_ENDS, reached, strict=True)), total_us / 1e6


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


_DURATION = "of answered requests, in the buckets of the table `latency`; fetches that found no data are left out."

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
        f"From the last byte of the request read to the last byte of the response written, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.latency, stats.latency_us)),
    ),
    MetricDefinition(
        "request_upstream_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The broker's part of it, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.upstream, stats.upstream_us)),
    ),
    MetricDefinition(
        "request_sidecar_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"The sidecar's own part of it, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.sidecar, stats.sidecar_us)),
    ),
    MetricDefinition(
        "request_service_duration_seconds",
        "histogram",
        ("listener", "api"),
        "seconds",
        f"All of it but what the client let the broker wait for data, and what a quota made it wait, {_DURATION}",
        _by_api(lambda stats: _histogram(stats.service, stats.service_us)),
    ),
    *_label_metrics("principal", "of a principal", lambda stats: stats.principals, "Bytes"),
    *_label_metrics("topic", "that touched a topic", lambda stats: stats.topics, "Bytes of record sets"),
    *_label_metrics("group", "of a group", lambda stats: stats.groups, "Bytes"),
)
