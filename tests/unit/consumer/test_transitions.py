"""Every cell of the membership's table, and what follows when a connection is lost."""

from collections.abc import Callable

import pytest

from proxy.client.consumer import events as ev
from proxy.client.consumer.effects import CloseLink, MembershipEnded, OpenLink, SendToCoordinator
from proxy.client.consumer.membership import TRANSITIONS
from proxy.client.consumer.states import FetchingState, LinkState
from proxy.coordinator import wire
from tests.unit.consumer.driven import (
    COORDINATOR,
    LEASE,
    SECOND,
    SETTINGS,
    Driven,
    fetching,
    of,
    registering,
    responses,
    seeking,
)

SEEK, REGISTER, JOINED, LEAVING, CLOSED = LinkState
STOPPED, FETCHING, HELD = FetchingState

PING_1 = ev.FrameReceived(wire.encode_ping(1, wire.PingRequest("c1", 0))[4:], 0)
NO_COORDINATOR = ev.FrameReceived(bytes.fromhex("00000001000fffffffff0000"), 0)
NOT_HERE = ev.FrameReceived(bytes.fromhex("0000000200100000000100000000"), 0)
OUT_OF_RANGE, OTHER_TOPICS = ev.OffsetOutOfRange("t", 0, 1, 42), ev.SubscriptionChanged('{"t":3}')


def leaving() -> Driven:
    driven = fetching()
    driven.handle(ev.LeaveRequested())
    return driven


def closed() -> Driven:
    driven = seeking()
    driven.handle(ev.LeaveRequested())
    return driven


def connecting() -> Driven:
    driven = Driven()
    driven.handle(ev.ConsumerStarted())
    return driven


def connecting_to_coordinator() -> Driven:
    driven = seeking()
    driven.respond_coordinator()
    return driven


CELLS: list[tuple[Callable[[], Driven], ev.MembershipEvent, LinkState, FetchingState, str]] = [
    (Driven, ev.ConsumerStarted(), SEEK, STOPPED, "OpenLink"),
    (connecting, ev.LinkConnected(), SEEK, STOPPED, "SendToCoordinator"),
    (connecting, ev.LinkFailed("no"), SEEK, STOPPED, ""),
    (seeking, ev.LinkEnded("gone"), SEEK, STOPPED, ""),
    (seeking, NO_COORDINATOR, SEEK, STOPPED, "CloseLink"),
    (seeking, ev.FetcherDone(0), SEEK, STOPPED, ""),
    (seeking, OUT_OF_RANGE, SEEK, STOPPED, ""),
    (seeking, OTHER_TOPICS, SEEK, STOPPED, ""),
    (seeking, ev.LeaveRequested(), CLOSED, STOPPED, "CloseLink MembershipEnded"),
    (connecting_to_coordinator, ev.LinkConnected(), REGISTER, STOPPED, "SendToCoordinator"),
    (connecting_to_coordinator, ev.LinkFailed("no"), SEEK, STOPPED, ""),
    (registering, ev.LinkEnded("gone"), SEEK, STOPPED, ""),
    (registering, NOT_HERE, SEEK, STOPPED, "CloseLink"),
    (registering, ev.FetcherDone(0), REGISTER, STOPPED, ""),
    (registering, OUT_OF_RANGE, REGISTER, STOPPED, ""),
    (registering, OTHER_TOPICS, SEEK, STOPPED, "CloseLink OpenLink"),
    (registering, ev.LeaveRequested(), CLOSED, STOPPED, "CloseLink MembershipEnded"),
    (fetching, ev.LinkEnded("gone"), REGISTER, HELD, "OpenLink"),
    (fetching, PING_1, JOINED, FETCHING, "SendToCoordinator"),
    (fetching, ev.FetcherDone(1), JOINED, FETCHING, ""),
    (fetching, OUT_OF_RANGE, LEAVING, STOPPED, "AssignPartitions SendToCoordinator"),
    (fetching, OTHER_TOPICS, LEAVING, STOPPED, "AssignPartitions SendToCoordinator"),
    (fetching, ev.LeaveRequested(), LEAVING, STOPPED, "AssignPartitions SendToCoordinator"),
    (leaving, ev.LinkEnded("gone"), CLOSED, STOPPED, "MembershipEnded"),
    (leaving, PING_1, LEAVING, STOPPED, "SendToCoordinator SendToCoordinator"),
    (leaving, ev.FetcherDone(2), LEAVING, STOPPED, ""),
    (leaving, OUT_OF_RANGE, LEAVING, STOPPED, ""),
    (leaving, OTHER_TOPICS, LEAVING, STOPPED, ""),
    (leaving, ev.LeaveRequested(), LEAVING, STOPPED, ""),
    (closed, ev.FetcherDone(1), CLOSED, STOPPED, ""),
    (closed, OUT_OF_RANGE, CLOSED, STOPPED, ""),
    (closed, OTHER_TOPICS, CLOSED, STOPPED, ""),
    (closed, ev.LeaveRequested(), CLOSED, STOPPED, ""),
]


