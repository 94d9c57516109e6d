"""Who is to own which partition of a group: the assignment that an attempt brings about. Pure functions, in parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.coordinator.assignment import Assignment, range_assign, sticky_assign
from proxy.coordinator.events import TopicFactsOfGroups
from proxy.coordinator.member import GroupMember, Share, TopicPartition
from proxy.coordinator.steps import AT_ONCE, Steps, drain

MAX_GROUP_PARTITIONS = 100_000
"""Partitions that a group may own; with more it has no assignment."""

MAX_MEMBER_PARTITIONS = 32_767
"""Partitions that one member may own: their number is an int16 (seed 001, section 11)."""


class TopicOwners(NamedTuple):
    """Who owns one topic: partitions by thread id, only threads that have some."""

    topic_id: str
    threads: Mapping[str, tuple[int, ...]]


GroupOwners = Mapping[str, TopicOwners]
"""Who owns the topics of a group, by topic; only topics that somebody owns partitions of."""


class NoAssignmentError(Exception):
    """There is no valid assignment; the text says why."""


class AssignmentInvariantError(NoAssignmentError):
    """An assignment is wrong: an error of the coordinator itself."""


def consumer_of(thread_id: str) -> str:
    """The member that a thread belongs to: thread ids are ``<consumer id>-<number>``."""
    return thread_id.rpartition("-")[0]


def assign(
    members: Iterable[GroupMember],
    topics: Mapping[str, TopicFactsOfGroups],
    owners: GroupOwners,
    not_free: Collection[TopicPartition],
    *,
    level: int,
) -> Steps[GroupOwners]:
    """Deal the partitions out: at level 1 in ranges of each topic, from level 2 so that few move.

    Those in ``not_free`` stay with their owner of now: so a successor knows by the records who may still fetch them.
    Raises NoAssignmentError.
    """
    threads = yield from _threads_by_topic(members, topics)
    total = sum(len(topics[topic].leaders) for topic in threads)
    if total > MAX_GROUP_PARTITIONS:
        raise NoAssignmentError(f"{total} partitions (at most {MAX_GROUP_PARTITIONS})")
    if level == 1:
        assigned = yield from range_assign({topic: range(len(topics[topic].leaders)) for topic in threads}, threads)
    else:
        free = yield from _free_partitions(threads, topics, not_free)
        assigned = yield from sticky_assign(_same_topics(owners, topics), free, threads)
    if not_free:
        assigned = yield from _keep(assigned, topics, owners, not_free)
    yield from _check(assigned, {topic: len(topics[topic].leaders) for topic in threads}, not_free)
    return {topic: TopicOwners(topics[topic].topic_id, by_thread) for topic, by_thread in assigned.items()}


def _same_topics(owners: GroupOwners, topics: Mapping[str, TopicFactsOfGroups]) -> Assignment:
    return {
        topic: topic_owners.threads
        for topic, topic_owners in owners.items()
        if topic in topics and topics[topic].topic_id == topic_owners.topic_id
    }


def _free_partitions(
    names: Iterable[str], topics: Mapping[str, TopicFactsOfGroups], not_free: Collection[TopicPartition]
) -> Steps[Mapping[str, Collection[int]]]:
    free: dict[str, Collection[int]] = {}
    for topic in names:
        numbers = range(len(topics[topic].leaders))
        free[topic] = [number for number in numbers if (topic, number) not in not_free] if not_free else numbers
        yield len(numbers) // (1 if not_free else AT_ONCE)
    return free


def _keep(
    assigned: Assignment,
    topics: Mapping[str, TopicFactsOfGroups],
    owners: GroupOwners,
    not_free: Collection[TopicPartition],
) -> Steps[Assignment]:
    kept: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, facts in topics.items():
        threads = yield from _without(topic, assigned.get(topic, {}), not_free)
        if topic in owners and owners[topic].topic_id == facts.topic_id:
            for thread_id, partitions in owners[topic].threads.items():
                held = [p for p in partitions if (topic, p) in not_free and p < len(facts.leaders)]
                if held:
                    threads[thread_id] = tuple(sorted([*threads.get(thread_id, ()), *held]))
                yield 1 + len(partitions)
        if threads:
            kept[topic] = threads
    return kept


def shares_of(
    owners: GroupOwners, topics: Mapping[str, TopicFactsOfGroups], not_free: Collection[TopicPartition]
) -> Steps[dict[str, Share]]:
    """What each owner can be sent to fetch, by consumer id: of topics that exist, and partitions that are free.

    In the order of topics, whatever that of ``owners`` is: the same partitions are equal shares.
    """
    by_thread: dict[str, list[TopicPartition]] = {}
    for topic, topic_owners in sorted(owners.items()):
        if topic in topics and topics[topic].topic_id == topic_owners.topic_id:
            free = yield from _without(topic, topic_owners.threads, not_free)
            for thread_id, partitions in free.items():
                by_thread.setdefault(thread_id, []).extend((topic, partition) for partition in partitions)
                yield 1 + len(partitions)
    shares: dict[str, dict[str, tuple[TopicPartition, ...]]] = {}
    for thread_id, owned in by_thread.items():
        shares.setdefault(consumer_of(thread_id), {})[thread_id] = tuple(owned)
        yield 1
    return dict(shares)


def partitions_by_consumer(owners: GroupOwners) -> Steps[dict[str, frozenset[TopicPartition]]]:
    """All that each consumer owns."""
    owned: dict[str, set[TopicPartition]] = {}
    for topic, topic_owners in owners.items():
        for thread_id, partitions in topic_owners.threads.items():
            owned.setdefault(consumer_of(thread_id), set()).update((topic, partition) for partition in partitions)
            yield 1 + len(partitions) // 2
    found: dict[str, frozenset[TopicPartition]] = {}
    for consumer_id in drain(owned):
        found[consumer_id] = frozenset(owned.pop(consumer_id))
        yield 1
    return found


def count_partitions(assignment: GroupOwners) -> int:
    """How many partitions have an owner."""
    return sum(len(partitions) for owners in assignment.values() for partitions in owners.threads.values())


def count_moved(before: GroupOwners, after: GroupOwners) -> Steps[int]:
    """How many partitions another member owns than before, or nobody owned before."""
    moved = 0
    for topic, owners in after.items():
        old_owners: dict[int, str] = {}
        for thread_id, partitions in before[topic].threads.items() if topic in before else ():
            old_owners.update(dict.fromkeys(partitions, consumer_of(thread_id)))
            yield 1 + len(partitions)
        for thread_id, partitions in owners.threads.items():
            consumer_id = consumer_of(thread_id)
            moved += sum(old_owners.get(partition) != consumer_id for partition in partitions)
            yield 1 + len(partitions)
    return moved


def _threads_by_topic(
    members: Iterable[GroupMember], topics: Mapping[str, TopicFactsOfGroups]
) -> Steps[dict[str, list[str]]]:
    """The threads that consume each existing topic."""
    matched: dict[str, dict[str, int]] = {}
    threads: dict[str, list[str]] = {}
    for member in members:
        streams = matched.get(member.value.topic_count)
        if streams is None:
            streams = matched[member.value.topic_count] = {}
            for topic in topics:
                streams.update(member.subscription.select((topic,)))
                yield 1
        for topic, count in streams.items():
            if topic not in member.unreadable:
                threads.setdefault(topic, []).extend(f"{member.consumer_id}-{number}" for number in range(count))
            yield 1 + count
    return threads


def _without(
    topic: str, threads: Mapping[str, tuple[int, ...]], not_free: Collection[TopicPartition]
) -> Steps[dict[str, tuple[int, ...]]]:
    if not not_free:
        yield len(threads) // AT_ONCE
        return dict(threads)
    free: dict[str, tuple[int, ...]] = {}
    for thread_id, partitions in threads.items():
        if left := tuple(partition for partition in partitions if (topic, partition) not in not_free):
            free[thread_id] = left
        yield 1 + len(partitions)
    return free


def _check(assigned: Assignment, counts: Mapping[str, int], not_free: Collection[TopicPartition]) -> Steps[None]:
    """No partition has two owners, and each that is free has one (I1)."""
    missing = {topic: set(range(count)) for topic, count in counts.items()}
    for topic, threads in assigned.items():
        owned, number = set[int](), 0
        for partitions in threads.values():
            owned.update(partitions)
            number += len(partitions)
            yield 1 + len(partitions)
        if len(owned) != number:
            raise AssignmentInvariantError(f"{topic}: a partition has two owners")
        missing.get(topic, set()).difference_update(owned)
    for topic, numbers in missing.items():
        if any((topic, number) not in not_free for number in numbers):
            raise AssignmentInvariantError(f"{topic}: a partition has no owner")
        yield 1 + len(numbers) // AT_ONCE
