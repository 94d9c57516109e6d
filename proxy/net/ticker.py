"""The one timer of a process: what has to be done now and then is done here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

BEAT = 0.05
"""Seconds between two beats: between two hand-overs of finished exchanges to the observers, among others."""


class Beat:
    """Calls all of ``calls`` every ``BEAT`` seconds. ``lag``: seconds by which the last beat was late."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.lag = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin."""
        self._beat(monotonic())

    def stop(self) -> None:
        """Call everything once more, and no more from then on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._call()

    def _beat(self, due: float) -> None:
        now = monotonic()
        self.lag = max(0.0, now - due)
        self._timer = asyncio.get_running_loop().call_later(BEAT, self._beat, now + BEAT)
        self._call()

    def _call(self) -> None:
        for call in self.calls:
            call()
