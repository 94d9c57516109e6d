"""Rebalancing a group (seed 001, section 9): stop, commit, start, one step after the other.

The owners of a generation are committed before anybody is told to start (write ahead), together with the offsets of
those who stopped. An attempt that fails is repeated after a back-off. One in which a member goes ends at once: what it
was about is out of date.

At level 1 of the protocol everybody stops. From level 2 on only those stop who lose something, and only what they lose;
but everybody stops when it is not sure what each member fetches: after a failed attempt, or one that was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proxy.coordinator.assignment_plan import (
    MAX_MEMBER_PARTITIONS,
    AssignmentInvariantError,
    NoAssignmentError,
    assign,
    count_moved,
    count_partitions,
    shares_of,
)
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.group import Attempt, Group, LastRebalance
from proxy.coordinator.handlers import Handlers
from proxy.coordinator.member import GroupMember, OpenRequest, TopicPartition, partitions_of
from proxy.coordinator.questions import GroupQuestions
from proxy.coordinator.states import GroupState, GroupStateEvent, MemberState
from proxy.coordinator.timers import Timers
from proxy.coordinator.wire import LARGEST, SMALLEST, STOP_FETCHER

FAST_REBALANCES = 6
"""Attempts of a group within ``RATE_WINDOW_MS`` that are not slowed down."""

RATE_WINDOW_MS = 60_000

RETRY_MS = 1000
"""Until a level that could not be written is written again."""

MAX_DELAY_MS = 10_000
"""The longest delay of a group that rebalances again and again."""

MAX_LEVEL = 2
"""Of the protocol, in this release."""

SLICE = 200
"""Members that are sent to in one step."""

_REASONS = {GroupState.RETURNING: "returned", GroupState.BACKOFF: "retry"}
"""Why an attempt is made in these states, whatever else has happened."""

GiveUp = Callable[[Group, Sequence[str], int], None]
"""Called for a group that has failed, with the ids of those who did not answer: closes all its connections."""


class Rebalancer:
    """Makes attempts to rebalance groups. It never sends to a consumer while the group's partition is mute."""

    def __init__(self, state: CoordinatorState, questions: GroupQuestions, give_up: GiveUp) -> None:
        self._state, self._questions, self._give_up = state, questions, give_up
        self.handlers = Handlers(state.settings.rebalance_threadpool_size)
        self._parked: set[str] = set()
        """Groups whose attempt cannot begin yet: something has to be known first."""
        self._too_high: Timers[str] = Timers()
        """Groups whose record names a level above the finalized one: when it is written anew."""
        self._sending: dict[str, None] = {}
        """Groups with members that a request is still to be sent to."""

    # When an attempt is made

    def trigger(self, group: Group, reason: str, now: int) -> None:
        """Something has changed: rebalance the group, soon."""
        if group.state in (GroupState.EMPTY, GroupState.FAILED):
            return
        group.reason = group.reason or reason
        if group.state is not GroupState.STABLE or group.group_id in self._parked:
            return  # after this attempt, after the back-off, or when the members are back
        if not self.handlers.is_queued(group.group_id):
            self.handlers.queue(group.group_id, now + self._delay(group, now))

    def wake(self, group: Group, now: int) -> None:
        """Something is known that the group may have waited for."""
        if group.group_id in self._parked:
            self._parked.remove(group.group_id)
            self.handlers.queue(group.group_id, now)

    def wake_all(self, now: int) -> None:
        """Something is known that any group may have waited for."""
        for group_id in sorted(self._parked):
            self.wake(self._state.groups[group_id], now)

    def members_are_back(self, group: Group, now: int) -> None:
        """After a takeover: nobody is waited for any more."""
        if group.group_id not in self._parked:
            self.handlers.queue(group.group_id, now)

    def forget(self, group: Group) -> None:
        """The group has no members, or is not served any more."""
        group.attempt = None
        group.reason = None
        group.retries = 0
        self.handlers.forget(group.group_id)
        self._parked.discard(group.group_id)
        self._sending.pop(group.group_id, None)

    def _delay(self, group: Group, now: int) -> int:
        while group.recent and group.recent[0] <= now - RATE_WINDOW_MS:
            group.recent.popleft()
        delay = self._state.settings.rebalance_delay_ms
        excess = len(group.recent) - FAST_REBALANCES
        if excess <= 0:
            return delay
        delay = max(delay, min(max(delay, 1) << excess, MAX_DELAY_MS))
        self._state.effects.log("warning", "rebalance_delayed", group=group.group_id, delay_ms=delay)
        self._state.effects.count("rebalances_delayed_total")
        return delay

    # The level of the protocol

    def look_at_level(self, group: Group, now: int) -> None:
        """The finalized level, or the record of the group, is another one than before."""
        if group.generation and group.level > max(self._state.settings.level, 1):
            self._too_high.set(group.group_id, now)

    def _lower_levels(self, now: int) -> None:
        while (group_id := self._too_high.pop(now)) is not None:
            group = self._state.groups.get(group_id)
            if group is None or group.level <= max(self._state.settings.level, 1):
                continue
            if group.attempt is not None or group.is_committing:
                self._too_high.set(group_id, now + RETRY_MS)
            else:
                self._lower_level(group, max(self._state.settings.level, 1))

    def _lower_level(self, group: Group, level: int) -> None:
        generation = group.generation

        def ended(committed: bool, now: int) -> None:
            if committed and group.generation == generation:
                group.level = level
            self.look_at_level(group, now + RETRY_MS)

        self._state.writes.begin(group.partition, [group.stable_record(level)], {}, ended)

    # Work

    def run(self, now: int) -> None:
        """Begin one attempt that is due, and send one slice. ``due`` asks for the rest at once."""
        self._lower_levels(now)
        if (group_id := self.handlers.begin(now)) is not None:
            group = self._state.groups[group_id]
            if self._can_begin(group, now):
                self._begin(group, now)
            else:
                self._parked.add(group_id)
                self.handlers.done(group_id)
        self._send(now)

    def due(self, now: int) -> int | None:
        """When ``run`` is to be called."""
        if any(self._state.may_speak_to(self._state.groups[group_id], now) for group_id in self._sending):
            return now
        times = (self.handlers.due(), self._too_high.next())
        return min((at for at in times if at is not None), default=None)

    def _can_begin(self, group: Group, now: int) -> bool:
        return (
            self._state.may_speak_to(group, now)
            and not group.is_committing
            and group.has_ordinary_members is not None
            and group.offsets.is_loaded
            and self._state.topics.are_known(group.group_id)
        )

    def _begin(self, group: Group, now: int) -> None:
        reason = _REASONS.get(group.state) or group.reason or "retry"
        group.reason = None
        # The owners stay while the group is frozen, and while members are missing after a takeover.
        is_held = group.group_id in self._state.settings.frozen_groups or bool(group.absent)
        try:
            attempt = self._plan(group, reason, is_held, now)
            may_go_on = attempt.level > 1 and group.state is GroupState.STABLE
        except NoAssignmentError as error:
            if isinstance(error, AssignmentInvariantError):
                self._state.effects.log("error", "coordinator_invariant", group=group.group_id, detail=str(error))
            self._fail_for_good(group, reason, [], str(error), now)
            return
        untold = [member for member in group.members.values() if not _is_told(member, attempt)]
        keeps_owners = attempt.target == group.owners
        if is_held:
            untold = [member for member in untold if _only_gains(member, attempt) or _is_stuck(member, attempt)]
        if keeps_owners and not untold:
            group.move(GroupStateEvent.NOT_NECESSARY)
            group.retries = 0
            self.handlers.done(group.group_id)
            return
        group.attempt = attempt
        group.recent.append(now)
        if is_held or (keeps_owners and all(_only_gains(member, attempt) for member in group.members.values())):
            group.move(GroupStateEvent.RESUME)
            self._send_to(group, attempt, [member.consumer_id for member in untold])
            return
        if may_go_on and all(member.state in _SURE for member in group.members.values()):
            attempt.to_stop = _losses(group, attempt)
        else:
            attempt.to_stop = {member.consumer_id: None for member in group.members.values() if member.may_fetch()}
        if attempt.to_stop:
            group.move(GroupStateEvent.STOP)
            members = [group.members[consumer_id] for consumer_id in attempt.to_stop]
            attempt.waiting = {member.consumer_id for member in members if member.is_stopping_all()}
            self._send_to(group, attempt, [m.consumer_id for m in members if m.consumer_id not in attempt.waiting])
        else:
            self._commit(group, attempt, now)

    def _plan(self, group: Group, reason: str, is_held: bool, now: int) -> Attempt:
        topics, not_free, members = self._state.topics.topics, group.not_free(), group.members.values()
        levels = (member.value.protocol_level for member in members)
        level = max(min(self._state.settings.level, MAX_LEVEL, *levels), 1)
        target = group.owners if is_held else assign(members, topics, group.owners, not_free, level=level)
        shares = shares_of(target, topics, not_free)
        for consumer_id, share in shares.items():
            if (count := sum(map(len, share.values()))) > MAX_MEMBER_PARTITIONS:
                raise NoAssignmentError(f"{consumer_id} would own {count} partitions (at most {MAX_MEMBER_PARTITIONS})")
        return Attempt(reason, level, target, shares, now)

    # Stop

    def _send_to(self, group: Group, attempt: Attempt, consumer_ids: Sequence[str]) -> None:
        attempt.send_to(consumer_ids)
        self._sending[group.group_id] = None

    def _send(self, now: int) -> None:
        """Send to up to ``SLICE`` members, in turn to those of each group."""
        left = SLICE
        for group_id in list(self._sending):
            group = self._state.groups[group_id]
            if group.attempt is None or not self._state.may_speak_to(group, now):
                continue
            del self._sending[group_id]
            left = self._send_to_group(group, group.attempt, left, now)
            if group.attempt.unsent:
                self._sending[group_id] = None
                return

    def _send_to_group(self, group: Group, attempt: Attempt, left: int, now: int) -> int:
        while attempt.unsent and left:
            left -= 1
            member = group.members[attempt.unsent.popleft()]
            attempt.waiting.add(member.consumer_id)
            if group.state is GroupState.STOPPING:
                self._state.requests.stop(member, attempt.to_stop[member.consumer_id], now)
            else:
                self._start_member(group, attempt, member, now)
        return left

    def confirmed(self, group: Group, member: GroupMember, request: OpenRequest, error_code: int, now: int) -> None:
        """A member has answered StopFetcher or StartFetcher."""
        if not member.is_latest_order(request):
            return
        attempt = group.attempt
        is_waited_for = attempt is not None and member.consumer_id in attempt.waiting
        if error_code:
            if is_waited_for:
                self._attempt_failed(group, [member.consumer_id], f"{member.consumer_id}: error {error_code}", now)
            return
        member.confirmed(request)
        if attempt is not None and is_waited_for:
            attempt.waiting.remove(member.consumer_id)
            if attempt.is_answered():
                self._all_answered(group, attempt, now)
        elif request.api_key == STOP_FETCHER:
            self.trigger(group, "retry", now)

    def _all_answered(self, group: Group, attempt: Attempt, now: int) -> None:
        if group.state is GroupState.STOPPING:
            attempt.phase_ended("stop", now)
            self._commit(group, attempt, now)
        else:
            self._succeed(group, attempt, now)

    # Commit

    def _commit(self, group: Group, attempt: Attempt, now: int) -> None:
        group.move(GroupStateEvent.COMMIT)
        for topic, owners in attempt.target.items():
            group.offsets.topic_is(topic, owners.topic_id)
        attempt.moved = count_moved(group.owners, attempt.target)
        generation = group.next_generation()
        offsets = group.offsets.take_uncommitted()
        group.is_committing = True

        def ended(committed: bool, now: int) -> None:
            group.is_committing = False
            group.offsets.write_ended(offsets, committed=committed)
            if committed:
                group.generation_committed(generation, attempt.level, attempt.target)
            self.look_at_level(group, now)
            if group.attempt is not attempt:
                self.wake(group, now)
            elif committed:
                self._committed(group, now)
            else:
                self._attempt_failed(group, [], None, now)

        records = group.generation_records(generation, attempt.level, attempt.target)
        self._state.writes.begin(group.partition, records, {group.group_id: offsets} if offsets else {}, ended)

    def _committed(self, group: Group, now: int) -> None:
        if group.offsets.are_committed_by_members():
            group.offsets.must_be_read()
            self._questions.read_offsets(group)
        self.offsets_read(group, now)

    def offsets_read(self, group: Group, now: int) -> None:
        """Committed offsets were read: an attempt may have waited for them."""
        self.wake(group, now)
        attempt = group.attempt
        is_waiting = group.state is GroupState.COMMITTING and not group.is_committing and group.offsets.is_loaded
        if attempt is not None and is_waiting:
            attempt.phase_ended("commit", now)
            group.move(GroupStateEvent.COMMITTED)
            untold = [m.consumer_id for m in group.members.values() if not _is_told(m, attempt)]
            self._send_to(group, attempt, untold)
            if attempt.is_answered():
                self._succeed(group, attempt, now)

    # Start

    def _start_member(self, group: Group, attempt: Attempt, member: GroupMember, now: int) -> None:
        share = attempt.share(member.consumer_id)
        partitions = partitions_of(share)
        group.offsets.handed_over(partitions - member.holds, auto_commit=member.value.auto_commit)
        unknown = SMALLEST if member.value.auto_offset_reset == "smallest" else LARGEST
        offsets: dict[TopicPartition, int] = {}
        leaders: dict[TopicPartition, int] = {}
        for topic, partition in partitions:
            offset = group.offsets.start_at((topic, partition))
            offsets[topic, partition] = unknown if offset is None else offset
            leaders[topic, partition] = self._state.topics.leader(topic, partition)
        brokers = self._state.endpoints.get(member.value.listener, ())
        self._state.requests.start(member, share, offsets, leaders, brokers, now)

    def _succeed(self, group: Group, attempt: Attempt, now: int) -> None:
        attempt.phase_ended("start", now)
        group.move(GroupStateEvent.STARTED)
        group.attempt = None
        group.retries = 0
        group.failure = None
        self._sending.pop(group.group_id, None)
        group.last_rebalance = LastRebalance(attempt.reason, now, now - attempt.began_at, attempt.moved)
        self.handlers.done(group.group_id)
        if group.generation:
            records = [group.stable_record(group.level)]
            self._state.writes.begin(group.partition, records, {}, lambda committed, now: None)
        self._tell(group, attempt, "resumed" if "commit" not in attempt.phases_ms else "done")
        if group.reason is not None:
            self.trigger(group, group.reason, now)

    def _tell(self, group: Group, attempt: Attempt, result: str) -> None:
        effects = self._state.effects
        effects.count("rebalances_total", attempt.reason, result)
        for phase, duration in attempt.phases_ms.items():
            effects.count("rebalance_seconds", phase, amount=duration / 1000)
        effects.log(
            "info",
            "rebalance",
            group=group.group_id,
            generation=group.generation,
            level=group.level,
            reason=attempt.reason,
            result=result,
            members=len(group.members),
            partitions=count_partitions(attempt.target),
            moved=attempt.moved,
            **{f"{phase}_ms": duration for phase, duration in attempt.phases_ms.items()},
        )

    # Failing

    def expired(self, group: Group, member: GroupMember, request: OpenRequest, now: int) -> None:
        """A member has not answered StopFetcher or StartFetcher in time."""
        attempt = group.attempt
        if attempt is None or member.consumer_id not in attempt.waiting or not member.is_latest_order(request):
            return
        waiting = [group.members[consumer_id] for consumer_id in sorted(attempt.waiting)]
        culprits = {member.consumer_id, *(late.consumer_id for late in self._state.requests.overdue(waiting, now))}
        self._attempt_failed(group, sorted(culprits), "no response", now)

    def member_gone(self, group: Group, now: int) -> None:
        """A member is gone: an attempt ends at once. It is not a retry."""
        if group.state is GroupState.FAILED:
            return
        if (attempt := self._end_attempt(group)) is not None:
            self._state.effects.count("rebalances_total", attempt.reason, "cancelled")
        group.move(GroupStateEvent.MEMBER_GONE)

    def _end_attempt(self, group: Group) -> Attempt | None:
        attempt, group.attempt = group.attempt, None
        self._sending.pop(group.group_id, None)
        self.handlers.done(group.group_id)
        return attempt

    def _attempt_failed(self, group: Group, culprits: Sequence[str], detail: str | None, now: int) -> None:
        """``detail``: what the culprits did; None if the owners could not be committed, which is not a retry."""
        attempt = self._end_attempt(group)
        reason = attempt.reason if attempt is not None else "retry"
        group.move(GroupStateEvent.ATTEMPT_FAILED)
        group.retries += detail is not None
        if detail is not None and group.retries > self._state.settings.max_rebalance_retries:
            self._fail_for_good(group, reason, culprits, f"{detail}: {', '.join(culprits)}", now)
            return
        self._state.effects.count("rebalances_total", reason, "failed")
        self.handlers.queue(group.group_id, now + self._state.settings.rebalance_backoff_ms)

    def _fail_for_good(self, group: Group, reason: str, culprits: Sequence[str], detail: str, now: int) -> None:
        group.move(GroupStateEvent.GIVEN_UP)
        group.failure = detail
        self._state.effects.count("rebalances_total", reason, "given_up")
        self._state.effects.log(
            "error",
            "ConsumerRebalanceFailedException",
            group=group.group_id,
            generation=group.generation,
            reason=reason,
            retries=max(group.retries - 1, 0),
            detail=detail,
        )
        self._give_up(group, culprits, now)


