"""What a membership sends, its lease, its offsets, and how it leaves: in virtual time, with golden frames."""

from __future__ import annotations

import pytest

from proxy.client.consumer.backoff import Backoff
from proxy.client.consumer.effects import AssignPartitions, CloseLink, MembershipEnded, OpenLink, SendToCoordinator
from proxy.client.consumer.events import (
    ConsumerStarted,
    FetcherDone,
    LeaveRequested,
    LinkConnected,
    LinkEnded,
    LinkFailed,
    OffsetOutOfRange,
    SubscriptionChanged,
)
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


# Frames


def test_cluster_metadata_request_of_both_versions() -> None:
    driven = seeking()
    assert frames(driven) == ["0000000e7531000100000001000163000167"]
    driven.respond(b"")
    assert frames(driven) == ["0000000b7531000000000002000163"]
    driven.respond(b"")
    assert [type(one) for one in driven.effects] == [CloseLink]


def test_register_consumer_request_of_each_version() -> None:
    driven = registering()
    whole = "00000002000163000167000263310" + "0077b2274223a327d010008736d616c6c65737400001770"
    assert frames(driven) == ["0000002c75320002" + whole + "0002"]
    driven.respond(b"")
    assert frames(driven) == ["0000002a75320001" + whole.replace("00000002", "00000003", 1)]
    driven.respond(b"")
    assert frames(driven) == ["0000002a75320000" + whole.replace("00000002", "00000004", 1)]
    driven.respond(bytes.fromhex("0000"))
    assert driven.machine.link is LinkState.JOINED


def test_a_coordinator_at_the_same_address_is_asked_over_the_same_connection() -> None:
    driven = seeking()
    driven.respond_coordinator(1)
    assert [type(one) for one in driven.effects] == [SendToCoordinator]
    assert driven.machine.link is LinkState.REGISTER
    assert driven.link == FIRST


def test_responses() -> None:
    driven = fetching()
    driven.ping()
    assert frames(driven) == ["0000001e00000002753a00000002633100010001740003312d30000000000000002b"]
    driven.stop()
    assert frames(driven) == ["0000001e00000003753b00000002633100010001740003312d30000000000000002b"]
    driven.start(T0_AT_42)
    assert frames(driven) == ["0000000c00000004753c000000026331"]


def test_responses_without_auto_commit_have_no_offsets() -> None:
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.ping()
    assert frames(driven) == ["0000000c00000002753a000000026331"]
    driven.stop()
    assert frames(driven) == ["0000000c00000003753b000000026331"]


def test_another_base_of_the_private_keys() -> None:
    driven = registering(SETTINGS._replace(api_key=BASE + 1000))
    assert driven.effects[0].frame[4:6] == (wire.REGISTER_CONSUMER + 1000).to_bytes(2, "big")  # type: ignore[union-attr]
    driven.respond_registered()
    driven.receive(wire.encode_ping(9, wire.PingRequest("c1", 0), BASE + 1000))
    assert frames(driven) == ["0000000e000000097922000000026331" + "0000"]


# Finding the coordinator


def back_offs(driven: Driven, attempts: int) -> list[int]:
    """Refuse so many attempts to connect; the milliseconds waited after each."""
    waits = []
    for _ in range(attempts):
        driven.lose(LinkFailed("refused", refused=True))
        due = driven.machine.due()
        assert due is not None
        waits.append(due - driven.now)
        driven.pass_time(waits[-1])
    return waits


def test_sidecars_are_asked_in_turn_with_a_growing_back_off() -> None:
    driven = Driven()
    tried, times = [], []
    driven.handle(ConsumerStarted())
    for _ in range(8):
        tried.append(driven.link)
        driven.lose(LinkFailed("refused", refused=True))
        due = driven.machine.due()
        assert due is not None
        times.append(due - driven.now)
        driven.pass_time(due - driven.now)
    assert tried == [FIRST, SECOND] * 4
    assert times == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_the_back_off_varies_by_a_fifth() -> None:
    assert Backoff(lambda: 0.0).take(5000) == 80
    assert Backoff(lambda: 1.0).take(5000) == 120


