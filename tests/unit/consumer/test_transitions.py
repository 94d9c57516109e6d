"""Every cell of the membership's table, and the table of a connection that is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.client.consumer.effects import CloseLink, MembershipEnded, OpenLink, SendToCoordinator
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
from proxy.client.consumer.membership import TRANSITIONS
from proxy.client.consumer.states import FetchingState, LinkState
from proxy.coordinator import wire
from tests.unit.consumer.driven import (
    COORDINATOR,
    LEASE,
    SECOND,
    SETTINGS,
    T0_AT_42,
    Driven,
    fetching,
    joined,
    of,
    registering,
    responses,
    seeking,
)

SEEK, REGISTER, JOINED, LEAVING, CLOSED = LinkState
STOPPED, FETCHING, HELD = FetchingState

PING_1 = FrameReceived(wire.encode_ping(1, wire.PingRequest("c1", 0))[4:], 0)
NO_COORDINATOR = FrameReceived(bytes.fromhex("00000001000fffffffff0000"), 0)
NOT_HERE = FrameReceived(bytes.fromhex("0000000200100000000100000000"), 0)


def leaving() -> Driven:
    driven = fetching()
    driven.handle(LeaveRequested())
    return driven


def closed() -> Driven:
    driven = seeking()
    driven.handle(LeaveRequested())
    return driven


def connecting() -> Driven:
    driven = Driven()
    driven.handle(ConsumerStarted())
    return driven


def connecting_to_coordinator() -> Driven:
    driven = seeking()
    driven.respond_coordinator()
    return driven


CELLS: list[tuple[Callable[[], Driven], MembershipEvent, LinkState, FetchingState, list[str]]] = [
    (Driven, ConsumerStarted(), SEEK, STOPPED, ["OpenLink"]),
    (connecting, LinkConnected(), SEEK, STOPPED, ["SendToCoordinator"]),
    (connecting, LinkFailed("no"), SEEK, STOPPED, []),
    (seeking, LinkEnded("gone"), SEEK, STOPPED, []),
    (seeking, NO_COORDINATOR, SEEK, STOPPED, ["CloseLink"]),
    (seeking, FetcherDone(0), SEEK, STOPPED, []),
    (seeking, OffsetOutOfRange("t", 0, 1, 42), SEEK, STOPPED, []),
    (seeking, SubscriptionChanged('{"t":3}'), SEEK, STOPPED, []),
    (seeking, LeaveRequested(), CLOSED, STOPPED, ["CloseLink", "MembershipEnded"]),
    (connecting_to_coordinator, LinkConnected(), REGISTER, STOPPED, ["SendToCoordinator"]),
    (connecting_to_coordinator, LinkFailed("no"), SEEK, STOPPED, []),
    (registering, LinkEnded("gone"), SEEK, STOPPED, []),
    (registering, NOT_HERE, SEEK, STOPPED, ["CloseLink"]),
    (registering, FetcherDone(0), REGISTER, STOPPED, []),
    (registering, OffsetOutOfRange("t", 0, 1, 42), REGISTER, STOPPED, []),
    (registering, SubscriptionChanged('{"t":3}'), SEEK, STOPPED, ["CloseLink", "OpenLink"]),
    (registering, LeaveRequested(), CLOSED, STOPPED, ["CloseLink", "MembershipEnded"]),
    (fetching, LinkEnded("gone"), REGISTER, HELD, ["OpenLink"]),
    (fetching, PING_1, JOINED, FETCHING, ["SendToCoordinator"]),
    (fetching, FetcherDone(1), JOINED, FETCHING, []),
    (fetching, OffsetOutOfRange("t", 0, 1, 42), LEAVING, STOPPED, ["AssignPartitions", "SendToCoordinator"]),
    (fetching, SubscriptionChanged('{"t":3}'), LEAVING, STOPPED, ["AssignPartitions", "SendToCoordinator"]),
    (fetching, LeaveRequested(), LEAVING, STOPPED, ["AssignPartitions", "SendToCoordinator"]),
    (leaving, LinkEnded("gone"), CLOSED, STOPPED, ["MembershipEnded"]),
    (leaving, PING_1, LEAVING, STOPPED, ["SendToCoordinator", "SendToCoordinator"]),
    (leaving, FetcherDone(2), LEAVING, STOPPED, []),
    (leaving, OffsetOutOfRange("t", 0, 1, 42), LEAVING, STOPPED, []),
    (leaving, SubscriptionChanged('{"t":3}'), LEAVING, STOPPED, []),
    (leaving, LeaveRequested(), LEAVING, STOPPED, []),
    (closed, FetcherDone(1), CLOSED, STOPPED, []),
    (closed, OffsetOutOfRange("t", 0, 1, 42), CLOSED, STOPPED, []),
    (closed, SubscriptionChanged('{"t":3}'), CLOSED, STOPPED, []),
    (closed, LeaveRequested(), CLOSED, STOPPED, []),
]


@pytest.mark.parametrize(
    ("before", "event", "link", "fetches", "effects"),
    CELLS,
    ids=[f"{before.__name__}-{type(event).__name__}" for before, event, *_ in CELLS],
)
def test_cell(
    before: Callable[[], Driven], event: MembershipEvent, link: LinkState, fetches: FetchingState, effects: list[str]
) -> None:
    driven = before()
    found = driven.lose(event) if isinstance(event, LinkFailed | LinkEnded) else driven.handle(event)
    assert [type(one).__name__ for one in found] == effects
    assert (driven.machine.link, driven.machine.fetching) == (link, fetches)


def test_every_cell_is_walked() -> None:
    assert {(before().machine.link, type(event)) for before, event, *_ in CELLS} == set(TRANSITIONS)


# A lost connection


def lost(detached_fetching: bool = True) -> Driven:
    """It is HELD, and connects to its coordinator's address again."""
    driven = fetching(SETTINGS._replace(detached_fetching=detached_fetching))
    driven.lose(LinkEnded("reset"))
    assert not driven.hand_out("t", 0, 43)
    assert driven.link == COORDINATOR
    return driven


