"""RoundRobin of connections whose clients have sent more than is read at once: they share the loop with all others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class RoundRobin:
    """Of one loop. Each round of it is the turn of one connection, in the order in which they entered: so the time that
    others wait does not grow with the number of connections that ask without end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a later round of the loop. It must not raise."""
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        callback = self._waiting[0]
        try:
            callback()  # it may enter again, behind the others
        finally:
            self._waiting.popleft()
            if self._waiting:
                self.loop.call_soon(self._run_next)


_latest: RoundRobin | None = None


def round_robin_for(loop: asyncio.AbstractEventLoop) -> RoundRobin:
    """The same for all connections of a loop; a process has one."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = RoundRobin(loop)
    return _latest
