"""The definition of one metric: its name, its meaning, and how it is read from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    NativeHistogram,
    SummaryMetricFamily,
)

from proxy.core.apis import APIS
from proxy.telemetry.snapshot import Snapshot

UNKNOWN_API = "unknown"
"""The label of requests with an unknown api key. All of them share it, since clients choose the key."""

Samples = Iterable[tuple[tuple[str, ...], *tuple[Any, ...]]]
"""Label values and the number; for a summary the count and the sum; for a histogram its buckets (``le``, cumulative
count and the exemplar, or None), the sum and the native histogram."""

_FAMILIES: dict[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "summary": SummaryMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. ``name``: without the prefix ``brokerside_``; that of a counter ends in ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "summary", "histogram"]
    labels: tuple[str, ...]
    unit: str
    meaning: str
    read: Callable[[Snapshot], Samples]

    def family(self, snapshot: Snapshot, native: bool = False) -> Metric:
        """Return the metric with its current values. ``native``: with native histograms beside the classic ones."""
        name = f"brokerside_{self.name}"
        family = _FAMILIES[self.kind](name, self.meaning, labels=self.labels)
        for labels, *numbers in self.read(snapshot):
            if self.kind == "histogram":
                *numbers, histogram = numbers
                if native:
                    _add_native(family, name, dict(zip(self.labels, labels, strict=True)), histogram)
            family.add_metric(labels, *numbers)
        assert isinstance(family, Metric)
        return family


def _add_native(family: Metric, name: str, labels: dict[str, str], histogram: NativeHistogram) -> None:
    family.add_sample(name, labels, histogram.count_value, native_histogram=histogram)


def api_label(s: Snapshot, api_key: int) -> str:
    """Return the label of an api key."""
    return APIS[api_key].name if api_key in APIS else s.private_apis.get(api_key, UNKNOWN_API)