_SURE = frozenset({MemberState.IDLE, MemberState.FETCHING})
"""States of members of which it is sure what they fetch."""


def _losses(group: Group, attempt: Attempt) -> dict[str, frozenset[TopicPartition] | None]:
    """What each member has to stop: what it does not own any more, and what is of a topic that was recreated."""
    losses: dict[str, frozenset[TopicPartition] | None] = {}
    before, after = group.owners, attempt.target
    recreated = {topic for topic in before.keys() & after.keys() if before[topic].topic_id != after[topic].topic_id}
    for member in group.members.values():
        kept = partitions_of(attempt.share(member.consumer_id))
        lost = frozenset(key for key in member.holds if key not in kept or key[0] in recreated)
        if lost:
            losses[member.consumer_id] = lost
    return losses


def _is_told(member: GroupMember, attempt: Attempt) -> bool:
    """Whether it fetches what it is to fetch, and has confirmed that on this connection."""
    return member.state is MemberState.FETCHING and member.started_with == attempt.share(member.consumer_id)


def _only_gains(member: GroupMember, attempt: Attempt) -> bool:
    """Whether it can be told what it is to fetch without stopping first."""
    is_stopping = member.state is MemberState.STOPPING  # its offsets are not known before it has stopped
    return not is_stopping and member.holds <= partitions_of(attempt.share(member.consumer_id))


def _is_stuck(member: GroupMember, attempt: Attempt) -> bool:
    """Whether it has not confirmed StopFetcher in time, and keeps what it had."""
    is_stuck = member.state is MemberState.STOPPING and not member.is_order_open()
    return is_stuck and member.holds <= partitions_of(attempt.share(member.consumer_id))
