"""Closes connections that are idle for too long, or too old (``connections.max.idle.ms``, ``connections.max.age.ms``).

Nothing is cut: a connection is closed only while no request is open, no frame is under way in either direction, and all
bytes are sent. The client then sees what it sees of a broker that closes idle connections: the end of the stream, and
connects again. An old connection that is never seen between two requests is no longer read; it is closed once its open
requests are answered, and the client has had a second to take the responses: closing a socket with unread bytes makes
the kernel of the client drop what that has not read yet.

Of a connection that passes as bytes (TLS) nobody knows whether a request is open: a second without a byte is taken for
its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from proxy.core.causes import Cause
from proxy.net.connection_setup import has_unread_bytes
from proxy.net.relay import Relay

MIN_AGES_CHECKED_PER_TICK = 100
"""Connections checked in one tick, or a hundredth of all connections if that is more: each every five seconds."""

AGE_SPREAD = 0.1
"""Part of the maximum age by which that of a connection is shorter, depending on its number: connections that were
opened together do not end together."""

PATIENCE = 10.0
"""Seconds in which an old connection is watched for a moment between two requests before it is read no longer."""

RESPONSE_READ_TIME = 1.0
"""Seconds for the client to read the last response."""

SPREAD_STEPS = 101
"""Different ages; a prime, so that they do not depend on how connections are distributed among workers."""


class ConnectionLifetime:
    """Checks the open connections of one process, some in each tick. Belongs to the event loop's thread.

    ``relays``: with their numbers. ``max_idle_ms``, ``max_age_ms``: None for no limit; both may change at any time.
    """

    def __init__(
        self,
        relays: Mapping[Relay, int],
        max_idle_ms: int | None,
        max_age_ms: int | None,
        clock: Callable[[], float] = monotonic,
        has_unread_bytes: Callable[[Relay], bool] = has_unread_bytes,
    ) -> None:
        self.max_idle_ms = max_idle_ms
        self.max_age_ms = max_age_ms
        self._relays = relays
        self._clock = clock
        self._has_unread_bytes = has_unread_bytes
        self._unchecked: Iterator[tuple[Relay, int]] = iter(())
        self._old: dict[Relay, float] = {}  # since when they are too old, of those that could not be closed yet

    def on_tick(self) -> None:
        """Close connections whose time is over. Called by the ticker."""
        if self.max_idle_ms is None and self.max_age_ms is None and not self._old:
            return
        now, checked = self._clock(), 0
        for relay, since in list(self._old.items()):
            if relay.closed or self._close_old(relay, now - since):
                del self._old[relay]
        most = max(MIN_AGES_CHECKED_PER_TICK, len(self._relays) // 100)
        for relay, number in self._unchecked:
            if not relay.closed and relay not in self._old:
                self._check(relay, number, now)
            checked += 1
            if checked == most:
                return
        if not checked:
            self._unchecked = iter(tuple(self._relays.items()))

    def _check(self, relay: Relay, number: int, now: float) -> None:
        if relay.descriptor("client") < 0:  # not connected yet
            return
        if self.max_age_ms is not None:
            spread = 1 - AGE_SPREAD * (number % SPREAD_STEPS) / SPREAD_STEPS
            if now - relay.connection.opened_at >= self.max_age_ms / 1000 * spread:
                if not self._close_old(relay, 0.0):
                    self._old[relay] = now
                return
        if self.max_idle_ms is not None and now - relay.last_byte_at >= self.max_idle_ms / 1000:
            self._close_between_requests(relay, "connection_max_idle")

    def _close_old(self, relay: Relay, waited: float) -> bool:
        """Close ``relay`` if that is possible now, and return whether it was."""
        if waited < PATIENCE:
            return self._close_between_requests(relay, "connection_max_age")
        relay.stop_reading_requests()
        if not relay.is_drained or self._clock() - relay.last_byte_at < RESPONSE_READ_TIME:
            return False
        _close(relay, "connection_max_age")
        return True

    def _close_between_requests(self, relay: Relay, cause: Cause) -> bool:
        if not relay.is_drained or self._has_unread_bytes(relay):
            return False
        _close(relay, cause)
        return True


def _close(relay: Relay, cause: Cause) -> None:
    with contextlib.suppress(OSError):
        relay.close(cause)
