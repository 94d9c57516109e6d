"""The coordinator of one sidecar: events in, effects out. Pure, without IO and clock.

Partitions of the groups' topic are held one by one. What a partition knows is dropped whole when it is lost: another
sidecar has the truth then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.committer import Committer
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.effect_sink import EffectSink
from proxy.coordinator.effects import ClosePartition, ConfirmClaim, Effect, HoldPartition, OpenPartition
from proxy.coordinator.events import (
    CommittedOffsetsRead,
    ConnectionBuffered,
    ConnectionDrained,
    ConsumerConnectionEnded,
    ConsumerRegistered,
    EndpointsChanged,
    Event,
    OrdinaryMembersFound,
    PartitionAssigned,
    PartitionLost,
    PartitionOpened,
    ResponseReceived,
    RightsChanged,
    SettingsChanged,
    TopicsChanged,
    WriteAborted,
    WriteCommitted,
)
from proxy.coordinator.group import Group
from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.lease import free_after_takeover
from proxy.coordinator.member import GroupMember
from proxy.coordinator.membership import GroupMembership
from proxy.coordinator.offsets import OffsetReport
from proxy.coordinator.questions import GroupQuestions
from proxy.coordinator.rebalance import Rebalancer
from proxy.coordinator.records import GroupRecord, MemberRecord
from proxy.coordinator.requests import ConsumerRequests, Unasked
from proxy.coordinator.settings import CoordinatorSettings
from proxy.coordinator.states import PartitionEvent, PartitionState
from proxy.coordinator.status import CoordinatorFields
from proxy.coordinator.steps import (
    AT_ONCE,
    DROP_UNITS,
    EXPIRED_UNITS,
    GROUP_UNITS,
    MEMBER_UNITS,
    PING_UNITS,
    RECORD_UNITS,
    SLICE,
    Steps,
    sort,
)
from proxy.coordinator.subscription import TopicCount, parse_topic_count
from proxy.coordinator.wire import PING, ConsumerResponse, RegistrationRefused, decode_response
from proxy.coordinator.writes import Writes
from proxy.errors import PeerError
from proxy.protocol.private import BASE

CONFIRM = -1
"""``write`` of the events that answer ``ConfirmClaim``."""

_FREQUENT = ResponseReceived | ConnectionBuffered | ConnectionDrained | None
"""Events that bring no consumer and no confirmation: after them a claim is not due earlier than before."""


class Coordinator:
    """The machine. ``handle`` takes one event at a time, and ``now`` never goes back.

    ``handle(None, now)`` is to be called when ``due`` says so; a late call costs time, never safety.
    """

    def __init__(self, settings: CoordinatorSettings, *, api_key_base: int = BASE, units: int = SLICE) -> None:
        """``api_key_base``: ``private.api.key.base``. ``units``: of work in one call, beside the event."""
        self._base, self._units = api_key_base, units
        effects = EffectSink()
        self._state = CoordinatorState(settings, effects, ConsumerRequests(effects, api_key_base), Writes(effects))
        self._questions = GroupQuestions(effects, self._state.groups)
        self._committer = Committer(self._state.writes)
        self._rebalancer = Rebalancer(self._state, self._questions, self._give_up)
        self._membership = GroupMembership(self._state, self._questions, self._committer, self._rebalancer)
        self._claims_due: int | None = None
        """When a claim is to be confirmed, or a partition becomes mute."""
        self._has_more = False
        self._assigned_again: dict[int, PartitionAssigned] = {}
        """Partitions that are to be held again once all that is known of them is dropped."""
        self._on: Mapping[type, Callable[[Any, int], None]] = {
            PartitionAssigned: self._assigned,
            PartitionOpened: self._opened,
            PartitionLost: self._lost,
            WriteCommitted: self._committed,
            WriteAborted: self._aborted,
            ConsumerRegistered: self._membership.register,
            RightsChanged: self._membership.rights_changed,
            ResponseReceived: self._responded,
            ConnectionBuffered: self._buffered,
            ConnectionDrained: self._drained,
            ConsumerConnectionEnded: self._connection_ended,
            TopicsChanged: self._topics_changed,
            EndpointsChanged: self._endpoints_changed,
            CommittedOffsetsRead: self._offsets_read,
            OrdinaryMembersFound: self._ordinary_found,
            SettingsChanged: self._settings_changed,
        }

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Take an event, and do what is due. Returns what is to be done, in this order."""
        self._state.now = now
        if self._claims_due is not None and now >= self._claims_due:
            self._update_claims(now)
        if event is not None:
            self._on[type(event)](event, now)
        self._run(now)
        if not isinstance(event, _FREQUENT) or (self._claims_due is not None and now >= self._claims_due):
            self._confirm_claims(now)
        if (watch := self._state.topics.take_watch()) is not None:
            self._state.effects.add(watch)
        return self._state.effects.take()

    def due(self) -> int | None:
        """When ``handle`` is to be called, even if nothing happens; None: not before an event."""
        now = self._state.now
        if self._has_more:
            return now
        times = [
            self._state.requests.due(),
            self._membership.due(),
            self._rebalancer.due(now),
            self._questions.due(),
            self._committer.due(),
            self._claims_due,
        ]
        return min((at for at in times if at is not None), default=None)

    def may_send(self, connection: int, now: int) -> bool:
        """Return whether a frame that was decided earlier may be sent to a connection at ``now``: its partition is not
        mute by then. What is no member's is no request, and gives nobody a right to fetch."""
        member = self._state.requests.member(connection)
        return member is None or self._state.may_speak_to(self._group_of(member), now)

    def highest_level(self) -> int:
        """Return the highest level of the protocol at which a group may still work."""
        return max((group.highest_level() for group in self._state.groups.values()), default=1)

    def sizes(self) -> CoordinatorFields:
        """Return how much each of the fields of a coordinator has (seed 001, section 5)."""
        state, handlers = self._state, self._rebalancer.handlers
        purgatories = state.requests.sizes()
        return CoordinatorFields(
            elector=len(state.partitions),
            group_registry=sum(len(group.members) for group in state.groups.values()),
            consumed_offsets=sum(len(group.offsets) for group in state.groups.values()),
            topic_groups=state.topics.named_topics(),
            wildcard_groups=len(state.topics.wildcard_groups),
            rebalance_handlers=handlers.size,
            rebalance_queued=handlers.queued(),
            rebalance_working=handlers.working(),
            ping_scheduler=state.requests.scheduled_pings(),
            committer=len(self._committer),
            ping_purgatory=purgatories["ping"],
            stop_fetcher_purgatory=purgatories["stop"],
            start_fetcher_purgatory=purgatories["start"],
        )

    @property
    def state(self) -> CoordinatorState:
        """What it knows, to be read."""
        return self._state

    @property
    def _write_timeout(self) -> int:
        return self._state.settings.state_write_timeout_ms

    # What is due

    def _run(self, now: int) -> None:
        """Do what is due, so far as there are units of work. The rest is due at once."""
        left = self._ping(now, self._units)
        left = self._expire(now, left)
        if left > 0:
            left = self._membership.run(now, left)
        if left > 0:
            left = self._questions.run(now, left)
        if left > 0:
            left = self._committer.run(now, left)
        left = self._state.jobs.work(left)
        self._rebalancer.run(now, left)
        self._has_more = left <= 0 or len(self._state.jobs) > 0

    def _expire(self, now: int, left: int) -> int:
        while left > 0 and (expired := self._state.requests.expire(now, self._is_mute)) is not None:
            left -= EXPIRED_UNITS
            member, request = expired
            group = self._group_of(member)
            if request is not None and request.api_key != PING:
                self._rebalancer.expired(group, member, request, now)
                continue
            self._state.effects.count("pings_total", "expired")
            if member.failures > self._state.settings.max_ping_retries:
                self._membership.remove(member, "failed", now, cause="consumer_failed")
                left -= MEMBER_UNITS
            else:
                self._membership.check_returning(group, now)
        return left

    def _ping(self, now: int, left: int) -> int:
        lateness = 0
        while left > 0 and (ping := self._state.requests.next_ping(now)) is not None:
            left -= PING_UNITS
            member, due = ping
            if self._state.may_speak_to(self._group_of(member), now):
                self._state.requests.ping(member, due, now)
                lateness = max(lateness, now - due)
            else:
                self._state.requests.skip_ping(member, due, now)
        if lateness:
            self._state.effects.count("ping_lateness_seconds_max", amount=lateness / 1000)
        return left

    def _is_mute(self, member: GroupMember) -> bool:
        group = self._group_of(member)
        return not self._state.may_speak_to(group, self._state.now) or ("speak", group.partition) in self._state.jobs

    def _group_of(self, member: GroupMember) -> Group:
        return self._state.groups[member.group_id]

    # Partitions

    def _update_claims(self, now: int) -> None:
        for partition in self._state.partitions.values():
            event = partition.update(now, self._write_timeout)
            if event is PartitionEvent.UNCONFIRMED:
                self._state.effects.log("warning", "coordinator_mute", partition=partition.number)
            elif event is PartitionEvent.CONFIRMED:
                self._state.effects.log("info", "coordinator_speaks", partition=partition.number)
                self._state.jobs.begin(("speak", partition.number), self._speak_again(partition))

    def _confirm_claims(self, now: int) -> None:
        timeout = self._write_timeout
        self._claims_due = None
        for partition in self._state.partitions.values():
            at = partition.confirmation_due(timeout)
            if at is not None and at <= now:
                partition.confirmation_began(now)
                self._state.effects.add(ConfirmClaim(partition.number))
            due = partition.due(timeout)
            if due is not None and (self._claims_due is None or due < self._claims_due):
                self._claims_due = due

    def _speak_again(self, partition: HeldPartition) -> Steps[None]:
        """The partition was mute: what was not sent in time does not count, and everybody is pinged now."""
        for group_id in (yield from sort(partition.group_ids)):
            if (group := self._state.groups.get(group_id)) is None:
                continue
            for member in list(group.members.values()):
                if group.members.get(member.consumer_id) is member:
                    member.forgive()
                    self._state.requests.ping_now(member, self._state.now)
                    yield 1
            self._rebalancer.wake(group, self._state.now)
            yield 1

    def _assigned(self, event: PartitionAssigned, now: int) -> None:
        if (held := self._state.partitions.get(event.partition)) is not None:
            if held.state is PartitionState.AWAY:
                self._assigned_again[event.partition] = event
            return
        partition = self._state.partitions[event.partition] = HeldPartition(event.partition)
        self._state.effects.add(HoldPartition(event.partition, 0))
        if not event.is_empty:
            partition.asked()
            self._state.effects.add(OpenPartition(event.partition))

    def _opened(self, event: PartitionOpened, now: int) -> None:
        partition = self._state.partitions.get(event.partition)
        if partition is not None and partition.state is PartitionState.OPENING:
            self._state.jobs.begin(("open", partition.number), self._open(partition, event))

    def _open(self, partition: HeldPartition, event: PartitionOpened) -> Steps[None]:
        """Take the records over. Until that is done the partition stays OPENING: nobody registers, and it is silent."""
        groups: dict[str, Group] = {}
        for record in event.records:
            group = groups.get(record.group)
            if group is None:
                group = groups[record.group] = Group(record.group, event.partition)
            yield self._load(group, record)
        for group in groups.values():
            longest = max((absent.session_timeout_ms for absent in group.absent.values()), default=0)
            yield len(group.absent) // AT_ONCE
            yield from group.loaded(free_after_takeover(event.claimed_at, longest, self._write_timeout))
            self._state.groups[group.group_id] = group
            partition.group_ids.add(group.group_id)
            yield from self._membership.group_loaded(group)
            yield GROUP_UNITS
        partition.opened(event.claim, event.claimed_at)
        self._startup_step(partition, 1, "fenced")
        self._startup_step(partition, 2, "loaded", groups=len(groups))
        self._startup_step(partition, 3, "topics_watched")
        self._startup_step(partition, 4, "committer_and_scheduler_started")
        self._startup_step(partition, 5, "handlers_started")
        self._state.effects.add(HoldPartition(partition.number, partition.claim))
        self._state.effects.count("takeovers_total", "empty" if not groups else "loaded")

    def _load(self, group: Group, record: GroupRecord) -> int:
        """Return how many units of work it was."""
        if not isinstance(record, MemberRecord):
            return group.load(record)
        if record.value is None:
            return 1
        subscription = _subscription(record.value.topic_count)
        group.load_member(record.consumer_id, record.value, subscription)
        return RECORD_UNITS + len(subscription.named)

    def _startup_step(self, partition: HeldPartition, step: int, what: str, **fields: Any) -> None:
        self._state.effects.log(
            "info",
            "coordinator_startup",
            partition=partition.number,
            step=step,
            what=what,
            claim=partition.claim,
            **fields,
        )

    def _lost(self, event: PartitionLost, now: int) -> None:
        self._assigned_again.pop(event.partition, None)
        partition = self._state.partitions.get(event.partition)
        if partition is None or partition.state is PartitionState.AWAY:
            return
        for kind in ("open", "speak"):
            self._state.jobs.cancel((kind, partition.number))
        can_write = partition.is_open() and event.reason != "fenced"
        partition.lost()
        self._state.jobs.begin(("drop", partition.number), self._drop(partition, event.reason, can_write=can_write))

    def _drop(self, partition: HeldPartition, reason: str, *, can_write: bool) -> Steps[None]:
        """Drop all that is known of a partition. It is AWAY from the first moment: it is silent, and nobody registers.
        If it is to be held again, that begins when all is dropped."""
        number, groups = partition.number, self._state.groups
        names = yield from sort(partition.group_ids)
        if can_write:
            for group_id in names:
                if (group := groups.get(group_id)) is not None:
                    yield from self._membership.refuse_registering(group, RegistrationCode.NOT_COORDINATOR)
                    yield 1
            yield from self._committer.commit_all(number)
        self._state.writes.close(number)
        self._state.effects.add(ClosePartition(number))
        yield from self._state.writes.drop(number)
        for group_id in names:
            if (group := groups.get(group_id)) is not None:
                yield from self._membership.drop(group)
                yield DROP_UNITS
        self._committer.drop(number)
        self._state.writes.open(number)
        del self._state.partitions[number]
        self._state.effects.log("info", "coordinator_resigned", partition=number, reason=reason)
        if (again := self._assigned_again.pop(number, None)) is not None:
            self._assigned(again, self._state.now)

    def _committed(self, event: WriteCommitted, now: int) -> None:
        partition = self._state.partitions.get(event.partition)
        if partition is None:
            return
        partition.confirmed(event.began_at)
        if event.write == CONFIRM:
            partition.confirmation_ended()
        self._update_claims(now)
        self._state.writes.ended(event.write, True, now)
        self._membership.answer_registrations()

    def _aborted(self, event: WriteAborted, now: int) -> None:
        if event.write == CONFIRM and (partition := self._state.partitions.get(event.partition)) is not None:
            partition.confirmation_ended()
        self._state.writes.ended(event.write, False, now)

    # Consumers

    def _responded(self, event: ResponseReceived, now: int) -> None:
        member = self._state.requests.member(event.connection)
        try:
            response = decode_response(event.frame, self._base)
        except PeerError:
            member = None
        if member is None:
            self._membership.malformed(event.connection, now)
            return
        request = self._state.requests.answered(member, response, now)
        if request is Unasked.MALFORMED:
            self._membership.malformed(event.connection, now)
            return
        group = self._group_of(member)
        if request is Unasked.REPEATED and self._state.may_speak_to(group, now):
            self._state.requests.ping_asked(member, now)
        if not isinstance(request, Unasked):
            if member.reports_share(request):
                self._take_offsets(group, member, response, now)
            if request.api_key == PING:
                self._state.effects.count("pings_total", "answered")
            else:
                self._rebalancer.confirmed(group, member, request, response.error_code, now)
        self._membership.heard(group, member, now)

    def _take_offsets(self, group: Group, member: GroupMember, response: ConsumerResponse, now: int) -> None:
        if not member.value.auto_commit or not response.offsets:
            return
        counts: dict[OffsetReport, int] = {}
        is_sure = group.is_stable or not member.holds_by_records()
        for entry in response.offsets:
            report = OffsetReport.UNSURE
            if is_sure:
                report = group.offsets.report(member.holds, entry.topic, entry.partition, entry.offset)
            counts[report] = counts.get(report, 0) + 1
        for report, count in counts.items():
            self._state.effects.count("offsets_total", report.value, amount=count)
        if group.offsets.has_uncommitted():
            self._committer.commit_within(group, now, self._state.settings.offset_commit_interval_ms)

    def _buffered(self, event: ConnectionBuffered, now: int) -> None:
        if (member := self._state.requests.member(event.connection)) is not None:
            member.buffered()

    def _drained(self, event: ConnectionDrained, now: int) -> None:
        if (member := self._state.requests.member(event.connection)) is not None:
            member.drained(now)

    def _connection_ended(self, event: ConsumerConnectionEnded, now: int) -> None:
        self._membership.connection_ended(event.connection, event.by_peer, now)

    def _give_up(self, group: Group, culprits: Any, now: int) -> None:
        self._membership.give_up(group, culprits, now)

    # The cluster

    def _topics_changed(self, event: TopicsChanged, now: int) -> None:
        topics = self._state.topics
        answered = topics.answered
        changed = topics.changed(event)
        if changed is None:
            return
        there = changed.keys() & event.topics.keys()
        for group in self._state.groups.values() if there else ():
            for topic in group.owners.keys() & there:  # also what it owns by the records, and nobody subscribes to
                group.offsets.topic_is(topic, event.topics[topic].topic_id)
        for topic, group_ids in changed.items():
            facts = event.topics.get(topic)
            for group_id in group_ids:
                self._state.groups[group_id].offsets.topic_is(topic, None if facts is None else facts.topic_id)
        groups = set[str]().union(*changed.values())
        self._state.jobs.begin(("topics", topics.snapshots), self._rebalancer.topics_changed(groups, answered))

    def _endpoints_changed(self, event: EndpointsChanged, now: int) -> None:
        self._state.endpoints = event.endpoints

    def _offsets_read(self, event: CommittedOffsetsRead, now: int) -> None:
        group = self._state.groups.get(event.group)
        if group is not None and self._questions.offsets_read(group, event, now):
            self._rebalancer.offsets_read(group, now)

    def _ordinary_found(self, event: OrdinaryMembersFound, now: int) -> None:
        group = self._state.groups.get(event.group)
        if group is None:
            return
        self._questions.ordinary_found(group, event, now)
        if group.has_ordinary_members:
            group.offsets.forget_uncommitted()
            self._membership.close_all(group, "group_has_members")
        else:
            self._rebalancer.wake(group, now)

    def _settings_changed(self, event: SettingsChanged, now: int) -> None:
        assert isinstance(event.settings, CoordinatorSettings)
        thawed = self._state.settings.frozen_groups - event.settings.frozen_groups
        self._state.settings = event.settings
        self._state.settings_number += 1
        for group in self._state.groups.values():
            self._rebalancer.check_level(group, now)
        for group_id in sorted(thawed & self._state.groups.keys()):
            self._rebalancer.trigger(self._state.groups[group_id], "enabled", now)


def _subscription(topic_count: str) -> TopicCount:
    """What a record says; nothing, if this release cannot read it."""
    try:
        return parse_topic_count(topic_count)
    except RegistrationRefused:
        return TopicCount(1, {})
