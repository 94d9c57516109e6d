"""When to look at the cluster next: pure, the caller brings the time (seconds of any clock that only goes forward)."""

from __future__ import annotations

POLL = 10.0
"""Seconds between two looks when nothing is known to have happened."""

AFTER_POKE = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds after a change that the sidecar saw pass: a broker may learn of it later than its answer says it is done."""

GAP = 0.2
"""Least seconds between two looks, however many changes pass."""

FIRST_RETRY = 1.0
"""Seconds after the first failed look; doubled for each further one, up to ``POLL``."""


class Schedule:
    """Due at once, then every ``POLL``, and more often after a poke or a failure."""

    def __init__(self, now: float) -> None:
        self._due = [now]
        self._last = now - POLL
        self._retry = FIRST_RETRY

    def at(self) -> float:
        """When the next look is due."""
        return max(min([*self._due, self._last + POLL]), self._last + GAP) if self._due else self._last + POLL

    def poke(self, now: float) -> None:
        """Something has happened; a poke before the last one's looks are over takes their place."""
        self._due = [now + delay for delay in AFTER_POKE]

    def looked(self, began: float, now: float) -> None:
        """A look that ``began`` then is done; what was due before it began is done with it."""
        self._due = [due for due in self._due if due > began]
        self._last = now
        self._retry = FIRST_RETRY

    def failed(self, began: float, now: float) -> None:
        """A look came to nothing."""
        retry = self._retry
        self.looked(began, now)
        self._due.append(now + retry)
        self._retry = min(2 * retry, POLL)
