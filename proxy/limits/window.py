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
    """How many connections, over ``samples`` windows of ``window_ms``. About 500 bytes once all samples are in use."""

    __slots__ = ("_current", "_ring", "_samples", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._ring = array("q")  # one sample more than is counted, since the present one is not complete
        self._current = 0

    def record(self, value: int, now: int) -> None:
        """Count ``value`` connections; a negative one takes back."""
        ring, at = self._ring, self._current
        if not ring:
            ring.extend((now, now, value))
            return
        if now - ring[at + START] >= self._window_ms:
            at += FIELDS
            if at > self._samples * FIELDS:
                at = 0
            self._current = at
            if at == len(ring):
                ring.extend((now, now, value))
            else:
                ring[at + START], ring[at + LAST], ring[at + SUM] = now, now, value
            return
        ring[at + LAST] = now
        ring[at + SUM] += value

    def look(self, now: int) -> tuple[int, int]:
        """Return how many connections were counted, and over how many milliseconds.

        The time goes back to the oldest sample, yet never counts less than ``samples − 1`` whole windows: what a short
        burst leaves open is not extrapolated.
        """
        ring, window_ms, samples = self._ring, self._window_ms, self._samples
        count, oldest, expired = 0, now, now - samples * window_ms
        for at in range(0, len(ring), FIELDS):
            if ring[at + LAST] <= expired:
                ring[at + START], ring[at + LAST], ring[at + SUM] = now, now, 0
            elif ring[at + START] < oldest:
                oldest = ring[at + START]
            count += ring[at + SUM]
        elapsed = now - oldest
        missing = samples - 1 - elapsed // window_ms
        if missing > 0:
            elapsed += missing * window_ms
        return count, elapsed if elapsed > MIN_WINDOW else MIN_WINDOW

    def per_second(self, now: int) -> float:
        """Return the rate in connections per second."""
        count, window = self.look(now)
        return count * 1000 / window

    def expired(self, now: int) -> bool:
        """Whether nothing recorded counts any more: a new ``Rate`` would behave the same from here on."""
        expired = now - self._samples * self._window_ms
        return all(last <= expired for last in self._ring[LAST::FIELDS])


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
