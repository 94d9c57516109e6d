"""What a membership sends, its lease, its offsets, and how it leaves: in virtual time, with golden frames."""

import pytest

from proxy.client.consumer import events as ev
from proxy.client.consumer.backoff import Backoff
from proxy.client.consumer.effects import AssignPartitions, CloseLink, MembershipEnded, OpenLink, SendToCoordinator
from proxy.client.consumer.patience import REGISTER_TIMEOUT_MS, SILENT_MS
from proxy.client.consumer.states import FetchingState, LinkState
from proxy.coordinator import wire
from proxy.protocol.private import BASE
from tests.unit.consumer.driven import (
    COORDINATOR,
    FIRST,
    LEASE,
    SECOND,
    SETTINGS,
    T0_AT_42,
    Driven,
    T,
    fetching,
    joined,
    of,
    registering,
    responses,
    seeking,
)

TWO: tuple[tuple[str, int, int], ...] = (("t", 0, 42), ("t", 1, 7))


def frames(driven: Driven) -> list[str]:
    return [one.frame.hex() for one in of(SendToCoordinator, driven.effects)]


def test_requests_of_each_version_that_a_sidecar_may_have_and_of_another_base() -> None:
    driven = seeking()
    assert frames(driven) == ["0000000e7531000100000001000163000167"]
    driven.respond(b"")
    assert frames(driven) == ["0000000b7531000000000002000163"]
    driven.respond(b"")
    assert [type(one) for one in driven.effects] == [CloseLink]
    driven = registering()
    whole = "00000002000163000167000263310" + "0077b2274223a327d010008736d616c6c65737400001770"
    assert frames(driven) == ["0000002c75320002" + whole + "0002"]
    driven.respond(b"")
    assert frames(driven) == ["0000002a75320001" + whole.replace("00000002", "00000003", 1)]
    driven.respond(b"")
    assert frames(driven) == ["0000002a75320000" + whole.replace("00000002", "00000004", 1)]
    driven.respond(bytes.fromhex("0000"))
    assert driven.machine.link is LinkState.JOINED
    driven = registering(SETTINGS._replace(api_key=BASE + 1000))
    assert driven.effects[0].frame[4:6] == (wire.REGISTER_CONSUMER + 1000).to_bytes(2, "big")
    driven.respond_registered()
    driven.receive(wire.encode_ping(9, wire.PingRequest("c1", 0), BASE + 1000))
    assert frames(driven) == ["0000000e000000097922000000026331" + "0000"]


@pytest.mark.promise(
    "consumer-protocol.md", "The answers to Ping and StopFetcher have offsets with AutoCommit, and none without."
)
def test_responses_have_offsets_with_auto_commit_alone() -> None:
    driven = fetching()
    driven.ping()
    assert frames(driven) == ["0000001e00000002753a00000002633100010001740003312d30000000000000002b"]
    driven.stop()
    assert frames(driven) == ["0000001e00000003753b00000002633100010001740003312d30000000000000002b"]
    driven.start(T0_AT_42)
    assert frames(driven) == ["0000000c00000004753c000000026331"]
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.ping()
    assert frames(driven) == ["0000000c00000002753a000000026331"]
    driven.stop()
    assert frames(driven) == ["0000000c00000003753b000000026331"]


def back_offs(driven: Driven, attempts: int) -> list[int]:
    """Refuse so many attempts to connect; the milliseconds waited after each."""
    waits = []
    for _ in range(attempts):
        driven.lose(ev.LinkFailed("refused", refused=True))
        due = driven.machine.due()
        waits.append(due - driven.now)
        driven.pass_time(waits[-1])
    return waits


