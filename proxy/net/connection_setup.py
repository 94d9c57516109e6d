"""Closes clients whose first request does not come in time: they hold a connection to the broker, and a slot of
``max.connections``, for nothing.

The time of a client begins when its connection to the broker is there: not before does the sidecar read it. Time in
which this process did not run does not count. A client of which bytes wait unread at its deadline, because the broker
does not take them, memory is scarce or the loop is late, gets the whole time again.
"""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from proxy.core.causes import Cause
from proxy.net.relay import Relay

MAX_TICK_GAP = 0.5
"""Seconds that count between two beats: after a longer pause this process was stopped, or had no CPU."""

MIN_CHECKS_PER_TICK = 100
"""Deadlines that are looked at in one ticker, or a twentieth of all clients that wait; later ones in the next ticker."""

SETUP_TIMEOUT: Cause = "connection_setup_timeout"

_Int = struct.Struct("@i")


def has_unread_bytes(relay: Relay) -> bool:
    """Return whether the kernel has bytes of the client that this process has not read. Source: ioctl_tty(2)."""
    try:
        (waiting,) = _Int.unpack(fcntl.ioctl(relay.descriptor("client"), termios.FIONREAD, bytes(_Int.size)))
    except (OSError, ValueError):  # closed, or -1
        return False
    return bool(waiting)


def is_set_up(relay: Relay) -> bool:
    """Return whether the client's first request is complete; where requests are not read, whether there is a byte."""
    session = relay.session
    if session is None:
        return relay.received_bytes > 0
    if session.requests != 1 or relay.sent_bytes:
        return session.requests > 0
    if session.in_flight:  # a part of the next request may be there, too
        return relay.received_bytes >= session.in_flight[0].request_bytes
    return session.between_requests  # a Produce with acks=0


class SetupDeadlines:
    """The clients of one process that have their first request before them. ``timeout_ms`` may change at any time.

    Belongs to the loop's thread. A client costs one entry until it is set up and its time is over, or it has ended.
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
        self._started_at: OrderedDict[Relay, float] = OrderedDict()  # in that order: all have the same time
        self._uptime = 0.0  # seconds until the last beat
        self._tick_at = clock()

    def __len__(self) -> int:
        """How many wait for their deadline."""
        return len(self._started_at)

    def start(self, relay: Relay) -> None:
        """The client of ``relay`` is read from now on."""
        self._started_at[relay] = self._current_uptime()

    def cancel(self, relay: Relay) -> None:
        """``relay`` is closed; it need not have begun."""
        self._started_at.pop(relay, None)

    def on_tick(self) -> None:
        """To be called now and then: close clients whose time is over."""
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
        """Seconds in which this process has run."""
        return self._uptime + min(self._clock() - self._tick_at, MAX_TICK_GAP)
