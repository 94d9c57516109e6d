"""What the machine is made of: tables of states, timers, the lease; and which thread owns which partition."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.coordinator import lease
from proxy.coordinator.assignment import range_assign, sticky_assign
from proxy.coordinator.assignment_plan import TopicOwners, shares_of
from proxy.coordinator.events import TopicFactsOfGroups
from proxy.coordinator.states import GROUPS, MEMBERS, PARTITIONS, ImpossibleTransitionError, next_state
from proxy.coordinator.timers import Timers
from tests.unit.coordinator.driver import finish

T, C = 6000, 5000

PATHS: dict[str, tuple[Any, str, str]] = {
    "a partition nobody asks for": (PARTITIONS, "nominal lost", "away"),
    "a partition's life": (PARTITIONS, "nominal asked opened unconfirmed confirmed lost", "away"),
    "a group's life": (GROUPS, "empty registered commit committed started emptied", "empty"),
    "a joiner": (GROUPS, "stable registered stop commit committed started not_necessary", "stable"),
    "a takeover": (GROUPS, "empty loaded registered resume started", "stable"),
    "a failed attempt": (GROUPS, "stable stop attempt_failed stop attempt_failed given_up emptied", "empty"),
    "a member goes meanwhile": (GROUPS, "stable stop member_gone", "stable"),
    "a member goes in the back-off": (GROUPS, "stable stop attempt_failed member_gone", "backoff"),
    "a member's life": (MEMBERS, "registering accepted start started stop stopped start stop stop end", "gone"),
    "a member that returns": (MEMBERS, "registering return stop stopped start started end", "gone"),
    "an absent one": (MEMBERS, "absent end", "gone"),
}


def test_states_follow_each_other_as_the_tables_say_and_no_other_way() -> None:
    for path, (table, steps, end) in PATHS.items():
        first, *events = steps.split()
        state: Any = next(state for state in table if state.value == first)
        for name in events:
            state = next_state(table, state, next(event for event in table[state] if event.value == name))
        assert state.value == end, path
    for table in (PARTITIONS, GROUPS, MEMBERS):
        events = {event for row in table.values() for event in row}
        assert set(table) == set(type(next(iter(table))))
        for state in table:
            for event in events - set(table[state]):
                with pytest.raises(ImpossibleTransitionError, match=f"{state.value}: {event.value}"):
                    next_state(table, state, event)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20)))), st.integers(0, 25))
def test_timers_are_like_a_dictionary_in_order_of_time(operations: list[tuple[int, int | None]], now: int) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    for key, at in operations:
        if at is None:
            assert timers.cancel(key) == (model.pop(key, None) is not None)
        else:
            timers.set(key, at)
            if model.get(key) != at:
                model.pop(key, None)
                model[key] = at
        assert timers.next() == min(model.values(), default=None)
        assert timers.at(key) == model.get(key)
        assert len(timers) == len(model)
    popped = []
    while (next_key := timers.pop(now)) is not None:
        popped.append(next_key)
    due = [key for key, at in model.items() if at <= now]
    assert popped == sorted(due, key=lambda key: model[key]), "those of one time in the order in which they were set"


def test_cancelled_timers_do_not_pile_up() -> None:
    timers: Timers[int] = Timers()
    for at in range(10_000):
        timers.set(1, at)
    assert len(timers._times) < 100
    assert (timers.pop(9998), timers.pop(9999)) == (None, 1)
    for at in range(10_000):
        timers.set(at, at)
    for at in range(1, 6000):
        timers.cancel(at)
    assert (timers.pop(10_000), timers.next()) == (0, 6000)
    assert (timers.pop(10_000), timers.pop(10_000)) == (6000, 6001)


@pytest.mark.promise(
    "coordinator.md", "The partitions of a silent consumer are free 4T/3 after the last request that was sent to it."
)
def test_the_lease_in_numbers() -> None:
    assert lease.ping_interval(T) == 2000
    assert lease.response_timeout(T) == 4000
    assert lease.delivery_timeout(T) == 2000
    assert lease.user_timeout(T) == 1500
    assert lease.free_at(1000, T) == 9000
    assert lease.free_after_takeover(1000, T, C) == 1000 + 5100 + 8000
    assert lease.confirm_interval(C) == 1666
    assert lease.confirm_interval(60_000) == 2000
    assert lease.consumer_lease_ends(1000, T) == 6700
    for timeout in (1001, 1002, 1003, 3001):  # rounded to the safe side
        assert lease.free_at(0, timeout) * 3 >= timeout * 4, timeout
        assert lease.consumer_lease_ends(0, timeout) * 100 <= timeout * 95, timeout


@given(st.integers(lease.MIN_SESSION_TIMEOUT_MS + 1, 600_000), st.integers(2000, 60_000), st.floats(0.98, 1.02))
def test_a_consumer_has_stopped_when_its_partitions_are_free(timeout: int, write_timeout: int, rate: float) -> None:
    """What was sent at 0 is delivered as late as the socket allows, and clocks go slower or faster by 2 %.

    A predecessor that is cut off, and was confirmed just before it was fenced, speaks for C more by its own clock.
    """
    heard = lease.delivery_timeout(timeout)
    assert 0 < lease.user_timeout(timeout) == heard - 500, "there is room for retransmissions"
    assert heard + (lease.consumer_lease_ends(heard, timeout) - heard) * rate < lease.free_at(0, timeout)
    stopped = write_timeout * rate + heard + timeout * 0.95 * rate
    assert stopped < lease.free_after_takeover(0, timeout, write_timeout)


def test_a_lease_counts_from_the_last_request_and_from_what_the_kernel_may_still_send() -> None:
    times = lease.SentTimes()
    times.sent(1000)
    times.sent(3000)
    assert times.free_at(4000, T) == 3000 + 8000
    assert times.free_at(20_000, T) == 20_000, "not before it failed"
    times.buffered()
    assert times.free_at(6000, T) == 6000 + 8000
    times.drained(5000)
    assert times.free_at(6000, T) == 5000 + 8000
    times.not_before(50_000)
    assert times.free_at(2000, T) == 50_000, "a predecessor may have sent later"


RANGES: tuple[dict[str, Any], dict[str, list[str]], dict[str, Any]] = (
    {"t": [9, 2, 0], "u": range(2), "unsubscribed": range(1), "empty": ()},
    {"t": ["b-0", "a-0"], "u": ["b-0"], "empty": ["a-0"], "missing": ["a-0"], "none": []},
    {"t": {"a-0": (0, 2), "b-0": (9,)}, "u": {"b-0": (0, 1)}},
)
"""Of each topic by itself, and of the partitions there are."""

STICKY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[str]], dict[str, Any]]] = {
    "the first assignment deals out by turns": (
        {},
        {"t": range(3), "u": range(2)},
        {"t": ["a", "b"], "u": ["a", "b"]},
        {"t": {"a": (0, 2), "b": (1,)}, "u": {"b": (0,), "a": (1,)}},
    ),
    "who joins gets from the fullest, and no other moves": (
        {"t": {"a": (0, 1, 2), "b": (3, 4, 5)}},
        {"t": range(6)},
        {"t": ["a", "b", "c"]},
        {"t": {"a": (0, 1), "b": (3, 4), "c": (2, 5)}},
    ),
    "partitions that came and went": (
        {"t": {"a": (0, 1), "b": (2, 3)}, "gone": {"a": (0,)}},
        {"t": [0, 2, 3, 4]},
        {"t": ["a", "b"]},
        {"t": {"a": (0, 4), "b": (2, 3)}},
    ),
    "a partition with two owners keeps the first": (
        {"t": {"a": (0, 1), "b": (1,)}},
        {"t": range(2)},
        {"t": ["a", "b"]},
        {"t": {"a": (0,), "b": (1,)}},
    ),
    "threads of another topic, which have nothing to do, do not make one give": (
        {"t": {"a": (0, 2, 4), "b": (1, 3, 5)}},
        {"t": range(6), "u": ()},
        {"t": ["a", "b"], "u": ["c", "d", "e", "f", "g"]},
        {"t": {"a": (0, 2, 4), "b": (1, 3, 5)}},
    ),
    "what a thread may own alone fills it, so the other gets the rest": (
        {},
        {"t": range(2), "u": range(2)},
        {"t": ["a", "b"], "u": ["a"]},
        {"u": {"a": (0, 1)}, "t": {"b": (0, 1)}},
    ),
}


@pytest.mark.promise("coordinator.md", "Each partition of a topic has one owner, and shares differ by one at most.")
def test_assignments_by_example() -> None:
    *given, expected = RANGES
    assert finish(range_assign(*given)) == expected
    for case, (owners, partitions, threads, expected) in STICKY.items():
        assert finish(sticky_assign(owners, partitions, threads)) == expected, case


def test_shares_do_not_depend_on_the_order_in_which_owners_became_known() -> None:
    facts = {name: TopicFactsOfGroups(name, (1, 1)) for name in ("t1", "t2", "t3")}
    owners = {name: TopicOwners(name, {"c-0": (0, 1)}) for name in facts}
    backwards = finish(shares_of(dict(reversed(owners.items())), facts, ()))
    assert backwards == finish(shares_of(owners, facts, ())), "else a consumer is started for nothing"
