"""What the coordinator of groups logs and counts: a bounded number of lines, and sums for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from proxy.coordinator.effects import CountGroupEvent, LogGroupEvent
from proxy.coordinator.status import MetricTotal

LINES_PER_SECOND = 20
"""Lines of one event that are logged within a second. The next line says how many were left out."""

MAXIMUM = "_max"
"""How a metric ends whose amounts are not added up: the largest of them counts."""

log = structlog.get_logger(__name__)


class _Lines:
    """Lines of one event within the current second."""

    __slots__ = ("left", "second", "suppressed")

    def __init__(self) -> None:
        self.second, self.left, self.suppressed = -1, 0, 0


class GroupLog:
    """Times are milliseconds, monotonic. The machine's events are a fixed set, so that nothing here grows."""

    def __init__(self, write: Mapping[str, Callable[..., Any]] | None = None) -> None:
        """``write``: by level, what logs an event with its fields; structlog's without it."""
        self._write = write or {"info": log.info, "warning": log.warning, "error": log.error}
        self._lines: dict[str, _Lines] = {}
        self._totals: dict[str, dict[tuple[str, ...], MetricTotal]] = {}

    def log(self, effect: LogGroupEvent, now: int) -> None:
        """Log a line, unless the event had ``LINES_PER_SECOND`` in this second."""
        lines = self._lines.get(effect.event)
        if lines is None:
            lines = self._lines[effect.event] = _Lines()
        if lines.second != now // 1000:
            lines.second, lines.left = now // 1000, LINES_PER_SECOND
        if not lines.left:
            lines.suppressed += 1
            return
        lines.left -= 1
        left_out = {"suppressed": lines.suppressed} if lines.suppressed else {}
        lines.suppressed = 0
        self._write[effect.level](effect.event, **effect.fields, **left_out)

    def count(self, effect: CountGroupEvent) -> None:
        """Add to a metric."""
        of_metric = self._totals.setdefault(effect.metric, {})
        known = of_metric.get(effect.labels, MetricTotal(effect.labels, 0, 0))
        amount = known.amount + effect.amount
        if effect.metric.endswith(MAXIMUM):
            amount = max(known.amount, effect.amount)
        of_metric[effect.labels] = MetricTotal(effect.labels, known.times + 1, amount)

    def totals(self) -> dict[str, list[MetricTotal]]:
        """Return what was counted since the start, by metric; maxima since the last call."""
        found = {metric: list(totals.values()) for metric, totals in self._totals.items()}
        for metric in [metric for metric in self._totals if metric.endswith(MAXIMUM)]:
            del self._totals[metric]
        return found