@pytest.mark.promise(
    "consumer.md", "Sidecars that cannot be reached are tried in turn, after 100 ms, then less often, up to every 5 s."
)
def test_sidecars_are_asked_in_turn_with_a_growing_back_off() -> None:
    driven = Driven()
    driven.handle(ev.ConsumerStarted())
    tried = []
    waits = []
    for _ in range(8):
        tried.append(driven.link)
        waits += back_offs(driven, 1)
    assert tried == [FIRST, SECOND] * 4
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000]
    driven = fetching(SETTINGS._replace(session_timeout_ms=60_000))
    driven.lose(ev.LinkEnded("reset"))
    assert back_offs(driven, 7) == [100, 200, 400, 800, 1500, 1500, 1500], "while a long lease runs"
    driven = fetching()
    driven.lose(ev.LinkEnded("reset"))
    assert back_offs(driven, 6) == [100, 200, 400, 800, T // 4, T // 4], "while a lease runs"


def test_the_back_off_varies_by_a_fifth_and_begins_anew_once_when_a_sidecar_answers() -> None:
    assert (Backoff(lambda: 0.0).take(5000), Backoff(lambda: 1.0).take(5000)) == (80, 120)
    backoff = Backoff(lambda: 0.5)
    waits = [backoff.take(5000) for _ in range(4)]
    for happens in (backoff.answered, backoff.answered, backoff.reset, backoff.answered):
        happens()
        waits.append(backoff.take(5000))
    assert waits == [100, 200, 400, 800, 100, 200, 100, 100]


def test_a_coordinator_that_was_silent_is_not_waited_for_long() -> None:
    """It stands still: the others still name it, and it takes connections."""
    driven = fetching()
    driven.pass_time(LEASE)
    for wait in (T // 2, REGISTER_TIMEOUT_MS):
        driven.handle(ev.LinkConnected())
        driven.respond_coordinator()
        driven.handle(ev.LinkConnected())
        driven.pass_time(wait - 1)
        assert driven.link == COORDINATOR
        driven.pass_time(1)
        assert driven.link is None
        driven.now += SILENT_MS
        driven.handle(None)
    driven = seeking()
    driven.pass_time(4999)
    assert driven.link == FIRST
    driven.pass_time(1)
    assert driven.link is None
    driven.pass_time(100)
    assert driven.link == SECOND


def test_a_coordinator_that_is_not_ready_is_sought_again_after_some_attempts() -> None:
    driven = registering()
    for _ in range(4):
        driven.respond_registered(14)
        due = driven.machine.due()
        driven.pass_time(due - driven.now)
        assert driven.link == COORDINATOR
    driven.respond_registered(14)
    assert driven.machine.link is LinkState.SEEK
    assert driven.link is None


def test_what_is_not_for_it_ends_the_connection_and_a_login_that_is_refused_the_consumer() -> None:
    driven = fetching()
    driven.receive(bytes.fromhex("00000008") + b"nonsense")
    assert [type(one) for one in driven.effects] == [AssignPartitions, CloseLink]
    assert not driven.hand_out("t", 0, 43)
    driven = fetching()
    driven.receive(wire.encode_ping(9, wire.PingRequest("c2", 0)))
    assert of(CloseLink, driven.effects)
    assert driven.machine.fetching is FetchingState.STOPPED
    driven = joined()
    thread = wire.AssignedThread("c2-0", (wire.ConsumedOffset("t", 1, 0, 42),))
    driven.receive(wire.encode_start_fetcher(1, wire.StartFetcherRequest("c1", (thread,), ())))
    assert of(CloseLink, driven.effects)
    driven = seeking()
    driven.receive(wire.response_frame(99, b""))
    assert [type(one) for one in driven.effects] == [CloseLink]
    driven = Driven()
    driven.handle(ev.ConsumerStarted())
    (ended,) = of(MembershipEnded, driven.lose(ev.LinkFailed("wrong password", fatal=True)))
    assert ended.error == "wrong password"


@pytest.mark.promise(
    "consumer.md",
    "A consumer hands out nothing from 0.95 T after it last heard its coordinator, and seeks another one.",
)
def test_each_request_begins_the_lease_anew_and_after_it_nothing_is_handed_out() -> None:
    driven = fetching()
    for _ in range(5):
        driven.pass_time(LEASE - 1)
        assert driven.hand_out("t", 0, 43)
        driven.ping()
    effects = driven.pass_time(LEASE)
    assert not driven.hand_out("t", 0, 43)
    assert [type(one) for one in effects] == [AssignPartitions, CloseLink, OpenLink]
    assert (driven.machine.link, driven.machine.fetching) == (LinkState.SEEK, FetchingState.STOPPED)


def test_what_counts_for_the_lease_is_what_was_heard_within_it() -> None:
    driven = joined()
    driven.pass_time(LEASE - 1)
    assert driven.machine.link is LinkState.JOINED
    driven.pass_time(1)
    assert driven.machine.link is LinkState.SEEK
    driven = fetching()
    driven.now = LEASE
    assert not driven.hand_out("t", 0, 43), "before that is noticed"
    driven.ping(heard_at=LEASE - 1)
    assert [type(one) for one in driven.effects] == [AssignPartitions, CloseLink, OpenLink]
    assert driven.machine.fetching is FetchingState.STOPPED
    driven = fetching()
    driven.now = 5000  # the process was paused since 1000; the ping lay in the buffer
    driven.ping(heard_at=1000)
    driven.pass_time(1000 + LEASE - 5000 - 1)
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(1)
    assert not driven.hand_out("t", 0, 43)


def test_stop_and_start_are_answered_when_the_fetcher_has_done_it() -> None:
    driven = fetching()
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    assert not of(SendToCoordinator, driven.effects)
    assert not driven.hand_out("t", 0, 43)
    assert len(responses(driven.ping())) == 1
    driven.stop()
    found = responses(driven.handle(ev.FetcherDone(stopping.command)))
    assert [(one.api_key, one.error_code) for one in found] == [(wire.STOP_FETCHER, 0)] * 2, "both are answered"
    driven.start(TWO)
    (starting,) = of(AssignPartitions, driven.effects)
    driven.fetcher_answers = True
    (response,) = responses(driven.handle(ev.FetcherDone(starting.command, "no such stream")))
    assert (response.api_key, response.error_code) == (wire.START_FETCHER, -1)
    assert driven.assigned == ()
    driven = fetching()
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    driven.lose(ev.LinkEnded("reset"))
    assert driven.handle(ev.FetcherDone(stopping.command)) == [], "not over another connection"


def test_offsets_that_were_told_are_told_to_a_successor() -> None:
    """The coordinator before it may not have committed them. It ignores those of partitions that are others' now."""
    for after_ms in (LEASE - 1, LEASE):
        driven = fetching()
        driven.stop()
        driven.lose(ev.LinkEnded("reset"))
        driven.handle(ev.LinkConnected())
        driven.respond_coordinator(2)
        driven.now = after_ms
        driven.respond_registered()
        (response,) = responses(driven.ping())
        assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 43),), after_ms


