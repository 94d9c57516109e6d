"""Renders a snapshot as ``/metrics``, in the format that the scraper prefers of those that it accepts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from proxy.telemetry import protobuf_format
from proxy.telemetry.definitions import METRICS
from proxy.telemetry.snapshot import ProcessCounts, Snapshot

OPENMETRICS_VERSIONS = ("", "1.0.0")
"""Versions in which OpenMetrics is written; without one it is the second."""


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return all of ``METRICS`` and ``process_…``, and the content type.

    ``accept``: the ``Accept`` header. The format is Prometheus' text, OpenMetrics (which has exemplars) or protobuf
    (which has exemplars and native histograms); the text where nothing else is wanted.
    """
    for media_range in _by_preference(accept):
        if protobuf_format.is_accepted(media_range):
            return protobuf_format.encode(_families(snapshot, native=True)), protobuf_format.CONTENT_TYPE
        if media_range.startswith("text/plain") or _is_openmetrics(media_range):
            return _text(snapshot, media_range)
    return _text(snapshot, "")


def _by_preference(accept: str) -> list[str]:
    """Return the media ranges of an ``Accept`` header, the most wanted first (RFC 9110, 12.5.1)."""
    media_ranges = [one.strip().lower() for one in accept.split(",")]
    weights = {one: _weight(one) for one in media_ranges}
    return sorted((one for one in media_ranges if weights[one] > 0), key=lambda one: -weights[one])


def _weight(media_range: str) -> float:
    try:
        return float(_parameter(media_range, "q") or 1.0)
    except ValueError:
        return 0.0


def _is_openmetrics(media_range: str) -> bool:
    """Return whether it is OpenMetrics in a version that can be written. The library takes any for one."""
    kind = media_range.partition(";")[0].strip()
    return kind == "application/openmetrics-text" and _parameter(media_range, "version") in OPENMETRICS_VERSIONS


def _parameter(media_range: str, wanted: str) -> str:
    """Return a parameter of a media range; empty if it has none of this name."""
    parameters = (parameter.strip().partition("=") for parameter in media_range.split(";")[1:])
    return next((value for name, _, value in parameters if name == wanted), "")


def _text(snapshot: Snapshot, media_range: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(media_range)
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        return _families(self._snapshot)


def _families(snapshot: Snapshot, native: bool = False) -> Iterator[Metric]:
    for definition in METRICS:
        yield definition.family(snapshot, native)
    yield from _process(snapshot.process)


def _process(counts: ProcessCounts) -> Iterator[Metric]:
    """Yield the metrics of ``prometheus_client.ProcessCollector``, which can only read its own process."""
    yield CounterMetricFamily("process_cpu_seconds", "CPU time, user and system.", counts.cpu_seconds)
    yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", counts.resident_bytes)
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory.", counts.virtual_bytes)
    yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", counts.open_fds)
    yield GaugeMetricFamily("process_max_fds", "File descriptors one process may have.", counts.max_fds)
    yield GaugeMetricFamily("process_start_time_seconds", "When it started, since 1970.", counts.started_at)
