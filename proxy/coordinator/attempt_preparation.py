"""Preparing an attempt: who is to own what, and what that means for each member. Done in parts, between other events.

Whatever happens meanwhile, the result fits the group as it is when it is ready: members that go or come back, other
topics and other settings begin the preparation anew; a member that joins is started with nothing, and triggers the next
attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from proxy.coordinator.assignment_plan import (
    MAX_MEMBER_PARTITIONS,
    NoAssignmentError,
    assign,
    count_moved,
    shares_of,
)
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.group import Attempt, Group
from proxy.coordinator.member import GroupMember, TopicPartition, partitions_of
from proxy.coordinator.states import MemberState
from proxy.coordinator.steps import AT_ONCE, Steps

MAX_LEVEL = 2
"""Of the protocol, in this release."""


class PreparedAttempt(NamedTuple):
    """``to_start``: members whose assignment is another one than they have. ``is_resume``: nobody has to stop.

    ``fetching``: members that may be fetching. ``is_sure``: whether it is sure what each member fetches; ``losses``:
    what each has to stop then.
    """

    attempt: Attempt
    to_start: list[str]
    fetching: list[str]
    is_resume: bool
    is_sure: bool
    losses: Mapping[str, frozenset[TopicPartition]]


class AttemptPreparation:
    """``reason``: of the attempt. ``result``: None until it is ready; it has to be used in the same call."""

    def __init__(self, state: CoordinatorState, group: Group, reason: str, now: int) -> None:
        self.reason = reason
        self.result: PreparedAttempt | None = None
        self._state, self._group, self._began_at = state, group, now
        self._begin()

    def work(self, units: int) -> int:
        """Do about so many units of work, and return how many were done. Raises NoAssignmentError."""
        if self._sources() != self._made_from:
            self._begin()
        done = 0
        while done < units:
            try:
                done += next(self._steps)
            except StopIteration as end:
                self.result = end.value
                break
        return done

    def _begin(self) -> None:
        self._made_from = self._sources()
        self._group.reason = None
        self._steps = self._prepare()

    def _sources(self) -> tuple[int, int, int]:
        """What the preparation is made from. Snapshots of topics and settings are replaced as a whole."""
        return self._group.departures, self._state.topics.snapshots, self._state.settings_number

    def _prepare(self) -> Steps[PreparedAttempt]:
        state, group = self._state, self._group
        # The owners stay while the group is frozen, and while members are missing after a takeover.
        is_held = group.group_id in state.settings.frozen_groups or bool(group.absent)
        starts_all = not is_held and group.all_held_have_started()  # those who may have missed it own something then
        topics, not_free = state.topics.topics, (yield from group.not_free())
        members = list(group.members.values())
        level = max(min(state.settings.level, MAX_LEVEL, *(member.value.protocol_level for member in members)), 1)
        yield 2 * len(members) // AT_ONCE
        if is_held:
            target = group.owners
        else:
            target = yield from assign(members, topics, group.owners, not_free, level=level)
        shares = yield from shares_of(target, topics, not_free)
        for consumer_id, share in shares.items():
            if (count := sum(map(len, share.values()))) > MAX_MEMBER_PARTITIONS:
                raise NoAssignmentError(f"{consumer_id} would own {count} partitions (at most {MAX_MEMBER_PARTITIONS})")
            yield 1
        attempt = Attempt(self.reason, level, target, shares, self._began_at)
        attempt.starts_all = starts_all
        attempt.moved = yield from count_moved(group.owners, target)
        return (yield from self._compare(attempt, is_held=is_held))

    def _compare(self, attempt: Attempt, *, is_held: bool) -> Steps[PreparedAttempt]:
        """Compare the attempt with what each member does now."""
        group, losses = self._group, dict[str, frozenset[TopicPartition]]()
        before, after = group.owners, attempt.target
        recreated = {topic for topic in before.keys() & after.keys() if before[topic].topic_id != after[topic].topic_id}
        keeps_owners = after == before
        yield len(group.members) // AT_ONCE
        responses = -1
        while responses != group.order_responses:  # of earlier attempts: they change what a member does
            responses, losses = group.order_responses, {}
            to_start, fetching = list[str](), list[str]()
            only_gains = is_sure = True
            members = list(group.members.values())
            for member in members:
                kept = partitions_of(attempt.share(member.consumer_id))
                gains = _only_gains(member, kept)
                only_gains = only_gains and gains
                is_sure = is_sure and member.state in _SURE
                if member.may_fetch():
                    fetching.append(member.consumer_id)
                if not is_started(member, attempt) and (not is_held or gains or _is_stuck(member, kept)):
                    to_start.append(member.consumer_id)
                if lost := frozenset(key for key in member.holds if key not in kept or key[0] in recreated):
                    losses[member.consumer_id] = lost
                yield 2 + len(kept) + len(member.holds)
        to_start += islice(group.members, len(members), None)  # those who have joined meanwhile
        is_resume = is_held or (keeps_owners and only_gains)
        return PreparedAttempt(attempt, to_start, fetching, is_resume, is_sure, losses)


def is_started(member: GroupMember, attempt: Attempt) -> bool:
    """Whether it fetches what it is to fetch, and has confirmed that on this connection."""
    return member.state is MemberState.FETCHING and member.started_with == attempt.share(member.consumer_id)


_SURE = (MemberState.FETCHING, MemberState.IDLE)
"""States of members of which it is sure what they fetch."""


def _only_gains(member: GroupMember, kept: frozenset[TopicPartition]) -> bool:
    """Whether StartFetcher can be sent to it without StopFetcher before."""
    is_stopping = member.state is MemberState.STOPPING  # its offsets are not known before it has stopped
    return not is_stopping and member.holds <= kept


def _is_stuck(member: GroupMember, kept: frozenset[TopicPartition]) -> bool:
    """Whether it has not confirmed StopFetcher in time, and keeps what it had."""
    is_stuck = member.state is MemberState.STOPPING and not member.is_order_open()
    return is_stuck and member.holds <= kept
