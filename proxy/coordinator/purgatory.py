"""Requests to consumers that wait for their response: one purgatory for each kind of request (seed 001, section 6)."""

from __future__ import annotations

from proxy.coordinator.timers import Timers


class Purgatory:
    """Watchers by connection and correlation id. Each has a deadline, and is cleared by the response or expires."""

    def __init__(self) -> None:
        self._timers: Timers[tuple[int, int]] = Timers()

    def __len__(self) -> int:
        return len(self._timers)

    def watch(self, connection: int, correlation_id: int, deadline: int) -> None:
        """Wait for a response until ``deadline``."""
        self._timers.set((connection, correlation_id), deadline)

    def clear(self, connection: int, correlation_id: int) -> bool:
        """Return whether the request was still waited for."""
        return self._timers.cancel((connection, correlation_id))

    def deadline(self, connection: int, correlation_id: int) -> int | None:
        """None if the request is not waited for."""
        return self._timers.at((connection, correlation_id))

    def expire(self, now: int) -> tuple[int, int] | None:
        """Remove and return a watcher whose deadline is reached: its connection and correlation id."""
        return self._timers.pop(now)

    def due(self) -> int | None:
        """The next deadline."""
        return self._timers.next()
