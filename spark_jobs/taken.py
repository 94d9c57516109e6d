"""Which events were taken: the numbers of each process, as intervals. What is inside of one was there before. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

FOLDER = "taken"
"""Name of the folder in a checkpoint that has, by batch, what was taken up to it."""

BOOTS = 20_000
"""Processes that are known, those heard of last: a run of a process is forgotten after so many later ones."""

RANGES = 10_000
"""Intervals of one process that are known, the last ones. It has one, and one more for each loss or dead letter."""


class Boot(NamedTuple):
    """One run of one process of a sidecar: its events are numbered."""

    cluster_id: str
    broker_id: int
    boot_id: str


class Record(NamedTuple):
    """A good audit record: where it is, and what it tells of."""

    partition: int
    offset: int
    boot: Boot
    first: int
    last: int


class Piece(NamedTuple):
    """Events of a record that were not there before; none where ``first`` is after ``last``."""

    partition: int
    offset: int
    first: int
    last: int


class Taken:
    """What was taken, of all processes.

    That goes by numbers alone, so it does not matter when a record comes again, after which restarts, or in which
    parts. It depends on what was read, not on the order, so a batch that is repeated decides the same.
    """

    def __init__(self, ranges: Iterable[tuple[Boot, Iterable[tuple[int, int]]]] = ()) -> None:
        """``ranges``: by process, from the one heard of first; ascending and apart from each other."""
        self._boots = {boot: list(each) for boot, each in ranges}

    def take(self, records: Iterable[Record]) -> list[Piece]:
        """Take ``records``, in order; return what of those is new that are not all new. Few are, as few come twice."""
        pieces: list[Piece] = []
        for partition, offset, boot, first, last in records:
            new = self._take(boot, first, last)
            if new != [(first, last)]:
                pieces += [Piece(partition, offset, *each) for each in new or [(1, 0)]]
        return pieces

    def text(self) -> str:
        """Return it as JSON that ``read`` reads: an array for each process."""
        for boot in list(self._boots)[:-BOOTS]:
            del self._boots[boot]
        return json.dumps([[*boot, ranges] for boot, ranges in self._boots.items()], separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Taken:
        """Return what ``text`` gave."""
        return cls((Boot(*boot), ((first, last) for first, last in ranges)) for *boot, ranges in json.loads(text))

    def _take(self, boot: Boot, first: int, last: int) -> list[tuple[int, int]]:
        """Take these numbers; return the intervals of them that were not there."""
        ranges = self._boots.pop(boot, [])
        self._boots[boot] = ranges  # the last one heard of
        start = bisect_left(ranges, first - 1, key=lambda one: one[1])
        stop = bisect_right(ranges, last + 1, key=lambda one: one[0])
        touched = ranges[start:stop]
        new, at = [], first
        for begin, end in touched:
            if at < begin:
                new.append((at, begin - 1))
            at = max(at, end + 1)
        if at <= last:
            new.append((at, last))
        ends = [(first, last), *touched]
        ranges[start:stop] = [(min(begin for begin, _ in ends), max(end for _, end in ends))]
        del ranges[:-RANGES]
        return new