def test_a_sidecar_that_answers_is_asked_again_soon_but_once() -> None:
    backoff = Backoff(lambda: 0.5)
    assert [backoff.take(5000) for _ in range(4)] == [100, 200, 400, 800]
    backoff.answered()
    assert backoff.take(5000) == 100
    backoff.answered()
    assert backoff.take(5000) == 200
    backoff.reset()
    assert [backoff.take(5000) for _ in range(2)] == [100, 200]
    backoff.answered()
    assert backoff.take(5000) == 100


def test_while_a_long_lease_runs_it_tries_every_second_and_a_half() -> None:
    driven = fetching(SETTINGS._replace(session_timeout_ms=60_000))
    driven.lose(LinkEnded("reset"))
    assert back_offs(driven, 7) == [100, 200, 400, 800, 1500, 1500, 1500]


def test_while_a_lease_runs_it_tries_more_often() -> None:
    driven = fetching()
    driven.lose(LinkEnded("reset"))
    assert back_offs(driven, 6) == [100, 200, 400, 800, T // 4, T // 4]


def test_a_sidecar_that_does_not_answer_is_given_up() -> None:
    driven = seeking()
    driven.pass_time(4999)
    assert driven.link == FIRST
    driven.pass_time(1)
    assert driven.link is None
    driven.pass_time(100)
    assert driven.link == SECOND


def test_a_coordinator_that_was_silent_is_not_waited_for_long() -> None:
    """It stands still: the others still name it, and it takes connections."""
    driven = fetching()
    driven.pass_time(LEASE)
    for wait in (T // 2, REGISTER_TIMEOUT_MS):
        driven.handle(LinkConnected())
        driven.respond_coordinator()
        driven.handle(LinkConnected())
        driven.pass_time(wait - 1)
        assert driven.link == COORDINATOR
        driven.pass_time(1)
        assert driven.link is None
        driven.now += SILENT_MS
        driven.handle(None)


def test_a_coordinator_that_is_not_ready_is_sought_again_after_some_attempts() -> None:
    driven = registering()
    for _ in range(4):
        driven.respond_registered(14)
        due = driven.machine.due()
        assert due is not None
        driven.pass_time(due - driven.now)
        assert driven.link == COORDINATOR
    driven.respond_registered(14)
    assert driven.machine.link is LinkState.SEEK
    assert driven.link is None


def test_a_login_that_is_refused_ends_the_consumer() -> None:
    driven = Driven()
    driven.handle(ConsumerStarted())
    (ended,) = of(MembershipEnded, driven.lose(LinkFailed("wrong password", fatal=True)))
    assert ended.error == "wrong password"


def test_what_cannot_be_read_ends_the_connection() -> None:
    driven = fetching()
    driven.receive(bytes.fromhex("00000008") + b"nonsense")
    assert [type(one) for one in driven.effects] == [AssignPartitions, CloseLink]
    assert not driven.hand_out("t", 0, 43)


def test_a_request_to_another_consumer_ends_the_connection() -> None:
    driven = fetching()
    driven.receive(wire.encode_ping(9, wire.PingRequest("c2", 0)))
    assert of(CloseLink, driven.effects)
    assert driven.machine.fetching is FetchingState.STOPPED


def test_a_response_to_another_request_ends_the_connection() -> None:
    driven = seeking()
    driven.receive(wire.response_frame(99, b""))
    assert [type(one) for one in driven.effects] == [CloseLink]


# The lease


def test_each_request_begins_the_lease_anew() -> None:
    driven = fetching()
    for _ in range(5):
        driven.pass_time(LEASE - 1)
        assert driven.hand_out("t", 0, 43)
        driven.ping()
    driven.pass_time(LEASE)
    assert not driven.hand_out("t", 0, 43)


def test_after_the_lease_it_stops_closes_and_seeks() -> None:
    driven = fetching()
    effects = driven.pass_time(LEASE)
    assert [type(one) for one in effects] == [AssignPartitions, CloseLink, OpenLink]
    assert (driven.machine.link, driven.machine.fetching) == (LinkState.SEEK, FetchingState.STOPPED)


def test_a_request_is_as_old_as_the_last_look_at_the_empty_buffer() -> None:
    """The process was paused from 1000 to 5000; the ping lay in the buffer."""
    driven = fetching()
    driven.now = 5000
    driven.ping(heard_at=1000)
    driven.pass_time(1000 + LEASE - 5000 - 1)
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(1)
    assert not driven.hand_out("t", 0, 43)


def test_what_is_read_after_the_lease_is_not_heard() -> None:
    driven = fetching()
    driven.now = LEASE
    driven.ping(heard_at=LEASE - 1)
    assert [type(one) for one in driven.effects] == [AssignPartitions, CloseLink, OpenLink]
    assert driven.machine.fetching is FetchingState.STOPPED


def test_nothing_is_handed_out_after_the_lease_before_that_is_noticed() -> None:
    driven = fetching()
    driven.now = LEASE
    assert not driven.hand_out("t", 0, 43)


def test_a_coordinator_that_never_sends_a_request_counts_as_dead() -> None:
    driven = joined()
    driven.pass_time(LEASE - 1)
    assert driven.machine.link is LinkState.JOINED
    driven.pass_time(1)
    assert driven.machine.link is LinkState.SEEK


def test_being_registered_is_no_request() -> None:
    """Fetching on its lease, registered by a successor that then says nothing: the old lease ends as it would have."""
    driven = fetching()
    driven.lose(LinkEnded("reset"))
    driven.lose(LinkFailed("refused", refused=True))
    driven.pass_time(100)
    driven.handle(LinkConnected())
    driven.respond_coordinator(2)
    driven.respond_registered()
    driven.pass_time(LEASE - 101)
    assert driven.hand_out("t", 0, 43)
    driven.pass_time(1)
    assert (driven.machine.link, driven.machine.fetching) == (LinkState.JOINED, FetchingState.STOPPED)


# Assignments and offsets


def test_messages_of_an_earlier_assignment_are_not_handed_out() -> None:
    driven = fetching()
    (before,) = driven.assigned
    driven.stop()
    driven.start(T0_AT_42)
    (after,) = driven.assigned
    assert not driven.machine.may_hand_out("t", 0, before.epoch, driven.now)
    assert driven.machine.may_hand_out("t", 0, after.epoch, driven.now)


def test_stop_and_start_are_answered_when_the_fetcher_has_done_it() -> None:
    driven = fetching()
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    assert not of(SendToCoordinator, driven.effects)
    assert not driven.hand_out("t", 0, 43)
    assert len(responses(driven.ping())) == 1
    (stopped,) = responses(driven.handle(FetcherDone(stopping.command)))
    assert (stopped.api_key, stopped.error_code) == (wire.STOP_FETCHER, 0)


def test_a_fetcher_that_fails_is_an_error_of_the_response() -> None:
    driven = fetching()
    driven.fetcher_answers = False
    driven.start(TWO)
    (starting,) = of(AssignPartitions, driven.effects)
    driven.fetcher_answers = True
    effects = driven.handle(FetcherDone(starting.command, "no such stream"))
    (response,) = responses(effects)
    assert (response.api_key, response.error_code) == (wire.START_FETCHER, -1)
    assert driven.assigned == ()


def test_a_response_is_not_sent_over_another_connection() -> None:
    driven = fetching()
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    driven.lose(LinkEnded("reset"))
    assert driven.handle(FetcherDone(stopping.command)) == []


def test_two_stops_are_both_answered() -> None:
    driven = fetching()
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    driven.stop()
    found = responses(driven.handle(FetcherDone(stopping.command)))
    assert [one.api_key for one in found] == [wire.STOP_FETCHER] * 2


def test_offsets_are_told_again_until_the_next_assignment() -> None:
    """A coordinator that has just taken over has not heard the response to StopFetcher."""
    driven = fetching()
    driven.stop()
    (response,) = responses(driven.ping())
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)
    driven.start((("u", 0, 1),))
    (response,) = responses(driven.ping())
    assert response.offsets == ()


@pytest.mark.parametrize("after_ms", [LEASE - 1, LEASE])
def test_offsets_that_were_told_are_told_to_a_successor(after_ms: int) -> None:
    """The coordinator before it may not have committed them. It ignores those of partitions that are others' now."""
    driven = fetching()
    driven.stop()
    driven.lose(LinkEnded("reset"))
    driven.handle(LinkConnected())
    driven.respond_coordinator(2)
    driven.now = after_ms
    driven.respond_registered()
    (response,) = responses(driven.ping())
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)


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


