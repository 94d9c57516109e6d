"""How long to wait between two attempts. Pure."""

from __future__ import annotations

from collections.abc import Callable

FIRST_BACKOFF_MS, MAX_BACKOFF_MS = 100, 5000
"""Doubled with each attempt."""

LEASE_BACKOFF_MS = 1500
"""At most, while a lease runs: a coordinator that is started again, or a successor, is found before it ends."""

BACKOFF_JITTER = 0.2
"""Of the back-off, up and down: consumers that have lost a coordinator do not come back at the same time."""


class Backoff:
    """Grows with each attempt, until an attempt has succeeded."""

    def __init__(self, random: Callable[[], float]) -> None:
        """``random``: gives numbers from 0 to 1."""
        self._random = random
        self._next_ms = FIRST_BACKOFF_MS
        self._was_answered = False

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next_ms = FIRST_BACKOFF_MS
        self._was_answered = False

    def answered(self) -> None:
        """A sidecar has answered, though perhaps not as wanted: the first time, it may have just been started, and is
        asked again soon."""
        if not self._was_answered:
            self._next_ms, self._was_answered = FIRST_BACKOFF_MS, True

    def take(self, most_ms: int) -> int:
        """Return the milliseconds to wait now; ``most_ms`` before the jitter."""
        wait = min(self._next_ms, most_ms)
        self._next_ms = min(2 * self._next_ms, MAX_BACKOFF_MS)
        return int(wait * (1 + BACKOFF_JITTER * (2 * self._random() - 1)))
