"""Turns of connections whose clients have sent more than is read at once: they share the loop with all others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Of one loop. Each round of it is the turn of one connection, in the order in which they entered: so the time that
    others wait does not grow with the number of connections that ask without end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, take_turn: Callable[[], None]) -> None:
        """Call ``take_turn`` in a later round of the loop. It must not raise."""
        self._waiting.append(take_turn)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._serve)

    def _serve(self) -> None:
        take_turn = self._waiting[0]
        try:
            take_turn()  # it may enter again, behind the others
        finally:
            self._waiting.popleft()
            if self._waiting:
                self.loop.call_soon(self._serve)


_latest: Turns | None = None


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """The same for all connections of a loop; a process has one."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = Turns(loop)
    return _latest
