"""Describes what the coordinator knows (``status.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.coordinator.assignment_plan import consumer_of
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.group import Group
from proxy.coordinator.member import GroupMember
from proxy.coordinator.status import ConsumerStatus, GroupStatus, HeldPartitionStatus, RebalanceStatus
from proxy.coordinator.steps import Steps


class Clocks:
    """Turns the machine's milliseconds into seconds since 1970, by both clocks at one moment."""

    def __init__(self, now_ms: int, unix_seconds: float) -> None:
        self._now_ms, self._unix_seconds = now_ms, unix_seconds

    def unix(self, at_ms: int) -> float:
        """Return when ``at_ms`` was, in seconds since 1970."""
        return self._unix_seconds - (self._now_ms - at_ms) / 1000


def describe_partitions(state: CoordinatorState) -> list[HeldPartitionStatus]:
    """Return the partitions of the groups' topic that are held."""
    return [
        HeldPartitionStatus(number, held.state.value, held.claim, held.consumers, len(held.group_ids))
        for number, held in sorted(state.partitions.items())
    ]


def describe_group(
    state: CoordinatorState, group: Group, clocks: Clocks, *, with_consumers: bool
) -> Steps[GroupStatus]:
    """Return what there is to say about a group; of each consumer what is so when it is its turn."""
    consumers = (yield from _describe_consumers(group, clocks)) if with_consumers else ()
    owned = yield from _count_owned(group)
    last = group.last_rebalance
    return GroupStatus(
        group_id=group.group_id,
        partition=group.partition,
        state=group.state.value,
        generation=group.generation,
        level=group.level,
        members=len(group.members),
        owned=owned,
        unowned=max(_subscribed(state, group) - owned, 0),
        frozen=group.group_id in state.settings.frozen_groups,
        last_rebalance=None
        if last is None
        else RebalanceStatus(last.reason, clocks.unix(last.ended_at), last.duration_ms, last.moved),
        failure=group.failure,
        consumers=consumers,
    )


def count_quarantined(group: Group) -> int:
    """Return how many partitions somebody who is gone may still read."""
    return group.count_not_free()


def _count_owned(group: Group) -> Steps[int]:
    """Return how many partitions members own."""
    owned = 0
    for owners in group.owners.values():
        for thread_id, partitions in owners.threads.items():
            owned += len(partitions) if consumer_of(thread_id) in group.members else 0
            yield 1
    return owned


def _subscribed(state: CoordinatorState, group: Group) -> int:
    """Return how many partitions there are of all topics that the group subscribes to."""
    topics = state.topics.topics
    names = set[str]()
    for one in state.topics.subscriptions(group.group_id).values():
        names.update(one.select(topics if one.pattern is not None else one.named.keys() & topics.keys()))
    return sum(len(topics[name].leaders) for name in names)


def _describe_consumers(group: Group, clocks: Clocks) -> Steps[Sequence[ConsumerStatus]]:
    threads: dict[str, dict[str, dict[str, Sequence[int]]]] = {}
    for topic, owners in group.owners.items():
        for thread_id, partitions in owners.threads.items():
            threads.setdefault(consumer_of(thread_id), {}).setdefault(thread_id, {})[topic] = partitions
            yield 1
    members = (*group.members.values(), *group.registering.values(), *group.absent.values())
    found = []
    for member in members:
        found.append(_describe_consumer(group, member, threads.get(member.consumer_id, {}), clocks))
        yield 3 + sum(len(topics) for topics in found[-1].threads.values())
    return found


def _describe_consumer(
    group: Group, member: GroupMember, threads: Mapping[str, Mapping[str, Sequence[int]]], clocks: Clocks
) -> ConsumerStatus:
    value = member.value
    offsets: dict[str, dict[int, int]] = {}
    for topics in threads.values():
        for topic, partitions in topics.items():
            for partition in partitions:
                if (offset := group.offsets.start_at((topic, partition))) is not None:
                    offsets.setdefault(topic, {})[partition] = offset
    return ConsumerStatus(
        consumer_id=member.consumer_id,
        state=member.state.value,
        client_id=value.client_id,
        principal=value.principal,
        client_ip="" if member.registrant is None else member.registrant.client_ip,
        listener=value.listener,
        session_timeout_ms=value.session_timeout_ms,
        auto_commit=value.auto_commit,
        topic_count=value.topic_count,
        threads=threads,
        last_heard=None if member.last_heard is None else clocks.unix(member.last_heard),
        offsets=offsets,
    )
