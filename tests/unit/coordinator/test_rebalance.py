"""Rebalancing: stop, commit, start; who is waited for, who is given up, and what an operator holds."""

import pytest

from proxy.coordinator import wire
from proxy.coordinator.effects import CloseConsumer, SendFrame, WriteRecords
from proxy.coordinator.handlers import Handlers
from proxy.coordinator.records import GenerationRecord, OwnersRecord
from tests.unit.coordinator.driver import BROKERS, Consumer, Driver, owned, topic

T4 = [("t", 0), ("t", 1), ("t", 2), ("t", 3)]


def generations(driver: Driver) -> list[tuple[int, str]]:
    """Generations and states, as they were written."""
    values = [r.value for w in driver.all(WriteRecords) for r in w.records if isinstance(r, GenerationRecord)]
    return [(value.generation, value.state) for value in values if value is not None]


def started(consumer: Consumer) -> wire.StartFetcherRequest:
    return consumer.last(wire.START_FETCHER).request


def test_start_fetcher_tells_threads_brokers_leaders_and_where_to_start() -> None:
    (c1,) = Driver().stable("c1", topic_count='{"t": 3}')
    request = started(c1)
    assert request.brokers == BROKERS
    threads = [(thread.thread_id, len(thread.partitions)) for thread in request.threads]
    assert threads == [("c1-0", 2), ("c1-1", 1), ("c1-2", 1)]
    assert {entry.leader for thread in request.threads for entry in thread.partitions} == {1}
    driver = Driver()
    driver.topics["t"] = topic(2)
    consumers = driver.stable("c1", "c2", "c3")
    assert [(len(one.fetches), one.kinds()) for one in consumers] == [(1, ["start"]), (1, ["start"]), (0, ["start"])]
    assert started(consumers[2]).threads == (), "a member without partitions is told so"

    driver = Driver()
    driver.committed["t", 1] = 17
    (c1,) = driver.stable("c1", reset="largest")
    assert c1.fetches == {("t", 0): wire.LARGEST, ("t", 1): 17, ("t", 2): wire.LARGEST, ("t", 3): wire.LARGEST}
    (c2,) = driver.stable("c2")
    assert c2.fetches == {("t", 2): wire.SMALLEST, ("t", 3): wire.SMALLEST}


@pytest.mark.promise(
    "coordinator.md", "The coordinator commits offsets together with the new owners, before it starts them."
)
def test_stop_all_then_offsets_and_owners_then_start_then_stable() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    c1.offsets["t", 0] = 5
    first = len(driver.history)
    driver.register("c3")
    driver.advance(1000)
    steps = []
    for _, effect in driver.history[first:]:
        if isinstance(effect, SendFrame) and effect.connection in (c1.connection, c2.connection):
            steps.append(wire.decode_pushed(effect.frame[4:]).api_key)
        elif isinstance(effect, WriteRecords):
            steps += [record.value.state for record in effect.records if isinstance(record, GenerationRecord)]
            if effect.offsets:
                assert effect.offsets == {"g": {("t", 0): 5}}
                steps.append("offsets")
    keys = [step for step in steps if step != wire.PING]
    assert keys == [
        wire.STOP_FETCHER,
        wire.STOP_FETCHER,
        "starting",
        "offsets",
        wire.START_FETCHER,
        wire.START_FETCHER,
        "stable",
    ]


def test_nobody_starts_before_the_owners_are_committed() -> None:
    driver = Driver()
    driver.topics["u"] = topic(1)
    (c1,) = driver.stable("c1", topic_count='{"t": 1, "u": 1}')
    c2 = driver.register("c2")
    driver.writes_hang = True
    driver.advance(1000)
    assert (c1.kinds(), c2.kinds()) == (["start", "stop"], [])
    (write,) = (w for w in driver.hung if isinstance(w, WriteRecords) and w.records)
    driver.commit(write)
    assert (c1.kinds(), c2.kinds()) == (["start", "stop", "start"], ["start"])
    written = [[r.topic for r in w.records if isinstance(r, OwnersRecord)] for w in driver.all(WriteRecords)]
    assert [topics for topics in written if topics] == [["t", "u"], ["t"]], "where they have changed"


