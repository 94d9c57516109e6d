"""The priority queue of keys by time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.coordinator.timers import Timers


def test_in_order_of_time_then_of_setting() -> None:
    timers: Timers[str] = Timers()
    for key, at in (("b", 2), ("a", 1), ("c", 2)):
        timers.set(key, at)
    assert timers.next() == 1
    assert [timers.pop(2) for _ in range(4)] == ["a", "b", "c", None]


def test_one_time_for_each_key() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    timers.set("a", 5)
    assert timers.pop(4) is None
    assert timers.at("a") == 5
    assert timers.cancel("a")
    assert not timers.cancel("a")
    assert timers.next() is None
    assert len(timers) == 0


def test_cancelled_entries_do_not_pile_up() -> None:
    timers: Timers[int] = Timers()
    for at in range(10_000):
        timers.set(1, at)
    assert len(timers._times) < 100
    assert timers.pop(9998) is None
    assert timers.pop(9999) == 1


def test_what_is_due_after_many_that_were_cancelled() -> None:
    timers: Timers[int] = Timers()
    for at in range(10_000):
        timers.set(at, at)
    for at in range(1, 6000):
        timers.cancel(at)
    assert timers.pop(10_000) == 0
    assert timers.next() == 6000
    assert timers.pop(10_000) == 6000
    assert timers.pop(10_000) == 6001


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20)))), st.integers(0, 25))
def test_like_a_dictionary(operations: list[tuple[int, int | None]], now: int) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    for key, at in operations:
        if at is None:
            assert timers.cancel(key) == (model.pop(key, None) is not None)
        else:
            timers.set(key, at)
            model[key] = at
        assert timers.next() == min(model.values(), default=None)
    popped = []
    while (next_key := timers.pop(now)) is not None:
        popped.append(next_key)
    assert sorted(popped) == sorted(key for key, at in model.items() if at <= now)
    assert [model[key] for key in popped] == sorted(model[key] for key in popped)
