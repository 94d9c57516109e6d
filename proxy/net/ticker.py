"""The one timer of a process: what has to be done now and then is done here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

TICK_INTERVAL = 0.05
"""Seconds between two beats: between two hand-overs of finished exchanges to the observers, among others."""


class Ticker:
    """Calls all of ``callbacks`` every ``TICK_INTERVAL`` seconds. ``lag``: seconds by which the last ticker was late."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.lag = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._tick(monotonic())

    def stop(self) -> None:
        """Call everything once more, and no more from then on."""
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