def test_a_commit_that_fails_uses_its_number_up_is_no_retry_and_keeps_the_offsets() -> None:
    driver = Driver(max_rebalance_retries=0)
    (c1,) = driver.stable("c1")
    c1.offsets["t", 3] = 9
    driver.register("c2")
    driver.writes_hang = True
    for _ in range(3):
        driver.advance(2200)
        for write in list(driver.hung):
            driver.abort(write) if isinstance(write, WriteRecords) else driver.commit(write)
    assert c1.closed is None
    driver.writes_hang = False
    driver.advance(5000)
    assert driver.committed["t", 3] == 9
    tried = [generation for generation, state in generations(driver) if state == "starting"]
    assert tried == sorted(set(tried)), "a number is never tried twice"
    assert len(tried) > 3


@pytest.mark.promise(
    "config/coordinator.md", "Consumers that join within `rebalance.delay.ms` of each other cause one rebalance."
)
def test_joins_of_a_deploy_become_one_rebalance() -> None:
    driver = Driver()
    for number in range(20):
        driver.register(f"c{number:02}")
        driver.advance(5)
    driver.change_topics(t=topic(6))
    driver.advance(1000)
    assert [one["reason"] for one in driver.logs("rebalance")] == ["joined"], "the first one"


def test_member_that_comes_and_goes_is_slowed_down() -> None:
    driver = Driver()
    driver.stable("c1")
    for _ in range(20):
        c2 = driver.register("c2")
        driver.advance(1000)
        c2.end()
        driver.advance(1000)
    assert driver.logs("rebalance_delayed")
    assert max(fields["delay_ms"] for fields in driver.logs("rebalance_delayed")) <= 10_000
    assert len(driver.logs("rebalance")) < 30


def test_attempt_ends_at_once_when_a_member_goes_and_is_no_retry() -> None:
    driver = Driver(max_rebalance_retries=0)
    c1, c2 = driver.stable("c1", "c2")
    c2.answers = False
    c3 = driver.register("c3")
    driver.advance(300)
    assert c2.kinds()[-1] == "stop"
    c2.end()
    driver.advance(200)
    assert c2.consumer_id not in [member.consumer_id for member in driver.groups()[0].consumers]
    assert owned([c1, c3]) == T4
    assert driver.count("rebalances_total", "joined", "cancelled") == 1


@pytest.mark.promise(
    "coordinator.md", "Owners and offsets stay when all consumers have gone; after 24 h the group is deleted."
)
def test_group_without_members_is_deleted_after_a_day() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.end()
    driver.advance(24 * 3600 * 1000 - 1)
    assert [key for key in driver.records if "owners" in key]
    assert not [key for key in driver.records if "ids" in key]
    driver.advance(1)
    assert not driver.records
    assert driver.groups() == []


@pytest.mark.promise(
    "config/coordinator.md", "A rebalance that has failed is tried again after `rebalance.backoff.ms`."
)
def test_stop_that_is_not_answered_fails_the_attempt_after_two_thirds() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    c1.answers = False
    driver.register("c3")
    driver.advance(200 + 4000 - 1)
    assert driver.groups()[0].state == "stopping"
    driver.advance(1)
    assert driver.groups()[0].state == "backoff"
    late = c1.last(wire.STOP_FETCHER)
    c1.answer(late)
    assert driver.groups()[0].state == "backoff", "a late answer completes no attempt"
    driver.advance(2000)
    assert c1.last(wire.STOP_FETCHER) != late
    assert c1.kinds()[-2:] == ["stop", "stop"]
    assert c2.kinds() == ["start", "stop"], "it has stopped, and need not stop again"


@pytest.mark.promise(
    "coordinator.md",
    "A group whose rebalance cannot end is closed, and a member that did not answer is refused for 60 s.",
)
@pytest.mark.promise(
    "config/coordinator.md", "A rebalance is tried again `max.rebalance.retries` times before its group has failed."
)
def test_retries_are_used_up_after_13_seconds() -> None:
    """Two members that answer pings and never StopFetcher: 3 x 4000 ms and 2 x 500 ms of back-off."""
    driver = Driver(max_rebalance_retries=2, rebalance_backoff_ms=500)
    stuck = driver.stable("c1", "c2")
    for consumer in stuck:
        consumer.answers = False
    driver.register("c3")
    driver.advance(200)
    began = driver.now
    while driver.now < began + 13_000:
        assert all(consumer.closed is None for consumer in stuck)
        driver.advance(100)
        for consumer in stuck:
            for _, frame in consumer.received:
                if frame.api_key == wire.PING and consumer.closed is None:
                    driver.do(consumer.response(frame.correlation_id, wire.PING))
    assert [consumer.closed for consumer in driver.consumers.values()] == ["rebalance_failed"] * 3
    (told,) = driver.logs("ConsumerRebalanceFailedException")
    assert (told["group"], told["retries"]) == ("g", 2)
    assert [driver.register(consumer_id).code for consumer_id in ("c1", "c2", "c3")] == [27, 27, 0]
    driver.advance(20_000)
    assert driver.consumers[max(driver.consumers)].partitions() == T4, "the others go on without them"
    driver.advance(40_000)
    assert driver.register("c1").code == 0


