"""Renders a snapshot as ``/metrics``, in the format that the scraper prefers of those that it accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from proxy.telemetry import protobuf_format, text_format
from proxy.telemetry.coordinator_metrics import COORDINATOR_METRICS
from proxy.telemetry.definitions import METRICS
from proxy.telemetry.metric_definition import MetricDefinition, MetricKind
from proxy.telemetry.snapshot import ProcessCounts, Snapshot

MAX_TURN = 0.001
"""Seconds after which the thread that renders lets the event loop's thread run. The pieces between are much shorter."""

PAUSE = 0.0001
"""Seconds of such a pause. Of 0 seconds the other thread would take no notice."""


class PageFormat(Enum):
    """A format of the page; the value is its content type."""

    TEXT = text_format.CONTENT_TYPE
    OPENMETRICS = text_format.OPENMETRICS_CONTENT_TYPE
    PROTOBUF = protobuf_format.CONTENT_TYPE


def choose_format(accept: str) -> PageFormat:
    """Return the format that an ``Accept`` header prefers: Prometheus' text, OpenMetrics 1.0.0 (which has exemplars) or
    protobuf (which has exemplars and native histograms). The text where nothing else is wanted.
    """
    for media_range in _by_preference(accept):
        if protobuf_format.is_accepted(media_range):
            return PageFormat.PROTOBUF
        kind, *parameters = (part.strip() for part in media_range.split(";"))
        versions = [parameter for parameter in parameters if parameter.startswith("version=")]
        if kind == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            return PageFormat.OPENMETRICS
        if kind == "text/plain":
            return PageFormat.TEXT
    return PageFormat.TEXT


def render(snapshot: Snapshot, wanted: PageFormat = PageFormat.TEXT) -> bytes:
    """Return the page with ``METRICS`` and ``process_…``; where the coordinator of groups is not enabled, without those
    of the coordinator. Takes milliseconds: for a thread of its own."""
    pieces = []
    resumed_at = time.perf_counter()
    for piece in _ENCODERS[wanted](_definitions(snapshot), snapshot):
        pieces.append(piece)
        if time.perf_counter() - resumed_at > MAX_TURN:
            time.sleep(PAUSE)
            resumed_at = time.perf_counter()
    return b"".join(pieces)


def _definitions(snapshot: Snapshot) -> Iterator[MetricDefinition]:
    left_out = frozenset(COORDINATOR_METRICS) if snapshot.coordinator is None else frozenset()
    return (one for one in (*METRICS, *_PROCESS_METRICS) if one not in left_out)


_ENCODERS: dict[PageFormat, Callable[[Iterable[MetricDefinition], Snapshot], Iterator[bytes]]] = {
    PageFormat.TEXT: text_format.encode,
    PageFormat.OPENMETRICS: text_format.encode_openmetrics,
    PageFormat.PROTOBUF: protobuf_format.encode,
}


def _by_preference(accept: str) -> list[str]:
    """Return the media ranges of an ``Accept`` header, the most wanted first (RFC 9110, 12.5.1)."""
    media_ranges = [one.strip().lower() for one in accept.split(",")]
    weights = {one: _weight(one) for one in media_ranges}
    return sorted((one for one in media_ranges if weights[one] > 0), key=lambda one: -weights[one])


def _weight(media_range: str) -> float:
    for parameter in media_range.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _process(
    name: str, unit: str, meaning: str, read: Callable[[ProcessCounts], float], *, counts: bool = False
) -> MetricDefinition:
    kind: MetricKind = "counter" if counts else "gauge"
    return MetricDefinition(name, kind, (), unit, meaning, lambda s: [((), read(s.process))], prefix="process_")


_PROCESS_METRICS = (
    _process("cpu_seconds_total", "seconds", "CPU time, user and system.", lambda p: p.cpu_seconds, counts=True),
    _process("resident_memory_bytes", "bytes", "Resident memory.", lambda p: p.resident_bytes),
    _process("virtual_memory_bytes", "bytes", "Virtual memory.", lambda p: p.virtual_bytes),
    _process("open_fds", "descriptors", "Open file descriptors.", lambda p: p.open_fds),
    _process("max_fds", "descriptors", "File descriptors one process may have.", lambda p: p.max_fds),
    _process("start_time_seconds", "seconds", "When it started, since 1970.", lambda p: p.started_at),
)
"""The metrics of ``prometheus_client.ProcessCollector``, which can only read its own process."""