def back(detached_fetching: bool = True) -> Driven:
    """It has asked there to be registered again."""
    driven = lost(detached_fetching)
    driven.handle(LinkConnected())
    return driven


def test_a_refused_connection_means_that_the_lease_goes_on() -> None:
    driven = lost()
    driven.lose(LinkFailed("refused", refused=True))
    assert (driven.machine.link, driven.machine.fetching) == (SEEK, FETCHING)
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(LEASE - 1)
    assert driven.hand_out("t", 0, 44)
    driven.pass_time(1)
    assert not driven.hand_out("t", 0, 45)
    assert driven.machine.fetching is STOPPED
    assert driven.assigned == ()


@pytest.mark.parametrize("code", [15, 16])
def test_an_answer_of_no_coordinator_means_the_same(code: int) -> None:
    driven = back()
    driven.respond_registered(code)
    assert (driven.machine.link, driven.machine.fetching) == (SEEK, FETCHING)


@pytest.mark.parametrize("how", ["refused", "15"])
def test_without_detached_fetching_it_stays_held(how: str) -> None:
    driven = back(detached_fetching=False) if how == "15" else lost(detached_fetching=False)
    if how == "15":
        driven.respond_registered(15)
    else:
        driven.lose(LinkFailed("refused", refused=True))
    assert (driven.machine.link, driven.machine.fetching) == (SEEK, HELD)


def test_what_is_started_later_than_the_lease_of_the_lost_connection_begins_anew() -> None:
    """Pings of the new connection do not help: another consumer may have had the partition in between."""
    driven = back()
    driven.respond_registered()
    for _ in range(2):
        driven.pass_time(LEASE // 2 - 1)
        driven.ping()
    assert driven.machine.fetching is HELD
    driven.pass_time(2)
    assert (driven.machine.link, driven.machine.fetching) == (JOINED, STOPPED)
    driven.start((("t", 0, 7),))
    assert driven.assigned[0].offset == 7
    assert driven.machine.assignment.next_offsets == {}


def register_elsewhere(driven: Driven) -> None:
    """It has asked a successor to be registered."""
    while driven.machine.link is not REGISTER:
        driven.pass_time(1)
        if driven.link is not None:
            driven.handle(LinkConnected())
            driven.respond_coordinator()
    driven.handle(LinkConnected())


@pytest.mark.parametrize("is_over", ["the connection ends", "nothing is answered"])
def test_who_may_be_registered_without_knowing_fetches_on_the_lease_of_before(is_over: str) -> None:
    """The coordinator gives the partitions away when that lease is over, whatever it hears over another connection."""
    driven = lost()
    driven.lose(LinkFailed("refused", refused=True))
    register_elsewhere(driven)
    if is_over == "the connection ends":
        driven.lose(LinkEnded("reset"))
    else:
        while driven.machine.link is REGISTER:
            driven.pass_time(1)
    register_elsewhere(driven)
    driven.respond_registered()
    assert driven.machine.fetching is FETCHING
    driven.ping()
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(LEASE - driven.now)
    assert (driven.machine.link, driven.machine.fetching) == (JOINED, STOPPED)
    assert not driven.hand_out("t", 0, 44)


def test_registered_again_it_is_held_until_start_fetcher() -> None:
    driven = back()
    driven.respond_registered()
    driven.ping()
    assert (driven.machine.link, driven.machine.fetching) == (JOINED, HELD)
    assert not driven.hand_out("t", 0, 43)
    before = driven.assigned
    driven.start((("t", 0, 43),))
    assert driven.machine.fetching is FETCHING
    assert driven.assigned == before  # it goes on where it is
    assert driven.hand_out("t", 0, 43)


@pytest.mark.parametrize("code", [14, 92])
def test_a_coordinator_that_is_not_ready_is_asked_again_over_the_same_connection(code: int) -> None:
    driven = back()
    assert driven.respond_registered(code) == []
    assert driven.machine.fetching is HELD
    (again,) = driven.pass_time(100)
    assert isinstance(again, SendToCoordinator)
    assert driven.link == COORDINATOR


@pytest.mark.parametrize("code", [27, 81])
def test_any_other_answer_stops_it(code: int) -> None:
    driven = back()
    driven.respond_registered(code)
    assert (driven.machine.link, driven.machine.fetching) == (SEEK, STOPPED)


def test_held_it_asks_the_coordinator_and_the_others_in_turn() -> None:
    driven = lost()
    tried = []
    for _ in range(4):
        driven.lose(LinkFailed("no route"))
        assert driven.machine.fetching is HELD
        tried += [one.address for one in of(OpenLink, driven.pass_time(1500))]
    assert tried == [SECOND, COORDINATOR, SETTINGS.bootstrap_brokers[0], COORDINATOR][: len(tried)]
    assert len(tried) >= 3


def test_a_refusal_counts_only_before_another_registration() -> None:
    """The coordinator in between may have seen the partition given to another consumer."""
    driven = back()
    driven.respond_registered()
    driven.ping()
    driven.lose(LinkEnded("reset"))
    driven.lose(LinkFailed("refused", refused=True))
    assert driven.machine.fetching is HELD


def test_a_refusal_of_another_address_says_nothing() -> None:
    driven = lost()
    driven.lose(LinkFailed("no route"))
    driven.pass_time(150)
    assert driven.link == SECOND
    driven.lose(LinkFailed("refused", refused=True))
    assert driven.machine.fetching is HELD


def test_a_successor_accepts_it_while_it_fetches() -> None:
    driven = lost()
    driven.lose(LinkFailed("refused", refused=True))
    driven.pass_time(150)
    driven.handle(LinkConnected())
    driven.respond_coordinator(2)
    assert driven.machine.link is REGISTER
    driven.respond_registered()
    assert (driven.machine.link, driven.machine.fetching) == (JOINED, FETCHING)
    assert driven.hand_out("t", 0, 43)
    (response,) = responses(driven.ping())
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 44),)