def test_every_cell_of_the_table() -> None:
    for before, event, link, fetches, effects in CELLS:
        driven = before()
        found = driven.lose(event) if isinstance(event, ev.LinkFailed | ev.LinkEnded) else driven.handle(event)
        cell = f"{before.__name__}: {event}"
        assert " ".join(type(one).__name__ for one in found) == effects, cell
        assert (driven.machine.link, driven.machine.fetching) == (link, fetches), cell
    assert {(before().machine.link, type(event)) for before, event, *_ in CELLS} == set(TRANSITIONS)


def lost(detached_fetching: bool = True) -> Driven:
    """It is HELD, and connects to its coordinator's address again."""
    driven = fetching(SETTINGS._replace(detached_fetching=detached_fetching))
    driven.lose(ev.LinkEnded("reset"))
    assert not driven.hand_out("t", 0, 43)
    assert driven.link == COORDINATOR
    return driven


def back(detached_fetching: bool = True) -> Driven:
    """It has asked there to be registered again."""
    driven = lost(detached_fetching)
    driven.handle(ev.LinkConnected())
    return driven


def refused(driven: Driven) -> Driven:
    driven.lose(ev.LinkFailed("refused", refused=True))
    return driven


def states(driven: Driven) -> tuple[LinkState, FetchingState]:
    return driven.machine.link, driven.machine.fetching


@pytest.mark.promise("consumer.md", "A consumer goes on for up to 0.95 T where the address of its coordinator refuses.")
def test_a_refused_connection_means_that_the_lease_goes_on() -> None:
    driven = refused(lost())
    assert states(driven) == (SEEK, FETCHING)
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(LEASE - 1)
    assert driven.hand_out("t", 0, 44)
    driven.pass_time(1)
    assert not driven.hand_out("t", 0, 45)
    assert driven.machine.fetching is STOPPED
    assert driven.assigned == ()
    for code in (15, 16):
        driven = back()
        driven.respond_registered(code)
        assert states(driven) == (SEEK, FETCHING), f"an answer of no coordinator means the same: {code}"


@pytest.mark.promise(
    "consumer.md", "With `detached_fetching=False` a consumer without its coordinator fetches nothing."
)
def test_without_detached_fetching_it_stays_held() -> None:
    assert states(refused(lost(detached_fetching=False))) == (SEEK, HELD)
    driven = back(detached_fetching=False)
    driven.respond_registered(15)
    assert states(driven) == (SEEK, HELD)


def test_what_is_started_later_than_the_lease_of_the_lost_connection_begins_anew() -> None:
    """Pings of the new connection do not help: another consumer may have had the partition in between."""
    driven = back()
    driven.respond_registered()
    for _ in range(2):
        driven.pass_time(LEASE // 2 - 1)
        driven.ping()
    assert driven.machine.fetching is HELD
    driven.pass_time(2)
    assert states(driven) == (JOINED, STOPPED)
    driven.start()
    assert (driven.machine.fetching, driven.log[-1]) == (STOPPED, "partitions to fetch: 0")
    driven.start((("t", 0, 7),))
    assert driven.assigned[0].offset == 7
    assert driven.machine.assignment.next_offsets == {}


def register_elsewhere(driven: Driven) -> None:
    """It has asked a successor to be registered."""
    while driven.machine.link is not REGISTER:
        driven.pass_time(1)
        if driven.link is not None:
            driven.handle(ev.LinkConnected())
            driven.respond_coordinator()
    driven.handle(ev.LinkConnected())


def test_who_may_be_registered_without_knowing_fetches_on_the_lease_of_before() -> None:
    """The coordinator gives the partitions away when that lease is over, whatever it hears over another connection."""
    for connection_ends in (True, False):
        driven = refused(lost())
        register_elsewhere(driven)
        if connection_ends:
            driven.lose(ev.LinkEnded("reset"))
        else:
            while driven.machine.link is REGISTER:
                driven.pass_time(1)
        register_elsewhere(driven)
        driven.respond_registered()
        assert driven.machine.fetching is FETCHING
        assert driven.hand_out("t", 0, 43)
        (response,) = responses(driven.ping())
        assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 44),)
        driven.pass_time(LEASE - driven.now)
        assert states(driven) == (JOINED, STOPPED), connection_ends
        assert not driven.hand_out("t", 0, 44)


