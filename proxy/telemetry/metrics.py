"""Renders a snapshot as the text of ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.telemetry.definitions import METRICS
from proxy.telemetry.snapshot import ProcessCounts, Snapshot


def render(snapshot: Snapshot) -> tuple[bytes, str]:
    """Return the Prometheus text format and its content type: all of ``METRICS`` and ``process_…``."""
    registry = CollectorRegistry()
    registry.register(_Families(snapshot))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Families(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for definition in METRICS:
            yield definition.family(self._snapshot)
        yield from _process(self._snapshot.process)


def _process(counts: ProcessCounts) -> Iterator[Metric]:
    """Yield the metrics of ``prometheus_client.ProcessCollector``, which can only read its own process."""
    yield CounterMetricFamily("process_cpu_seconds", "CPU time, user and system.", counts.cpu_seconds)
    yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory.", counts.resident_bytes)
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory.", counts.virtual_bytes)
    yield GaugeMetricFamily("process_open_fds", "Open file descriptors.", counts.open_fds)
    yield GaugeMetricFamily("process_max_fds", "File descriptors one process may have.", counts.max_fds)
    yield GaugeMetricFamily("process_start_time_seconds", "When it started, since 1970.", counts.started_at)