def test_a_partial_stop_tells_and_stops_only_its_partitions() -> None:
    driven = joined()
    driven.start(TWO)
    assert driven.hand_out("t", 0, 42)
    assert driven.hand_out("t", 1, 7)
    (response,) = responses(driven.stop((("t", 1),)))
    assert response.offsets == (wire.ConsumedOffset("t", 1, 1, 8),)
    assert not driven.hand_out("t", 1, 8)
    assert driven.hand_out("t", 0, 43)
    (kept,) = driven.assigned
    driven.start((("t", 0, 42),))
    assert driven.assigned == (kept,)
    driven = fetching()
    driven.start((), T0_AT_42)
    (one,) = driven.assigned
    assert (one.thread, one.offset) == (1, 43)


def test_an_offset_that_was_out_of_range_is_reset_once() -> None:
    driven = joined()
    driven.start(T0_AT_42)
    driven.handle(ev.OffsetOutOfRange("t", 0, driven.assigned[0].epoch, 42))
    driven.register_again()
    for assigned, begins in ((42, wire.SMALLEST), (1000, 1000), (42, 42)):
        driven.start((("t", 0, assigned),))
        assert [each.offset for each in driven.assigned] == [begins]
        driven.stop()


@pytest.mark.promise(
    "consumer.md", "A consumer leaves its group once for all offsets that are out of range at the same time."
)
def test_offsets_that_are_found_out_of_range_at_once_take_one_departure() -> None:
    for has_offsets in (True, False):
        driven = joined()
        driven.start((*TWO, ("t", 2, 9)))
        if has_offsets:
            assert driven.hand_out("t", 2, 9)
        for partition, offset in ((0, 42), (1, 7)):
            driven.handle(ev.OffsetOutOfRange("t", partition, 1, offset))
        driven.handle(ev.OffsetOutOfRange("t", 2, 0, 9))  # of an earlier assignment
        if has_offsets:
            ping, _ = responses(driven.ping())
            assert [(one.partition, one.offset) for one in ping.offsets or ()] == [(2, 10)], "the others are reported"
            assert not of(OpenLink, driven.effects)
            assert of(OpenLink, driven.ping()), "the coordinator has heard it"
        driven.register_again()
        driven.start((*TWO, ("t", 2, 9)))
        assert [one.offset for one in driven.assigned] == [wire.SMALLEST, wire.SMALLEST, 9], has_offsets


def test_without_a_coordinator_an_offset_out_of_range_stops_only_its_partition() -> None:
    driven = joined(SETTINGS._replace(auto_offset_reset="largest"))
    driven.start(TWO)
    driven.lose(ev.LinkEnded("reset"))
    driven.lose(ev.LinkFailed("refused", refused=True))
    driven.handle(ev.OffsetOutOfRange("t", 1, 1, 7))
    assert [one.partition for one in driven.assigned] == [0]
    assert driven.hand_out("t", 0, 42)
    driven.pass_time(100)
    driven.handle(ev.LinkConnected())
    driven.respond_coordinator(2)
    driven.respond_registered()
    driven.start(TWO)
    assert [(one.partition, one.offset, one.epoch) for one in driven.assigned] == [(0, 42, 1), (1, wire.LARGEST, 2)]


