"""The registry behind ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from observers.audit import AuditObserver
from observers.lane import ObserverStats
from proxy.telemetry.definitions import METRICS, DataPath, Snapshot


class Observing(Protocol):
    """The dispatcher of observers, as far as metrics go."""

    observers: Mapping[str, Any]

    def stats(self) -> list[ObserverStats]:
        """Counts of each observer."""


class Metrics(Collector):
    """The registry of one sidecar: all of ``METRICS``, and the process's own (``process_…``)."""

    def __init__(self, data_path: DataPath, dispatcher: Observing | None) -> None:
        self._data_path = data_path
        self._dispatcher = dispatcher
        self._audit: AuditObserver | None = None
        if dispatcher is not None:
            found = (observer for observer in dispatcher.observers.values() if isinstance(observer, AuditObserver))
            self._audit = next(found, None)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """Return Prometheus' text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Read every counter once."""
        observers = [] if self._dispatcher is None else self._dispatcher.stats()
        audit = None if self._audit is None else self._audit.stats()
        snapshot = Snapshot(self._data_path, observers, audit)
        for definition in METRICS:
            yield definition.family(snapshot)
