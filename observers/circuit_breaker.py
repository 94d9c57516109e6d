"""A circuit breaker: it stops the calls to an observer that only fails for a while. Pure, with an injected clock."""

from __future__ import annotations

from collections.abc import Callable

MAX_CONSECUTIVE_FAILURES = 100
"""Consecutive failed calls after which the breaker opens. A broken observer then costs little and is soon noticed."""

BREAKER_OPEN_TIME = 10.0
"""Seconds an open breaker waits before it lets one call try again."""


class CircuitBreaker:
    """Closed, it allows calls. Open, it refuses them for ``BREAKER_OPEN_TIME``; the next call then decides."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._retry_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last ``MAX_CONSECUTIVE_FAILURES`` calls failed and none has succeeded since."""
        return self._retry_at is not None

    def allows_call(self) -> bool:
        """Whether a call may be made now."""
        return self._retry_at is None or self._clock() >= self._retry_at

    def record_success(self) -> None:
        """Close the breaker: the observer works."""
        self._failures = 0
        self._retry_at = None

    def record_failure(self) -> None:
        """Count a failure. Open the breaker at ``MAX_CONSECUTIVE_FAILURES`` or more failures in a row."""
        self._failures += 1
        if self._failures >= MAX_CONSECUTIVE_FAILURES:
            self._retry_at = self._clock() + BREAKER_OPEN_TIME
