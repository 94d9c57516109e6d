"""A consumer's membership under any order of events that can be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from proxy.client.consumer.effects import AssignPartitions, CloseLink, MembershipEnded, OpenLink, SendToCoordinator
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
from proxy.client.consumer.membership import ConsumerMembership
from proxy.client.consumer.states import FetchingState, LinkState
from proxy.coordinator import wire
from tests.unit.consumer.driven import BROKERS, LEASE, SETTINGS

PARTITIONS = [("t", 0), ("t", 1), ("u", 0)]


class Membership(RuleBasedStateMachine):
    """Knows what the connection and the fetcher are, and what was heard last."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ConsumerMembership(SETTINGS, lambda: 0.5)
        self.now = 0
        self.heard_at = -LEASE
        self.link = "none"
        """``none``, ``connecting`` or ``open``."""
        self.request = b""
        self.registration_is_open = False
        self.commands: list[int] = []
        self.has_ended = False
        self.handle(ConsumerStarted())
        self.join(PARTITIONS[:2])

    def handle(self, event: MembershipEvent) -> None:
        for effect in self.machine.handle(event, self.now):
            assert not self.has_ended
            match effect:
                case OpenLink():
                    assert self.link == "none"
                    self.link = "connecting"
                case SendToCoordinator(frame):
                    assert self.link == "open"
                    if self.machine.link in (LinkState.SEEK, LinkState.REGISTER):
                        self.request = frame
                        self.registration_is_open = frame[4:6] == wire.REGISTER_CONSUMER.to_bytes(2, "big")
                case CloseLink(reset):
                    assert self.link != "none"
                    is_registered = self.machine.link is LinkState.JOINED or self.registration_is_open
                    assert reset or not is_registered or not self.machine.assignment, "a FIN of one who fetches"
                    self.link, self.registration_is_open = "none", False
                case AssignPartitions(command):
                    self.commands.append(command)
                case MembershipEnded():
                    assert self.link == "none"
                    self.has_ended = True

    @rule(milliseconds=st.sampled_from([1, 50, 300, 1500]))
    def pass_time(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.handle(None)

    @precondition(lambda self: self.link == "connecting")
    @rule()
    def connect(self) -> None:
        self.link = "open"
        self.handle(LinkConnected())

    @precondition(lambda self: self.link == "connecting")
    @rule(refused=st.booleans())
    def fail(self, refused: bool) -> None:
        self.link = "none"
        self.handle(LinkFailed("no", refused))

    @precondition(lambda self: self.link == "open")
    @rule()
    def lose(self) -> None:
        self.link, self.registration_is_open = "none", False
        self.handle(LinkEnded("gone"))

    def receive(self, frame: bytes, heard_at: int) -> None:
        self.handle(FrameReceived(frame[4:], heard_at))

    @precondition(lambda self: self.link == "open" and self.machine.link in (LinkState.SEEK, LinkState.REGISTER))
    @rule(broker_id=st.sampled_from([1, 2, 3]), code=st.sampled_from([0, 0, 0, 14, 15, 16, 81, 92]))
    def respond(self, broker_id: int, code: int) -> None:
        correlation_id = int.from_bytes(self.request[8:12], "big")
        if self.machine.link is LinkState.SEEK:
            body = wire.encode_cluster_metadata_response(wire.ClusterMetadataResponse(0, broker_id, BROKERS))
        else:
            body = wire.encode_register_consumer_response(2, wire.RegisterConsumerResponse(code, broker_id, 1))
            self.registration_is_open = False
        self.receive(wire.response_frame(correlation_id, body), self.now)

    @precondition(lambda self: self.link == "connecting" and self.machine.link is not LinkState.LEAVING)
    @rule(partitions=st.lists(st.sampled_from(PARTITIONS), unique=True))
    def join(self, partitions: list[tuple[str, int]]) -> None:
        """What is usual."""
        while self.machine.link is not LinkState.JOINED:
            if self.link == "connecting":
                self.connect()
            else:
                self.respond(1, 0)
        if partitions:
            self.request_something("start", partitions, 0)

    @precondition(lambda self: self.machine.link in (LinkState.JOINED, LinkState.LEAVING))
    @rule(
        what=st.sampled_from(["ping", "stop", "stop some", "start"]),
        partitions=st.lists(st.sampled_from(PARTITIONS), unique=True),
        age=st.integers(0, 200),
    )
    def request_something(self, what: str, partitions: list[tuple[str, int]], age: int) -> None:
        heard_at = max(0, self.now - age)
        if what == "ping":
            frame = wire.encode_ping(1, wire.PingRequest("c1", 0))
        elif what == "start":
            offsets = tuple(wire.ConsumedOffset(topic, 1, partition, 7) for topic, partition in partitions)
            request = wire.StartFetcherRequest("c1", (wire.AssignedThread("c1-0", offsets),), BROKERS)
            frame = wire.encode_start_fetcher(1, request)
        else:
            some = None if what == "stop" else tuple(partitions)
            frame = wire.encode_stop_fetcher(1, wire.StopFetcherRequest("c1", some))
        self.heard_at = max(self.heard_at, heard_at)
        self.receive(frame, heard_at)

    @precondition(lambda self: self.commands)
    @rule(error=st.sampled_from([None, None, None, "no such stream"]))
    def do_a_command(self, error: str | None) -> None:
        self.handle(FetcherDone(self.commands.pop(0), error))

    @rule(which=st.sampled_from(PARTITIONS))
    def hand_out(self, which: tuple[str, int]) -> None:
        for one in self.machine.assignment.partitions:
            if (one.topic, one.partition) == which and self.may_hand_out(one):
                self.machine.handed_out(*which, 8)

    @rule(which=st.sampled_from(PARTITIONS))
    def be_out_of_range(self, which: tuple[str, int]) -> None:
        for one in self.machine.assignment.partitions:
            if (one.topic, one.partition) == which:
                self.handle(OffsetOutOfRange(*which, one.epoch, one.offset))

    @precondition(lambda self: self.machine.link is LinkState.JOINED)
    @rule(event=st.sampled_from([SubscriptionChanged('{"t":1}')] * 5 + [LeaveRequested()]))
    def change(self, event: Any) -> None:
        self.handle(event)

    def may_hand_out(self, one: Any) -> bool:
        return self.machine.may_hand_out(one.topic, one.partition, one.epoch, self.now)

    @invariant()
    def hands_out_only_on_its_lease(self) -> None:
        if any(self.may_hand_out(one) for one in self.machine.assignment.partitions):
            assert self.machine.fetching is FetchingState.FETCHING
            assert self.now < self.heard_at + LEASE

    @invariant()
    def is_stopped_if_and_only_if_nothing_is_assigned(self) -> None:
        assert (self.machine.fetching is FetchingState.STOPPED) == (not self.machine.assignment)

    @invariant()
    def goes_on_by_itself_until_it_has_ended(self) -> None:
        assert self.has_ended == (self.machine.link is LinkState.CLOSED)
        assert (self.machine.due() is None) == self.has_ended


@pytest.mark.promise(
    "consumer.md", "A consumer hands out messages on its lease alone, whatever happens in which order."
)
def test_a_membership_keeps_its_promises_under_any_order_of_events() -> None:
    search = settings(settings.get_profile("fast"), max_examples=150, stateful_step_count=40)
    run_state_machine_as_test(Membership, settings=search)
