"""How observers get the levels of the fleet's features: by a slot beside their queue."""

from __future__ import annotations

import pytest

from observers.circuit_breaker import MAX_CONSECUTIVE_FAILURES
from tests.unit.observers.samples import exchange
from tests.unit.observers.test_dispatch import FAKES, feed, held, observer, started, until


@pytest.mark.promise("observers.md", "An observer gets changed levels of features without traffic.")
def test_an_idle_observer_gets_them_on_its_own_thread_and_the_same_ones_once() -> None:
    dispatcher = started("Follower", "Keeper")
    follower = observer(dispatcher, "Follower")
    given = {"a": 1, "b": 0}
    for _ in range(3):
        dispatcher.set_finalized_levels(given)
        until(lambda: len(follower.levels) == 1)
    given["a"] = 5  # it is the caller's own
    dispatcher.set_finalized_levels({"a": 2, "b": 0})
    until(lambda: len(follower.levels) == 2)
    assert follower.levels == [{"a": 1, "b": 0}, {"a": 2, "b": 0}]
    with pytest.raises(TypeError):
        follower.levels[0]["a"] = 3
    assert follower.threads == {f"observer {FAKES}:Follower"}
    dispatcher.set_finalized_levels({})
    dispatcher.close(60)
    dispatcher.set_finalized_levels({"a": 7})
    assert follower.levels[2:] == [{}], "what is set just before the end comes before close"
    assert follower.life[-1] == "close"
    assert [stats.delivered for stats in dispatcher.stats()] == [0, 0]
    assert observer(dispatcher, "Keeper").life == ["configure", "close"]


def test_of_several_the_last_one_comes_before_what_waits() -> None:
    dispatcher, follower = held("GatedFollower")
    feed(dispatcher, 1)
    feed(dispatcher, 1)
    for level in (1, 2, 3):
        dispatcher.set_finalized_levels({"a": level})
    follower.gate.set()
    dispatcher.close(60)
    assert follower.levels == [{"a": 3}]
    assert follower.life == ["configure", "record", "levels", "record", "record", "close"]
    assert dispatcher.stats()[0].delivered == 3


def test_a_call_that_raises_is_counted_and_made_again_before_the_next_exchanges() -> None:
    dispatcher = started("Follower")
    follower = observer(dispatcher, "Follower")
    follower.error = RuntimeError("no")
    dispatcher.set_finalized_levels({"a": 1})
    until(lambda: dispatcher.stats()[0].errors == {"finalized_levels": 1})
    feed(dispatcher, 2)
    until(lambda: dispatcher.stats()[0].delivered == 2)
    assert dispatcher.stats()[0].errors == {"finalized_levels": 2}
    follower.error = None
    feed(dispatcher, 1)
    dispatcher.close(60)
    assert follower.levels == [{"a": 1}]
    assert (dispatcher.stats()[0].delivered, dispatcher.stats()[0].failed) == (3, 0)


def test_while_the_breaker_is_open_they_wait() -> None:
    now = [0.0]
    dispatcher = started("Follower", clock=lambda: now[0])
    follower = observer(dispatcher, "Follower")
    follower.error = RuntimeError("no")
    for level in range(1, MAX_CONSECUTIVE_FAILURES + 4):
        dispatcher.set_finalized_levels({"a": level})
        errors = {"finalized_levels": min(level, MAX_CONSECUTIVE_FAILURES)}
        until(lambda errors=errors: dispatcher.stats()[0].errors == errors)  # type: ignore[misc]
    until(lambda: dispatcher.stats()[0].breaker_open)  # which the last failure does after it was counted
    follower.error = None
    now[0] = 1e6
    dispatcher.record_exchange(exchange())
    dispatcher.close(60)
    assert follower.levels == [{"a": MAX_CONSECUTIVE_FAILURES + 3}]


def test_an_observer_that_replaces_another_gets_the_current_ones() -> None:
    dispatcher = started("Follower")
    dispatcher.set_finalized_levels({"a": 1})
    wanted = {f"{FAKES}:Follower": {"top": 5}}
    dispatcher.replace(dispatcher.configure_beside(wanted), wanted, 5.0)
    follower = observer(dispatcher, "Follower")
    until(lambda: follower.levels == [{"a": 1}])
    dispatcher.close(60)
