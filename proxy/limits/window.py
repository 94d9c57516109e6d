"""Kafka's sampled rate: events over a window of samples, to the millisecond as the broker counts them.

Source: ``SampledStat``, ``Rate`` and ``QuotaUtils`` of Kafka. Times are milliseconds of one monotonic clock, and whole
numbers, like everything here: a rate is compared as a fraction, so that no rounding decides who is let in.
"""

from __future__ import annotations

from array import array

START, LAST, SUM = 0, 1, 2  # of one sample: when it began, when something was recorded last, and how much in total
FIELDS = 3

MIN_WINDOW = 1
"""Milliseconds: nothing is divided by less."""


class Rate:
    """How many connections, over ``samples`` windows of ``window_ms``. About 500 bytes once all samples are in use.

    A sample counts until nothing has been recorded in it for the whole time. As the next one begins later than the last
    record of the one before, those that no longer count are always the first ones. A look forgets them.
    """

    __slots__ = ("_count", "_kept", "_kept_ms", "_least_ms", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._window_ms = window_ms
        self._kept_ms = samples * window_ms
        self._least_ms = (samples - 1) * window_ms
        self._kept = array("q")  # samples, the oldest first
        self._count = 0  # in all of them

    def record(self, value: int, now: int) -> None:
        """Count ``value`` connections; a negative one takes back."""
        kept = self._kept
        if kept and now - kept[START - FIELDS] < self._window_ms:
            kept[LAST - FIELDS] = now
            kept[SUM - FIELDS] += value
        else:
            kept.extend((now, now, value))
        self._count += value

    def look(self, now: int) -> tuple[int, int]:
        """Return how many connections were counted, and over how many milliseconds.

        The time goes back to the oldest sample, yet never counts less than ``samples − 1`` whole windows: what a short
        burst leaves open is not extrapolated. Looking does not change what later looks find.
        """
        self._forget(now)
        kept = self._kept
        elapsed = now - kept[START] if kept else 0
        if elapsed < self._least_ms:
            elapsed = self._least_ms + elapsed % self._window_ms
        return self._count, elapsed if elapsed > MIN_WINDOW else MIN_WINDOW

    def per_second(self, now: int) -> float:
        """Return the rate in connections per second, never less than 0."""
        count, window = self.look(now)
        return max(count, 0) * 1000 / window  # what is taken back may count for longer than what was counted

    def expired(self, now: int) -> bool:
        """Whether nothing recorded counts any more: a new ``Rate`` would behave the same from here on."""
        self._forget(now)
        return not self._kept

    def _forget(self, now: int) -> None:
        """Drop the samples that no longer count."""
        kept, expired = self._kept, now - self._kept_ms
        while kept and kept[LAST] <= expired:
            self._count -= kept[SUM]
            del kept[:FIELDS]


def is_over(count: int, window: int, limit: int) -> bool:
    """Whether ``count`` connections in ``window`` ms are more than ``limit`` per second; exactly as many are not."""
    return count * 1000 > limit * window


def wait(count: int, window: int, limit: int) -> int:
    """Return Kafka's throttle time in ms, rounded half up: how much longer the window must be for the rate to fit.

    Kafka's (observed − limit) / limit × window is the same number.
    """
    return (2 * count * 1000 + limit) // (2 * limit) - window


def wait_at_least(count: int, window: int, limit: int) -> int:
    """Return the same rounded up: a look a fraction of a millisecond too early would find the rate still too high."""
    return -(-count * 1000 // limit) - window
