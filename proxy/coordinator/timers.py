"""Times at which something is due, by key."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MOST_STALE = 64
"""Times in the heap that nothing is due at any more: above it, they are not removed one by one."""


class Timers(Generic[K]):
    """A priority queue of keys by time, with one time for each key.

    All operations take O(log n). A heap of the keys would not: those that are cancelled, say the watchers of thousands
    of requests that were answered, would have to be removed from it in one call, when they come to its top.
    """

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        self._keys: dict[int, OrderedDict[K, None]] = {}
        """By time, in the order in which they were set; only times at which something is due."""
        self._times: list[int] = []
        """A heap of these times, and of some that nothing is due at any more."""

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, at: int) -> None:
        """Make ``key`` due at ``at``, whenever it was due before."""
        if self._due.get(key) == at:
            return
        self.cancel(key)
        self._due[key] = at
        if (keys := self._keys.get(at)) is None:
            keys = self._keys[at] = OrderedDict()
            heapq.heappush(self._times, at)
        keys[key] = None

    def cancel(self, key: K) -> bool:
        """Return whether it was set."""
        at = self._due.pop(key, None)
        if at is None:
            return False
        keys = self._keys[at]
        del keys[key]
        if not keys:
            del self._keys[at]
            if len(self._times) > _MOST_STALE + 2 * len(self._keys):
                self._forget_stale()
        return True

    def at(self, key: K) -> int | None:
        """When a key is due; None if it is not set."""
        return self._due.get(key)

    def next(self) -> int | None:
        """When the first key is due; None if none is set."""
        popped = 0
        while self._times and self._times[0] not in self._keys:
            if popped == _MOST_STALE:
                self._forget_stale()
                break
            heapq.heappop(self._times)
            popped += 1
        return self._times[0] if self._times else None

    def pop(self, now: int) -> K | None:
        """Remove and return a key that is due, the earliest first, then in the order in which they were set."""
        at = self.next()
        if at is None or at > now:
            return None
        key = next(iter(self._keys[at]))
        self.cancel(key)
        return key

    def _forget_stale(self) -> None:
        self._times = list(self._keys)
        heapq.heapify(self._times)
