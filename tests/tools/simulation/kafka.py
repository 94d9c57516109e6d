"""The cluster: topics with messages, the log of each partition of the groups' topic, and the groups' offsets.

Of Kafka's transactions it has what matters here: a producer's epoch, which fences the one before; a commit that is
acknowledged before it can be read; a transaction that is aborted when it stays open for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from proxy.coordinator.events import PartitionOffsets, TopicFactsOfGroups
from proxy.coordinator.records import (
    ClaimRecord,
    GenerationRecord,
    GroupRecord,
    MemberRecord,
    OwnersRecord,
)
from tests.tools.simulation.timeline import Timeline

TRANSACTION_TIMEOUT = 10_000

MESSAGE_EVERY = 100
"""Milliseconds between two messages of one partition."""


class FencedError(Exception):
    """Another producer has the epoch."""


@dataclass
class Topic:
    name: str
    topic_id: str
    created_at: int
    leaders: list[int]
    starts: list[int]
    """The first offset that is still there, by partition."""

    def end(self, now: int) -> int:
        return (now - self.created_at) // MESSAGE_EVERY


Key = tuple[str, ...]


def key_of(record: GroupRecord) -> Key:
    match record:
        case GenerationRecord(group):
            return ("registry", group)
        case MemberRecord(group, consumer_id):
            return ("ids", group, consumer_id)
        case OwnersRecord(group, topic):
            return ("owners", group, topic)


class Transaction(NamedTuple):
    """What one transaction has committed."""

    at: int
    asked_at: int
    """When the sidecar's coordinator asked for the first of it."""
    writer: str
    records: tuple[GroupRecord, ...]
    offsets: Mapping[str, PartitionOffsets]
    claim: ClaimRecord | None


@dataclass
class GroupsLog:
    """One partition of the groups' topic."""

    number: int
    epoch: int = 0
    claim: ClaimRecord | None = None
    records: dict[Key, GroupRecord] = field(default_factory=dict)
    readable_at: int = 0
    """When the latest transaction can be read."""
    is_empty: bool = True


class Kafka:
    """``on_commit`` hears of each transaction when it is committed."""

    def __init__(self, timeline: Timeline, random: Random, partitions: int) -> None:
        self.timeline = timeline
        self.logs = [GroupsLog(number) for number in range(partitions)]
        self.topics: dict[str, Topic] = {}
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}
        self.pending: dict[str, int] = {}
        """By group: until when an offset of it is committed and cannot be read."""
        self.ordinary_since: dict[str, int] = {}
        """Groups that have members of Kafka's own protocols, and since when."""
        self.leaders: list[int] = [0] * partitions
        """Of the groups' topic."""
        self.unreachable_until: dict[str, int] = {}
        """By the name of a process."""
        self.on_commit: Callable[[GroupsLog, Transaction], None] = lambda log, transaction: None
        self._random = random
        self._ids = 0

    def is_reachable(self, name: str) -> bool:
        return self.timeline.now >= self.unreachable_until.get(name, 0)

    # Topics

    def create(self, name: str, partitions: int, brokers: int) -> None:
        self._ids += 1
        leaders = [1 + (self._ids + number) % brokers for number in range(partitions)]
        self.topics[name] = Topic(name, f"{name}#{self._ids}", self.timeline.now, leaders, [0] * partitions)

    def grow(self, name: str) -> None:
        topic = self.topics[name]
        topic.leaders.append(topic.leaders[0])
        topic.starts.append(0)

    def delete(self, name: str) -> None:
        del self.topics[name]
        for offsets in self.offsets.values():
            for which in [one for one in offsets if one[0] == name]:
                del offsets[which]

    def facts(self, names: frozenset[str], *, all_topics: bool) -> dict[str, TopicFactsOfGroups]:
        return {
            name: TopicFactsOfGroups(topic.topic_id, tuple(topic.leaders))
            for name, topic in sorted(self.topics.items())
            if all_topics or name in names
        }

    # Transactions

    def fence(self, log: GroupsLog) -> int:
        """InitProducerId: what was begun before is aborted, what was committed can be read. Return the new epoch."""
        log.epoch += 1
        log.readable_at = self.timeline.now
        return log.epoch

    def commit(
        self,
        log: GroupsLog,
        epoch: int,
        writer: str,
        asked_at: int,
        records: tuple[GroupRecord, ...],
        offsets: Mapping[str, PartitionOffsets],
        claim: ClaimRecord | None,
    ) -> None:
        """Raises FencedError."""
        if epoch != log.epoch:
            raise FencedError
        now = self.timeline.now
        log.readable_at = now + self._random.choice((1, 5, 50, 500))
        if records or claim is not None:
            log.is_empty = False
        for record in records:
            if record.value is None:
                log.records.pop(key_of(record), None)
            else:
                log.records[key_of(record)] = record
        for group, committed in offsets.items():
            self.pending[group] = log.readable_at
            there = {which: offset for which, offset in committed.items() if which[0] in self.topics}
            self.offsets.setdefault(group, {}).update(there)
        if claim is not None:
            log.claim = claim
        self.on_commit(log, Transaction(now, asked_at, writer, records, offsets, claim))

    def expire(self, log: GroupsLog, epoch: int) -> None:
        """A transaction was open for too long: Kafka aborts it, and fences its producer."""
        if epoch == log.epoch:
            log.epoch += 1

    def committed(self, group: str) -> dict[tuple[str, int], int] | None:
        """OffsetFetch with ``require_stable``: None while an offset cannot be read."""
        if self.timeline.now < self.pending.get(group, 0):
            return None
        return dict(self.offsets.get(group, {}))
