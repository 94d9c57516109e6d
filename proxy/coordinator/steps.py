"""Work that is done a part at a time, so that no call of the coordinator takes long."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]
"""Yields after each part how many units of work it was: members, threads or partitions. A unit takes about 2 µs."""

SLICE = 400
"""Units of work in one call of the coordinator: about a millisecond."""

AT_ONCE = 10
"""Threads or partitions that take one unit where a set or a sort takes all of them at once."""

PART = 500
"""Of what is sorted at once."""

PING_UNITS, SEND_UNITS, EXPIRED_UNITS = 4, 5, 5
"""A ping, another request, a request that has expired."""

MEMBER_UNITS, ABSENT_UNITS, REGISTRATION_UNITS = 25, 8, 25
"""A member that goes, one that is forgotten, a registration that is answered."""

GROUP_UNITS, DROP_UNITS, RECORD_UNITS, WRITE_UNITS, QUESTION_UNITS = 3, 10, 4, 10, 2
"""Another group, one that is dropped, a record that is read, one that is written, a question to Kafka."""


class Jobs:
    """Work that goes on between other events, by what it is about. What began first is done first."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Steps[None]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._jobs

    def begin(self, key: Hashable, steps: Steps[None]) -> None:
        """Do this work from now on. The same work of before ends where it is."""
        self._jobs[key] = steps

    def cancel(self, key: Hashable) -> None:
        """Do no more of this work."""
        self._jobs.pop(key, None)

    def work(self, units: int) -> int:
        """Do about so many units of work, one part at least. Return how many are left."""
        while self._jobs:
            key, steps = next(iter(self._jobs.items()))
            try:
                units -= next(steps)
            except StopIteration:
                if self._jobs.get(key) is steps:
                    del self._jobs[key]
            if units <= 0:
                break
        return units


def drain(items: Iterable[T]) -> Iterator[T]:
    """Give what there is now, and keep nothing of it: to free thousands of members at once takes as long as a slice."""
    waiting = list(items)
    waiting.reverse()
    while waiting:
        yield waiting.pop()


def sort(items: Iterable[T]) -> Steps[list[T]]:
    """Sort what there is now, in parts: each is sorted, and then two at a time are merged."""
    waiting, runs = iter(list(items)), deque[list[T]]()
    while run := sorted(islice(waiting, PART)):  # type: ignore[type-var]
        runs.append(run)
        yield 1 + len(run) // (AT_ONCE // 2)
    while len(runs) > 1:
        merged = runs.popleft() + runs.popleft()
        merged.sort()  # of two sorted runs: as many comparisons as there are items
        runs.append(merged)
        yield 1 + len(merged) // AT_ONCE
    return runs[0] if runs else []
