"""A consumer's membership in its group: where its coordinator is, what it may fetch, and until when.

Pure, without IO, clock and threads: events in, effects out, time passed in. Two states: that of the link to the
coordinator, and that of fetching. ``TRANSITIONS`` lists what can happen in each state of the link.

The lease: a consumer hands out messages for 0.95 T after it last heard a request of its coordinator (T: its session
timeout). A coordinator gives a partition to another one 4T/3 after its last request to a consumer that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from proxy.client.consumer.addresses import CoordinatorAddresses
from proxy.client.consumer.assignment import ConsumerAssignment, TopicPartition
from proxy.client.consumer.backoff import LEASE_BACKOFF_MS, MAX_BACKOFF_MS, Backoff
from proxy.client.consumer.effects import (
    AssignPartitions,
    CloseLink,
    LogMembership,
    MembershipEffect,
    MembershipEnded,
    OpenLink,
    SendToCoordinator,
)
from proxy.client.consumer.events import (
    ConsumerStarted,
    FetcherDone,
    FrameReceived,
    LeaveRequested,
    LinkConnected,
    LinkEnded,
    LinkFailed,
    MembershipEvent,
    OffsetOutOfRange,
    SubscriptionChanged,
)
from proxy.client.consumer.lease import ConsumerLease
from proxy.client.consumer.patience import CONNECT_TIMEOUT_MS, REGISTER_TIMEOUT_MS, Patience
from proxy.client.consumer.registration_errors import FATAL, NOT_COORDINATOR, NOT_SUPPORTED, TRY_AGAIN, describe_error
from proxy.client.consumer.responses import DelayedResponses
from proxy.client.consumer.settings import LATEST_VERSION, MembershipSettings
from proxy.client.consumer.states import FetchingState, LinkState, LinkStep
from proxy.config.values import Endpoint
from proxy.coordinator import wire
from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.wire import (
    ConsumedOffset,
    ConsumerResponse,
    PingRequest,
    StartFetcherRequest,
    StopFetcherRequest,
)
from proxy.errors import MalformedBody

REGISTRATIONS_OF_A_LINK = 5
"""After so many attempts on one connection, whether this is still the coordinator is asked for again."""


class ConsumerMembership:
    """For one thread at a time."""

    def __init__(self, settings: MembershipSettings, random: Callable[[], float]) -> None:
        """``random``: gives numbers from 0 to 1."""
        self.link = LinkState.SEEK
        self.fetching = FetchingState.STOPPED
        self.assignment = ConsumerAssignment(settings.auto_offset_reset)
        self._settings = settings
        self._lease = ConsumerLease(settings.session_timeout_ms)
        self._patience = Patience(settings.session_timeout_ms)
        self._now = 0
        self._effects: list[MembershipEffect] = []
        self._step = LinkStep.WAIT
        self._timer: int | None = None
        """When the step has lasted too long, or WAIT and PAUSE are over; of LEAVING: when it is given up."""
        self._backoff = Backoff(random)
        self._address: Endpoint | None = None
        """Of the connection, or of the attempt to connect."""
        self._version = 0
        """Of the request that is asked."""
        self._correlation_id = self._registrations = 0
        self._addresses = CoordinatorAddresses(settings.bootstrap_brokers)
        self._held_by: Endpoint | None = None
        """The coordinator whose connection was lost while FETCHING; None once another registration has followed."""
        self._responses = DelayedResponses()
        self._pings_to_answer = 0
        self._leaving_error: str | None = None
        self._registers_again = False

    def may_hand_out(self, topic: str, partition: int, epoch: int, now: int) -> bool:
        """Whether a message that was fetched with this epoch may be handed out now."""
        is_mine = self.fetching is FetchingState.FETCHING and now < self._lease.end
        return is_mine and self.assignment.has(topic, partition, epoch)

    def handed_out(self, topic: str, partition: int, next_offset: int) -> None:
        """Note that the application has got the message before ``next_offset``."""
        self.assignment.handed_out(topic, partition, next_offset)

    def committable(self, now: int) -> dict[TopicPartition, int] | None:
        """Return the offsets to consume next of what is this consumer's for certain, also of what StopFetcher has
        stopped as long as that is not answered; None if nothing is."""
        is_mine = self.fetching is FetchingState.FETCHING or self._responses.is_waiting
        return self.assignment.next_offsets if is_mine and now < self._lease.end else None

    def due(self) -> int | None:
        """Return when ``handle`` has to be called at the latest; None: not before there is an event."""
        times = [] if self._timer is None else [self._timer]
        if self._has_lease:
            times.append(self._lease.end)
        if self.link is LinkState.JOINED:
            times.append(self._lease.silence_end)
        return min(times, default=None)

    def handle(self, event: MembershipEvent, now: int) -> list[MembershipEffect]:
        """Return what is to be done for an event, in order. ``now``: milliseconds; it never goes back."""
        self._now, self._effects = now, []
        self._expire()
        has_closed = any(isinstance(effect, CloseLink) for effect in self._effects)
        if event is not None and not (has_closed and isinstance(event, OF_THE_LINK)):
            TRANSITIONS[self.link, type(event)](self, event)
        return self._effects

    # Time

    def _expire(self) -> None:
        """Do what time alone brings about."""
        if self._has_lease and self._now >= self._lease.end:
            self._log("warning", "the lease of the coordinator is over: fetching is stopped")
            self._stop()
        if self.link is LinkState.JOINED:
            if self._now >= self._lease.silence_end:
                self._patience.coordinator_was_silent(self._addresses.coordinator, self._now)
                self._stop()
                self._close()
                self._seek_again(at_once=self._lease.has_heard)
        elif self._timer is not None and self._now >= self._timer:
            self._timer = None
            if self.link is LinkState.LEAVING:
                self._left()
            elif self._step is LinkStep.WAIT:
                self._attempt()
            elif self._step is LinkStep.PAUSE:
                self._ask(self._version)
            else:
                self._log("warning", f"{self._address}: no answer in time")
                self._close()
                self._seek_again()

    def _limit(self, most_ms: int, share: int) -> int:
        return self._patience.limit(most_ms, share, self._address, self._now, has_lease=self._has_lease)

    @property
    def _has_lease(self) -> bool:
        return self.fetching is not FetchingState.STOPPED

    def _back_off(self) -> int:
        """Return when the next attempt is made."""
        return self._now + self._backoff.take(self._limit(LEASE_BACKOFF_MS if self._has_lease else MAX_BACKOFF_MS, 4))

    # Attempts to find the coordinator, and to register

    def _attempt(self, _: object = None) -> None:
        known = self._addresses.known_coordinator(is_held=self.fetching is FetchingState.HELD)
        if known is not None:
            self._open(LinkState.REGISTER, known)
        else:
            self._open(LinkState.SEEK, self._addresses.next_broker())

    def _seek_again(self, *, at_once: bool = False) -> None:
        """The connection is gone: begin anew."""
        if self._may_be_registered:
            self._lease.hold()
        self.link, self._step = LinkState.SEEK, LinkStep.WAIT
        self._responses.forget()
        self.assignment.settle()
        if at_once:
            self._attempt()
        else:
            self._timer = self._back_off()

    def _open(self, link: LinkState, address: Endpoint) -> None:
        self.link, self._step, self._address = link, LinkStep.CONNECT, address
        self._registrations = 0
        self._timer = self._now + self._limit(CONNECT_TIMEOUT_MS, 4)
        self._effects.append(OpenLink(address))

    @property
    def _may_be_registered(self) -> bool:
        """Whether a coordinator may have registered this consumer, which fetches on its lease, without its knowing. It
        sees the connection go, and gives the partitions to others once that lease is over."""
        return self.link is LinkState.REGISTER and self._step is LinkStep.ASK and self._has_lease

    def _close(self) -> None:
        """Close the connection. A FIN would mean to a coordinator that this consumer has stopped."""
        self._effects.append(CloseLink(reset=self._may_be_registered))

    def _link_failed(self, event: LinkFailed) -> None:
        self._log("warning", event.reason)
        self._step = LinkStep.WAIT
        if event.fatal:
            self._end(event.reason)
            return
        if event.refused:
            self._no_coordinator_here()
        self._seek_again()

    def _attempt_ended(self, event: LinkEnded) -> None:
        self._log("warning", event.reason + ("; is it a sidecar?" if self.link is LinkState.SEEK else ""))
        self._seek_again()

    def _connected(self, _: LinkConnected) -> None:
        self._ask(LATEST_VERSION[self.link])

    def _ask(self, version: int) -> None:
        """Send the request of this state."""
        self._step, self._version = LinkStep.ASK, version
        self._correlation_id += 1
        limits = (CONNECT_TIMEOUT_MS, 4) if self.link is LinkState.SEEK else (REGISTER_TIMEOUT_MS, 2)
        self._timer = self._now + self._limit(*limits)
        self._effects.append(SendToCoordinator(self._settings.request(self.link, version, self._correlation_id)))

    def _answer_to_ask(self, event: FrameReceived) -> bytes | None:
        """Return what follows the correlation id; None where the version is not supported. Raises MalformedBody."""
        if self._step is not LinkStep.ASK or event.frame[:4] != self._correlation_id.to_bytes(4, "big"):
            raise MalformedBody("broker", "a response to another request")
        self._backoff.answered()
        if event.frame[4:]:
            return event.frame[4:]
        if self._version > 0:
            self._ask(self._version - 1)
        else:
            self._give_up_link(NOT_SUPPORTED)
        return None

    def _coordinator_found(self, event: FrameReceived) -> None:
        try:
            if (body := self._answer_to_ask(event)) is None:
                return
            found = wire.decode_cluster_metadata_response(body)
        except MalformedBody as error:
            self._give_up_link(error)
            return
        addresses = {one.broker_id: Endpoint(one.host, one.port) for one in found.brokers}
        address = addresses.get(found.coordinator_id)
        if found.error_code in FATAL:
            self._end(describe_error(found.error_code, self._settings.group_id))
        elif found.error_code or address is None:
            code = found.error_code or RegistrationCode.NOT_AVAILABLE
            self._log("info", describe_error(code, self._settings.group_id))
            self._close()
            self._seek_again()
        elif address == self._address:
            self.link = LinkState.REGISTER
            self._ask(LATEST_VERSION[self.link])
        else:
            self._close()
            self._open(LinkState.REGISTER, address)

    def _registration_answered(self, event: FrameReceived) -> None:
        try:
            if (body := self._answer_to_ask(event)) is None:
                return
            response = wire.decode_register_consumer_response(self._version, body)
        except MalformedBody as error:
            self._give_up_link(error)
            return
        code = response.error_code
        if not code:
            self._joined(response.generation, event.heard_at)
            return
        text = describe_error(code, self._settings.group_id)
        if code in FATAL:
            self._end(text)
            return
        level = "info" if code in (RegistrationCode.LOADING, *NOT_COORDINATOR) else "warning"
        self._log(level, f"{self._address}: {text}")
        self._registrations += 1
        if code in TRY_AGAIN and self._registrations < REGISTRATIONS_OF_A_LINK:
            self._step, self._timer = LinkStep.PAUSE, self._back_off()
            return
        if code in NOT_COORDINATOR:
            self._no_coordinator_here()
        elif code not in TRY_AGAIN:
            self._stop()
        self._step = LinkStep.PAUSE
        self._close()
        self._seek_again()

    def _no_coordinator_here(self) -> None:
        """Nobody at this address has seen the connection go: where it was the coordinator's, the lease goes on."""
        if self.fetching is FetchingState.HELD and self._address == self._held_by and self._settings.detached_fetching:
            self.fetching, self._held_by = FetchingState.FETCHING, None
            self._lease.go_on()
            self._log("info", f"{self._address}: no coordinator any more; fetching goes on until the lease ends")

    def _joined(self, generation: int, heard_at: int) -> None:
        self.link, self._timer = LinkState.JOINED, None
        self._addresses.registered(self._address)
        self._held_by = None
        self._lease.joined(heard_at)
        self._log("info", f"registered with {self._address}, generation {generation}")

    # Requests of the coordinator

    def _requested(self, event: FrameReceived) -> None:
        try:
            pushed = wire.decode_pushed(event.frame, self._settings.api_key)
            if pushed.request.consumer_id != self._settings.consumer_id:
                raise MalformedBody("broker", "a request to another consumer")
            self._lease.heard(event.heard_at)
            self._backoff.reset()
            match pushed.request:
                case PingRequest():
                    self._ping(pushed.correlation_id)
                case StopFetcherRequest(_, partitions):
                    self._stop_fetcher(pushed.correlation_id, partitions)
                case StartFetcherRequest():
                    self._start_fetcher(pushed.correlation_id, pushed.request)
        except MalformedBody as error:
            self._give_up_link(error)

    def _ping(self, correlation_id: int) -> None:
        self._respond([self._response(correlation_id, wire.PING, self._consumed())])
        if self.link is LinkState.LEAVING:
            self._pings_to_answer -= 1
            self._go_on_leaving()

    def _stop_fetcher(self, correlation_id: int, partitions: Iterable[TopicPartition] | None) -> None:
        consumed = self._consumed(partitions)
        self._stop(partitions)
        self._respond(self._responses.add(self._response(correlation_id, wire.STOP_FETCHER, consumed)))

    def _start_fetcher(self, correlation_id: int, request: StartFetcherRequest) -> None:
        response = self._response(correlation_id, wire.START_FETCHER, None)
        if self.link is LinkState.LEAVING:  # sent before the coordinator knew of it
            self.assignment.forget_offsets()
            self._respond([response])
            return
        self.assignment.start(request)
        self._lease.go_on()
        self.fetching = FetchingState.FETCHING if self.assignment else FetchingState.STOPPED
        self._log("info", f"partitions to fetch: {len(self.assignment.partitions)}")
        self._assign()
        self._respond(self._responses.add(response))

    def _consumed(self, partitions: Iterable[TopicPartition] | None = None) -> tuple[ConsumedOffset, ...] | None:
        return self.assignment.consumed(partitions) if self._settings.auto_commit else None

    def _response(
        self, correlation_id: int, api_key: int, consumed: tuple[ConsumedOffset, ...] | None
    ) -> ConsumerResponse:
        return ConsumerResponse(correlation_id, api_key, 0, self._settings.consumer_id, consumed)

    def _respond(self, responses: Iterable[ConsumerResponse]) -> None:
        for one in responses:
            self._responses.sent(one)
            self._effects.append(SendToCoordinator(wire.encode_response(one, self._settings.api_key)))

    def _fetcher_done(self, event: FetcherDone) -> None:
        if event.error is not None:
            self._log("warning", event.error)
            self._stop()
        self._respond(self._responses.done(event))
        if not self._responses.is_waiting:
            self.assignment.settle()

    def _give_up_link(self, error: object) -> None:
        """What came over the connection cannot be used."""
        self._log("warning", f"{self._address}: {error}")
        if self.link is LinkState.LEAVING:
            self._left()
            return
        if self.link is LinkState.JOINED:
            self._stop()
        self._close()
        self._seek_again()

    def _coordinator_lost(self, event: LinkEnded) -> None:
        self._log("warning", event.reason)
        if self.fetching is FetchingState.FETCHING:
            self.fetching, self._held_by = FetchingState.HELD, self._addresses.coordinator
            self._lease.hold()
        self._addresses.coordinator_lost()
        self._seek_again(at_once=self._lease.has_heard)

    # Fetching

    def _assign(self) -> None:
        self._effects.append(AssignPartitions(self._responses.next_command(), self.assignment.partitions))

    def _stop(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Fetch from these partitions no more; None: from none at all."""
        if self.assignment:
            self.assignment.stop(partitions)
            self._assign()
        if not self.assignment:
            self.fetching = FetchingState.STOPPED

    def _out_of_range(self, event: OffsetOutOfRange) -> None:
        if not self.assignment.mark_out_of_range(event.topic, event.partition, event.epoch, event.offset):
            return
        self._log("warning", f"{event.topic} [{event.partition}]: offset {event.offset} is out of range")
        if not self.assignment.has(event.topic, event.partition, event.epoch):
            return  # found with another one, or just before StopFetcher: one departure is for all of them
        if self.link is LinkState.JOINED:  # its other partitions go on where they are: they are reported before
            self._leave(registers_again=True)
        else:  # the next StartFetcher begins it anew
            self._stop([(event.topic, event.partition)])

    # Leaving

    def _change_subscription(self, event: SubscriptionChanged) -> None:
        self._settings = self._settings._replace(topic_count=event.topic_count)
        if self.link is LinkState.JOINED:
            self._leave(registers_again=True)
        elif self.link is not LinkState.LEAVING:
            self._stop()
            if self.link is LinkState.REGISTER and self._step is LinkStep.ASK:
                self._close()
                self._seek_again(at_once=True)

    def _leave_for_good(self, event: LeaveRequested) -> None:
        self._registers_again = False
        self._leaving_error = self._leaving_error or event.error
        if self.link is LinkState.JOINED:
            self._leave(registers_again=False)

    def _leave(self, *, registers_again: bool) -> None:
        """Stop, and go when the coordinator has the last offsets: the second ping shows that the response to the first
        one has arrived. A response that is repeated asks for a ping at once."""
        self._registers_again = registers_again
        has_offsets = self.assignment.is_unreported if self._settings.auto_commit else bool(self.assignment)
        self._stop()
        self.link = LinkState.LEAVING
        self._timer = self._lease.end_from(self._now)
        self._pings_to_answer = (2 if self._settings.auto_commit else 1) if has_offsets else 0
        self._go_on_leaving()

    def _go_on_leaving(self) -> None:
        if self._pings_to_answer:
            self._respond(self._responses.repeated())
        else:
            self._left()

    def _left(self) -> None:
        self._close()
        self._gone()

    def _gone(self, _: object = None) -> None:
        if self._registers_again:
            self._registers_again = False
            self._seek_again(at_once=True)
        else:
            self._closed(self._leaving_error)

    def _end(self, error: str | None) -> None:
        self._stop()
        if self._step is not LinkStep.WAIT:
            self._close()
        self._closed(error)

    def _closed(self, error: str | None) -> None:
        self.link, self._timer = LinkState.CLOSED, None
        self._responses.forget()
        self._effects.append(MembershipEnded(error))

    def _log(self, level: str, message: str) -> None:
        self._effects.append(LogMembership(level, message))


OF_THE_LINK = (LinkConnected, LinkFailed, LinkEnded, FrameReceived)
OF_THE_CONSUMER = (LeaveRequested, FetcherDone, OffsetOutOfRange, SubscriptionChanged)
ATTEMPTING = (LinkState.SEEK, LinkState.REGISTER)
RUNNING = (*ATTEMPTING, LinkState.JOINED, LinkState.LEAVING)

_Machine = ConsumerMembership
TRANSITIONS: Mapping[tuple[LinkState, type], Callable[[ConsumerMembership, Any], None]] = {
    (LinkState.SEEK, ConsumerStarted): _Machine._attempt,
    (LinkState.SEEK, FrameReceived): _Machine._coordinator_found,
    (LinkState.REGISTER, FrameReceived): _Machine._registration_answered,
    (LinkState.JOINED, LinkEnded): _Machine._coordinator_lost,
    (LinkState.JOINED, FrameReceived): _Machine._requested,
    (LinkState.JOINED, LeaveRequested): _Machine._leave_for_good,
    (LinkState.LEAVING, LinkEnded): _Machine._gone,
    (LinkState.LEAVING, FrameReceived): _Machine._requested,
    (LinkState.LEAVING, LeaveRequested): _Machine._leave_for_good,
    **{(LinkState.CLOSED, kind): lambda machine, event: None for kind in OF_THE_CONSUMER},
    **{(link, LinkConnected): _Machine._connected for link in ATTEMPTING},
    **{(link, LinkFailed): _Machine._link_failed for link in ATTEMPTING},
    **{(link, LinkEnded): _Machine._attempt_ended for link in ATTEMPTING},
    **{(link, LeaveRequested): lambda machine, event: machine._end(event.error) for link in ATTEMPTING},
    **{(link, FetcherDone): _Machine._fetcher_done for link in RUNNING},
    **{(link, OffsetOutOfRange): _Machine._out_of_range for link in RUNNING},
    **{(link, SubscriptionChanged): _Machine._change_subscription for link in RUNNING},
}
"""What is done for an event, by the state of the link. A pair that is not here cannot be."""
