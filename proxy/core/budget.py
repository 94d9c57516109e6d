"""Memory that clients can make a process hold: one number for all of its connections, and one limit.

Charged are: open exchanges with their client ids; the facts and the kept bodies of exchanges until observers have them;
frames that are held back; answers and requests that wait for their turn; deferred requests, and what the broker
responds to their calls; incomplete prefixes of frames. Charges are estimates from above. Not charged is what one
connection bounds by itself: at most one chunk, or one response that was held back, that waits to be written to each
side; and of a body that is read in pieces one element that is not complete (``bodies.MAX_CARRY``). Slow readers are no
attack: charged with what waits for them, some thousand of them would leave no room for the facts of all others.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

MAX_CHARGED = 67_108_864
"""Bytes that all connections of a process hold at a time. Beyond it, connections that hold more than ``FREE`` wait:
they are read by one chunk at a time, in turn."""

RESERVED = 16_777_216
"""Bytes of ``MAX_CHARGED`` that facts and kept bodies do not take: they are not kept where they would."""

FREE = 65_536
"""Bytes that each connection may hold whatever the others do: it never waits for less."""

CHUNK = 262_144
"""Bytes of the longest chunk that is read at a time: as many connections continue as there is room for one of each."""

SCARCE_CHUNK = 16_384
"""Bytes that are read at a time from each connection while more than the limit is held."""

EXCHANGE = 384
"""Bytes of an open exchange without its bodies."""

BODY = 192
"""Bytes of the facts of one body without its partitions."""

PARTITION = 192
"""Bytes of the facts of one partition without its topic's name. Its record batches are summed up in it."""

NAME = 48
"""Bytes of an object that holds a name, besides the name itself."""

CLIENT_ID = 4
"""Bytes of a decoded client id for each byte on the wire: of text with characters outside of the BMP."""

OPEN, RECORDED, LIMIT, OPTIONAL = range(4)
"""Places in ``Budget.counts``."""


class Budget:
    """Of one process. ``counts``: four numbers of 64 bits: what open connections hold; what was recorded since
    observers were last handed something; the limit; and the limit for what may be left out.

    ``waits``: how often a connection began to wait.
    """

    def __init__(self, limit: int = MAX_CHARGED) -> None:
        self.counts = array("q", (0, 0, limit, limit - min(RESERVED, limit // 4)))
        self.waits = 0
        self._waiting: deque[Callable[[], bool]] = deque()

    @property
    def charged(self) -> int:
        """Bytes that are charged now."""
        return self.counts[OPEN] + self.counts[RECORDED]

    @property
    def limit(self) -> int:
        """Bytes from which connections wait."""
        return self.counts[LIMIT]

    @property
    def full(self) -> bool:
        """Whether more than the limit is held."""
        counts = self.counts
        return counts[OPEN] + counts[RECORDED] > counts[LIMIT]

    def clear_recorded(self) -> None:
        """Observers have been handed all that was recorded: from here on their own queues bound it."""
        self.counts[RECORDED] = 0

    def add_waiter(self, resume: Callable[[], bool]) -> None:
        """Add a connection that waits: ``resume`` lets it be read again, and returns whether it still waited."""
        self.waits += 1
        self._waiting.append(resume)

    def resume_waiters(self) -> None:
        """Resume as many waiting connections as there is room for a chunk of each; at least one, so that none waits
        for ever on another that waits."""
        most = max(1, (self.limit - self.charged) // CHUNK)
        while self._waiting and most:
            most -= self._waiting.popleft()()
