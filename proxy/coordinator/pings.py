"""When each registered consumer is pinged (seed 001, section 6, scheduler)."""

from __future__ import annotations

from proxy.coordinator.timers import Timers


class PingSchedule:
    """A priority queue of connections by the time of their next ping."""

    def __init__(self) -> None:
        self._timers: Timers[int] = Timers()

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, connection: int, first_at: int) -> None:
        """Ping a consumer at ``first_at``, and then on the beat."""
        self._timers.set(connection, first_at)

    def stop(self, connection: int) -> None:
        """Ping it no more."""
        self._timers.cancel(connection)

    def pop(self, now: int) -> tuple[int, int] | None:
        """Return a connection whose ping is due, and when it was due. It is not pinged again before ``repeat``."""
        due = self._timers.next()
        connection = self._timers.pop(now)
        return None if connection is None or due is None else (connection, due)

    def repeat(self, connection: int, due: int, interval: int, now: int) -> None:
        """Schedule the ping after the one that was due at ``due``, on the beat. Missed periods are skipped."""
        missed = max((now - due) // interval, 0)
        self._timers.set(connection, due + (missed + 1) * interval)

    def due(self) -> int | None:
        """When the next ping is due."""
        return self._timers.next()