def test_a_registration_that_may_have_succeeded_is_not_ended_with_a_fin() -> None:
    """A FIN would tell the successor that its partitions are free."""
    driven = lost()
    driven.lose(LinkFailed("refused", refused=True))
    driven.pass_time(150)
    driven.handle(LinkConnected())
    driven.respond_coordinator(2)
    (closing,) = [one for one in driven.pass_time(3000) if type(one).__name__ == "CloseLink"]
    assert closing.reset  # type: ignore[union-attr]
    assert driven.machine.fetching is FETCHING


def test_a_registration_is_ended_with_a_fin_by_one_who_has_stopped() -> None:
    driven = registering()
    (closing,) = [one for one in driven.pass_time(10_000) if type(one).__name__ == "CloseLink"]
    assert not closing.reset  # type: ignore[union-attr]


@pytest.mark.parametrize("code", [17, 24, 26, 29, 30, 42])
def test_an_error_that_stays_ends_the_consumer(code: int) -> None:
    driven = registering()
    (ended,) = of(MembershipEnded, driven.respond_registered(code))
    assert ended.error is not None
    assert f"(error {code})" in ended.error


def test_members_of_other_protocols_end_the_consumer() -> None:
    driven = registering()
    (ended,) = of(MembershipEnded, driven.respond_registered(68))
    assert ended.error is not None
    assert ended.error.startswith("group g has members of Kafka's own group protocols, which call subscribe()")


def test_it_goes_back_to_the_group_after_start_fetcher_of_nothing() -> None:
    driven = joined()
    driven.start()
    assert driven.machine.fetching is STOPPED
    driven.start(T0_AT_42)
    assert driven.machine.fetching is FETCHING


@pytest.mark.parametrize("state", [seeking, registering])
def test_a_sidecar_that_coordinates_no_groups_is_named(state: Callable[[], Driven]) -> None:
    driven = state()
    while not of(CloseLink, driven.effects):
        driven.respond(b"")  # the version is not supported
    assert "coordinator.enabled is false" in driven.log[-1]
    assert driven.machine.link is LinkState.SEEK


def test_a_broker_that_closes_the_connection_is_taken_for_no_sidecar() -> None:
    driven = seeking()
    driven.lose(LinkEnded("b:1: the connection was closed by the other side"))
    assert driven.log[-1] == "b:1: the connection was closed by the other side; is it a sidecar?"


@pytest.mark.parametrize("partitions", [(), (("t", 0, 42), ("t", 1, 7))])
def test_each_assignment_is_logged(partitions: tuple[tuple[str, int, int], ...]) -> None:
    driven = joined()
    driven.start(partitions)
    assert f"partitions to fetch: {len(partitions)}" in driven.log
