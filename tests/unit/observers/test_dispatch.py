"""The dispatcher against observers that do well, raise, exit, block, hang and lie."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from observers import lane
from observers.breaker import MAX_FAILURES, PAUSE
from observers.dispatch import MAX_BATCH, Dispatcher
from observers.errors import ObserverError
from observers.lane import MAX_QUEUED
from tests.tools.implementations import both, compiled
from tests.unit.observers import fakes
from tests.unit.observers.samples import compiled_twin, exchange, fetch, produce, report

FAKES = "tests.unit.observers.fakes"


def started(*classes: str, **options: Any) -> Dispatcher:
    dispatcher = Dispatcher([f"{FAKES}:{name}" for name in classes], {"broker.id": 1}, **options)
    dispatcher.start()
    return dispatcher


def observer(dispatcher: Dispatcher, name: str) -> Any:
    return dispatcher.observers[f"{FAKES}:{name}"]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to make ``condition`` true."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.001)


def feed(dispatcher: Dispatcher, count: int) -> None:
    """One flush of ``count`` exchanges."""
    for _ in range(count):
        dispatcher.record(exchange())
    dispatcher.flush()


def lost(dispatcher: Dispatcher, number: int = 0) -> int:
    """What the observer lost, for whatever reason."""
    return sum(dispatcher.stats()[number].dropped.values())


def settled(dispatcher: Dispatcher) -> None:
    until(lambda: all(s.queued == 0 for s in dispatcher.stats()))


class TestConstruction:
    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("no_colon", "'no_colon' is not of the form package.module:Class"),
            ("nowhere.at_all:Class", "module 'nowhere.at_all' cannot be imported"),
            (f"{FAKES}:Absent", "has no class 'Absent'"),
            (f"{FAKES}:not_a_class", "has no class 'not_a_class'"),
            (f"{FAKES}:NeedsArguments", "cannot be constructed without arguments"),
            (f"{FAKES}:Shapeless", "has the wrong shape"),
        ],
    )
    def test_what_cannot_be_an_observer_is_refused_by_name(self, name: str, says: str) -> None:
        with pytest.raises(ObserverError) as refused:
            Dispatcher([name], {})
        assert repr(name) in str(refused.value)
        assert says in str(refused.value)

    def test_one_class_twice_is_refused(self) -> None:
        with pytest.raises(ObserverError, match="named twice"):
            Dispatcher([f"{FAKES}:Keeper"] * 2, {})

    @pytest.mark.parametrize(
        ("name", "says"), [("Refuser", "ValueError: audit.topic is empty"), ("Leaver", "SystemExit: 3")]
    )
    def test_a_refused_configuration_stops_the_start_and_closes_those_before(self, name: str, says: str) -> None:
        fakes.calls.clear()
        dispatcher = Dispatcher([f"{FAKES}:Keeper", f"{FAKES}:{name}", f"{FAKES}:Second"], {})
        with pytest.raises(ObserverError, match=says):
            dispatcher.start()
        assert fakes.calls == ["Keeper.configure", "Keeper.close"]

    def test_observers_are_configured_in_order_with_the_whole_configuration(self) -> None:
        fakes.calls.clear()
        dispatcher = started("Second", "Keeper")
        dispatcher.close(5)
        assert fakes.calls[:2] == ["Second.configure", "Keeper.configure"]
        assert observer(dispatcher, "Keeper").configs["broker.id"] == 1

    def test_an_observer_cannot_change_the_configuration_of_others(self) -> None:
        with pytest.raises(ObserverError, match="does not support item assignment"):
            started("Meddler")


class TestDelivery:
    def test_every_exchange_reaches_every_observer_in_order_on_its_own_thread(self) -> None:
        dispatcher = started("Keeper", "Second")
        told = [exchange(correlation_id=n) for n in range(1000)]
        for n, one in enumerate(told):
            dispatcher.record(one)
            if n % 300 == 0:
                dispatcher.flush()
        dispatcher.close(20)
        for name in ("Keeper", "Second"):
            fake = observer(dispatcher, name)
            assert [e.correlation_id for e in fake.seen] == list(range(1000))
            assert fake.threads == {f"observer {FAKES}:{name}"}
            assert fake.life[0] == "configure"
            assert fake.life[-1] == "close"
            assert set(fake.dropped) == {0}

    def test_record_stays_valid_across_flushes(self) -> None:
        dispatcher = started("Keeper")
        record = dispatcher.record
        record(exchange())
        dispatcher.flush()
        record(exchange())
        dispatcher.close(20)
        assert len(observer(dispatcher, "Keeper").seen) == 2

    def test_nothing_is_called_after_close(self) -> None:
        dispatcher = started("Keeper")
        feed(dispatcher, 3)
        dispatcher.close(20)
        feed(dispatcher, 3)
        dispatcher.close(20)
        assert observer(dispatcher, "Keeper").life == ["configure", "record", "close"]

    def test_without_traffic_an_observer_is_only_configured_and_closed(self) -> None:
        dispatcher = started("Keeper")
        dispatcher.flush()
        dispatcher.close(20)
        assert observer(dispatcher, "Keeper").life == ["configure", "close"]


class TestBounds:
    def test_much_at_once_is_handed_over_in_order_in_batches_of_a_bounded_size(self) -> None:
        dispatcher = started("Keeper")
        for n in range(2 * MAX_BATCH + 1):
            dispatcher.record(exchange(correlation_id=n))
        dispatcher.flush()
        dispatcher.close(20)
        keeper = observer(dispatcher, "Keeper")
        assert [one.correlation_id for one in keeper.seen] == list(range(2 * MAX_BATCH + 1))
        assert keeper.life.count("record") == 3

    @pytest.mark.parametrize(
        "weight_of", both(lane.weight_of, getattr(compiled("observers.compiled"), "weight_of", None))
    )
    def test_weight_counts_exchanges_and_their_partitions(self, weight_of: Any) -> None:
        three = produce([(b"a", n, 10, 1) for n in range(3)])
        idle = fetch([(b"a", 0), (b"a", 1)], [])
        told = [exchange(), three, idle]
        assert weight_of(told) == 1 + (1 + 3 + 3) + (1 + 2)
        if weight_of is not lane.weight_of:
            assert weight_of([compiled_twin(one) for one in told]) == weight_of(told)

    def test_a_batch_that_does_not_fit_is_dropped_whole_counted_and_told_with_the_next(self) -> None:
        dispatcher = started("Gated", "Keeper")
        gated = observer(dispatcher, "Gated")
        feed(dispatcher, 1)
        assert gated.entered.wait(20)
        feed(dispatcher, MAX_QUEUED)
        until(lambda: dispatcher.stats()[1].queued == 0)
        feed(dispatcher, 7)
        feed(dispatcher, 5)
        assert lost(dispatcher) == 12
        assert dispatcher.stats()[0].queued == MAX_QUEUED + 1
        gated.gate.set()
        settled(dispatcher)
        feed(dispatcher, 2)
        dispatcher.close(20)
        assert [dropped for dropped in gated.dropped if dropped] == [gated.dropped[-1]] == [12]
        assert dispatcher.stats()[0].delivered == MAX_QUEUED + 3
        assert (dispatcher.stats()[1].delivered, lost(dispatcher, 1)) == (MAX_QUEUED + 15, 0)

    def test_a_loss_at_the_very_end_is_told_with_an_empty_call(self) -> None:
        dispatcher = started("Gated")
        gated = observer(dispatcher, "Gated")
        feed(dispatcher, 1)
        assert gated.entered.wait(20)
        feed(dispatcher, MAX_QUEUED + 1)
        gated.gate.set()
        dispatcher.close(20)
        assert len(gated.seen) == 1 + MAX_QUEUED
        assert [dropped for dropped in gated.dropped if dropped] == [gated.dropped[-1]] == [1]


class TestContainment:
    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("no"),
            SystemExit(1),
            KeyboardInterrupt(),
            RecursionError(),
            MemoryError(),
            GeneratorExit(),
            asyncio.CancelledError(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_whatever_is_raised_ends_there_and_the_others_get_everything(self, error: BaseException) -> None:
        dispatcher = started("Thrower", "Keeper")
        observer(dispatcher, "Thrower").error = error
        for _ in range(5):
            feed(dispatcher, 2)
        settled(dispatcher)
        observer(dispatcher, "Thrower").error = None
        feed(dispatcher, 2)
        dispatcher.close(20)
        thrower, keeper = dispatcher.stats()
        assert (thrower.delivered, thrower.failed, lost(dispatcher)) == (2, 10, 0)
        assert thrower.errors == {"record_exchanges": 5}
        assert (keeper.delivered, keeper.failed) == (12, 0)
        assert observer(dispatcher, "Thrower").life[-1] == "close"

    def test_the_breaker_opens_after_its_limit_and_one_call_tries_again_after_the_pause(self) -> None:
        now = [0.0]
        dispatcher = started("Thrower", clock=lambda: now[0])
        thrower = observer(dispatcher, "Thrower")
        for _ in range(MAX_FAILURES + 3):
            feed(dispatcher, 1)
        settled(dispatcher)
        assert thrower.life.count("record") == MAX_FAILURES
        assert dispatcher.stats()[0].breaker_open
        assert lost(dispatcher) == 3

        now[0] = PAUSE
        feed(dispatcher, 1)
        feed(dispatcher, 1)
        settled(dispatcher)
        assert thrower.life.count("record") == MAX_FAILURES + 1, "one trial, and it failed"

        thrower.error = None
        now[0] = 2 * PAUSE
        feed(dispatcher, 1)
        feed(dispatcher, 1)
        dispatcher.close(20)
        stats = dispatcher.stats()[0]
        assert not stats.breaker_open
        assert (stats.delivered, stats.failed, lost(dispatcher)) == (2, MAX_FAILURES + 1, 4)
        assert thrower.dropped == [4, 0]

    def test_an_observer_that_never_returns_costs_the_others_nothing(self) -> None:
        dispatcher = started("Gated", "Keeper")
        feed(dispatcher, 4)
        feed(dispatcher, 4)
        until(lambda: dispatcher.stats()[1].delivered == 8)
        begun = time.monotonic()
        dispatcher.close(0.3)
        assert time.monotonic() - begun < 0.3 + 0.1
        gated, keeper = dispatcher.stats()
        assert gated.queued == 8
        assert keeper.delivered == 8
        assert observer(dispatcher, "Keeper").life[-1] == "close"
        fake = observer(dispatcher, "Gated")
        fake.gate.set()
        until(lambda: not any(t.name.endswith(":Gated") for t in threading.enumerate()))
        assert fake.life == ["configure", "record"], "the call that hung ended; none came after it, close neither"

    def test_a_hanging_close_is_abandoned(self) -> None:
        dispatcher = started("HangsInClose")
        begun = time.monotonic()
        dispatcher.close(0.2)
        assert time.monotonic() - begun < 0.2 + 0.1

    def test_what_cannot_be_fed_in_time_is_counted_as_dropped(self) -> None:
        dispatcher = started("Keeper")
        feed(dispatcher, 1)
        settled(dispatcher)
        for _ in range(10):
            dispatcher.record(exchange())
        dispatcher.close(0.0)
        settled(dispatcher)
        assert dispatcher.stats()[0].delivered == 1
        assert lost(dispatcher) == 10

    def test_close_gets_what_is_left_of_the_time(self) -> None:
        dispatcher = started("Keeper")
        dispatcher.close(5)
        assert 4 < observer(dispatcher, "Keeper").close_timeout <= 5


class TestKip388:
    def test_the_example_of_the_kip_counts_the_right_bytes(self) -> None:
        dispatcher = started("ByteCounts")
        dispatcher.record(produce([(b"a", 0, 100, 1), (b"a", 1, 20, 1), (b"b", 0, 3, 1)]))
        dispatcher.record(produce([(b"a", 0, 1000, 5)]))
        dispatcher.record(fetch([(b"a", 0), (b"b", 0)], [(b"a", 0, 50, 2, 0), (b"b", 0, 7, 1, 0), (b"b", 1, 0, 0, 0)]))
        dispatcher.record(exchange())
        dispatcher.close(20)
        counts = observer(dispatcher, "ByteCounts")
        assert dispatcher.stats()[0].errors == {}
        assert counts.produced == {"a": 1120, "b": 3}
        assert counts.fetched == {"a": 50, "b": 7}
        assert counts.clients == {("10.0.0.7", "User:ANONYMOUS")}

    def test_correlation_ids_are_unique_and_the_same_for_all_observers(self) -> None:
        dispatcher = started("ByteCounts", "BadHalf")
        for _ in range(3):
            dispatcher.record(exchange(correlation_id=7))
        dispatcher.flush()
        dispatcher.record(exchange(correlation_id=7))
        dispatcher.close(20)
        assert observer(dispatcher, "ByteCounts").correlations == ["c1:0", "c1:1", "c1:2", "c1:3"]
        assert observer(dispatcher, "BadHalf").correlations == ["c1:0", "c1:1", "c1:2", "c1:3"]

    def test_no_response_is_told_where_none_came(self) -> None:
        dispatcher = started("ByteCounts")
        dispatcher.record(produce([(b"a", 0, 100, 1)], outcome="no_response", response=None))
        dispatcher.record(exchange(outcome="connection_lost"))
        dispatcher.close(20)
        counts = observer(dispatcher, "ByteCounts")
        assert set(counts.open) == {"c1:0", "c1:1"}
        assert counts.produced == {"a": 100}

    def test_an_exchange_of_which_one_half_failed_is_failed_and_the_other_half_was_told(self) -> None:
        dispatcher = started("BadHalf")
        dispatcher.record(produce([(b"a", 0, 100, 1)]))
        dispatcher.record(produce([(b"a", 0, 100, 1)], outcome="no_response", response=None))
        dispatcher.close(20)
        stats = dispatcher.stats()[0]
        assert (stats.delivered, stats.failed, stats.errors) == (1, 1, {"record_response": 1})
        assert observer(dispatcher, "BadHalf").produced == {"a": 200}


class TestThrottles:
    def test_they_come_in_order_with_the_exchanges_recorded_before_and_after(self) -> None:
        dispatcher = started("Watcher")
        first, second, third = exchange(), report(), exchange()
        dispatcher.record(first)
        dispatcher.report([second])
        dispatcher.record(third)
        dispatcher.close(20)
        watcher = observer(dispatcher, "Watcher")
        assert watcher.life == ["configure", "record", "throttles", "record", "close"]
        assert [id(one) for one in watcher.seen] == [id(first), id(second), id(third)]
        assert dispatcher.stats()[0].delivered == 3

    def test_an_observer_that_does_not_ask_for_them_is_not_told_and_misses_nothing(self) -> None:
        dispatcher = started("Keeper", "ByteCounts", "WatchingByteCounts")
        dispatcher.report([report(), report()])
        dispatcher.report([])
        dispatcher.close(20)
        assert observer(dispatcher, "Keeper").life == ["configure", "close"]
        assert [(s.delivered, sum(s.dropped.values()), s.failed, s.queued) for s in dispatcher.stats()] == [
            (0, 0, 0, 0),
            (0, 0, 0, 0),
            (2, 0, 0, 0),
        ]
        assert observer(dispatcher, "WatchingByteCounts").reports == [report(), report()]

    def test_each_counts_as_one_of_what_may_wait_and_a_loss_is_told_with_the_next_call(self) -> None:
        dispatcher = started("GatedWatcher")
        watcher = observer(dispatcher, "GatedWatcher")
        feed(dispatcher, 1)
        assert watcher.entered.wait(20)
        feed(dispatcher, MAX_QUEUED - 2)
        dispatcher.report([report()] * 3)
        dispatcher.report([report()] * 2)
        feed(dispatcher, 1)
        assert (lost(dispatcher), dispatcher.stats()[0].queued) == (4, MAX_QUEUED + 1)
        watcher.gate.set()
        settled(dispatcher)
        feed(dispatcher, 1)
        dispatcher.close(20)
        assert watcher.dropped[-2:] == [3, 1], "three reports before the two, and an exchange behind them"
        assert sum(watcher.dropped) == lost(dispatcher) == 4
        assert dispatcher.stats()[0].delivered == MAX_QUEUED + 2

    def test_a_call_that_raises_is_counted_and_exchanges_go_on(self) -> None:
        dispatcher = started("ThrowingWatcher")
        dispatcher.report([report(), report()])
        feed(dispatcher, 3)
        dispatcher.close(20)
        stats = dispatcher.stats()[0]
        assert (stats.delivered, stats.failed, lost(dispatcher), stats.errors) == (3, 2, 0, {"record_throttles": 1})