def test_a_partition_that_comes_to_another_stream_begins_with_what_was_not_handed_out() -> None:
    driven = fetching()
    driven.start((), T0_AT_42)
    (one,) = driven.assigned
    assert (one.thread, one.offset) == (1, 43)


def test_an_offset_that_was_out_of_range_is_reset() -> None:
    driven = joined()
    driven.start(T0_AT_42)
    (one,) = driven.assigned
    driven.handle(OffsetOutOfRange("t", 0, one.epoch, 42))
    driven.register_again()
    driven.start(T0_AT_42)
    assert [each.offset for each in driven.assigned] == [wire.SMALLEST]
    driven.stop()
    driven.start((("t", 0, 1000),))
    assert [each.offset for each in driven.assigned] == [1000]
    driven.stop()
    driven.start(T0_AT_42)
    assert [each.offset for each in driven.assigned] == [42]


@pytest.mark.parametrize("has_offsets", [True, False])
def test_offsets_that_are_found_out_of_range_at_once_take_one_departure(*, has_offsets: bool) -> None:
    driven = joined()
    driven.start((*TWO, ("t", 2, 9)))
    if has_offsets:
        assert driven.hand_out("t", 2, 9)
    for partition, offset in ((0, 42), (1, 7)):
        driven.handle(OffsetOutOfRange("t", partition, 1, offset))
    driven.handle(OffsetOutOfRange("t", 2, 0, 9))  # of an earlier assignment
    if has_offsets:
        driven.ping()
        driven.ping()
    driven.register_again()
    driven.start((*TWO, ("t", 2, 9)))
    assert [one.offset for one in driven.assigned] == [wire.SMALLEST, wire.SMALLEST, 9]


