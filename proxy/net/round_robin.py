"""Shares the event loop fairly among connections whose clients have sent more than is processed at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class RoundRobin:
    """Calls callbacks of one event loop in the order in which they were scheduled, one in each iteration of the loop.

    So the delay of other connections does not grow with the number of connections that send without end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a callback waits, or runs."""
        return bool(self._waiting)

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a later iteration of the event loop. It must not raise."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        callback = self._waiting[0]
        try:
            callback()  # it may schedule another callback behind the others
        finally:
            self._waiting.popleft()
            if self._waiting:
                self.loop.call_soon(self._run_next)


_latest: RoundRobin | None = None


def round_robin_for(loop: asyncio.AbstractEventLoop) -> RoundRobin:
    """Return the ``RoundRobin`` of ``loop``, which all its connections share."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = RoundRobin(loop)
    return _latest
