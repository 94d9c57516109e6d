"""What takes long is done in slices: large attempts, partitions that are opened or lost, groups that are closed."""

import itertools
from collections.abc import Callable

import pytest

from proxy.coordinator import assignment
from proxy.coordinator import events as ev
from proxy.coordinator.attempt_preparation import AttemptPreparation
from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.effects import SendFrame, WriteRecords
from proxy.coordinator.steps import PART, SLICE, sort
from proxy.coordinator.wire import PING, RegisterConsumerRequest
from tests.unit.coordinator.driver import GROUP, Consumer, Driver, finish, owned, topic

ALL = [("t", number) for number in range(6)]

LARGEST_STEP = 1000
"""Units of the largest step of 5,000 threads: C code sorts them, and puts them in a heap."""


def step(driver: Driver, event: ev.Event) -> None:
    """One call of the machine, and what it asks for; not what follows from that."""
    for effect in driver.machine.handle(event, driver.now):
        driver.history.append((driver.now, effect))
        driver._perform(effect)


@pytest.mark.promise(
    "coordinator.md", "One call of the coordinator works for a slice, whatever the size of the groups."
)
def test_no_call_does_much_more_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    work, done = AttemptPreparation.work, list[int]()

    def count(self: AttemptPreparation, units: int) -> int:
        done.append(work(self, units))
        return done[-1]

    monkeypatch.setattr(AttemptPreparation, "work", count)
    for level in (1, 2):
        driver = Driver(level=level)
        driver.topics["t"] = topic(1200)
        driver.stable(*(f"c{number}" for number in range(600)), level=level)
        before = len(done)
        driver.stable("late", level=level)
        assert max(done) < SLICE + LARGEST_STEP
        assert len(done) - before >= 10
        assert owned(list(driver.consumers.values())) == [("t", number) for number in range(1200)]


def test_steps_of_thousands_of_threads_are_small() -> None:
    partitions, threads = {"t": range(10_000)}, {"t": [f"c{number}-0" for number in range(5000)]}
    before = finish(assignment.range_assign(partitions, threads))
    moving = {"t": {**before["t"], "c0-0": (), "gone-0": before["t"]["c0-0"]}}
    for steps in (
        list(assignment.sticky_assign(moving, partitions, threads)),
        list(assignment.range_assign(partitions, threads)),
    ):
        assert max(steps) <= 2 * LARGEST_STEP
        assert sum(steps) > 5 * SLICE
    groups = set(range(2 * PART))
    sorting = sort(groups)
    next(sorting)
    groups.add(-1)
    assert finish(sorting) == list(range(2 * PART)), "what is sorted may change meanwhile"


def preparing(level: int = 2) -> tuple[Driver, list[Consumer]]:
    """Two consumers, and a third whose attempt has just begun to be prepared, a unit at a time."""
    driver = Driver(units=1, level=level)
    driver.topics["t"] = topic(6)
    consumers = [*driver.stable("c1", "c2", level=level), driver.register("c3", level=level)]
    driver.now += 200
    for _ in range(5):
        before = len(driver.history)
        step(driver, None)
        assert not any(isinstance(effect, SendFrame | WriteRecords) for _, effect in driver.history[before:])
    assert driver.machine.due() == driver.now
    return driver, consumers


def freeze(driver: Driver, consumers: list[Consumer]) -> None:
    driver.change_settings(frozen_groups=frozenset({"g"}))
    driver.advance(1000)
    assert [consumer.kinds() for consumer in consumers[:2]] == [["start"], ["start"]]
    driver.change_settings(frozen_groups=frozenset())


CHANGES: dict[str, Callable[[Driver, list[Consumer]], object]] = {
    "leave": lambda driver, consumers: consumers[1].end(),
    "join": lambda driver, consumers: consumers.append(driver.register("c4", level=2)),
    "join and leave": lambda driver, consumers: driver.register("c4", level=2).end(),
    "grow": lambda driver, consumers: driver.change_topics(t=topic(9)),
    "lower": lambda driver, consumers: driver.change_settings(level=1),
    "freeze": freeze,
}


def test_what_happens_meanwhile_is_part_of_the_result() -> None:
    for change in CHANGES:
        for level in (1, 2):
            driver, consumers = preparing(level)
            CHANGES[change](driver, consumers)
            driver.advance(2000)
            (group,) = driver.groups()
            assert (group.state, group.unowned) == ("stable", 0), (change, level)
            living = [one for one in consumers if one is not consumers[1] or change != "leave"]
            assert owned(living) == [("t", number) for number in range(9 if change == "grow" else 6)], (change, level)
            assert all(consumer.fetches for consumer in living), (change, level)
            assert driver.machine.due() != driver.now


MEMBERS = ("c1", "c2", "c3")
Change = Callable[[Driver, list[Consumer]], None]


def register_in_a_step(driver: Driver, consumer_id: str) -> Consumer:
    driver.consumers[100] = consumer = Consumer(driver, 100, consumer_id, auto_commit=True)
    request = RegisterConsumerRequest(GROUP, consumer_id, '{"t": 1}', True, "smallest", 6000, 1)
    step(driver, ev.ConsumerRegistered(100, 7, 2, request, "client", "User:u", "127.0.0.1", "PLAINTEXT", frozenset()))
    return consumer