def test_before_a_consumer_registers_anew_for_an_offset_out_of_range_it_reports_the_others() -> None:
    driven = joined()
    driven.start(TWO)
    assert driven.hand_out("t", 1, 7)
    driven.handle(OffsetOutOfRange("t", 0, 1, 42))
    assert not driven.assigned
    ping, _ = responses(driven.ping())
    assert [(one.partition, one.offset) for one in ping.offsets or ()] == [(1, 8)]
    assert of(OpenLink, driven.ping()), "the coordinator has heard it"


def test_without_a_coordinator_an_offset_out_of_range_stops_only_its_partition() -> None:
    driven = joined(SETTINGS._replace(auto_offset_reset="largest"))
    driven.start(TWO)
    driven.lose(LinkEnded("reset"))
    driven.lose(LinkFailed("refused", refused=True))
    driven.handle(OffsetOutOfRange("t", 1, 1, 7))
    assert [one.partition for one in driven.assigned] == [0]
    assert driven.hand_out("t", 0, 42)
    driven.pass_time(100)
    driven.handle(LinkConnected())
    driven.respond_coordinator(2)
    driven.respond_registered()
    driven.start(TWO)
    assert [(one.partition, one.offset, one.epoch) for one in driven.assigned] == [(0, 42, 1), (1, wire.LARGEST, 2)]


def test_a_thread_of_another_consumer_ends_the_connection() -> None:
    driven = joined()
    thread = wire.AssignedThread("c2-0", (wire.ConsumedOffset("t", 1, 0, 42),))
    driven.receive(wire.encode_start_fetcher(1, wire.StartFetcherRequest("c1", (thread,), ())))
    assert of(CloseLink, driven.effects)


# Offsets that the application commits


def test_committable_is_what_is_assigned_and_handed_out() -> None:
    driven = joined(SETTINGS._replace(auto_commit=False))
    assert driven.machine.committable(driven.now) is None
    driven.start(TWO)
    assert driven.machine.committable(driven.now) == {}
    assert driven.hand_out("t", 0, 42)
    assert driven.machine.committable(driven.now) == {("t", 0): 43}
    assert driven.machine.committable(driven.now + LEASE) is None
    driven.lose(LinkEnded("reset"))
    assert driven.machine.committable(driven.now) is None


