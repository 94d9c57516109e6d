"""Rebalancing a group (seed 001, section 9): stop, commit, start, one step after the other.

The owners of a generation are committed before StartFetcher is sent to anybody (write ahead), together with the offsets
of those who stopped. An attempt that fails is repeated after a back-off. One in which a member goes ends at once: what
it was about is out of date.

At level 1 of the protocol everybody stops. From level 2 on only those stop who lose something, and only what they lose;
but everybody stops when it is not sure what each member fetches: after a failed attempt, or one that was cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from proxy.coordinator.assignment_plan import AssignmentInvariantError, NoAssignmentError, count_partitions
from proxy.coordinator.attempt_preparation import AttemptPreparation, PreparedAttempt, is_started
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.effects import WatchTopics
from proxy.coordinator.group import Attempt, Group, LastRebalance
from proxy.coordinator.handlers import Handlers
from proxy.coordinator.member import GroupMember, OpenRequest, TopicPartition, partitions_of
from proxy.coordinator.questions import GroupQuestions
from proxy.coordinator.states import GroupState, GroupStateEvent
from proxy.coordinator.steps import GROUP_UNITS, SEND_UNITS, WRITE_UNITS, Steps, sort
from proxy.coordinator.timers import Timers
from proxy.coordinator.wire import LARGEST, SMALLEST, STOP_FETCHER

FAST_REBALANCES = 6
"""Attempts of a group within ``RATE_WINDOW_MS`` that are not slowed down."""

RATE_WINDOW_MS = 60_000

RETRY_MS = 1000
"""Until the record of a generation that could not be written is written again."""

MAX_DELAY_MS = 10_000
"""The longest delay of a group that rebalances again and again."""

MAX_NAMED = 10
"""Members that a text names, of those that have not answered."""

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
        self._to_record: Timers[str] = Timers()
        """Groups whose record of the generation is out of date: when it is written anew."""
        self._preparing: dict[str, AttemptPreparation] = {}
        """Attempts that are being prepared, by group."""
        self._sending: dict[str, None] = {}
        """Groups with members that a request is still to be sent to."""

    # When an attempt is made

    def trigger(self, group: Group, reason: str, now: int) -> None:
        """Something has changed: rebalance the group, soon."""
        if group.state in (GroupState.EMPTY, GroupState.FAILED) or group.closing is not None:
            return
        group.reason = group.reason or reason
        if group.state is not GroupState.STABLE or group.group_id in self._parked or group.group_id in self._preparing:
            return  # after this attempt, after the back-off, or when the members are back
        if not self.handlers.is_queued(group.group_id):
            self.handlers.queue(group.group_id, now + self._delay(group, now))

    def wake(self, group: Group, now: int) -> None:
        """Something is known that the group may have waited for."""
        if group.group_id in self._parked:
            self._parked.remove(group.group_id)
            self.handlers.queue(group.group_id, now)

    def topics_changed(self, group_ids: Iterable[str], answered: WatchTopics) -> Steps[None]:
        """Rebalance these groups, soon, if they had heard of all their topics before; ``answered``: what was covered
        then. What others have waited for may be known now."""
        for group_id in (yield from sort(group_ids)):
            if group_id in self._state.groups and self._state.topics.are_known(group_id, answered):
                self.trigger(self._state.groups[group_id], "topics", self._state.now)
            yield GROUP_UNITS
        for group_id in (yield from sort(self._parked)):
            if group_id in self._parked:
                self.wake(self._state.groups[group_id], self._state.now)
            yield GROUP_UNITS

    def members_are_back(self, group: Group, now: int) -> None:
        """After a takeover: nobody is waited for any more."""
        if group.group_id not in self._parked and group.group_id not in self._preparing:
            self.handlers.queue(group.group_id, now)

    def cancel(self, group: Group) -> None:
        """The connections of all members are closed: an attempt ends at once, and none is wanted."""
        if (attempt := self._end_attempt(group)) is not None:
            self._state.effects.count("rebalances_total", attempt.reason, "cancelled")
            group.move(GroupStateEvent.MEMBER_GONE)
        self.forget(group)

    def forget(self, group: Group) -> None:
        """The group has no members, or is not served any more."""
        group.attempt = None
        group.reason = None
        group.retries = 0
        self.handlers.forget(group.group_id)
        self._parked.discard(group.group_id)
        self._preparing.pop(group.group_id, None)
        self._sending.pop(group.group_id, None)
        self._state.jobs.cancel(("late", group.group_id))

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

    def check_level(self, group: Group, now: int) -> None:
        """The finalized level, or the record of the group, is another one than before."""
        if group.generation and group.level > max(self._state.settings.level, 1):
            self._to_record.set(group.group_id, now)

    def _record_again(self, now: int, units: int) -> int:
        while units > 0 and (group_id := self._to_record.pop(now)) is not None:
            units -= WRITE_UNITS
            group = self._state.groups.get(group_id)
            if group is None or not (group.is_stable or group.level > max(self._state.settings.level, 1)):
                continue  # a later generation has written its own record
            if group.attempt is not None or group.is_committing:
                self._to_record.set(group_id, now + RETRY_MS)
            else:
                self._record(group)
        return units

    def _record(self, group: Group) -> None:
        """Write the record of the generation as it is now, between two attempts, at a level that is finalized."""
        generation, level = group.generation, min(group.level, max(self._state.settings.level, 1))

        def ended(committed: bool, now: int) -> None:
            if group.generation == generation:
                if committed:
                    group.level = level
                else:
                    self._to_record.set(group.group_id, now + RETRY_MS)
            self.check_level(group, now + RETRY_MS)

        self._state.writes.begin(group.partition, [group.generation_record(level)], {}, ended)

    # Work

    def run(self, now: int, units: int) -> None:
        """Begin one attempt that is due, prepare attempts, and send: so many units of work, and one part at least.
        ``due`` asks for the rest."""
        units = self._record_again(now, max(units, 1))
        if (group_id := self.handlers.begin(now)) is not None:
            group = self._state.groups[group_id]
            if self._can_begin(group, now):
                reason = _REASONS.get(group.state) or group.reason or "retry"
                self._preparing[group_id] = AttemptPreparation(self._state, group, reason, now)
            else:
                self._park(group)
        left = self._prepare(now, max(units, 1))
        self._send(now, max(left, 1))

    def _park(self, group: Group) -> None:
        self._parked.add(group.group_id)
        self.handlers.done(group.group_id)

    def due(self, now: int) -> int | None:
        """When ``run`` is to be called."""
        if self._preparing or any(
            self._state.may_speak_to(self._state.groups[group_id], now) for group_id in self._sending
        ):
            return now
        times = (self.handlers.due(), self._to_record.next())
        return min((at for at in times if at is not None), default=None)

    def _can_begin(self, group: Group, now: int) -> bool:
        return (
            self._state.may_speak_to(group, now)
            and not group.is_committing
            and group.has_ordinary_members is not None
            and group.offsets.is_loaded
            and self._state.topics.are_known(group.group_id)
        )

    def _prepare(self, now: int, left: int) -> int:
        """Go on with the attempts that are being prepared, in turn, and begin those that are ready. Return how many
        units of work are left."""
        for group_id in list(self._preparing):
            if left <= 0:
                break
            group, preparation = self._state.groups[group_id], self._preparing.pop(group_id)
            try:
                left -= preparation.work(left)
            except NoAssignmentError as error:
                if isinstance(error, AssignmentInvariantError):
                    self._state.effects.log("error", "coordinator_invariant", group=group_id, detail=str(error))
                self._fail_for_good(group, preparation.reason, [], str(error), now)
                continue
            if preparation.result is None:
                self._preparing[group_id] = preparation
            elif self._can_begin(group, now):
                self._begin(group, preparation.result, now)
            else:
                group.reason = group.reason or preparation.reason
                self._park(group)
        return left

    def _begin(self, group: Group, prepared: PreparedAttempt, now: int) -> None:
        attempt = prepared.attempt
        if attempt.target == group.owners and not prepared.to_start:
            self._free(group, attempt)
            group.move(GroupStateEvent.NOT_NECESSARY)
            group.retries = 0
            self.handlers.done(group.group_id)
            if group.reason is not None:
                self.trigger(group, group.reason, now)
            return
        may_go_on = attempt.level > 1 and group.state is GroupState.STABLE and prepared.is_sure
        group.attempt = attempt
        group.recent.append(now)
        if prepared.is_resume:
            group.move(GroupStateEvent.RESUME)
            self._send_to(group, attempt, prepared.to_start)
            return
        if may_go_on:
            attempt.to_stop.update(prepared.losses)
        else:
            attempt.to_stop.update(dict.fromkeys(prepared.fetching))
        if attempt.to_stop:
            group.move(GroupStateEvent.STOP)
            self._send_to(group, attempt, attempt.to_stop)
        else:
            self._commit(group, attempt, now)

    # Stop

    def _send_to(self, group: Group, attempt: Attempt, consumer_ids: Iterable[str]) -> None:
        attempt.send_to(consumer_ids)
        self._sending[group.group_id] = None

    def _send(self, now: int, left: int) -> None:
        """Send to so many members as there are units of work, in turn to those of each group."""
        for group_id in list(self._sending):
            group = self._state.groups[group_id]
            attempt = group.attempt
            if attempt is None or not self._state.may_speak_to(group, now):
                continue
            if left <= 0:
                return
            del self._sending[group_id]
            left = self._send_to_group(group, attempt, left, now)
            if attempt.unsent:
                self._sending[group_id] = None
            elif attempt.is_answered():
                self._all_answered(group, attempt, now)

    def _send_to_group(self, group: Group, attempt: Attempt, left: int, now: int) -> int:
        while attempt.unsent and left > 0:
            member = group.members[attempt.unsent.popleft()]
            if group.state is GroupState.STOPPING:
                if member.may_fetch():  # else it has just answered an earlier StopFetcher
                    attempt.waiting.add(member.consumer_id)
                    if not member.is_stopping_all():
                        self._state.requests.stop(member, attempt.to_stop[member.consumer_id], now)
            elif not is_started(member, attempt):
                attempt.waiting.add(member.consumer_id)
                self._start_member(group, attempt, member, now)
            left -= SEND_UNITS + len(member.holds)
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
        group.order_responses += 1
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
        topics = self._state.topics.topics  # of now: they may have changed since the attempt was prepared
        for topic in attempt.target:
            group.offsets.topic_is(topic, topics[topic].topic_id if topic in topics else None)
        generation = group.next_generation()
        offsets = group.offsets.take_uncommitted()
        group.committing_level = attempt.level

        def ended(committed: bool, now: int) -> None:
            group.committing_level = 0
            group.offsets.write_ended(offsets, committed=committed)
            if committed:
                group.generation_committed(generation, attempt.level, attempt.target)
            self.check_level(group, now)
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
            self._send_to(group, attempt, group.members)

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
        self._free(group, attempt)
        group.retries = 0
        group.failure = None
        self._sending.pop(group.group_id, None)
        group.last_rebalance = LastRebalance(attempt.reason, now, now - attempt.began_at, attempt.moved)
        self.handlers.done(group.group_id)
        if group.generation and attempt.starts_all:
            group.is_stable = True
            self._record(group)
        self._report(group, attempt, "resumed" if "commit" not in attempt.phases_ms else "done")
        if group.reason is not None:
            self.trigger(group, group.reason, now)

    def _report(self, group: Group, attempt: Attempt, result: str) -> None:
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
        group.order_responses += 1
        attempt = group.attempt
        if attempt is None or member.consumer_id not in attempt.waiting or not member.is_latest_order(request):
            return
        attempt.late.add(member.consumer_id)
        if (key := ("late", group.group_id)) not in self._state.jobs:
            self._state.jobs.begin(key, self._find_late(group, attempt, now))

    def _find_late(self, group: Group, attempt: Attempt, now: int) -> Steps[None]:
        """The attempt fails: it cannot end otherwise without those that are late already. Find the others."""
        for consumer_id in list(attempt.waiting):
            if consumer_id in attempt.waiting and self._state.requests.is_overdue(group.members[consumer_id], now):
                attempt.late.add(consumer_id)
            yield 1
        culprits = yield from sort(attempt.late)
        self._attempt_failed(group, culprits, "no response", self._state.now)

    def member_gone(self, group: Group, now: int) -> None:
        """A member is gone: an attempt ends at once. It is not a retry."""
        if group.state is GroupState.FAILED:
            return
        is_preparing = group.group_id in self._preparing  # then it is prepared anew
        if not is_preparing and (attempt := self._end_attempt(group)) is not None:
            self._state.effects.count("rebalances_total", attempt.reason, "cancelled")
        group.move(GroupStateEvent.MEMBER_GONE)

    def _end_attempt(self, group: Group) -> Attempt | None:
        attempt, group.attempt = group.attempt, None
        self._sending.pop(group.group_id, None)
        self._state.jobs.cancel(("late", group.group_id))
        self.handlers.done(group.group_id)
        if attempt is not None:
            self._free(group, attempt)
        return attempt

    def _free(self, group: Group, attempt: Attempt) -> None:
        self._state.jobs.begin(("free", group.group_id), attempt.free())

    def _attempt_failed(self, group: Group, culprits: Sequence[str], detail: str | None, now: int) -> None:
        """``detail``: what the culprits did; None if the owners could not be committed, which is not a retry."""
        attempt = self._end_attempt(group)
        reason = attempt.reason if attempt is not None else "retry"
        group.move(GroupStateEvent.ATTEMPT_FAILED)
        group.retries += detail is not None
        if detail is not None and group.retries > self._state.settings.max_rebalance_retries:
            others = f" and {len(culprits) - MAX_NAMED} more" if len(culprits) > MAX_NAMED else ""
            text = f"{detail}: {', '.join(culprits[:MAX_NAMED])}{others}"
            self._fail_for_good(group, reason, culprits, text, now)
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
