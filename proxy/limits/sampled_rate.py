# cython: language_level=3, annotation_typing=False
"""Kafka's sampled rate: events over a window of samples, counted to the millisecond as the broker does.

Source: ``SampledStat``, ``Rate`` and ``QuotaUtils`` of Kafka. Times are whole milliseconds of one monotonic clock.
Rates are compared as fractions of whole numbers, so that no rounding decides who is admitted.
"""

from __future__ import annotations

from array import array

import cython

SAMPLE_START, SAMPLE_LAST, SAMPLE_SUM = 0, 1, 2
"""Offsets in a sample: when it began, when something was last recorded, and the sum of the records."""

SAMPLE_FIELDS = 3
"""Numbers of one sample in the array."""

newest_start = SAMPLE_START - SAMPLE_FIELDS
newest_last = SAMPLE_LAST - SAMPLE_FIELDS
newest_sum = SAMPLE_SUM - SAMPLE_FIELDS
oldest_start = SAMPLE_START
oldest_last = SAMPLE_LAST
oldest_sum = SAMPLE_SUM

MIN_ELAPSED_MS = 1
"""Smallest divisor in ms."""

if not cython.compiled:
    from proxy.number_array import number_at, set_number


@cython.cclass
class SampledRate:
    """Counts connections over ``samples`` windows of ``window_ms``. Takes about 500 bytes if all samples are in use.

    A sample counts until nothing was recorded in it for the whole time. Each sample begins after the last record of the
    one before, so those that no longer count are always the first ones. Measuring drops them, and so does a new sample.
    """

    def __init__(self, samples: int, window_ms: int) -> None:
        self._window_ms = window_ms
        self._max_age_ms = samples * window_ms
        self._min_elapsed_ms = (samples - 1) * window_ms
        self._samples = array("q")  # the fields of each sample, oldest first
        self._count = 0  # the sum of all samples

    def record(self, value: int, now: int) -> None:
        """Count ``value`` connections; a negative value takes them back."""
        kept = self._samples
        end = len(kept)
        if end and now - number_at(kept, end + newest_start) < self._window_ms:
            set_number(kept, end + newest_last, now)
            set_number(kept, end + newest_sum, number_at(kept, end + newest_sum) + value)
        else:
            self._drop_expired(now)
            kept.extend((now, now, value))
        self._count += value

    def measure(self, now: int) -> tuple[int, int]:
        """Return how many connections were counted, and during how many milliseconds.

        The time begins with the oldest sample, but is never less than ``samples − 1`` whole windows, so that a short
        burst is not extrapolated. Measuring does not change later results.
        """
        self._drop_expired(now)
        kept = self._samples
        elapsed = now - number_at(kept, oldest_start) if len(kept) else 0
        if elapsed < self._min_elapsed_ms:
            elapsed = self._min_elapsed_ms + elapsed % self._window_ms
        return self._count, elapsed if elapsed > MIN_ELAPSED_MS else MIN_ELAPSED_MS

    def per_second(self, now: int) -> float:
        """Return the rate in connections per second, never less than 0."""
        count, window = self.measure(now)
        return max(count, 0) * 1000 / window  # a negative record may stay longer than the record it takes back

    def is_idle(self, now: int) -> bool:
        """Return whether no record counts any more, so that a new ``SampledRate`` would behave the same."""
        self._drop_expired(now)
        return not self._samples

    @property
    def samples(self) -> list[int]:
        """The samples, oldest first, ``SAMPLE_FIELDS`` numbers of each, for ``restore``."""
        return self._samples.tolist()

    def restore(self, samples: list[int]) -> None:
        """Continue with the ``samples`` of another rate with the same windows, in place of its own."""
        self._samples = array("q", samples)
        self._count = sum(samples[SAMPLE_SUM::SAMPLE_FIELDS])

    def _drop_expired(self, now: int) -> None:
        """Drop the samples that no longer count."""
        kept, expired = self._samples, now - self._max_age_ms
        while len(kept) and number_at(kept, oldest_last) <= expired:
            self._count -= number_at(kept, oldest_sum)
            del kept[:SAMPLE_FIELDS]


def exceeds(count: int, window: int, limit: int) -> bool:
    """Return whether ``count`` connections in ``window`` ms are more than ``limit`` per second. An equal rate is
    not."""
    return count * 1000 > limit * window


def throttle_time(count: int, window: int, limit: int) -> int:
    """Return Kafka's throttle time in ms, rounded half up: how much longer the window must be for the rate to fit.

    Kafka's (observed − limit) / limit × window is the same number.
    """
    return (2 * count * 1000 + limit) // (2 * limit) - window


def throttle_time_rounded_up(count: int, window: int, limit: int) -> int:
    """Return the throttle time in ms, rounded up. A check a fraction of a millisecond early would still find a
    violation."""
    return -(-count * 1000 // limit) - window
