"""Why a message was handed out again: one event of a consumer explains it, or nothing does.

The coordinator knows what a consumer was handed out from its next response, and Kafka from the next commit. So a
message is handed out again only if its consumer was lost before it responded, or if the coordinator ended with the
response before it committed, and the consumer was lost before it could report to the next one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.integration.journaling import boottime_ns
from tests.integration.journals import MILLISECOND, Journal, Replay, Report

OFFSETS_TOPIC = "__consumer_offsets"

UNSURE = "unsure takeover"


class Loss(NamedTuple):
    """A consumer was lost. What it reports after ``at`` may not arrive, and it hands out nothing after ``until``.
    ``unreported``: for how long before ``at`` it may have been handed out what it has not reported."""

    name: str
    what: str
    at: int
    until: int
    unreported: int


class Outage(NamedTuple):
    """A coordinator has ended, or could not commit: what it heard until ``until``, and had not committed, is lost."""

    what: str
    at: int
    until: int


class Recreation(NamedTuple):
    """A topic is another one from ``at`` on. Until ``until`` it may be read from an offset of the one before."""

    topic: str
    at: int
    until: int


class UnsureTakeover(NamedTuple):
    """A coordinator has taken over, and does not know whether all owners had StartFetcher from its predecessor. What a
    consumer reports after ``at`` counts once it has responded to StartFetcher; after ``until`` it counts anyway."""

    at: int
    until: int


Event = Loss | Outage | Recreation | UnsureTakeover


class Explainer:
    """Knows what was done, and what was committed. Times are nanoseconds, as those of journals."""

    def __init__(
        self,
        journals: Iterable[Journal],
        events: Iterable[Event],
        commits: Iterable[Report],
        *,
        unreported: int,
        uncommitted: int,
        lease: int,
    ) -> None:
        """``commits``: see ``read_commits``. ``unreported``, ``uncommitted``: for how long, at most, a consumer has not
        reported what it was handed out, and its coordinator has not committed what was reported. ``lease``: for how
        long a consumer goes on without a coordinator."""
        found = list(events)
        self._losses = sorted((one for one in found if isinstance(one, Loss)), key=lambda one: one.at)
        self._outages = [one for one in found if isinstance(one, Outage)]
        self._recreations = [one for one in found if isinstance(one, Recreation)]
        self._unsure = sorted(one for one in found if isinstance(one, UnsureTakeover))
        self._journals = {one.name: one for one in journals}
        self._reports = {name: _by_partition(one.reported) for name, one in self._journals.items()}
        self._commits = _by_partition(commits)
        self._unreported, self._uncommitted, self._lease = unreported, uncommitted, lease

    def explain(self, replay: Replay) -> str | None:
        """Return the event that explains it, and the coordinator's end if it takes one; None if nothing does."""
        first, began = replay.first, self._begin_of(replay)
        topic = first.source[0]
        if any(one.topic == topic and one.at < first.after and first.before < one.until for one in self._recreations):
            return "recreate"
        if began < first.before or _covering(self._commits, replay, began):
            return None
        reported = _covering(self._reports[replay.name], replay, began)
        for loss in self._losses:
            heard = [at for at in reported if at < loss.at]
            fits = loss.name == replay.name and loss.at < began and first.before < loss.until
            if fits and (reason := self._by(loss, replay, heard, began)) is not None:
                return reason
        # The consumer lives: it begins anew after its lease, or another one has its partition.
        reasons = [self._why_not_committed(replay, at, began) for at in reported]
        return UNSURE if UNSURE in reasons and None not in reasons else None

    def _begin_of(self, replay: Replay) -> int:
        """When the partition was assigned to the consumer that was handed the message out again."""
        topic, _, partition = replay.first.source
        assigned = self._journals[replay.again].assigned
        times = [one.at for one in assigned if (one.topic, one.partition) == (topic, partition)]
        return max((at for at in times if at < replay.second.after), default=0)

    def _by(self, loss: Loss, replay: Replay, heard: Sequence[int], began: int) -> str | None:
        """``heard``: when coordinators heard of the message."""
        handed_out = replay.first.after
        if not heard and handed_out > loss.at - loss.unreported:
            return loss.what
        if heard:
            reasons = [self._why_not_committed(replay, at, began) for at in heard]
            return None if None in reasons else f"{loss.what}, {reasons[0]}"
        for one in self._outages:
            is_before = one.at < min(began, loss.at)
            if is_before and one.at - self._unreported < handed_out < one.until + self._lease:
                return f"{loss.what}, {one.what}"
        return None

    def _why_not_committed(self, replay: Replay, at: int, began: int) -> str | None:
        """Why what the consumer has reported at a time was not committed before the message was handed out again."""
        takeover = max((one for one in self._unsure if one.at < at), default=None)
        if takeover is not None and at < takeover.until:
            started = self._journals[replay.name].started
            if not any(takeover.at < one < at for one in started):
                return UNSURE
        for one in self._outages:
            if one.at < began and one.at - self._uncommitted < at < one.until:
                return one.what
        return None


def _by_partition(offsets: Iterable[Report]) -> Mapping[tuple[str, int], list[Report]]:
    found: dict[tuple[str, int], list[Report]] = defaultdict(list)
    for one in offsets:
        found[one.topic, one.partition].append(one)
    return found


def _covering(offsets: Mapping[tuple[str, int], list[Report]], replay: Replay, until: int) -> list[int]:
    """Return when the message was reported, or committed, before ``until``."""
    topic, _, partition = replay.first.source
    first = replay.first
    of_partition = offsets.get((topic, partition), ())
    return [one.at for one in of_partition if one.offset > first.offset and first.before < one.at < until]


def read_commits(bootstrap: str, group: str) -> list[Report]:
    """Return the offsets of a group that were committed, in the order of each partition."""
    booted = time.time_ns() - boottime_ns()
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    found: list[Report] = []
    with closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        partitions = consumer.list_topics(OFFSETS_TOPIC, timeout=20).topics[OFFSETS_TOPIC].partitions
        consumer.assign([TopicPartition(OFFSETS_TOPIC, number, 0) for number in partitions])
        left = set(partitions)
        while left:
            for message in consumer.consume(1000, 1.0):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(message.partition() or 0)
                    continue
                key, value = _Fields(message.key() or b""), message.value()
                if value is not None and key.number(2) in OFFSET_KEYS and key.text() == group:
                    topic, partition = key.text(), key.number(4)
                    offset = int.from_bytes(value[2:10], "big")
                    found.append(Report(message.timestamp()[1] * MILLISECOND - booted, topic, partition, offset))
    return found


OFFSET_KEYS = (0, 1)
"""Versions of OffsetCommitKey; the keys of other records have others."""


class _Fields:
    """Reads the fields of a record's key one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, size: int) -> int:
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "big")

    def text(self) -> str:
        size = self.number(2)
        self._at += size
        return self._data[self._at - size : self._at].decode()
