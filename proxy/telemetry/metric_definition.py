"""The definition of one metric: its name, its meaning, and how it is read from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from proxy.core.apis import APIS
from proxy.telemetry.snapshot import Snapshot

UNKNOWN_API = "unknown"
"""The label of requests with an unknown api key. All of them share it, since clients choose the key."""

MetricKind = Literal["counter", "gauge", "summary", "histogram"]

Samples = Iterable[tuple[tuple[str, ...], *tuple[Any, ...]]]
"""Label values and the number; for a summary the count and the sum; for a histogram its buckets (``le``, cumulative
count and the exemplar, or None), the sum, and a function that returns the native histogram."""


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. ``name``: without ``prefix``; that of a counter ends in ``_total``."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    unit: str
    meaning: str
    read: Callable[[Snapshot], Samples]
    prefix: str = "brokerside_"

    @property
    def full_name(self) -> str:
        """The name on the page."""
        return self.prefix + self.name


def api_label(s: Snapshot, api_key: int) -> str:
    """Return the label of an api key."""
    return APIS[api_key].name if api_key in APIS else s.private_apis.get(api_key, UNKNOWN_API)
