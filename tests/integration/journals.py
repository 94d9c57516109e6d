"""Journals of consumers: what each was handed out and when, and what follows from all of them together.

Times are nanoseconds of CLOCK_BOOTTIME, which all processes of a machine share. ``journaling`` writes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

MILLISECOND = 1_000_000

Source = tuple[str, int, int]
"""A topic, how often it was recreated before, and a partition."""


class HandedOut(NamedTuple):
    """A message was handed out later than ``before``, and earlier than ``after``."""

    source: Source
    offset: int
    before: int
    after: int


class Change(NamedTuple):
    """A partition was assigned, or revoked."""

    at: int
    topic: str
    partition: int


class Report(NamedTuple):
    """The coordinator was sent the offset to consume next, before ``at``."""

    at: int
    topic: str
    partition: int
    offset: int


class Journal(NamedTuple):
    """Of one process of a consumer, in the order of time. ``failure``: why the consumer has ended by itself.
    ``started``: when it has responded to StartFetcher."""

    name: str
    handed_out: Sequence[HandedOut]
    assigned: Sequence[Change]
    revoked: Sequence[Change]
    reported: Sequence[Report]
    failure: str | None
    started: Sequence[int] = ()


class Replay(NamedTuple):
    """A message that was handed out again later. ``name``, ``again``: of the journals."""

    name: str
    first: HandedOut
    again: str
    second: HandedOut


def read_journal(path: Path) -> Journal:
    """Read what a process has written so far."""
    handed_out: list[HandedOut] = []
    changes: dict[str, list[Change]] = {"assigned": [], "revoked": []}
    reported: list[Report] = []
    started: list[int] = []
    failure = None
    whole, _, _ = path.read_text().rpartition("\n")
    for line in whole.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "handed_out":
            topic, recreated, partition, offset, before, after = rest.split()
            source = topic, int(recreated), int(partition)
            handed_out.append(HandedOut(source, int(offset), int(before), int(after)))
        elif kind == "reported":
            at, topic, partition, offset = rest.split()
            reported.append(Report(int(at), topic, int(partition), int(offset)))
        elif kind == "started":
            started.append(int(rest))
        elif kind == "failed":
            failure = rest
        else:
            at, topic, partition = rest.split()
            changes[kind].append(Change(int(at), topic, int(partition)))
    return Journal(path.stem, handed_out, **changes, reported=reported, failure=failure, started=started)


def find_overlaps(journals: Iterable[Journal]) -> list[str]:
    """Return where two consumers have handed out messages of one partition at the same time.

    A consumer has a partition for certain from the end of its first message to the beginning of the last one before it
    is assigned to it anew. Nobody else may be handed out a message within that.
    """
    runs: dict[Source, list[tuple[str, list[HandedOut]]]] = defaultdict(list)
    for journal in journals:
        for source, messages in _runs(journal):
            runs[source].append((journal.name, messages))
    found = []
    for source, of_source in runs.items():
        for name, messages in of_source:
            since, until = messages[0].after, messages[-1].before
            for other, others in of_source:
                at = bisect_right(others, since, key=lambda one: one.before)
                if other != name and at < len(others) and others[at].after < until:
                    early = (until - others[at].after) // MILLISECOND
                    found.append(f"{source}: {other} got offset {others[at].offset} {early} ms before {name} ended")
    return found


def _runs(journal: Journal) -> list[tuple[Source, list[HandedOut]]]:
    """Return the messages of each partition between two assignments of it. Left out is what may belong to either."""
    assigned: dict[tuple[str, int], list[int]] = defaultdict(list)
    for change in journal.assigned:
        assigned[change.topic, change.partition].append(change.at)
    runs: dict[tuple[Source, int], list[HandedOut]] = defaultdict(list)
    for one in journal.handed_out:
        topic, _, partition = one.source
        times = assigned[topic, partition]
        number = bisect_left(times, one.before)
        if number == bisect_left(times, one.after):
            runs[one.source, number].append(one)
    return [(source, messages) for (source, _), messages in runs.items()]


def count_skipped(journals: Iterable[Journal], produced: Mapping[Source, int]) -> dict[Source, int]:
    """Return how many messages nobody was handed out, where some are missing. ``produced``: numbers of messages."""
    offsets: dict[Source, set[int]] = defaultdict(set)
    for journal in journals:
        for one in journal.handed_out:
            offsets[one.source].add(one.offset)
    missing = {source: count - len(offsets[source]) for source, count in produced.items()}
    return {source: count for source, count in missing.items() if count}


def find_replays(journals: Iterable[Journal]) -> list[Replay]:
    """Return what was handed out more than once; a message as often as it was repeated."""
    found: dict[tuple[Source, int], list[tuple[HandedOut, str]]] = defaultdict(list)
    for journal in journals:
        for one in journal.handed_out:
            found[one.source, one.offset].append((one, journal.name))
    return [
        Replay(name, first, again, second)
        for times in found.values()
        for (first, name), (second, again) in pairwise(sorted(times, key=lambda one: one[0].before))
    ]


def longest_pauses(journals: Iterable[Journal], since: int, until: int) -> dict[Source, int]:
    """Return the longest time in milliseconds between two messages of each partition, whoever got them; a pause counts
    if it lies between the two times at least in part."""
    times: dict[Source, list[int]] = defaultdict(list)
    for journal in journals:
        for one in journal.handed_out:
            times[one.source].append(one.after)
    return {
        source: max((b - a for a, b in pairwise(sorted(of_source)) if a < until and b > since), default=0)
        // MILLISECOND
        for source, of_source in times.items()
    }
