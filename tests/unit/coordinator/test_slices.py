"""An attempt of a large group is prepared in slices, and other events come between two of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proxy.coordinator import assignment
from proxy.coordinator.attempt_preparation import AttemptPreparation
from proxy.coordinator.effects import SendFrame, WriteRecords
from proxy.coordinator.events import TopicsChanged
from proxy.coordinator.steps import PART, SEND_UNITS, SLICE, sort
from tests.unit.coordinator.driver import Consumer, Driver, T, finish, owned, topic

LARGEST_STEP = 1000
"""Units of the largest step of 5,000 threads: C code sorts them, and puts them in a heap."""


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


def test_many_members_are_sent_to_in_slices() -> None:
    driver = Driver()
    driver.topics["t"] = topic(1000)
    for number in range(450):
        driver.register(f"c{number}", answers=False)
    for at, most in ((200, SLICE / SEND_UNITS), (T // 3, SLICE)):  # StartFetcher, and a ping
        driver.advance(at - 1 - driver.now)
        driver.now += 1
        sizes: list[int] = []
        while driver.machine.due() == driver.now or driver._pending:
            event = driver._pending.pop(0) if driver._pending else None
            effects = driver.machine.handle(event, driver.now)
            for effect in effects:
                driver._perform(effect)
            sizes.append(sum(isinstance(effect, SendFrame) for effect in effects))
        assert max(sizes) <= most, at
        assert sum(sizes) == 450, at


def test_a_topic_concerns_many_groups() -> None:
    """All of them are rebalanced, but for one that is gone meanwhile, and another snapshot loses none."""
    driver = Driver(units=1, partition_count=1)
    driver.topics["t"] = topic(1)
    consumers = [driver.register("c", group=f"g{number}") for number in range(6)]
    driver.advance(3000)
    for partitions in (2, 3):
        driver.topics["t"] = topic(partitions)
        watch = driver.machine.state.topics.answered.watch
        driver.machine.handle(TopicsChanged(watch, dict(driver.topics)), driver.now)
    assert [group.reason for group in driver.machine.state.groups.values()].count(None) > 3
    consumers.pop().end()
    driver.advance(3000)
    for consumer in consumers:
        assert owned([consumer]) == [("t", 0), ("t", 1), ("t", 2)]


def preparing(level: int = 2) -> tuple[Driver, list[Consumer]]:
    """Two consumers, and a third whose attempt has just begun to be prepared, a unit at a time."""
    driver = Driver(units=1, level=level)
    driver.topics["t"] = topic(6)
    consumers = [*driver.stable("c1", "c2", level=level), driver.register("c3", level=level)]
    driver.now += 200
    for _ in range(5):
        for effect in driver.machine.handle(None, driver.now):
            driver.history.append((driver.now, effect))
            assert not isinstance(effect, SendFrame | WriteRecords), "it is not ready yet"
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


def test_an_attempt_that_became_ready_while_mute_waits() -> None:
    driver, consumers = preparing()
    driver.writes_hang = True
    driver.now += 6000
    driver.do(None)
    assert driver.partitions()[0].state == "mute"
    assert consumers[2].kinds() == []
    driver.writes_hang = False
    driver.commit(driver.hung[-1])
    driver.advance(2000)
    assert owned(consumers) == [("t", number) for number in range(6)]