@pytest.mark.promise(
    "config/coordinator.md", "`rebalance.threadpool.size` groups are rebalanced at a time, and others wait."
)
def test_a_slow_group_delays_another_only_where_no_handler_is_free() -> None:
    for size in (16, 1):
        driver = Driver(partition_count=1, rebalance_threadpool_size=size)
        (slow,) = driver.stable("c1")
        slow.answers = False
        driver.register("c2")
        driver.advance(300)
        other = driver.register("c1", group="h")
        driver.advance(3899)
        assert other.kinds() == (["start"] if size > 1 else [])
        driver.advance(1)
        assert driver.groups()[0].state == "backoff"
        assert other.kinds() == ["start"], "the handler is free in the back-off"


def test_handlers_queue_each_group_once() -> None:
    handlers = Handlers(4)
    handlers.queue("g", 5)
    handlers.queue("g", 7)
    assert (handlers.due(), handlers.queued()) == (7, 1)
    assert handlers.begin(6) is None
    assert handlers.begin(7) == "g"
    handlers.queue("g", 8)
    assert handlers.begin(9) is None, "the handler is not free"
    assert handlers.due() is None
    handlers.done("h")
    handlers.done("g")
    assert handlers.begin(9) == "g"
    handlers.forget("g")
    assert (handlers.working(), handlers.queued()) == (0, 0)


@pytest.mark.promise(
    "coordinator.md", "A group with `rebalance.enabled: false` stops nobody, and has one rebalance once it is enabled."
)
def test_a_frozen_group_stops_nobody_and_thaws_with_one_rebalance() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    driver.change_settings(frozen_groups=frozenset({"g"}))
    c2.end()
    (again,) = driver.stable("c2")
    assert again.partitions() == T4[2:], "a restarted member gets its own"
    again.end()
    (c3,) = driver.stable("c3")
    driver.advance(60_000)
    assert (c1.kinds(), c3.partitions(), driver.groups()[0].unowned) == (["start"], [], 2)
    before = len(driver.logs("rebalance"))
    driver.change_settings(frozen_groups=frozenset())
    driver.advance(1000)
    assert (c1.partitions(), c3.partitions()) == (T4[:2], T4[2:])
    assert [one["reason"] for one in driver.logs("rebalance")[before:]] == ["enabled"]


def test_one_that_did_not_stop_in_time_goes_on_when_its_group_is_frozen() -> None:
    driver = Driver()
    c1, _ = driver.stable("c1", "c2")
    c1.answers = False
    driver.register("c3")
    driver.advance(200)
    driver.change_settings(frozen_groups=frozenset({"g"}))
    driver.advance(6000)
    c1.answer_all()
    driver.advance(1000)
    assert owned(list(driver.consumers.values())) == T4
    assert c1.kinds() == ["start", "stop", "start"]


@pytest.mark.promise(
    "coordinator.md", "A group with more than 100,000 partitions, or 32,767 of one consumer, fails with the reason."
)
def test_too_many_partitions_fail_the_group() -> None:
    driver = Driver()
    driver.topics["t"] = topic(32_768)
    (c1,) = driver.stable("c1")
    assert c1.closed == "rebalance_failed"
    assert "c1 would own 32768 partitions" in driver.logs("ConsumerRebalanceFailedException")[0]["detail"]
    assert driver.groups()[0].failure is not None
    driver = Driver()
    driver.topics["t"] = topic(100_001)
    consumers = driver.stable("c1", "c2", "c3", "c4")
    assert {consumer.closed for consumer in consumers} == {"rebalance_failed"}
    assert generations(driver) == []
    assert len(driver.all(CloseConsumer)) == 4
