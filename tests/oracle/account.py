"""What one session holds of the budget."""

from __future__ import annotations

from proxy.core.budget import FREE, OPEN, OPTIONAL, RECORDED, Budget


class Account:
    """What one session holds. ``held``: bytes that it is charged with."""

    __slots__ = ("budget", "counts", "held")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.counts = budget.counts
        self.held = 0

    @property
    def full(self) -> bool:
        """Whether this connection holds more than its free share, while all together hold too much."""
        return self.held > FREE and self.budget.full

    def charge(self, size: int) -> None:
        """Hold ``size`` bytes more, or fewer where it is negative."""
        self.held += size
        self.counts[OPEN] += size

    def try_charge(self, size: int) -> bool:
        """Hold ``size`` bytes more of what may be left out; returns False, and holds none of them, without room."""
        counts = self.counts
        if size > 0 and counts[OPEN] + counts[RECORDED] + size > counts[OPTIONAL]:
            return False
        self.charge(size)
        return True

    def record(self, size: int) -> None:
        """``size`` of the bytes that are held belong to an exchange that was recorded."""
        self.held -= size
        self.counts[OPEN] -= size
        self.counts[RECORDED] += size

    def close(self) -> None:
        """The session has ended: it holds nothing any more."""
        self.charge(-self.held)
