"""The offsets of one group: how far its members have consumed, what is to be committed, and where to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

TopicPartition = tuple[str, int]


class OffsetReport(Enum):
    """What became of an offset that a member reported; the values are labels of ``offsets_total``."""

    ACCEPTED = "accepted"
    NOT_OWNER = "not_owner"
    BACKWARDS = "backwards"
    UNSURE = "unsure"
    """The predecessor may have ended before the member had StartFetcher: it may be of an earlier assignment."""
    RECREATED = "recreated"
    """Its topic is gone, or is another one than that which its owner was started with."""
    NOTHING = "nothing"
    """Below 0: the member has consumed nothing yet."""


class GroupOffsets:
    """Positions by topic and partition: the next offset to consume.

    Members with ``auto_commit`` report them, and the coordinator commits them. The others commit by themselves: their
    positions are those that were last read from Kafka.

    A member keeps the offsets of its last assignment until it gets StartFetcher. After a takeover one that comes back
    holds partitions *by the records*. If the predecessor ended before it got StartFetcher for these, what it reports is
    older: another member may have had the partition since, or the topic is another one of that name. So it is heard
    only where the records say that all owners had answered StartFetcher (``Group.is_stable``), else (``UNSURE``) after
    StartFetcher was sent here. It goes on where it is while its lease lasts, and at what is committed otherwise.
    """

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, int] = {}
        """As read from Kafka."""
        self._written: dict[TopicPartition, int] = {}
        """As committed here: Kafka may not show the first commit of a partition at once (decision 0037)."""
        self._consumed: dict[TopicPartition, int] = {}
        """As reported by members."""
        self._floor: dict[TopicPartition, int] = {}
        """As reported by the owners of now: they do not go back."""
        self._uncommitted: dict[TopicPartition, int] = {}
        self._open_writes = 0
        self._committed_by_members: set[TopicPartition] = set()
        """Partitions whose owner of now commits by itself."""
        self._topic_ids: dict[str, str | None] = {}
        """As Kafka has them, as far as known; None: there is no such topic."""
        self._owned_ids: dict[str, str] = {}
        """Those of the topics that the current owners were started with."""
        self.is_loaded = False
        """Whether committed offsets were read since they were last needed."""

    def __len__(self) -> int:
        """Of how many partitions members have reported an offset."""
        return len(self._consumed)

    def report(self, holds: frozenset[TopicPartition], topic: str, partition: int, offset: int) -> OffsetReport:
        """A member that may fetch the partitions ``holds`` has reported an offset."""
        key = (topic, partition)
        if key not in holds:
            return OffsetReport.NOT_OWNER
        if self._is_recreated(topic):
            return OffsetReport.RECREATED
        if offset < 0:
            return OffsetReport.NOTHING
        if offset < self._floor.get(key, 0):
            return OffsetReport.BACKWARDS
        self._floor[key] = offset
        if self._consumed.get(key) != offset:
            self._consumed[key] = self._uncommitted[key] = offset
        return OffsetReport.ACCEPTED

    def start_at(self, key: TopicPartition) -> int | None:
        """Where the next owner starts; None if nothing is known."""
        consumed = self._consumed.get(key)
        return self._committed.get(key) if consumed is None else consumed

    def handed_over(self, partitions: Iterable[TopicPartition], *, auto_commit: bool) -> None:
        """The partitions start at a member that did not have them: it may report any offset.

        Without ``auto_commit`` it commits by itself: what others have reported says nothing any more.
        """
        for key in partitions:
            self._floor.pop(key, None)
            if auto_commit:
                self._committed_by_members.discard(key)
            else:
                self._committed_by_members.add(key)
                self._consumed.pop(key, None)
                self._uncommitted.pop(key, None)

    # Committing

    def has_uncommitted(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._uncommitted)

    def take_uncommitted(self) -> dict[TopicPartition, int]:
        """Return what is to be committed now; ``write_ended`` has to follow."""
        self._open_writes += 1
        taken, self._uncommitted = self._uncommitted, {}
        return taken

    def forget_uncommitted(self) -> None:
        """Somebody else commits for the group now."""
        self._uncommitted.clear()

    def write_ended(self, taken: Mapping[TopicPartition, int], *, committed: bool) -> None:
        """These offsets are committed, or surely not: then they are to be committed again."""
        self._open_writes -= 1
        taken = self._without_recreated(taken)
        if committed:
            self._written.update(taken)
            return
        for key, offset in taken.items():
            if key not in self._committed_by_members:
                self._uncommitted[key] = self._consumed.setdefault(key, offset)

    # Reading

    def loaded(self, committed: Mapping[TopicPartition, int]) -> None:
        """Take the committed offsets, as Kafka has them."""
        self._committed = {**self._written, **self._without_recreated(committed)}
        self.is_loaded = True

    def are_committed_by_members(self) -> bool:
        """Whether members may have committed by themselves since the last reading."""
        return bool(self._committed_by_members)

    def must_be_read(self) -> None:
        """What is known of committed offsets is out of date."""
        self.is_loaded = False

    def begin_anew(self) -> None:
        """The group has no members: what is committed is read again, since others may have changed it."""
        if not self._uncommitted and not self._open_writes:
            self._consumed.clear()
        self._floor.clear()
        self._committed_by_members.clear()
        self.is_loaded = False

    # Topics

    def topic_is(self, topic: str, topic_id: str | None) -> None:
        """The topic has this id in Kafka now; None: there is no such topic. If it had another one, its offsets mean
        nothing any more, and Kafka would refuse all others of a transaction with them."""
        before = self._topic_ids.get(topic, topic_id)
        self._topic_ids[topic] = topic_id
        if before == topic_id:
            return
        tables = self._committed, self._written, self._consumed, self._floor, self._uncommitted
        for table in tables:
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def owners_are_of(self, topic_ids: Mapping[str, str]) -> None:
        """The owners of now are started with the topics of these ids, or were. They may be out of date already."""
        self._owned_ids = dict(topic_ids)
        for topic, topic_id in topic_ids.items():
            self._topic_ids.setdefault(topic, topic_id)

    def _is_recreated(self, topic: str) -> bool:
        owned = self._owned_ids.get(topic)
        return owned is not None and owned != self._topic_ids[topic]

    def _without_recreated(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        gone = {topic for topic in self._owned_ids if self._is_recreated(topic)}
        return {key: offset for key, offset in offsets.items() if key[0] not in gone} if gone else offsets
