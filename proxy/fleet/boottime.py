"""The clock of everything that a consumer's lease depends on. It goes on while the machine sleeps."""

from __future__ import annotations

import time


def boottime_ms() -> int:
    """Return the milliseconds since the machine was started (CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