@pytest.mark.promise(
    "consumer.md", "A consumer whose connection was lost hands out nothing until its coordinator starts it again."
)
def test_registered_again_it_is_held_until_start_fetcher() -> None:
    driven = back()
    driven.respond_registered()
    driven.ping()
    assert states(driven) == (JOINED, HELD)
    assert not driven.hand_out("t", 0, 43)
    before = driven.assigned
    driven.start((("t", 0, 43),))
    assert driven.machine.fetching is FETCHING
    assert driven.assigned == before, "it goes on where it is"
    assert driven.hand_out("t", 0, 43)


def test_what_an_error_of_the_registration_means_while_it_is_held() -> None:
    for code in (14, 92):
        driven = back()
        assert driven.respond_registered(code) == []
        assert driven.machine.fetching is HELD
        (again,) = driven.pass_time(100)
        assert isinstance(again, SendToCoordinator), f"asked again over the same connection: {code}"
        assert driven.link == COORDINATOR
    for code in (27, 81):
        driven = back()
        driven.respond_registered(code)
        assert states(driven) == (SEEK, STOPPED), code


def test_held_it_asks_the_coordinator_and_the_others_in_turn() -> None:
    driven = lost()
    tried = []
    for _ in range(4):
        driven.lose(ev.LinkFailed("no route"))
        assert driven.machine.fetching is HELD
        tried += [one.address for one in of(OpenLink, driven.pass_time(1500))]
    assert tried == [SECOND, COORDINATOR, SETTINGS.bootstrap_brokers[0], COORDINATOR][: len(tried)]
    assert len(tried) >= 3


def test_a_refusal_counts_only_of_the_coordinator_and_before_another_registration() -> None:
    """The coordinator in between may have seen the partition given to another consumer."""
    driven = back()
    driven.respond_registered()
    driven.ping()
    driven.lose(ev.LinkEnded("reset"))
    assert refused(driven).machine.fetching is HELD
    driven = lost()
    driven.lose(ev.LinkFailed("no route"))
    driven.pass_time(150)
    assert driven.link == SECOND
    assert refused(driven).machine.fetching is HELD


def test_a_registration_is_given_up_with_a_fin_by_one_who_has_stopped_alone() -> None:
    """A FIN would tell the successor that its partitions are free."""
    driven = refused(lost())
    driven.pass_time(150)
    driven.handle(ev.LinkConnected())
    driven.respond_coordinator(2)
    assert [one.reset for one in of(CloseLink, driven.pass_time(3000))] == [True]
    assert driven.machine.fetching is FETCHING
    assert [one.reset for one in of(CloseLink, registering().pass_time(10_000))] == [False]


@pytest.mark.promise("consumer.md", "An error of the registration that stays ends the consumer, and names the error.")
def test_an_error_that_stays_ends_the_consumer() -> None:
    for code in (17, 24, 26, 29, 30, 42, 68):
        (ended,) = of(MembershipEnded, registering().respond_registered(code))
        said = "group g has members of Kafka's own group protocols, which call subscribe()"
        assert (f"(error {code})" if code != 68 else said) in (ended.error or ""), code


@pytest.mark.promise(
    "coordinator.md", "A consumer whose sidecar does not coordinate logs `coordinator.enabled is false`, and goes on."
)
def test_who_is_no_coordinator_is_named() -> None:
    for state in (seeking, registering):
        driven = state()
        while not of(CloseLink, driven.effects):
            driven.respond(b"")  # the version is not supported
        assert "coordinator.enabled is false" in driven.log[-1]
        assert driven.machine.link is SEEK
    driven = seeking()
    driven.lose(ev.LinkEnded("b:1: the connection was closed by the other side"))
    assert driven.log[-1] == "b:1: the connection was closed by the other side; is it a sidecar?"
