"""The one periodic timer of a process. All periodic work hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TICK_INTERVAL = 0.05
"""Seconds between two ticks, and so at most between two deliveries of finished exchanges to the observers."""


class Ticker:
    """Calls all ``callbacks`` every ``TICK_INTERVAL`` seconds. ``lag``: seconds by which the last tick was late."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.lag = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start ticking."""
        self._tick(monotonic())

    def stop(self) -> None:
        """Call all callbacks once more, and stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._run_callbacks()

    def _tick(self, expected_at: float) -> None:
        now = monotonic()
        self.lag = max(0.0, now - expected_at)
        self._timer = asyncio.get_running_loop().call_later(TICK_INTERVAL, self._tick, now + TICK_INTERVAL)
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        for callback in self.callbacks:
            callback()
