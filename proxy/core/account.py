# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What one session holds of the process's budget."""

from __future__ import annotations

import cython

from proxy.core.budget import FREE, LIMIT, OPEN, OPTIONAL, RECORDED, Budget

if not cython.compiled:
    from proxy.number_array import add_number, number_at

free_bytes = FREE
open_bytes = OPEN
recorded_bytes = RECORDED
limit_bytes = LIMIT
optional_bytes = OPTIONAL


@cython.cclass
class Account:
    """``held``: bytes that the session is charged with. ``budget``: of the process."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.counts = budget.counts
        self.held = 0

    def is_scarce(self) -> bool:
        """Whether all connections together hold too much."""
        counts = self.counts
        return number_at(counts, open_bytes) + number_at(counts, recorded_bytes) > number_at(counts, limit_bytes)

    def is_full(self) -> bool:
        """Whether this connection holds more than its free share, while all together hold too much."""
        return self.held > free_bytes and self.is_scarce()

    def charge(self, size: int) -> int:
        """Hold ``size`` bytes more, or fewer where it is negative."""
        self.held += size
        add_number(self.counts, open_bytes, size)
        return 0

    def try_charge(self, size: int) -> bool:
        """Hold ``size`` bytes more of what may be left out; returns False, and holds none of them, without room."""
        counts = self.counts
        charged = number_at(counts, open_bytes) + number_at(counts, recorded_bytes)
        if size > 0 and charged + size > number_at(counts, optional_bytes):
            return False
        self.held += size
        add_number(self.counts, open_bytes, size)
        return True

    def record(self, size: int) -> int:
        """``size`` of the bytes that are held belong to an exchange that was recorded."""
        self.held -= size
        add_number(self.counts, open_bytes, -size)
        add_number(self.counts, recorded_bytes, size)
        return 0

    def close(self) -> int:
        """The session has ended: it holds nothing any more."""
        add_number(self.counts, open_bytes, -self.held)
        self.held = 0
        return 0
