"""How consumers become members, and how they go (seed 001, section 8: handleAddedConsumer, handleConsumerFailure)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from proxy.coordinator.admission import check_group
from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.committer import SOON_MS, Committer
from proxy.coordinator.coordinator_state import CoordinatorState
from proxy.coordinator.effects import CloseConsumer, ConsumerAccepted, OpenPartition, SendFrame
from proxy.coordinator.events import ConsumerRegistered, RightsChanged
from proxy.coordinator.group import Group, HeldBack
from proxy.coordinator.held_partition import HeldPartition
from proxy.coordinator.lease import free_after_takeover, ping_interval, user_timeout
from proxy.coordinator.member import GroupMember, Registrant
from proxy.coordinator.questions import GroupQuestions
from proxy.coordinator.rebalance import Rebalancer
from proxy.coordinator.records import MemberRecord, MemberValue, partition_of
from proxy.coordinator.registration import check_request, names_denied_topic, refusal
from proxy.coordinator.states import GroupState, GroupStateEvent, MemberState, PartitionState
from proxy.coordinator.steps import ABSENT_UNITS, GROUP_UNITS, MEMBER_UNITS, REGISTRATION_UNITS, Steps, drain
from proxy.coordinator.timers import Timers
from proxy.coordinator.wire import (
    RegisterConsumerResponse,
    RegistrationRefused,
    encode_register_consumer_response,
    response_frame,
)
from proxy.core.causes import Cause

IDLE_MS = 60_000
"""How long a connection may be silent after its registration was refused."""

REFUSED_MS = 60_000
"""How long a consumer waits after a group has failed since it did not answer."""

RESUME_MS = 3000
"""After a takeover: from the return of the first member until those who are back go on, though others are missing."""

UNUSED_MS = 24 * 3600 * 1000
"""How long the records of a group without members are kept."""

FORGET_MS = 60_000
"""How long a group that never had a generation is remembered; it has no records."""


class _Time(Enum):
    """What is due for a group."""

    RELEASE = "release"
    """Partitions of a member that is gone are free."""
    RETURN = "return"
    """The time of the members that are missing after a takeover is over."""
    DELETE = "delete"
    """It had no members for long."""


class GroupMembership:
    """Answers registrations, and takes members out of their groups."""

    def __init__(
        self, state: CoordinatorState, questions: GroupQuestions, committer: Committer, rebalancer: Rebalancer
    ) -> None:
        self._state, self._questions, self._committer, self._rebalancer = state, questions, committer, rebalancer
        self._registering: dict[int, GroupMember] = {}  # by connection
        self._unanswered: dict[int, GroupMember] = {}
        """Those of them whose record is committed: they wait for the claim, or until the group's closing is over."""
        self._idle: Timers[int] = Timers()
        self._times: Timers[tuple[_Time, str]] = Timers()
        """By group."""
        self._consumers = 0

    # Registering

    def register(self, event: ConsumerRegistered, now: int) -> None:
        """Answer RegisterConsumer, at once or after its record is committed."""
        self._idle.cancel(event.connection)
        if self._state.requests.member(event.connection) is not None or event.connection in self._registering:
            self.malformed(event.connection, now)
            return
        registrant = Registrant(
            event.connection, event.correlation_id, event.api_version, event.client_ip, event.unreadable
        )
        try:
            self._register(event, registrant, now)
        except RegistrationRefused as refusal:
            self._refuse(registrant, refusal.code, now)

    def _register(self, event: ConsumerRegistered, registrant: Registrant, now: int) -> None:
        request, settings = event.request, self._state.settings
        partition = self._state.partitions.get(partition_of(request.group_id, settings.partition_count))
        if settings.level == 0:
            raise refusal(RegistrationCode.NOT_AVAILABLE)
        if partition is None or partition.state is PartitionState.AWAY:
            raise refusal(RegistrationCode.NOT_COORDINATOR)
        if names_denied_topic(request, event.unreadable):
            raise refusal(RegistrationCode.TOPIC_DENIED)
        if partition.state is PartitionState.NOMINAL:
            partition.asked()
            self._state.effects.add(OpenPartition(partition.number))
        if partition.state is not PartitionState.OPEN:
            raise refusal(RegistrationCode.LOADING)
        subscription = check_request(request, settings)
        text, subscription = self._state.topics.shared(request.group_id, request.topic_count, subscription)
        value = MemberValue(
            text,
            request.auto_commit,
            request.auto_offset_reset,
            request.session_timeout_ms,
            request.protocol_level,
            event.client_id,
            event.principal,
            event.listener,
        )
        group = self._state.groups.get(request.group_id) or Group(request.group_id, partition.number)
        member = GroupMember(request.group_id, request.consumer_id, value, subscription, registrant)
        if group.has_ordinary_members:
            self._questions.group_is_used(group, now)
        check_group(self._state, self._consumers, partition, group, member, now)
        if (replaced := group.members.get(member.consumer_id)) is not None:
            self.remove(replaced, "replaced", now, cause="consumer_replaced")
        self._begin(group, member, partition, now)

    def _begin(self, group: Group, member: GroupMember, partition: HeldPartition, now: int) -> None:
        if group.is_unused():
            group.offsets.begin_anew()
        self._state.groups[group.group_id] = group
        partition.group_ids.add(group.group_id)
        partition.registration_began()
        group.registration_began(member)
        self._registering[member.connection] = member
        self._consumers += 1
        self._state.topics.subscribe(group.group_id, member.value.topic_count, member.subscription)
        self._questions.group_is_used(group, now)
        if group.is_recorded(member):
            self._answer_when_confirmed(member, now)
            return

        def ended(committed: bool, now: int) -> None:
            if self._registering.get(member.connection) is not member:
                return  # it has ended meanwhile, and its record may be deleted already
            if committed:
                group.recorded(member)
                self._answer_when_confirmed(member, now)
            else:
                self._end_registration(member, now)
                self._refuse(_registrant(member), RegistrationCode.LOADING, now)

        group.not_recorded(member.consumer_id)
        record = MemberRecord(group.group_id, member.consumer_id, member.value)
        self._state.writes.begin(partition.number, [record], {}, ended)

    def _answer_when_confirmed(self, member: GroupMember, now: int) -> None:
        group = self._state.groups[member.group_id]
        if group.closing is None and self._state.may_speak_to(group, now):
            self._accept(group, member, now)
        else:
            self._unanswered[member.connection] = member

    def answer_registrations(self) -> None:
        """Something is known that those that wait for an answer may have waited for."""
        if self._unanswered:
            self._state.jobs.begin("registrations", self._answer_registrations())

    def _answer_registrations(self) -> Steps[None]:
        for connection, member in drain(self._unanswered.items()):
            if self._unanswered.get(connection) is not member:
                continue
            group, now = self._state.groups[member.group_id], self._state.now
            if group.closing is None and self._state.may_speak_to(group, now):
                self._accept(group, member, now)
                yield REGISTRATION_UNITS
            else:
                yield 1

    def _accept(self, group: Group, member: GroupMember, now: int) -> None:
        del self._registering[member.connection]
        self._unanswered.pop(member.connection, None)
        settings, timeout = self._state.settings, member.session_timeout_ms
        partition = self._state.partition_of(group)
        self._state.effects.add(ConsumerAccepted(member.connection, user_timeout(timeout)))
        self._respond(_registrant(member), 0, settings.broker_id, max(group.generation, 0), now)
        absent = group.absent_ended(member.consumer_id)
        if absent is not None:
            self._state.topics.unsubscribe(group.group_id, absent.value.topic_count)
            known_for = max(timeout, absent.session_timeout_ms)
            not_before = free_after_takeover(partition.claimed_at, known_for, settings.state_write_timeout_ms)
            member.returned(absent.holds, not_before, now)
        else:
            member.accepted(now)
        partition.registration_ended(accepted=True)
        group.registered(member)
        self._state.requests.add(member, now if absent is not None else now + ping_interval(timeout))
        self._log_member("consumer_registered", group, member, returned=absent is not None)
        if absent is None:
            self._rebalancer.trigger(group, "joined", now)
        elif group.resumes_at is None:
            group.resumes_at = now + RESUME_MS
            self._times.set((_Time.RETURN, group.group_id), min(group.resumes_at, group.returns_until))

    def _refuse(self, registrant: Registrant, code: int, now: int) -> None:
        self._respond(registrant, code, -1, -1, now)
        self._idle.set(registrant.connection, now + IDLE_MS)

    def _respond(self, registrant: Registrant, code: int, coordinator_id: int, generation: int, now: int) -> None:
        response = RegisterConsumerResponse(code, coordinator_id, generation)
        body = encode_register_consumer_response(registrant.api_version, response)
        self._state.effects.add(SendFrame(registrant.connection, response_frame(registrant.correlation_id, body)))
        self._state.effects.count("registrations_total", str(int(code)))

    # After a takeover

    def check_returning(self, group: Group, now: int) -> None:
        """Let the group go on: all are back, the time of those missing is over, or they have been waited for enough."""
        if group.absent and now >= group.returns_until:
            if (key := ("absent", group.group_id)) not in self._state.jobs:
                self._state.jobs.begin(key, self._give_absent_up(group))
            return
        if group.state is not GroupState.RETURNING or group.closing is not None:
            return
        is_enough = not group.absent or (group.resumes_at is not None and now >= group.resumes_at)
        if is_enough and all(member.has_answered or member.failures for member in group.members.values()):
            self._rebalancer.members_are_back(group, now)

    def _give_absent_up(self, group: Group) -> Steps[None]:
        """One after the other: those who come back before it is their turn are members."""
        for absent in drain(group.absent.values()):
            if group.absent.get(absent.consumer_id) is absent:
                group.absent_ended(absent.consumer_id)
                self._state.topics.unsubscribe(group.group_id, absent.value.topic_count)
                self._record_is_obsolete(group, absent.consumer_id, self._state.now)
                self._log_member("consumer_gone", group, absent, reason="not_returned")
                yield ABSENT_UNITS
        now = self._state.now
        if group.members:
            self._rebalancer.trigger(group, "failed", now)
            self.check_returning(group, now)
        else:
            self._emptied(group, now)

    def heard(self, group: Group, member: GroupMember, now: int) -> None:
        """A member has answered something."""
        if group.state is GroupState.RETURNING:
            self.check_returning(group, now)
        elif member.state is MemberState.RETURNED:
            self._rebalancer.trigger(group, "returned", now)

    # Going

    def connection_ended(self, connection: int, by_peer: bool, now: int) -> None:
        """A connection has ended, whatever it was."""
        self._idle.cancel(connection)
        if (registering := self._registering.get(connection)) is not None:
            self._end_registration(registering, now)
        elif (member := self._state.requests.member(connection)) is not None:
            # A connection that has answered nothing may be one of several to the same consumer.
            self.remove(member, "left" if by_peer else "failed", now, has_stopped=by_peer and member.has_answered)

    def malformed(self, connection: int, now: int) -> None:
        """The consumer has sent what it must not send."""
        if (member := self._state.requests.member(connection)) is not None:
            self.remove(member, "failed", now, cause="consumer_malformed")
            return
        self.connection_ended(connection, by_peer=False, now=now)
        self._state.effects.add(CloseConsumer(connection, "consumer_malformed"))

    def rights_changed(self, event: RightsChanged, now: int) -> None:
        """A client may read more or less than before."""
        member = self._registering.get(event.connection) or self._state.requests.member(event.connection)
        if member is None:
            return
        if event.may_read_group and event.unreadable.isdisjoint(member.subscription.named):
            if member.unreadable != event.unreadable:
                member.unreadable = event.unreadable
                self._rebalancer.trigger(self._state.groups[member.group_id], "topics", now)
        elif event.connection in self._registering:
            self._end_registration(member, now)
            code = RegistrationCode.TOPIC_DENIED if event.may_read_group else RegistrationCode.GROUP_DENIED
            self._refuse(_registrant(member), code, now)
        else:
            self.remove(member, "failed", now, cause="consumer_denied")

    def remove(
        self, member: GroupMember, reason: str, now: int, *, has_stopped: bool = False, cause: Cause | None = None
    ) -> None:
        """A member goes. ``has_stopped``: its partitions are free at once. ``cause``: close its connection with it."""
        group = self._state.groups[member.group_id]
        self._state.requests.remove(member)
        group.member_gone(member)
        self._consumers -= 1
        self._state.partition_of(group).consumer_gone()
        self._state.topics.unsubscribe(group.group_id, member.value.topic_count)
        free_at = now if has_stopped or not member.holds else member.free_at(now)
        if cause is not None:
            self._state.effects.add(CloseConsumer(member.connection, cause))
        gone = {"cause": cause, "partitions": len(member.holds), "free_in_ms": free_at - now}
        self._log_member("consumer_gone", group, member, reason=reason, **gone)
        member.ended()
        if free_at > now:
            group.hold_back(HeldBack(member.consumer_id, member.holds, free_at, reason, member.has_started))
            self._release_at(group, free_at)
        else:
            self._record_is_obsolete(group, member.consumer_id, now)
        self._committer.commit_within(group, now, SOON_MS)
        self._rebalancer.member_gone(group, now)
        if group.members or (group.absent and group.state is not GroupState.FAILED):
            self._rebalancer.trigger(group, reason, now)
            self.check_returning(group, now)
        else:
            self._emptied(group, now)

    def close_all(self, group: Group, cause: Cause) -> None:
        """Close the connections of all members, one after the other. No attempt is made, and nobody registers, until
        the group is empty."""
        if group.closing is None:
            self._rebalancer.cancel(group)
            group.closing = cause
            self._state.jobs.begin(("close", group.group_id), self._close_all(group, cause))

    def _close_all(self, group: Group, cause: Cause) -> Steps[None]:
        if group.has_ordinary_members:
            yield from self.refuse_registering(group, RegistrationCode.ORDINARY_MEMBERS)
        for member in drain(group.members.values()):
            if group.members.get(member.consumer_id) is member:
                self.remove(member, "failed", self._state.now, cause=cause)
                yield MEMBER_UNITS
        group.closing = None
        self.answer_registrations()
        if group.absent:
            self._rebalancer.trigger(group, "failed", self._state.now)
            self.check_returning(group, self._state.now)

    def give_up(self, group: Group, culprits: Sequence[str], now: int) -> None:
        """The rebalance has failed for good (``Rebalancer``)."""
        group.refuse(culprits, now + REFUSED_MS, now)
        self.close_all(group, "rebalance_failed")

    def refuse_registering(self, group: Group, code: RegistrationCode) -> Steps[None]:
        """Answer those that are about to register in the group with an error."""
        for member in drain(group.registering.values()):
            if group.registering.get(member.consumer_id) is member:
                self._end_registration(member, self._state.now)
                self._refuse(_registrant(member), code, self._state.now)
                yield REGISTRATION_UNITS

    def _end_registration(self, member: GroupMember, now: int) -> None:
        group = self._state.groups[member.group_id]
        del self._registering[member.connection]
        self._unanswered.pop(member.connection, None)
        self._consumers -= 1
        self._state.partition_of(group).registration_ended(accepted=False)
        self._state.topics.unsubscribe(group.group_id, member.value.topic_count)
        group.registration_failed(member)
        member.ended()
        self._record_is_obsolete(group, member.consumer_id, now)
        self.check_unused(group, now)

    def _record_is_obsolete(self, group: Group, consumer_id: str, now: int) -> None:
        group.record_is_obsolete(consumer_id)
        self._committer.commit_within(group, now, SOON_MS)

    def _emptied(self, group: Group, now: int) -> None:
        if group.state in (GroupState.STOPPING, GroupState.COMMITTING, GroupState.STARTING):
            self._rebalancer.member_gone(group, now)  # an attempt of nobody, begun while some were absent
        if group.state is not GroupState.EMPTY:
            group.move(GroupStateEvent.EMPTIED)
        self._rebalancer.forget(group)
        self.check_unused(group, now)

    # Times

    def run(self, now: int, units: int) -> int:
        """Close connections that were refused and stay silent; handle groups for which something is due. So far as
        there are units of work; return how many are left."""
        while units > 0 and (connection := self._idle.pop(now)) is not None:
            self._state.effects.add(CloseConsumer(connection, "registration_idle"))
            units -= 1
        while units > 0 and (due := self._times.pop(now)) is not None:
            units -= GROUP_UNITS
            time, group = due[0], self._state.groups.get(due[1])
            if group is None:
                continue
            if time is _Time.RELEASE:
                units = self._release(group, now, units)
            elif time is _Time.RETURN:
                self.check_returning(group, now)
                if group.absent and now < group.returns_until:
                    self._times.set((_Time.RETURN, group.group_id), group.returns_until)
            elif group.is_unused():
                self._delete(group)
            elif group.state is GroupState.EMPTY:
                self.check_unused(group, now)
        return units

    def due(self) -> int | None:
        """When ``run`` is to be called."""
        return min((at for at in (self._idle.next(), self._times.next()) if at is not None), default=None)

    def group_loaded(self, group: Group) -> Steps[None]:
        """The records of a predecessor were read."""
        for absent in list(group.absent.values()):
            self._state.topics.subscribe(group.group_id, absent.value.topic_count, absent.subscription)
            yield 1
        now, topics = self._state.now, self._state.topics.topics
        for topic in group.owners.keys() & topics.keys():
            group.offsets.topic_is(topic, topics[topic].topic_id)
        if group.absent:
            self._times.set((_Time.RETURN, group.group_id), group.returns_until)
            self._log_unsure(group)
        self._rebalancer.check_level(group, now)
        self.check_unused(group, now)

    def check_unused(self, group: Group, now: int) -> None:
        """A group that has no members is deleted at some time."""
        if group.state is GroupState.EMPTY:
            self._times.set((_Time.DELETE, group.group_id), now + (UNUSED_MS if group.generation else FORGET_MS))

    def _delete(self, group: Group) -> None:
        self._state.partition_of(group).group_ids.discard(group.group_id)
        del self._state.groups[group.group_id]
        self._questions.group_is_unused(group)
        if group.generation:
            self._state.writes.begin(group.partition, group.all_tombstones(), {}, lambda committed, now: None)

    def _release_at(self, group: Group, at: int) -> None:
        due = self._times.at((_Time.RELEASE, group.group_id))
        if due is None or at < due:
            self._times.set((_Time.RELEASE, group.group_id), at)

    def _release(self, group: Group, now: int, units: int) -> int:
        while (held := group.release(now)) is not None:
            self._record_is_obsolete(group, held.consumer_id, now)
            self._rebalancer.trigger(group, held.reason, now)
            units -= GROUP_UNITS
            if units <= 0:
                break
        if (at := group.next_release()) is not None:
            self._release_at(group, at)
        return units

    def drop(self, group: Group) -> Steps[None]:
        """The partition of the group is lost, and nothing of it is written any more: nothing of the group is left."""
        for kind in ("close", "absent"):
            self._state.jobs.cancel((kind, group.group_id))
        yield from self.refuse_registering(group, RegistrationCode.NOT_COORDINATOR)
        for member in drain(group.members.values()):
            if group.members.get(member.consumer_id) is member:
                group.member_gone(member)
                group.not_recorded(member.consumer_id)
                self._consumers -= 1
                self._state.partition_of(group).consumer_gone()
                self._state.requests.remove(member)
                self._state.topics.unsubscribe(group.group_id, member.value.topic_count)
                self._state.effects.add(CloseConsumer(member.connection, "coordinator_moved"))
                member.ended()
                yield ABSENT_UNITS
        for absent in drain(group.absent.values()):
            group.absent_ended(absent.consumer_id)
            group.not_recorded(absent.consumer_id)
            yield 1
        yield from self._state.topics.drop(group.group_id)
        self._rebalancer.forget(group)
        self._questions.group_is_unused(group)
        for time in _Time:
            self._times.cancel((time, group.group_id))
        del self._state.groups[group.group_id]

    def _log_unsure(self, group: Group) -> None:
        """What its consumers report is not taken at once: more is read twice than after another takeover."""
        if not group.is_stable and group.owners:
            facts = {"generation": group.generation, "consumers": len(group.absent)}
            self._state.effects.log("info", "group_unsure", group=group.group_id, **facts)

    def _log_member(self, event: str, group: Group, member: GroupMember, **fields: Any) -> None:
        value = member.value
        who = {"consumer": member.consumer_id, "client_id": value.client_id, "principal": value.principal}
        self._state.effects.log("info", event, group=group.group_id, **who, **fields)


def _registrant(member: GroupMember) -> Registrant:
    assert member.registrant is not None, "an absent member registers as another one"
    return member.registrant
