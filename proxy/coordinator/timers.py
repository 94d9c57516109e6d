"""Times at which something is due, by key."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MIN_HEAP = 64
"""A heap of up to this many entries is not cleaned of those that were cancelled."""


class Timers(Generic[K]):
    """A priority queue of keys by time, with one time for each key. All operations take O(log n)."""

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, at: int) -> None:
        """Make ``key`` due at ``at``, whenever it was due before."""
        if self._due.get(key) == at:
            return
        self._due[key] = at
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, key))
        if len(self._heap) > _MIN_HEAP + 2 * len(self._due):
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> bool:
        """Return whether it was set."""
        return self._due.pop(key, None) is not None

    def at(self, key: K) -> int | None:
        """When a key is due; None if it is not set."""
        return self._due.get(key)

    def next(self) -> int | None:
        """When the first key is due; None if none is set."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def pop(self, now: int) -> K | None:
        """Remove and return a key that is due, the earliest first, then in the order in which they were set."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._due[key]
        return key