def stable() -> tuple[Driver, list[Consumer]]:
    driver = Driver(units=1)
    driver.topics["t"] = topic(6)
    return driver, driver.stable(*MEMBERS)


def is_forgotten(driver: Driver) -> bool:
    sizes = driver.machine.sizes()
    purgatories = sizes.ping_purgatory + sizes.stop_fetcher_purgatory + sizes.start_fetcher_purgatory
    return not (sizes.elector or sizes.group_registry or sizes.topic_groups or sizes.ping_scheduler or purgatories)


def opening(before: Driver) -> Driver:
    """A successor that has begun to take the records over."""
    after = Driver(hold=False, units=1)
    after.now, after.topics = before.now, before.topics
    after.committed, after.records = before.committed, before.records
    step(after, ev.PartitionAssigned(after.partition, is_empty=False))
    step(after, after._pending.pop())
    assert after.partitions()[0].state == "opening"
    assert after.machine.due() == after.now
    return after


@pytest.mark.promise(
    "coordinator.md", "While a partition with thousands of members is opened, who registers is answered with 14."
)
def test_who_registers_meanwhile_is_answered_later() -> None:
    before, consumers = stable()
    after = opening(before)
    assert register_in_a_step(after, "c1").code == RegistrationCode.LOADING
    after.do(None)
    assert after.partitions()[0].state == "open"
    back = after.back(*consumers)
    after.advance(1000)
    assert owned(back) == ALL
    assert [one.kinds() for one in back] == [["start"]] * 3, "nobody stops"


def test_a_partition_that_is_lost_while_it_is_opened_leaves_nothing() -> None:
    before, _ = stable()
    for slices in range(8):
        after = opening(before)
        for _ in range(slices):
            step(after, None)
        after.do(ev.PartitionLost(after.partition, "fenced"))
        assert is_forgotten(after)
        assert after.groups() == []


def leave(driver: Driver, consumers: list[Consumer]) -> None:
    for one in consumers:
        if one.closed is None:
            step(driver, ev.ConsumerConnectionEnded(one.connection, True, "client_closed"))
            one.closed = "client_closed"
            return


def fail(driver: Driver, consumers: list[Consumer]) -> None:
    driver.now += 60_000
    step(driver, None)


def answer(driver: Driver, consumers: list[Consumer]) -> None:
    for one in consumers:
        if one.closed is None:
            step(driver, one.response(one.last(PING).correlation_id if one.times(PING) else 1, PING))


def register(driver: Driver, consumers: list[Consumer]) -> None:
    assert register_in_a_step(driver, "c4").code not in (None, 0)


def grow(driver: Driver, consumers: list[Consumer]) -> None:
    driver.topics["t"] = topic(9)
    step(driver, driver._snapshot())


def thaw(driver: Driver, consumers: list[Consumer]) -> None:
    driver.settings = driver.settings._replace(level=1, rebalance_delay_ms=0)
    step(driver, ev.SettingsChanged(driver.settings))


def deny(driver: Driver, consumers: list[Consumer]) -> None:
    for one in consumers:
        if one.closed is None:
            step(driver, ev.RightsChanged(one.connection, False, frozenset()))
            return


EVENTS = (leave, fail, answer, register, grow, thaw, deny)


def test_nobody_is_sent_anything_once_the_partition_is_lost() -> None:
    for change, slices, reason in itertools.product(EVENTS, (0, 1, 3, 5), ("fenced", "evacuated")):
        driver, consumers = stable()
        driver.advance(3000)
        step(driver, ev.PartitionLost(driver.partition, reason))
        received = [len(one.received) for one in consumers]
        for _ in range(slices):
            step(driver, None)
        change(driver, consumers)
        driver.do(None)
        driver.advance(60_000)
        case = (change.__name__, slices, reason)
        assert all(one.closed is not None for one in consumers), case
        assert [len(one.received) for one in consumers] == received, case
        assert is_forgotten(driver), case
        assert driver.machine.due() is None, case


def test_a_partition_that_comes_back_while_it_is_dropped_is_opened_after() -> None:
    for slices in range(6):
        driver, consumers = stable()
        step(driver, ev.PartitionLost(driver.partition, "evacuated"))
        for _ in range(slices):
            step(driver, None)
        step(driver, ev.PartitionAssigned(driver.partition, is_empty=False))
        driver.do(None)
        assert [one.closed for one in consumers] == ["coordinator_moved"] * 3, slices
        assert driver.partitions()[0].state == "open", slices
        back = driver.back(*consumers)
        driver.advance(1000)
        assert owned(back) == ALL, slices


def test_nobody_fails_while_a_partition_begins_to_speak_again() -> None:
    driver, consumers = stable()
    for one in consumers:
        one.answers = False
    driver.advance(7000)
    driver.writes_hang = True
    driver.now += 6000
    driver.do(None)
    assert driver.partitions()[0].state == "mute"
    write = driver.hung.pop()
    step(driver, ev.WriteCommitted(write.partition, -1, driver.now))
    driver.writes_hang = False
    step(driver, None)
    for one in consumers:
        one.answers = True
    driver.do(None)
    driver.advance(3000)
    assert [one.closed for one in consumers] == [None] * 3
