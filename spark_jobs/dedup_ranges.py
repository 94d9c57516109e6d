"""Event numbers that were already written, as ranges by sidecar boot. Finds duplicates and conflicts. Pure: no IO.

Each sidecar process numbers its events. A record whose numbers lie in a known range is a duplicate. It must then have
the same events as the record that was written first. If it has other events, the two records are in conflict: one of
them is forged, or a process used the same numbers twice. Which one is right cannot be known here, so the first is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

RANGES_FOLDER = "taken"
"""Name of the folder in a checkpoint that has one file for each batch: the ranges that were written up to it."""

MAX_BOOTS = 20_000
"""Boots whose ranges are kept, the most recent ones. A boot is forgotten after this many later boots."""

MAX_RANGES_PER_BOOT = 10_000
"""Ranges of one boot that are kept, the last ones. A boot has one range, plus one for each loss or dead letter."""

MAX_DIGESTS_PER_BOOT = 1_000
"""Records of one boot whose digests are kept, the last ones. A duplicate of an earlier record is reported as a
conflict, because its events cannot be compared any more."""

MAX_DIGESTS = 50_000
"""Records of all boots whose digests are kept: about 5 MB. Beyond it the digests of the least recent boots are dropped,
and records that repeat numbers of these boots count as duplicates."""

DIGEST_FUNCTION = 2
"""Number of the function that computes the digests of events. Digests by another one, of an earlier release, are
dropped."""


class SidecarBoot(NamedTuple):
    """Identifies one run of one sidecar process, which numbers its events from 1."""

    cluster_id: str
    broker_id: int
    boot_id: str


class AuditRecord(NamedTuple):
    """A valid audit record: its position in Kafka, and the numbers and digests of its events."""

    partition: int
    offset: int
    boot: SidecarBoot
    first: int
    last: int
    digests: tuple[int, int, int]
    """Digests of all events, of the first half (rounded down), and of the rest. A sidecar splits a record that is too
    large at the same place."""


Position = tuple[int, int]
"""Partition and offset of a record."""


class DedupDecision(NamedTuple):
    """What is to be written of some records. A record that is not mentioned is written as a whole."""

    new_ranges: Mapping[Position, Sequence[tuple[int, int]]] = {}
    """Of records that are not all new, the ranges of event numbers that are; none: nothing is."""
    conflicts: Mapping[Position, str] = {}
    """Of records with numbers for which another record has other events, the detail."""

    @property
    def duplicates(self) -> int:
        """Number of records that have nothing new and are in no conflict."""
        return sum(not new and position not in self.conflicts for position, new in self.new_ranges.items())


ALL_NEW = DedupDecision()
"""Everything is to be written."""


class WrittenRecord(NamedTuple):
    """A record that was written: its numbers, its three digests (see ``AuditRecord``), and its position."""

    first: int
    last: int
    digest: int
    first_half_digest: int
    second_half_digest: int
    partition: int
    offset: int
    digest_function: int = DIGEST_FUNCTION


class DedupRanges:
    """The written event numbers of all boots.

    Duplicates are found by number. So it does not matter when a record is repeated, after how many restarts, or in
    which parts. The result depends only on the records read, so a repeated batch gives the same result.
    """

    def __init__(self) -> None:
        self._ranges: dict[SidecarBoot, list[tuple[int, int]]] = {}
        self._records: dict[SidecarBoot, list[WrittenRecord]] = {}
        # By boot, the last number whose digests were dropped.
        self._dropped_up_to: dict[SidecarBoot, int] = {}

    def add_records(self, records: Iterable[AuditRecord]) -> DedupDecision:
        """Add ``records`` in their order, and return what of them is new and which of them are in conflict."""
        new_ranges: dict[Position, list[tuple[int, int]]] = {}
        conflicts: dict[Position, str] = {}
        for record in records:
            partition, offset, boot, first, last, digests = record
            new = self._add_range(boot, first, last)
            if new != [(first, last)]:
                new_ranges[partition, offset] = new
                conflict = self._find_conflict(record, new)
                if conflict:
                    conflicts[partition, offset] = conflict
            if new:
                written = self._records.setdefault(boot, [])
                written.append(WrittenRecord(first, last, *digests, partition, offset))
                del written[:-MAX_DIGESTS_PER_BOOT]
        return DedupDecision(new_ranges, conflicts)

    def to_json(self) -> str:
        """Drop what exceeds the bounds of this module, and return the rest as JSON: one array for each boot."""
        for boot in list(self._ranges)[:-MAX_BOOTS]:
            del self._ranges[boot]
        self._drop_old_digests()
        boots = [
            [*boot, ranges, self._records.get(boot, []), self._dropped_up_to.get(boot, 0)]
            for boot, ranges in self._ranges.items()
        ]
        return msgspec.json.encode(boots).decode()

    @classmethod
    def from_json(cls, text: str) -> DedupRanges:
        """Return the ranges that ``to_json`` wrote."""
        result = cls()
        for cluster_id, broker_id, boot_id, ranges, records, dropped_up_to in msgspec.json.decode(text):
            boot = SidecarBoot(cluster_id, broker_id, boot_id)
            result._ranges[boot] = [(first, last) for first, last in ranges]
            kept = [WrittenRecord(*each) for each in records if each[7:] == [DIGEST_FUNCTION]]
            result._records[boot] = kept
            if len(kept) < len(records):
                dropped_up_to = max(dropped_up_to, *(each[1] for each in records if each[7:] != [DIGEST_FUNCTION]))
            result._dropped_up_to[boot] = dropped_up_to
        return result

    def _drop_old_digests(self) -> None:
        """Keep ``MAX_DIGESTS`` digests, those of the most recent boots, and none of boots without ranges."""
        kept = 0
        records, self._records = self._records, {}
        for boot in reversed(self._ranges):
            kept += len(records.get(boot, ()))
            if kept <= MAX_DIGESTS:
                self._records[boot] = records.get(boot, [])
            else:
                self._dropped_up_to[boot] = self._ranges[boot][-1][1]
        self._dropped_up_to = {boot: last for boot, last in self._dropped_up_to.items() if boot in self._ranges}

    def _find_conflict(self, record: AuditRecord, new: Iterable[tuple[int, int]]) -> str | None:
        """Return the conflict of ``record``, None without. ``new``: its ranges that were not written before."""
        partition, offset, boot, first, last, digests = record
        own = WrittenRecord(first, last, *digests, partition, offset)
        repeated = last - first + 1 - sum(end - begin + 1 for begin, end in new)
        compared = 0
        for other in self._records.get(boot, ()):
            begin, end = max(first, other.first), min(last, other.last)
            if begin > end:
                continue
            digest = _digest_of_range(own, begin, end)
            if digest is None or digest != _digest_of_range(other, begin, end):
                return f"{begin} to {end} differ from partition {other.partition}, offset {other.offset}"
            compared += end - begin + 1
        if compared < repeated and first > self._dropped_up_to.get(boot, 0):
            return f"{first} to {last} repeat numbers too old to be compared"
        return None

    def _add_range(self, boot: SidecarBoot, first: int, last: int) -> list[tuple[int, int]]:
        """Add a range of numbers, and return the parts of it that were not there before."""
        ranges = self._ranges.pop(boot, [])
        self._ranges[boot] = ranges  # now the most recent one
        start = bisect_left(ranges, first - 1, key=lambda one: one[1])
        stop = bisect_right(ranges, last + 1, key=lambda one: one[0])
        touched = ranges[start:stop]
        new, next_number = [], first
        for begin, end in touched:
            if next_number < begin:
                new.append((next_number, begin - 1))
            next_number = max(next_number, end + 1)
        if next_number <= last:
            new.append((next_number, last))
        joined = [(first, last), *touched]
        ranges[start:stop] = [(min(begin for begin, _ in joined), max(end for _, end in joined))]
        del ranges[:-MAX_RANGES_PER_BOOT]
        return new


def _digest_of_range(record: WrittenRecord, first: int, last: int) -> int | None:
    """Return the digest of these numbers of ``record``, None if they are neither the whole record nor a half of it."""
    middle = record.first + (record.last - record.first + 1) // 2
    match first, last:
        case record.first, record.last:
            return record.digest
        case record.first, end if end == middle - 1:
            return record.first_half_digest
        case begin, record.last if begin == middle:
            return record.second_half_digest
        case _:
            return None
