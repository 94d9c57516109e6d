"""A circuit breaker: an observer that only fails is left alone for a while. Pure, with an injected clock."""

from __future__ import annotations

from collections.abc import Callable

MAX_CONSECUTIVE_FAILURES = 100
"""Calls that fail one after the other before the breaker opens: a broken observer costs little and is soon seen."""

BREAKER_OPEN_TIME = 10.0
"""Seconds an open breaker waits before it lets one call try again."""


class CircuitBreaker:
    """Closed: calls are allowed. Open: they are not, until ``BREAKER_OPEN_TIME`` is over; then the next call decides."""

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
        """Close: the observer works."""
        self._failures = 0
        self._retry_at = None

    def record_failure(self) -> None:
        """Count one more failure; open (again) if that makes ``MAX_CONSECUTIVE_FAILURES`` or more in a row."""
        self._failures += 1
        if self._failures >= MAX_CONSECUTIVE_FAILURES:
            self._retry_at = self._clock() + BREAKER_OPEN_TIME
