"""The effects of one call of ``Coordinator.handle``, in their order."""

from __future__ import annotations

from typing import Any

from proxy.coordinator.effects import CountGroupEvent, Effect, LogGroupEvent


class EffectSink:
    """Gathers effects until they are taken."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def log(self, level: str, event: str, /, **fields: Any) -> None:
        """Add a log line."""
        self._effects.append(LogGroupEvent(level, event, fields))

    def count(self, metric: str, *labels: str, amount: float = 1) -> None:
        """Add to a metric."""
        self._effects.append(CountGroupEvent(metric, labels, amount))

    def take(self) -> list[Effect]:
        """Return the effects, and begin anew."""
        effects, self._effects = self._effects, []
        return effects
