"""One group: its members, its committed owners, and the attempt to rebalance it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from proxy.coordinator.assignment_plan import GroupOwners, TopicOwners, partitions_by_consumer
from proxy.coordinator.member import GroupMember, Share, TopicPartition
from proxy.coordinator.offsets import GroupOffsets
from proxy.coordinator.records import (
    GenerationRecord,
    GenerationValue,
    GroupRecord,
    MemberRecord,
    MemberValue,
    OwnersRecord,
    OwnersValue,
)
from proxy.coordinator.states import GROUPS, GroupState, GroupStateEvent, next_state
from proxy.coordinator.steps import AT_ONCE, Steps
from proxy.coordinator.subscription import TopicCount
from proxy.core.causes import Cause


class HeldBack(NamedTuple):
    """Partitions that a member which is gone may still be fetching. Nobody gets them before ``free_at``."""

    consumer_id: str
    partitions: frozenset[TopicPartition]
    free_at: int
    reason: str
    """Of the rebalance that follows."""
    has_started: bool
    """Whether the member had answered the last StartFetcher."""


class Attempt:
    """One try to rebalance a group: stop, commit, start; or only start (*resume*), when nothing changes hands."""

    def __init__(self, reason: str, level: int, target: GroupOwners, shares: dict[str, Share], now: int) -> None:
        self.reason, self.level, self.target, self.shares = reason, level, target, shares
        self.began_at = self.phase_began_at = now
        self.phases_ms: dict[str, int] = {}
        """How long each phase took: ``stop``, ``commit``, ``start``."""
        self.unsent: deque[str] = deque()
        """Members that the request of this phase was not sent to yet."""
        self.waiting: set[str] = set()
        """Members that have not answered it."""
        self.late: set[str] = set()
        """Those of them that should have: the attempt fails."""
        self.to_stop: dict[str, frozenset[TopicPartition] | None] = {}
        """Members that have to stop, and what; None: all that they fetch."""
        self.moved = 0
        self.starts_all = False
        """Whether all owners will have answered StartFetcher when it succeeds, those that are no members, too."""

    def share(self, consumer_id: str) -> Share:
        """What a member is to own."""
        return self.shares.get(consumer_id, {})

    def send_to(self, consumer_ids: Iterable[str]) -> None:
        """The request of this phase is to be sent to these members."""
        self.unsent.extend(consumer_ids)

    def phase_ended(self, phase: str, now: int) -> None:
        """Note how long a phase took, and begin the next."""
        self.phases_ms[phase] = now - self.phase_began_at
        self.phase_began_at = now

    def is_answered(self) -> bool:
        """Whether everybody has answered the request of this phase."""
        return not self.unsent and not self.waiting

    def free(self) -> Steps[None]:
        """The attempt has ended: forget who was to own what, one after the other (``drain``)."""
        while self.shares:
            self.shares.popitem()
            yield 1


class LastRebalance(NamedTuple):
    """The latest attempt that succeeded, for people."""

    reason: str
    ended_at: int
    duration_ms: int
    moved: int


class Group:
    """A group of the partition ``partition``.

    members      registered members, by consumer id.
    registering  those whose record is being written. One of them may have the id of a member or an absent one.
    absent       known by the records of a predecessor, and not back yet.
    closing      why the connections of all members are being closed; None: they are not.
    owners       as committed, of generation ``generation``.
    """

    def __init__(self, group_id: str, partition: int) -> None:
        self.group_id, self.partition = group_id, partition
        self.state = GroupState.EMPTY
        self.generation = 0
        self.level = 1
        """The level of the protocol that the record of the generation names."""
        self.is_stable = False
        """Whether all owners have answered StartFetcher since they are committed: what they report is of what they own.
        """
        self.owners: GroupOwners = {}
        self.offsets = GroupOffsets()
        self.members: dict[str, GroupMember] = {}
        self.registering: dict[str, GroupMember] = {}
        self.absent: dict[str, GroupMember] = {}
        self.closing: Cause | None = None
        self.threads = 0
        """Of members, and of those that register."""
        self.returns_until = 0
        """After a takeover: when the time of the last member that is not back is over."""
        self.resumes_at: int | None = None
        """After a takeover: when those who are back go on, though others are missing."""
        # What is asked of Kafka
        self.has_ordinary_members: bool | None = None
        self.ordinary_asked_at: int | None = None
        """When the latest question was asked; None if it could not be answered."""
        self.is_asking_ordinary = False
        self.read: int | None = None
        """The reading of committed offsets that is under way."""
        # Rebalancing
        self.attempt: Attempt | None = None
        self.reason: str | None = None
        """Why the next attempt is to be made: the group's rebalance bit. None: no attempt is wanted."""
        self.retries = 0
        self.committing_level = 0
        """Of the generation that is being written: whether it is committed is not known yet. 0: none is."""
        self.failure: str | None = None
        """Why the group failed last."""
        self.last_rebalance: LastRebalance | None = None
        self.recent: deque[int] = deque()
        """When the latest attempts began."""
        self.departures = 0
        """How often a member has gone, or has been waited for no longer: its partitions are another's to own."""
        self.order_responses = 0
        """How often StopFetcher or StartFetcher was answered, or has expired."""
        self._held_back: list[tuple[int, int, HeldBack]] = []
        """A heap by time: partitions of members that are gone."""
        self._held_ids: Counter[str] = Counter()
        self._refused_until: dict[str, int] = {}
        self._highest_generation = 0
        self._topic_generations: dict[str, int] = {}
        self._recorded: dict[str, MemberValue] = {}
        """Records of members that are known to be committed, and the latest of their key."""
        self._obsolete: dict[str, None] = {}

    @property
    def is_committing(self) -> bool:
        """Whether a generation is being written."""
        return self.committing_level > 0

    def move(self, event: GroupStateEvent) -> None:
        """Change the state. Raises ImpossibleTransitionError."""
        self.state = next_state(GROUPS, self.state, event)

    def highest_level(self) -> int:
        """The highest level of the protocol at which the group may still work."""
        attempt = 1 if self.attempt is None else self.attempt.level
        return max(self.level if self.generation else 1, attempt, self.committing_level)

    # Records

    def load(self, record: GroupRecord) -> int:
        """Take a record of a predecessor. Members are given to ``load_member``. Return the units of work."""
        if isinstance(record, GenerationRecord) and record.value is not None:
            self.generation = self._highest_generation = record.value.generation
            self.level = record.value.level
            self.is_stable = record.value.state == "stable"
        elif isinstance(record, OwnersRecord) and record.value is not None:
            owners = {thread_id: tuple(partitions) for thread_id, partitions in record.value.owners.items()}
            self.owners = {**self.owners, record.topic: TopicOwners(record.value.topic_id, owners)}
            self._topic_generations[record.topic] = record.value.generation
            return 1 + len(owners) // 2
        return 1

    def load_member(self, consumer_id: str, value: MemberValue, subscription: TopicCount) -> None:
        """Take the record of a member that a predecessor knew."""
        self._recorded[consumer_id] = value
        self.absent[consumer_id] = GroupMember(self.group_id, consumer_id, value, subscription, None)

    def loaded(self, returns_until: int) -> Steps[None]:
        """All records were taken. ``returns_until``: when the time of the last absent member is over."""
        self._owners_changed()
        if self.absent:
            owned = yield from partitions_by_consumer(self.owners)
            for consumer_id, member in self.absent.items():
                member.absent(owned.get(consumer_id, frozenset()))
                yield 1
            self.returns_until = returns_until
            self.move(GroupStateEvent.LOADED)

    def is_recorded(self, member: GroupMember) -> bool:
        """Whether the record of a member is committed as it registers now."""
        return self._recorded.get(member.consumer_id) == member.value

    def recorded(self, member: GroupMember) -> None:
        """The record of the member is committed."""
        self._recorded[member.consumer_id] = member.value

    def not_recorded(self, consumer_id: str) -> None:
        """It is not known what the record of the member says."""
        self._recorded.pop(consumer_id, None)

    def _tombstone(self, consumer_id: str) -> MemberRecord | None:
        """None while somebody has the id, or its partitions are not free."""
        if consumer_id in self.members or consumer_id in self.registering or consumer_id in self.absent:
            return None
        if consumer_id in self._held_ids:
            return None
        self._recorded.pop(consumer_id, None)
        return MemberRecord(self.group_id, consumer_id, None)

    def record_is_obsolete(self, consumer_id: str) -> None:
        """The member is gone and its partitions are free: its record is to be deleted."""
        self._obsolete[consumer_id] = None

    def take_tombstones(self, most: int) -> dict[str, GroupRecord]:
        """Return the records that delete so many members, by consumer id, but for ids that are in use again."""
        taken = [self._obsolete.popitem()[0] for _ in range(min(most, len(self._obsolete)))]
        obsolete = {consumer_id: self._tombstone(consumer_id) for consumer_id in taken}
        return {consumer_id: record for consumer_id, record in obsolete.items() if record is not None}

    def count_obsolete_records(self, most: int) -> int:
        """How many ``take_tombstones`` takes."""
        return min(len(self._obsolete), most)

    def has_obsolete_records(self) -> bool:
        """Whether ``take_tombstones`` may have something."""
        return bool(self._obsolete)

    def all_tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group as a whole."""
        records: list[GroupRecord] = [GenerationRecord(self.group_id, None)]
        records += [OwnersRecord(self.group_id, topic, None) for topic in self._topic_generations]
        return records

    def generation_records(self, generation: int, level: int, target: GroupOwners) -> list[GroupRecord]:
        """Return the records of a new generation: what has changed, and tombstones for topics that nobody owns."""
        records: list[GroupRecord] = [GenerationRecord(self.group_id, GenerationValue(generation, "starting", level))]
        for topic, owners in target.items():
            if self.owners.get(topic) != owners:
                threads = dict(owners.threads)
                records.append(OwnersRecord(self.group_id, topic, OwnersValue(generation, owners.topic_id, threads)))
        records += [OwnersRecord(self.group_id, topic, None) for topic in self.owners if topic not in target]
        return records

    def generation_record(self, level: int) -> GenerationRecord:
        """Return the record of the generation as it is now."""
        state: Literal["starting", "stable"] = "stable" if self.is_stable else "starting"
        return GenerationRecord(self.group_id, GenerationValue(self.generation, state, level))

    def next_generation(self) -> int:
        """A number that was never tried: a generation whose commit has failed uses its number up."""
        self._highest_generation += 1
        return self._highest_generation

    def generation_committed(self, generation: int, level: int, target: GroupOwners) -> None:
        """The owners are ``target`` from now on."""
        for topic, owners in target.items():
            if self.owners.get(topic) != owners:
                self._topic_generations[topic] = generation
        for topic in self.owners.keys() - target.keys():
            self._topic_generations.pop(topic, None)
        self.generation, self.level, self.owners, self.is_stable = generation, level, target, False
        self._owners_changed()

    def _owners_changed(self) -> None:
        self.offsets.owners_are_of({topic: owners.topic_id for topic, owners in self.owners.items()})

    # Members

    def is_unused(self) -> bool:
        """Nobody is a member, about to be, or waited for."""
        return not (self.members or self.registering or self.absent or self._held_back)

    def registration_began(self, member: GroupMember) -> None:
        """A consumer is about to become a member."""
        self.registering[member.consumer_id] = member
        self.threads += member.subscription.streams

    def registration_failed(self, member: GroupMember) -> None:
        """It has not become a member."""
        del self.registering[member.consumer_id]
        self.threads -= member.subscription.streams

    def registered(self, member: GroupMember) -> None:
        """A consumer that was registering is a member now."""
        del self.registering[member.consumer_id]
        self.members[member.consumer_id] = member
        self.move(GroupStateEvent.REGISTERED)

    def member_gone(self, member: GroupMember) -> None:
        """The consumer is no member any more."""
        self.departures += 1
        del self.members[member.consumer_id]
        self.threads -= member.subscription.streams

    def absent_ended(self, consumer_id: str) -> GroupMember | None:
        """A member that was waited for after a takeover is back, or its time is over. None if there was none."""
        if (absent := self.absent.pop(consumer_id, None)) is not None:
            self.departures += 1
            absent.ended()
        return absent

    def not_free(self) -> Steps[set[TopicPartition]]:
        """Partitions that somebody who is not a member may be fetching. More, if some become free meanwhile."""
        partitions: set[TopicPartition] = set()
        held = [one.partitions for _, _, one in self._held_back]
        for some in (*held, *(member.holds for member in self.absent.values())):
            partitions |= some
            yield (1 + len(some)) // AT_ONCE
        return partitions

    def count_not_free(self) -> int:
        """How many partitions somebody who is not a member may be fetching."""
        held = sum(len(one.partitions) for _, _, one in self._held_back)
        return held + sum(len(member.holds) for member in self.absent.values())

    def all_held_have_started(self) -> bool:
        """Whether all members that are gone, and may still be fetching, had answered StartFetcher."""
        return all(one.has_started for _, _, one in self._held_back)

    def hold_back(self, held: HeldBack) -> None:
        """A member is gone that may still be fetching."""
        heappush(self._held_back, (held.free_at, self.departures, held))
        self._held_ids[held.consumer_id] += 1

    def release(self, now: int) -> HeldBack | None:
        """Return what is free now, of one member; None if nothing is."""
        if not self._held_back or self._held_back[0][0] > now:
            return None
        _, _, held = heappop(self._held_back)
        self._held_ids[held.consumer_id] -= 1
        if not self._held_ids[held.consumer_id]:
            del self._held_ids[held.consumer_id]
        return held

    def next_release(self) -> int | None:
        """When partitions are free; None if none are held back."""
        return self._held_back[0][0] if self._held_back else None

    def refuse(self, consumer_ids: Iterable[str], until: int, now: int) -> None:
        """Refuse these consumers until then: they have made the group fail."""
        self._refused_until = {refused: at for refused, at in self._refused_until.items() if at > now}
        self._refused_until.update(dict.fromkeys(consumer_ids, until))

    def is_refused(self, consumer_id: str, now: int) -> bool:
        """Whether this consumer has made the group fail, and must wait."""
        return self._refused_until.get(consumer_id, now) > now
