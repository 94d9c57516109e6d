"""What is sent to registered consumers: pings by schedule, StopFetcher, StartFetcher, and the watchers of all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from proxy.coordinator.effect_sink import EffectSink
from proxy.coordinator.effects import SendFrame
from proxy.coordinator.lease import ping_interval, response_timeout
from proxy.coordinator.member import GroupMember, OpenRequest, Share, TopicPartition
from proxy.coordinator.pings import PingSchedule
from proxy.coordinator.purgatory import Purgatory
from proxy.coordinator.wire import (
    PING,
    START_FETCHER,
    STOP_FETCHER,
    AssignedThread,
    ConsumedOffset,
    ConsumerResponse,
    EndpointEntry,
    PingRequest,
    StartFetcherRequest,
    StopFetcherRequest,
    encode_ping,
    encode_start_fetcher,
    encode_stop_fetcher,
)

_NAMES = {PING: "ping", STOP_FETCHER: "stop", START_FETCHER: "start"}


class Unasked(Enum):
    """A response that answers nothing that is waited for."""

    LATE = "late"
    """Its request has expired."""
    REPEATED = "repeated"
    """It has come before, and the consumer asks for a ping with it."""
    MALFORMED = "malformed"
    """It fits no request that was ever sent on its connection."""


class Expired(NamedTuple):
    """A watcher has expired. ``request``: None for a ping that was withheld."""

    member: GroupMember
    request: OpenRequest | None


class ConsumerRequests:
    """The registered members by connection, the ping schedule, and the three purgatories."""

    def __init__(self, effects: EffectSink, api_key_base: int) -> None:
        self._effects, self._base = effects, api_key_base
        self._members: dict[int, GroupMember] = {}
        self._pings = PingSchedule()
        self._purgatories = {PING: Purgatory(), STOP_FETCHER: Purgatory(), START_FETCHER: Purgatory()}
        self._purgatory_of_withheld = self._purgatories[PING]

    # Members

    def add(self, member: GroupMember, first_ping_at: int) -> None:
        """The member is registered: it is pinged from ``first_ping_at`` on."""
        self._members[member.connection] = member
        self._pings.start(member.connection, first_ping_at)

    def remove(self, member: GroupMember) -> None:
        """Forget all that the member was asked."""
        connection = member.connection
        del self._members[connection]
        self._pings.stop(connection)
        for request in member.open_requests():
            self._purgatories[request.api_key].clear(connection, request.correlation_id)
        self._clear_withheld(member)

    def member(self, connection: int) -> GroupMember | None:
        """The member that is registered on a connection."""
        return self._members.get(connection)

    def sizes(self) -> dict[str, int]:
        """How many requests are waited for, by kind."""
        return {_NAMES[api_key]: len(purgatory) for api_key, purgatory in self._purgatories.items()}

    def scheduled_pings(self) -> int:
        """How many members are pinged."""
        return len(self._pings)

    # Sending

    def next_ping(self, now: int) -> tuple[GroupMember, int] | None:
        """Return a member whose ping is due, and since when. Then ``ping`` or ``skip_ping`` has to follow."""
        popped = self._pings.pop(now)
        return None if popped is None else (self._members[popped[0]], popped[1])

    def ping(self, member: GroupMember, due: int, now: int) -> None:
        """Ping a member, unless two pings are unanswered: then the ping is withheld, and expires as if it were sent."""
        if member.can_send_ping():
            self._send_ping(member, member.ping(now), now)
        else:
            number = member.withhold_ping()
            deadline = now + response_timeout(member.session_timeout_ms)
            self._purgatory_of_withheld.watch(member.connection, number, deadline)
            self._effects.count("pings_total", "withheld")
        self.skip_ping(member, due, now)

    def ping_asked(self, member: GroupMember, now: int) -> None:
        """Ping a member that has asked for it, unless it is pinged anyway, or asks too often."""
        if member.can_ask_for_ping():
            self._send_ping(member, member.ping(now, asked=True), now)

    def _send_ping(self, member: GroupMember, request: OpenRequest, now: int) -> None:
        self._watch(member, request, now)
        frame = encode_ping(request.correlation_id, PingRequest(member.consumer_id, member.failures), self._base)
        self._effects.add(SendFrame(member.connection, frame))

    def skip_ping(self, member: GroupMember, due: int, now: int) -> None:
        """Schedule the next ping."""
        self._pings.repeat(member.connection, due, ping_interval(member.session_timeout_ms), now)

    def ping_now(self, member: GroupMember, now: int) -> None:
        """Do not wait for the next ping of the member."""
        self._pings.start(member.connection, now)

    def stop(self, member: GroupMember, partitions: frozenset[TopicPartition] | None, now: int) -> None:
        """Send StopFetcher, of these partitions or of all."""
        request = member.stop(partitions, now)
        self._watch(member, request, now)
        named = None if partitions is None else tuple(sorted(partitions))
        body = StopFetcherRequest(member.consumer_id, named)
        frame = encode_stop_fetcher(request.correlation_id, body, base=self._base)
        self._effects.add(SendFrame(member.connection, frame))

    def start(
        self,
        member: GroupMember,
        share: Share,
        offsets: Mapping[TopicPartition, int],
        leaders: Mapping[TopicPartition, int],
        brokers: Sequence[EndpointEntry],
        now: int,
    ) -> None:
        """``offsets``, ``leaders``: of all partitions of the share."""
        request = member.start(share, now)
        self._watch(member, request, now)
        threads = tuple(
            AssignedThread(
                thread_id, tuple(ConsumedOffset(key[0], leaders[key], key[1], offsets[key]) for key in partitions)
            )
            for thread_id, partitions in sorted(share.items())
        )
        body = StartFetcherRequest(member.consumer_id, threads, tuple(brokers))
        frame = encode_start_fetcher(request.correlation_id, body, self._base)
        self._effects.add(SendFrame(member.connection, frame))

    def _watch(self, member: GroupMember, request: OpenRequest, now: int) -> None:
        deadline = now + response_timeout(member.session_timeout_ms)
        self._purgatories[request.api_key].watch(member.connection, request.correlation_id, deadline)

    # Responses

    def answered(self, member: GroupMember, response: ConsumerResponse, now: int) -> OpenRequest | Unasked:
        """Take a response. Return what it answers."""
        number = response.correlation_id
        if not member.was_sent(number) or response.consumer_id != member.consumer_id:
            return Unasked.MALFORMED
        self._clear_withheld(member)
        is_repeated = member.repeats(number)
        request = member.heard(number, now)
        if request is None and is_repeated:
            return Unasked.REPEATED
        if request is None:
            self._effects.count("pings_total", "late")
            return Unasked.LATE
        self._purgatories[request.api_key].clear(member.connection, number)
        return request if request.api_key == response.api_key else Unasked.MALFORMED

    def expire(self, now: int, is_mute: Callable[[GroupMember], bool]) -> Expired | None:
        """Return a watcher that has expired. It is gone from its purgatory, and counted at its member.

        The watchers of members for which ``is_mute`` is true stand still: they get a new deadline.
        """
        for purgatory in self._purgatories.values():
            while (expired := purgatory.expire(now)) is not None:
                connection, number = expired
                member = self._members[connection]
                if not is_mute(member):
                    return Expired(member, member.expired(number))
                purgatory.watch(connection, number, now + response_timeout(member.session_timeout_ms))
        return None

    def is_overdue(self, member: GroupMember, now: int) -> bool:
        """Whether its latest StopFetcher or StartFetcher is not answered, and should be by now."""
        for request in member.open_requests():
            if member.is_latest_order(request):
                deadline = self._purgatories[request.api_key].deadline(member.connection, request.correlation_id)
                return deadline is not None and deadline <= now
        return False

    def due(self) -> int | None:
        """When the next ping or deadline is due."""
        times = [self._pings.due(), *(purgatory.due() for purgatory in self._purgatories.values())]
        return min((at for at in times if at is not None), default=None)

    def _clear_withheld(self, member: GroupMember) -> None:
        for number in member.withheld_pings():
            self._purgatory_of_withheld.clear(member.connection, number)
