"""Where every sequence number is: on the topic, on disk, in memory, or lost for a reason. No IO, no clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from observers.event_blocks import Chunk

MAX_PENDING_GAPS = 1000
"""Gaps that wait to be reported. Above it the oldest is forgotten; its numbers are still missing on the topic."""


class Gap(Struct, frozen=True, gc=False):
    """The numbers ``first`` to ``last`` of one run of a sidecar, lost for the same reason."""

    reason: str
    boot_id: str
    first: int
    last: int


class DeliveryCounts(Struct, frozen=True):
    """Events: emitted = delivered + sum of dropped + spooled + queued, at any time."""

    emitted: int = 0
    delivered: int = 0
    dropped: Mapping[str, int] = {}
    spooled: int = 0
    queued: int = 0
    undelivered: Mapping[int, int] = {}
    """What is spooled or queued, by schema level."""
    taken: int = 0
    hidden: int = 0

    @property
    def lost(self) -> int:
        """Events lost, for whatever reason."""
        return sum(self.dropped.values())


class DeliveryAccounting:
    """The accounting of one run. Thread-safe; its lock is only held for additions."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._counts = DeliveryCounts()
        self._gaps: list[Gap] = []
        self._kept = 0
        self._reporting: list[tuple[int, Gap]] = []  # with the number of the event that reports it

    def counts(self) -> DeliveryCounts:
        """Return the current counts, consistent with each other."""
        with self._lock:
            return self._counts

    @property
    def last_kept(self) -> int:
        """The highest number that was stored on disk or is on the topic."""
        with self._lock:
            return self._kept

    def record_numbered(
        self, chunks: Sequence[Chunk], last: int, lost: Mapping[str, int], taken: int, hidden: int, *, level: int
    ) -> None:
        """Count the numbers up to ``last``: those of ``chunks`` as queued, and those between them as lost.

        ``lost``: lost events by reason, in the order of their numbers as far as it is known. ``level``: that of
        ``chunks``.
        """
        with self._lock:
            counts = self._counts
            events = sum(chunk.count for chunk in chunks)
            self._counts = replace(
                counts,
                emitted=last,
                queued=counts.queued + events,
                undelivered=_added(counts.undelivered, level, events),
                taken=counts.taken + taken,
                hidden=counts.hidden + hidden,
            )
            reasons = iter([*lost.items(), ("failed", last)])
            reason, left = next(reasons)
            for first, end in _missing_ranges(chunks, counts.emitted + 1, last):
                while first <= end:
                    while not left:
                        reason, left = next(reasons)
                    part = min(left, end - first + 1)
                    self._count_lost(reason, first, first + part - 1, part)
                    first, left = first + part, left - part

    def record_stored(self, first: int, last: int) -> None:
        """Count a block that was in memory as spooled."""
        with self._lock:
            events = last - first + 1
            counts = self._counts
            self._counts = replace(counts, queued=counts.queued - events, spooled=counts.spooled + events)
            self._advance_kept(last)

    def record_delivered(self, first: int, last: int, *, level: int, spooled: bool, events: int | None = None) -> None:
        """Count a block as delivered. ``events``: how many of its events are, if others are lost."""
        with self._lock:
            events = last - first + 1 if events is None else events
            self._subtract_waiting(events, level, spooled)
            self._counts = replace(self._counts, delivered=self._counts.delivered + events)
            self._advance_kept(last)

    def record_lost(
        self, reason: str, first: int, last: int, *, level: int, spooled: bool, events: int | None = None
    ) -> None:
        """Count a block as lost. ``events``: how many of its events are, if others were delivered, or lost before."""
        with self._lock:
            events = last - first + 1 if events is None else events
            self._subtract_waiting(events, level, spooled)
            self._count_lost(reason, first, last, events)

    def add_gap(self, gap: Gap) -> None:
        """Add a gap of another run."""
        with self._lock:
            self._append_gap(gap)

    def drain_gaps(self, *, ending: bool = False) -> list[Gap]:
        """Return and remove the gaps that were not reported and will not grow; ``ending``: all, as no event follows.

        The caller must give the next numbers to their events, in this order.
        """
        with self._lock:
            ready: list[Gap] = []
            grow: list[Gap] = []
            for gap in self._gaps:
                complete = ending or gap.boot_id != self._boot_id or gap.last < self._kept
                (ready if complete else grow).append(gap)
            self._gaps = grow
            self._reporting += enumerate(ready, self._counts.emitted + 1)
            return ready

    def drain_reported_gaps(self) -> list[Gap]:
        """Return and remove the gaps whose events were stored or delivered since the last call."""
        with self._lock:
            reported = [gap for number, gap in self._reporting if number <= self._kept]
            self._reporting = [(number, gap) for number, gap in self._reporting if number > self._kept]
            return reported

    def _subtract_waiting(self, events: int, level: int, spooled: bool) -> None:
        counts = self._counts
        undelivered = _added(counts.undelivered, level, -events)
        if spooled:
            self._counts = replace(counts, spooled=counts.spooled - events, undelivered=undelivered)
        else:
            self._counts = replace(counts, queued=counts.queued - events, undelivered=undelivered)

    def _count_lost(self, reason: str, first: int, last: int, events: int) -> None:
        dropped = self._counts.dropped
        self._counts = replace(self._counts, dropped={**dropped, reason: dropped.get(reason, 0) + events})
        self._append_gap(Gap(reason, self._boot_id, first, last))
        for number, gap in self._reporting:
            if first <= number <= last:
                self._append_gap(gap)  # the event that reported it is lost
        self._reporting = [(number, gap) for number, gap in self._reporting if not first <= number <= last]

    def _append_gap(self, gap: Gap) -> None:
        before = self._gaps[-1] if self._gaps else None
        if before and (before.reason, before.boot_id, before.last + 1) == (gap.reason, gap.boot_id, gap.first):
            self._gaps[-1] = replace(before, last=gap.last)
        else:
            self._gaps.append(gap)
            del self._gaps[:-MAX_PENDING_GAPS]

    def _advance_kept(self, last: int) -> None:
        self._kept = max(self._kept, last)


def _added(events: Mapping[int, int], level: int, more: int) -> Mapping[int, int]:
    """Return ``events`` by level with ``more`` of one level."""
    return {**events, level: events.get(level, 0) + more} if more else events


def _missing_ranges(chunks: Sequence[Chunk], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of numbers from ``first`` to ``last`` that no chunk has."""
    for chunk in chunks:
        if first < chunk.first:
            yield first, chunk.first - 1
        first = chunk.first + chunk.count
    if first <= last:
        yield first, last