def test_committable_is_what_is_being_stopped_until_that_is_answered() -> None:
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.fetcher_answers = False
    driven.stop()
    (stopping,) = of(AssignPartitions, driven.effects)
    assert driven.machine.committable(driven.now) == {("t", 0): 43}
    driven.handle(FetcherDone(stopping.command))
    assert driven.machine.committable(driven.now) is None


# Leaving


def test_it_leaves_after_the_second_ping() -> None:
    driven = fetching()
    driven.handle(LeaveRequested())
    assert not driven.hand_out("t", 0, 43)
    response, _ = responses(driven.ping())
    assert response.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)
    effects = driven.ping()
    assert [type(one) for one in effects] == [SendToCoordinator, CloseLink, MembershipEnded]
    assert of(CloseLink, effects) == [CloseLink(reset=False)]


def test_it_asks_for_the_pings_that_it_needs_to_leave() -> None:
    """By the last response, sent once more."""
    driven = fetching()
    (pinged,) = responses(driven.ping())
    (asked,) = responses(driven.handle(LeaveRequested()))
    assert asked == pinged
    response, asked = responses(driven.ping())
    assert asked == response != pinged
    assert len(responses(driven.ping())) == 1


def test_on_a_connection_on_which_it_has_answered_nothing_it_waits_for_pings() -> None:
    driven = fetching()
    driven.lose(LinkEnded("gone"))
    driven.handle(LinkConnected())
    driven.respond_registered()
    assert responses(driven.handle(LeaveRequested())) == []
    assert len(responses(driven.ping())) == 2


def test_without_auto_commit_it_leaves_after_the_first_ping() -> None:
    driven = fetching(SETTINGS._replace(auto_commit=False))
    driven.handle(LeaveRequested())
    assert of(MembershipEnded, driven.ping())


def test_with_nothing_to_tell_it_leaves_at_once() -> None:
    driven = joined()
    assert [type(one) for one in driven.handle(LeaveRequested())] == [CloseLink, MembershipEnded]


def test_a_coordinator_that_does_not_ping_does_not_keep_it() -> None:
    driven = fetching()
    driven.handle(LeaveRequested())
    assert of(MembershipEnded, driven.pass_time(LEASE))


@pytest.mark.parametrize("is_stopped_first", [False, True])
def test_while_it_leaves_requests_are_answered(is_stopped_first: bool) -> None:
    driven = fetching()
    if not is_stopped_first:
        driven.handle(LeaveRequested())
    (stopped,) = responses(driven.stop())
    if is_stopped_first:
        driven.handle(LeaveRequested())
    assert stopped.offsets == (wire.ConsumedOffset("t", 1, 0, 43),)
    (started,) = responses(driven.start(T0_AT_42))
    assert started.error_code == 0
    assert driven.assigned == ()
    ping, _ = responses(driven.ping())
    assert ping.offsets == (), "the coordinator has heard them, and may have started another topic of that name since"


def test_while_it_leaves_offsets_of_an_earlier_membership_are_not_told_after_startfetcher() -> None:
    driven = fetching()
    driven.handle(SubscriptionChanged('{"t":3}'))
    driven.ping()
    driven.ping()
    driven.register_again()
    driven.handle(LeaveRequested())
    driven.start((("t", 0, 90),))
    ping, _ = responses(driven.ping())
    assert ping.offsets == ()


def test_the_first_error_is_why_it_ended() -> None:
    driven = fetching()
    driven.handle(LeaveRequested("the application stands still"))
    driven.handle(LeaveRequested())
    driven.ping()
    (ended,) = of(MembershipEnded, driven.ping())
    assert ended.error == "the application stands still"


def test_other_topics_are_registered_after_the_offsets_are_told() -> None:
    driven = fetching()
    driven.handle(SubscriptionChanged('{"t":2,"u":1}'))
    driven.ping()
    driven.ping()
    assert driven.link is not None
    driven.handle(LinkConnected())
    driven.respond_coordinator()
    driven.handle(LinkConnected())
    (request,) = of(SendToCoordinator, driven.effects)
    assert b'{"t":2,"u":1}' in request.frame


def test_leaving_for_good_while_it_leaves_for_other_topics() -> None:
    driven = fetching()
    driven.handle(SubscriptionChanged('{"t":2,"u":1}'))
    driven.handle(LeaveRequested())
    driven.ping()
    assert of(MembershipEnded, driven.ping())
