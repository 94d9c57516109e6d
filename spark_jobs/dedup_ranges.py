"""Which events were taken: the numbers of each process, as intervals. What is inside of one was there before. Pure.

A record that claims numbers of another one must have the same events for them. If not, one of both is forged, or a
process numbered events twice: a conflict. Which of both is right cannot be known here: the first stays.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

RANGES_FOLDER = "taken"
"""Name of the folder in a checkpoint that has, by batch, what was taken up to it."""

MAX_BOOTS = 20_000
"""Processes that are known, those heard of last: a run of a process is forgotten after so many later ones."""

MAX_RANGES_PER_BOOT = 10_000
"""Intervals of one process that are known, the last ones. It has one, and one more for each loss or dead letter."""

MAX_DIGESTS_PER_BOOT = 1_000
"""Records of one process whose digests are known, the last ones taken. Numbers of an earlier one that are claimed again
are a conflict: it cannot be shown that the events are the same."""

MAX_DIGESTS = 50_000
"""Records of all processes whose digests are known: about 5 MB. Beyond it those of the processes heard of longest ago
are forgotten; what is claimed again of these counts as a duplicate."""


class SidecarBoot(NamedTuple):
    """One run of one process of a sidecar: its events are numbered."""

    cluster_id: str
    broker_id: int
    boot_id: str


class AuditRecord(NamedTuple):
    """A good audit record: where it is, and what it tells of."""

    partition: int
    offset: int
    boot: SidecarBoot
    first: int
    last: int
    digests: tuple[int, int, int]
    """Of all its events, of the first half, rounded down, and of the rest: a sidecar cuts a record that is too large
    in the same place."""


class NewRange(NamedTuple):
    """Events of a record that were not there before; none where ``first`` is after ``last``."""

    partition: int
    offset: int
    first: int
    last: int


class RangeConflict(NamedTuple):
    """A record that claims numbers for which another one has other events."""

    partition: int
    offset: int
    detail: str


class DedupDecision(NamedTuple):
    """What becomes of records: they are new as a whole where nothing is said of them."""

    pieces: list[NewRange]
    conflicts: list[RangeConflict]

    @property
    def duplicates(self) -> int:
        """Records that have nothing new, and are in no conflict."""
        nothing = {(piece.partition, piece.offset) for piece in self.pieces if piece.first > piece.last}
        return len(nothing - {(each.partition, each.offset) for each in self.conflicts})


class WrittenRecord(NamedTuple):
    """A record that was taken: its numbers, its digests as of ``AuditRecord``, and its position."""

    first: int
    last: int
    whole: int
    front: int
    back: int
    partition: int
    offset: int


class DedupRanges:
    """What was taken, of all processes.

    That goes by numbers, so it does not matter when a record comes again, after which restarts, or in which parts. It
    depends on what was read, so a batch that is repeated decides the same.
    """

    def __init__(self) -> None:
        self._boots: dict[SidecarBoot, list[tuple[int, int]]] = {}
        self._known: dict[SidecarBoot, list[WrittenRecord]] = {}
        self._not_compared: dict[SidecarBoot, int] = {}

    def take(self, records: Iterable[AuditRecord]) -> DedupDecision:
        """Take ``records``, in order; return what of those is new that are not all new, and which are in conflict."""
        pieces: list[NewRange] = []
        conflicts: list[RangeConflict] = []
        for record in records:
            partition, offset, boot, first, last, digests = record
            new = self._take(boot, first, last)
            if new != [(first, last)]:
                pieces += [NewRange(partition, offset, *each) for each in new or [(1, 0)]]
                conflicts += self._conflict(record, new)
            if new:
                known = self._known.setdefault(boot, [])
                known.append(WrittenRecord(first, last, *digests, partition, offset))
                del known[:-MAX_DIGESTS_PER_BOOT]
        return DedupDecision(pieces, conflicts)

    def text(self) -> str:
        """Return it as JSON that ``read`` reads: an array for each process."""
        for boot in list(self._boots)[:-MAX_BOOTS]:
            del self._boots[boot]
        self._forget()
        told = [
            [*boot, ranges, self._known.get(boot, []), self._not_compared.get(boot, 0)]
            for boot, ranges in self._boots.items()
        ]
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> DedupRanges:
        """Return what ``text`` gave."""
        taken = cls()
        for cluster_id, broker_id, boot_id, ranges, known, not_compared in json.loads(text):
            boot = SidecarBoot(cluster_id, broker_id, boot_id)
            taken._boots[boot] = [(first, last) for first, last in ranges]
            taken._known[boot] = [WrittenRecord(*each) for each in known]
            taken._not_compared[boot] = not_compared
        return taken

    def _forget(self) -> None:
        """Keep ``MAX_DIGESTS`` digests, of the processes heard of last, and nothing of processes not known."""
        kept = 0
        known, self._known = self._known, {}
        for boot in reversed(self._boots):
            kept += len(known.get(boot, ()))
            if kept <= MAX_DIGESTS:
                self._known[boot] = known.get(boot, [])
            else:
                self._not_compared[boot] = self._boots[boot][-1][1]
        self._not_compared = {boot: last for boot, last in self._not_compared.items() if boot in self._boots}

    def _conflict(self, record: AuditRecord, new: Iterable[tuple[int, int]]) -> Iterator[RangeConflict]:
        """Give the conflict of ``record``, of which only ``new`` was not there before, if it is in one."""
        partition, offset, boot, first, last, digests = record
        own = WrittenRecord(first, last, *digests, partition, offset)
        before = last - first + 1 - sum(end - begin + 1 for begin, end in new)
        compared = 0
        for other in self._known.get(boot, ()):
            begin, end = max(first, other.first), min(last, other.last)
            if begin > end:
                continue
            digest = _digest_of_range(own, begin, end)
            if digest is None or digest != _digest_of_range(other, begin, end):
                said = f"{begin} to {end} differ from partition {other.partition}, offset {other.offset}"
                yield RangeConflict(partition, offset, said)
                return
            compared += end - begin + 1
        if compared < before and first > self._not_compared.get(boot, 0):
            yield RangeConflict(partition, offset, f"{first} to {last} were taken long before")

    def _take(self, boot: SidecarBoot, first: int, last: int) -> list[tuple[int, int]]:
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
        del ranges[:-MAX_RANGES_PER_BOOT]
        return new


def _digest_of_range(of: WrittenRecord, first: int, last: int) -> int | None:
    """Return the digest of these numbers of a record; None where they are neither a half of it nor the whole."""
    middle = of.first + (of.last - of.first + 1) // 2
    match first, last:
        case of.first, of.last:
            return of.whole
        case of.first, end if end == middle - 1:
            return of.front
        case begin, of.last if begin == middle:
            return of.back
        case _:
            return None
