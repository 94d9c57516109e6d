# cython: language_level=3, annotation_typing=False
"""Closes clients whose first request does not arrive in time. Without a request they would hold a connection to the
broker and a slot of ``max.connections``.

The time begins when the connection to the broker is established, because the sidecar does not read the client before.
Time in which this process did not run does not count. If bytes of the client are unread at its deadline (the broker
does not accept more, memory is scarce, or the event loop is late), the time begins again.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

import cython

from proxy.core.causes import Cause
from proxy.net.relay import Relay

MAX_TICK_GAP = 0.5
"""Seconds counted at most between two ticks. A longer gap means that this process was stopped or had no CPU."""

MIN_CHECKS_PER_TICK = 100
"""Deadlines checked in one tick, or a twentieth of all waiting clients if that is more. The rest follows in the next
tick."""

SETUP_TIMEOUT: Cause = "connection_setup_timeout"

_Int = struct.Struct("@i")


def has_unread_bytes(relay: Relay) -> bool:
    """Return whether the kernel has bytes of the client that this process has not read. Source: ioctl_tty(2)."""
    try:
        (waiting,) = _Int.unpack(fcntl.ioctl(relay.descriptor("client"), termios.FIONREAD, bytes(_Int.size)))
    except (OSError, ValueError):  # the socket is closed
        return False
    return bool(waiting)


def is_set_up(relay: Relay) -> bool:
    """Return whether the client's first request is complete. Without a session: whether any byte has arrived."""
    session = relay.session
    if session is None:
        return relay.received_bytes > 0
    if session.requests != 1 or relay.sent_bytes:
        return session.requests > 0
    if session.in_flight:  # a part of the next request may have arrived, too
        return relay.received_bytes >= session.in_flight[0].request_bytes
    return session.is_between_requests  # a Produce with acks=0


@cython.cclass
class SetupDeadlines:
    """The deadlines of all clients of one process whose first request is outstanding.

    ``timeout_ms`` may change at any time. Belongs to the event loop's thread. A client costs one entry until its
    deadline, or until its connection ends.
    """

    def __init__(
        self,
        timeout_ms: int,
        clock: Callable[[], float] = monotonic,
        has_unread_bytes: Callable[[Relay], bool] = has_unread_bytes,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._clock = clock
        self._has_unread_bytes = has_unread_bytes
        self._started_at: OrderedDict[Relay, float] = OrderedDict()  # ordered by start, since all have the same timeout
        self._uptime = 0.0  # seconds of run time at the last tick
        self._tick_at = clock()

    def __len__(self) -> int:
        """Return the number of running deadlines."""
        return len(self._started_at)

    def start(self, relay: Relay) -> None:
        """Start the deadline of the client of ``relay``, which is read from now on."""
        self._started_at[relay] = self._current_uptime()

    def cancel(self, relay: Relay) -> None:
        """Remove the deadline of ``relay``, if it has one."""
        self._started_at.pop(relay, None)

    def on_tick(self) -> None:
        """Close clients whose deadline has passed. Called by the ticker."""
        self._uptime, self._tick_at = self._current_uptime(), self._clock()
        latest = self._uptime - self.timeout_ms / 1000
        for _ in range(max(MIN_CHECKS_PER_TICK, len(self._started_at) // 20)):
            relay, started_at = next(iter(self._started_at.items()), (None, 0.0))
            if relay is None or started_at > latest:
                return
            del self._started_at[relay]
            if is_set_up(relay):
                continue
            if self._has_unread_bytes(relay):
                self.start(relay)
                continue
            with contextlib.suppress(OSError):
                relay.close(SETUP_TIMEOUT)

    def _current_uptime(self) -> float:
        """Return the seconds in which this process has run."""
        return self._uptime + min(self._clock() - self._tick_at, MAX_TICK_GAP)
