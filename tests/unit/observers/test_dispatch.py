"""The dispatcher against observers that do well, raise, exit, block, hang and lie."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from observers.circuit_breaker import BREAKER_OPEN_TIME, MAX_CONSECUTIVE_FAILURES
from observers.dispatch import MAX_BATCH_EXCHANGES, Dispatcher
from observers.errors import ObserverError
from observers.observer_thread import MAX_KEPT_BYTES, MAX_QUEUED_WEIGHT
from observers.queue_weight import queue_weight
from proxy.core.observation_interest import (
    THROTTLE_FIRST,
    WANT_EXCHANGE,
    WANT_FACTS,
    WANT_REQUEST_BODY,
    WANT_RESPONSE_BODY,
)
from tests.unit.observers.samples import change, connection, exchange, fetch, produce, report

FAKES = "tests.unit.observers.fakes"


def started(*classes: str, **options: Any) -> Dispatcher:
    dispatcher = Dispatcher([f"{FAKES}:{name}" for name in classes], {"broker.id": 1}, **options)
    dispatcher.start()
    return dispatcher


def observer(dispatcher: Dispatcher, name: str) -> Any:
    return dispatcher.observers[f"{FAKES}:{name}"]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to make ``condition`` true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.001)


def feed(dispatcher: Dispatcher, count: int) -> None:
    """One flush of ``count`` exchanges."""
    for _ in range(count):
        dispatcher.record_exchange(exchange())
    dispatcher.flush()


def lost(dispatcher: Dispatcher, number: int = 0) -> int:
    """What the observer lost, for whatever reason."""
    return sum(dispatcher.stats()[number].dropped.values())


def held(*classes: str, **options: Any) -> tuple[Dispatcher, Any]:
    """A dispatcher whose first observer, a gated one, is in a call about one exchange."""
    dispatcher = started(*classes, **options)
    gated = observer(dispatcher, classes[0])
    feed(dispatcher, 1)
    assert gated.entered.wait(60)
    return dispatcher, gated


def settled(dispatcher: Dispatcher) -> None:
    until(lambda: all(s.queued == 0 for s in dispatcher.stats()))


@pytest.mark.promise("observers.md", "The sidecar does not start with a class that is no observer.")
def test_what_cannot_be_an_observer_is_refused_by_name() -> None:
    for name, says in (
        ("no_colon", "'no_colon' is not of the form package.module:Class"),
        ("nowhere.at_all:Class", "module 'nowhere.at_all' cannot be imported"),
        (f"{FAKES}:Absent", "has no class 'Absent'"),
        (f"{FAKES}:not_a_class", "has no class 'not_a_class'"),
        (f"{FAKES}:NeedsArguments", "cannot be constructed without arguments"),
        (f"{FAKES}:Shapeless", "does not fit the observer interface"),
        (f"{FAKES}:TooManyArguments", "record_exchanges(exchanges, dropped) cannot be called so: missing"),
        (f"{FAKES}:Asynchronous", "record_exchanges(exchanges, dropped) must be a plain method, not async"),
    ):
        with pytest.raises(ObserverError) as refused:
            Dispatcher([name], {})
        assert repr(name) in str(refused.value), name
        assert says in str(refused.value), name
    with pytest.raises(ObserverError, match="named twice"):
        Dispatcher([f"{FAKES}:Keeper"] * 2, {})


@pytest.mark.promise("observers.md", "An observer is configured first, and called no more after close.")
def test_an_observer_is_configured_and_then_gets_all_in_order_on_its_own_thread_until_it_is_closed() -> None:
    dispatcher = started("Keeper", "Second")
    dispatcher.flush()  # without traffic there is no call
    record = dispatcher.record_exchange  # it stays valid across flushes
    for n in range(1000):
        record(exchange(correlation_id=n))
        if n % 300 == 0:
            dispatcher.flush()
    dispatcher.close(60)
    feed(dispatcher, 3)
    dispatcher.close(60)
    for name in ("Keeper", "Second"):
        fake = observer(dispatcher, name)
        assert [e.correlation_id for e in fake.seen] == list(range(1000))
        assert fake.threads == {f"observer {FAKES}:{name}"}
        assert (fake.life[0], set(fake.life[1:-1]), fake.life[-1]) == ("configure", {"record"}, "close")
        assert set(fake.dropped) == {0}
        assert 0 < fake.close_timeout <= 60


def test_weight_counts_exchanges_their_partitions_and_long_names() -> None:
    three = produce([(b"a", n, 10, 1) for n in range(3)])
    idle = fetch([(b"a", 0), (b"a", 1)], [])
    shrinking = fetch([], [], forgotten=((b"a", 0), (b"a", 1)))
    exchanges = [exchange(), three, idle, shrinking]
    long = [
        exchange(client_id=700 * "c"),
        fetch([(300 * b"t", 0)], []),
        fetch([], [], forgotten=((600 * b"t", 0),)),
        fetch([], [(1000 * b"t", 0, 0, 0, 0)]),
    ]
    transaction = produce([], transactional_id=256 * b"x")
    assert queue_weight(exchanges)[0] == 1 + (1 + 3 + 3) + (1 + 2) + (1 + 2)
    assert queue_weight(long)[0] == (1 + 2) + (1 + 1 + 1) + (1 + 1 + 2) + (1 + 1 + 3)
    assert queue_weight([transaction])[0] == 1 + 1
    with pytest.raises(TypeError):
        queue_weight([object()])


def test_however_heavy_one_request_is_no_other_is_lost_for_it() -> None:
    dispatcher, gated = held("Gated", "Keeper")
    heavy = fetch([(b"a", n) for n in range(MAX_QUEUED_WEIGHT + 1)], [])
    for number in range(3):
        for _ in range(200):
            dispatcher.record_exchange(exchange())
        dispatcher.record_exchange(heavy)
        for _ in range(200):
            dispatcher.record_exchange(exchange(correlation_id=number))
        dispatcher.flush()
    assert (lost(dispatcher), dispatcher.stats()[0].queued) == (2, 1 + 3 * 400 + 1), "one of those waits, alone"
    gated.gate.set()
    dispatcher.close(60)
    assert [one is heavy for one in gated.seen].index(True) == 201
    assert gated.seen[-1].correlation_id == 2


def test_long_names_of_connections_count_for_what_may_wait() -> None:
    dispatcher, keeper = held("GatedWatcher")
    long = change(connection=connection(principal="User:" + 60_000 * "x"))
    for some, expected in ((long, 0), (long, MAX_BATCH_EXCHANGES), (change(), MAX_BATCH_EXCHANGES)):
        for _ in range(MAX_BATCH_EXCHANGES):
            dispatcher.record_change(some)
        dispatcher.flush()
        assert lost(dispatcher) == expected
    keeper.gate.set()
    dispatcher.close(60)


@pytest.mark.promise("observers.md", "What does not fit into an observer's bounded queue is counted as lost.")
def test_a_batch_that_does_not_fit_is_dropped_whole_counted_and_reported_with_the_next() -> None:
    dispatcher, gated = held("Gated", "Keeper")
    feed(dispatcher, MAX_QUEUED_WEIGHT)
    until(lambda: dispatcher.stats()[1].queued == 0)
    feed(dispatcher, 7)
    feed(dispatcher, 5)
    assert lost(dispatcher) == 12
    assert dispatcher.stats()[0].queued == MAX_QUEUED_WEIGHT + 1
    gated.gate.set()
    settled(dispatcher)
    feed(dispatcher, 2)
    dispatcher.close(60)
    assert [dropped for dropped in gated.dropped if dropped] == [gated.dropped[-1]] == [12]
    assert dispatcher.stats()[0].delivered == MAX_QUEUED_WEIGHT + 3
    assert (dispatcher.stats()[1].delivered, lost(dispatcher, 1)) == (MAX_QUEUED_WEIGHT + 15, 0)
    # A loss at the very end is reported with an empty call.
    dispatcher, gated = held("Gated")
    feed(dispatcher, MAX_QUEUED_WEIGHT + 1)
    gated.gate.set()
    dispatcher.close(60)
    assert len(gated.seen) == 1 + MAX_QUEUED_WEIGHT
    assert [dropped for dropped in gated.dropped if dropped] == [gated.dropped[-1]] == [1]


def test_kept_bodies_that_wait_are_bounded_by_their_bytes() -> None:
    body = bytes(MAX_KEPT_BYTES // 8)
    dispatcher, gated = held("GatedReader", "ByteCounts")
    for number in range(10):
        dispatcher.record_exchange(exchange(correlation_id=number, request_raw=body))
        dispatcher.flush()
        until(lambda: dispatcher.stats()[1].queued == 0)
    assert dispatcher.stats()[0].dropped == {"queue_full": 2, "breaker_open": 0, "closing": 0}
    gated.gate.set()
    settled(dispatcher)
    dispatcher.record_exchange(exchange(request_raw=body, response_raw=bytes(MAX_KEPT_BYTES)))
    dispatcher.close(60)
    assert (dispatcher.stats()[0].delivered, lost(dispatcher)) == (10, 2), "a larger one than all fits alone"
    assert (dispatcher.stats()[1].delivered, lost(dispatcher, 1)) == (12, 0)


@pytest.mark.promise("observers.md", "Exchanges that no observer wants are neither decoded nor kept.")
def test_nothing_is_reported_walked_or_kept_that_no_observer_wants() -> None:
    facts = WANT_EXCHANGE | WANT_FACTS
    bodies = WANT_REQUEST_BODY | WANT_RESPONSE_BODY
    for name, pair, expected in (
        ("PickyReader", (1, 12), facts | bodies),
        ("PickyReader", (1, 3), 0),
        ("PickyReader", (0, 9), 0),
        ("PickyReader", (3, 12), WANT_EXCHANGE | WANT_RESPONSE_BODY),  # for names
        ("PickyReader", (3, 9), 0),  # no topic ids in this one
        ("Keeper", (0, 9), facts),
        ("Keeper", (20_000, 0), WANT_EXCHANGE),
        ("Picky", (19, 7), 0),  # who needs no names learns none
        ("Picky", (3, 12), WANT_EXCHANGE),
        ("Sparing", (18, 3), WANT_EXCHANGE),
    ):
        dispatcher = started(name)
        found = dispatcher.interest.flags(*pair) & (WANT_EXCHANGE | bodies | (WANT_FACTS if pair[0] < 3 else 0))
        assert found == expected, (name, pair)
        dispatcher.close(60)
    dispatcher = started("Sparing")
    assert dispatcher.interest.flags(3, 12) & bodies == bodies
    dispatcher.close(60)
    dispatcher = started("Picky")
    assert dispatcher.interest.flags(3, 12) & THROTTLE_FIRST
    assert not dispatcher.interest.flags(12, 4) & THROTTLE_FIRST
    dispatcher.close(60)


def test_each_observer_gets_what_it_wants_and_numbers_are_the_same_for_all() -> None:
    dispatcher = started("Picky", "PickyReader", "Keeper")
    for one in (fetch([], []), exchange(), produce([]), fetch([], []), exchange(api_key=20_000, api_version=0)):
        dispatcher.record_exchange(one)
    dispatcher.record_exchange(exchange(api_key=20_001, api_version=0))
    dispatcher.close(60)
    picky, keeper = observer(dispatcher, "Picky"), observer(dispatcher, "Keeper")
    assert [one.api_key for one in picky.seen] == [3, 20_000]
    assert picky.asked.count((20_000, 0)) == picky.asked.count((20_001, 0)) == 1
    assert observer(dispatcher, "PickyReader").correlations == ["c1:0", "c1:3"]
    assert len(keeper.seen) == 6
    assert [(s.delivered, s.failed, s.queued) for s in dispatcher.stats()] == [(2, 0, 0), (2, 0, 0), (6, 0, 0)]
    assert [lost(dispatcher, n) for n in range(3)] == [0, 0, 0]


@pytest.mark.promise("observers.md", "record_changes gets connections that open, authenticate or close.")
@pytest.mark.promise("observers.md", "record_throttles gets connections that met a limit.")
def test_changes_come_after_the_exchanges_before_them_and_throttles_in_order_with_both() -> None:
    dispatcher = started("Watcher", "Keeper", "ByteCounts")
    first, second, third, fourth, fifth = exchange(), change(), change(change="closed"), report(), exchange()
    dispatcher.record_change(second)
    dispatcher.record_exchange(first)
    dispatcher.record_change(third)
    dispatcher.record_throttles([fourth])
    dispatcher.record_exchange(fifth)
    dispatcher.close(60)
    watcher = observer(dispatcher, "Watcher")
    assert watcher.life == ["configure", "record", "changes", "throttles", "record", "close"]
    assert [id(one) for one in watcher.seen] == [id(one) for one in (first, second, third, fourth, fifth)]
    assert [(s.delivered, s.failed, s.queued) for s in dispatcher.stats()] == [(5, 0, 0), (2, 0, 0), (2, 0, 0)]


def test_changes_and_throttles_count_for_what_may_wait_and_a_loss_is_reported_with_the_next_call() -> None:
    def changes(dispatcher: Dispatcher, count: int) -> None:
        for _ in range(count):
            dispatcher.record_change(change())
        dispatcher.flush()

    def throttles(dispatcher: Dispatcher, count: int) -> None:
        dispatcher.record_throttles([report()] * count)

    for record in (changes, throttles):
        dispatcher, gated = held("GatedWatcher")
        for _ in range(MAX_QUEUED_WEIGHT // MAX_BATCH_EXCHANGES + 1):
            record(dispatcher, MAX_BATCH_EXCHANGES)
        assert lost(dispatcher) == MAX_BATCH_EXCHANGES, record
        gated.gate.set()
        settled(dispatcher)
        record(dispatcher, 1)
        dispatcher.close(60)
        assert gated.dropped[-1] == sum(gated.dropped) == MAX_BATCH_EXCHANGES, record
        assert dispatcher.stats()[0].delivered == MAX_QUEUED_WEIGHT + 2, record


@pytest.mark.promise("observers.md", "Whatever an observer raises is counted as a failure of that one alone.")
def test_whatever_is_raised_ends_there_and_the_others_get_everything() -> None:
    for error in (
        RuntimeError("no"), SystemExit(1), KeyboardInterrupt(), RecursionError(), MemoryError(), GeneratorExit(),
        asyncio.CancelledError(),
    ):  # fmt: skip
        dispatcher = started("Thrower", "Keeper")
        observer(dispatcher, "Thrower").error = error
        for _ in range(5):
            feed(dispatcher, 2)
        settled(dispatcher)
        observer(dispatcher, "Thrower").error = None
        feed(dispatcher, 2)
        dispatcher.close(60)
        thrower, keeper = dispatcher.stats()
        assert (thrower.delivered, thrower.failed, lost(dispatcher)) == (2, 10, 0), error
        assert thrower.errors == {"record_exchanges": 5}, error
        assert (keeper.delivered, keeper.failed) == (12, 0), error
        assert observer(dispatcher, "Thrower").life[-1] == "close"


@pytest.mark.promise("observers.md", "After 100 consecutive failures an observer is not called for 10 seconds.")
def test_the_breaker_opens_after_its_limit_and_one_call_tries_again_after_the_pause() -> None:
    now = [0.0]
    dispatcher = started("Thrower", clock=lambda: now[0])
    thrower = observer(dispatcher, "Thrower")
    for _ in range(MAX_CONSECUTIVE_FAILURES + 3):
        feed(dispatcher, 1)
    settled(dispatcher)
    assert thrower.life.count("record") == MAX_CONSECUTIVE_FAILURES
    assert dispatcher.stats()[0].breaker_open
    assert lost(dispatcher) == 3

    now[0] = BREAKER_OPEN_TIME
    for _ in range(2):
        feed(dispatcher, 1)
    settled(dispatcher)
    assert thrower.life.count("record") == MAX_CONSECUTIVE_FAILURES + 1, "one trial, and it failed"
    thrower.error = None
    now[0] = 2 * BREAKER_OPEN_TIME
    feed(dispatcher, 1)
    feed(dispatcher, 1)
    dispatcher.close(60)
    stats = dispatcher.stats()[0]
    assert not stats.breaker_open
    assert (stats.delivered, stats.failed, lost(dispatcher)) == (2, MAX_CONSECUTIVE_FAILURES + 1, 4)
    assert thrower.dropped == [4, 0]


@pytest.mark.promise("observers.md", "A method with the keyword context gets the client, times and result.")
def test_what_else_is_known_is_given_to_those_that_take_it() -> None:
    dispatcher = started("Curious")
    dispatcher.record_exchange(exchange(client_id="billing", error_code=3, forwarded_at=100.001))
    before = time.time() - time.monotonic()
    dispatcher.close(60)
    curious = observer(dispatcher, "Curious")
    assert curious.unit == "s"
    context, again = curious.contexts
    assert context == again
    got = (context.broker_id, context.listener, context.client_id, context.connection_id)
    assert got == (1, "CLIENT", "billing", "c1")
    assert (context.error_code, context.responded_at) == (3, 0.0)
    assert context.forwarded_at == pytest.approx(before + 100.001, abs=60)
    assert context.forwarded_at - context.received_at == pytest.approx(0.001, abs=1e-5)


@pytest.mark.promise("observers.md", "The correlation id that observers get is unique among all exchanges.")
@pytest.mark.promise("observers.md", "No response is reported where none was handed to the client.")
def test_correlation_ids_are_unique_and_no_response_is_reported_where_none_came() -> None:
    dispatcher = started("ByteCounts", "BadHalf")
    for more in ({}, {"outcome": "no_response", "response": None}, {"outcome": "connection_lost", "response": None}):
        dispatcher.record_exchange(produce([(b"a", 0, 100, 1)], correlation_id=7, **more))
    dispatcher.flush()
    dispatcher.record_exchange(fetch([], [(b"b", 0, 50, 2, 0)], correlation_id=7))
    dispatcher.close(60)
    counts, bad = observer(dispatcher, "ByteCounts"), observer(dispatcher, "BadHalf")
    assert counts.correlations == bad.correlations == ["c1:0", "c1:1", "c1:2", "c1:3"]
    assert set(counts.open) == {"c1:1", "c1:2"}
    assert (counts.produced, counts.fetched, bad.produced) == ({"a": 300}, {"b": 50}, {"a": 300})
    assert counts.clients == {("10.0.0.7", "User:ANONYMOUS")}
    got = [(s.delivered, s.failed, s.errors) for s in dispatcher.stats()]
    assert got == [(4, 0, {}), (2, 2, {"record_response": 2})], "one of which a half failed is failed"


def test_an_observer_that_cannot_be_replaced_leaves_the_running_one_alone() -> None:
    dispatcher = started("RefusesSettings", "Numbering", "Keeper", settings={f"{FAKES}:Keeper": {"top": 5}})
    running = observer(dispatcher, "RefusesSettings")
    with pytest.raises(ObserverError, match="refused its configuration: ValueError: top is 5"):
        dispatcher.configure_beside({f"{FAKES}:RefusesSettings": {"top": 5}})
    with pytest.raises(ObserverError, match="other settings need a restart"):
        dispatcher.configure_beside({f"{FAKES}:Numbering": {"top": 5}})
    assert dispatcher.configure_beside({f"{FAKES}:Keeper": {"top": 5}}) == [], "they are the same"
    feed(dispatcher, 1)
    until(lambda: len(running.seen) == 1)
    assert observer(dispatcher, "RefusesSettings") is running
    dispatcher.close(5)


# ---- levels of the features of the fleet, by a slot beside the queue -------------------------------------------------


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


def test_levels_come_before_what_waits_and_again_after_a_failure() -> None:
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
    # A call that raises is counted and made again before the next exchanges.
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


# ---- threads ---------------------------------------------------------------------------------------------------------


def policy() -> int:
    return os.sched_getscheduler(0)


def in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a thread of its own."""
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(function()))
    thread.start()
    thread.join()
    return returned[0]


class Noting:
    """An observer that notes the policies of its thread, and of one that it starts when it is configured."""

    def configure(self, configs: Mapping[str, Any]) -> None:
        self.policies = [in_thread(policy)]

    def record_exchanges(self, exchanges: Sequence[Any], dropped: int) -> None:
        self.policies += [policy(), in_thread(policy)]

    def close(self, timeout: float) -> None:
        """Nothing is left to do."""


@pytest.mark.promise("architecture.md", "Threads of observers yield the CPU to the event loop.")
def test_observers_and_what_they_start_run_as_background_threads() -> None:
    dispatcher = Dispatcher([f"{__name__}:Noting"], {})
    dispatcher.start()
    feed(dispatcher, 1)
    dispatcher.close(60)
    (noting,) = dispatcher.observers.values()
    assert isinstance(noting, Noting)
    assert noting.policies == [os.SCHED_BATCH] * 3
    assert (policy(), in_thread(policy)) == (os.SCHED_OTHER, os.SCHED_OTHER)
