"""When to poll the cluster next. Pure: the caller gives the time, in seconds of a monotonic clock."""

from __future__ import annotations

POLL_INTERVAL = 10.0
"""Seconds between two polls when no change is known of, unless the caller says otherwise."""

AFTER_REFRESH = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds from a change that the sidecar has seen to each poll: a broker may apply it after it has responded."""

MIN_POLL_INTERVAL = 0.2
"""Least seconds between two polls, however many changes there are."""

FIRST_POLL_RETRY = 1.0
"""Seconds from the first failed poll to the next; doubled for each further failure, up to ``POLL_INTERVAL``."""


class Schedule:
    """The first poll is due at once, then one every ``interval`` seconds; more after a refresh or a failure."""

    def __init__(self, now: float, interval: float = POLL_INTERVAL) -> None:
        self.interval = interval
        self._due = [now]
        self._last = now - interval
        self._retry = FIRST_POLL_RETRY

    def next_at(self) -> float:
        """Return when the next poll is due."""
        return (
            max(min([*self._due, self._last + self.interval]), self._last + MIN_POLL_INTERVAL)
            if self._due
            else self._last + self.interval
        )

    def refresh(self, now: float) -> None:
        """Schedule polls for a change at ``now``. They replace those of an earlier refresh."""
        self._due = [now + delay for delay in AFTER_REFRESH]

    def succeeded(self, began: float, now: float) -> None:
        """Note that a poll that began at ``began`` has succeeded. It covers every poll that was due before it began."""
        self._due = [due for due in self._due if due > began]
        self._last = now
        self._retry = FIRST_POLL_RETRY

    def failed(self, began: float, now: float) -> None:
        """Note that a poll that began at ``began`` has failed."""
        retry = self._retry
        self.succeeded(began, now)
        self._due.append(now + retry)
        self._retry = min(2 * retry, POLL_INTERVAL)