def test_committable_is_what_is_assigned_and_handed_out() -> None:
    driven = joined(SETTINGS._replace(auto_commit=False))
    assert driven.machine.committable(driven.now) is None
    driven.start(TWO)
    assert driven.machine.committable(driven.now) == {}
    assert driven.hand_out("t", 0, 42)
    assert driven.machine.committable(driven.now) == {("t", 0): 43}
    assert driven.machine.committable(driven.now + LEASE) is None
    driven.lose(ev.LinkEnded("reset"))
    assert driven.machine.committable(driven.now) is None
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    assert driven.machine.committable(driven.now) == {("t", 0): 43}
    driven.handle(ev.FetcherDone(stopping.command))
    assert driven.machine.committable(driven.now) is None


@pytest.mark.promise(
    "consumer-protocol.md", "A consumer that leaves asks for two pings, reports its offsets, and closes its connection."
)
def test_it_leaves_after_the_second_of_the_pings_that_it_asks_for() -> None:
    """It asks by its last response, sent once more."""
    driven = fetching()
    (pinged,) = responses(driven.ping())
    (asked,) = responses(driven.handle(ev.LeaveRequested()))
    assert asked == pinged
    assert not driven.hand_out("t", 0, 43)
    response, asked = responses(driven.ping())
    assert asked == response != pinged
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)
    effects = driven.ping()
    assert [type(one) for one in effects] == [SendToCoordinator, CloseLink, MembershipEnded]
    assert of(CloseLink, effects) == [CloseLink(reset=False)]


def test_what_it_waits_for_when_it_leaves() -> None:
    driven = fetching()
    driven.lose(ev.LinkEnded("gone"))
    driven.handle(ev.LinkConnected())
    driven.respond_registered()
    assert responses(driven.handle(ev.LeaveRequested())) == [], (
        "it has answered nothing on this connection: for the beat"
    )
    assert len(responses(driven.ping())) == 2
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.handle(ev.LeaveRequested())
    assert of(MembershipEnded, driven.ping()), "without auto_commit for one ping"
    driven = joined()
    assert [type(one) for one in driven.handle(ev.LeaveRequested())] == [CloseLink, MembershipEnded], "nothing to tell"
    driven = fetching()
    driven.handle(ev.LeaveRequested())
    assert of(MembershipEnded, driven.pass_time(LEASE)), "the coordinator does not ping"


def test_while_it_leaves_requests_are_answered() -> None:
    for is_stopped_first in (False, True):
        driven = fetching()
        if not is_stopped_first:
            driven.handle(ev.LeaveRequested())
        (stopped,) = responses(driven.stop())
        if is_stopped_first:
            driven.handle(ev.LeaveRequested())
        assert stopped.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)
        (started,) = responses(driven.start(T0_AT_42))
        assert started.error_code == 0
        assert driven.assigned == ()
        ping, _ = responses(driven.ping())
        assert ping.offsets == (), "they are heard, and another topic of that name may have been started since"


def test_leaving_for_good_while_it_leaves_and_the_first_error_is_why_it_ended() -> None:
    driven = fetching()
    driven.handle(ev.LeaveRequested("the application stands still"))
    driven.handle(ev.LeaveRequested())
    driven.ping()
    (ended,) = of(MembershipEnded, driven.ping())
    assert ended.error == "the application stands still"
    driven = fetching()
    driven.handle(ev.SubscriptionChanged('{"t":2,"u":1}'))
    driven.handle(ev.LeaveRequested())
    driven.ping()
    assert of(MembershipEnded, driven.ping())


@pytest.mark.promise("consumer.md", "Another call for streams registers the consumer again, with all topics.")
def test_other_topics_are_registered_after_the_offsets_are_told() -> None:
    driven = fetching()
    driven.handle(ev.SubscriptionChanged('{"t":2,"u":1}'))
    driven.ping()
    driven.ping()
    driven.handle(ev.LinkConnected())
    driven.respond_coordinator()
    driven.handle(ev.LinkConnected())
    (request,) = of(SendToCoordinator, driven.effects)
    assert b'{"t":2,"u":1}' in request.frame
