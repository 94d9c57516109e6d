"""Partitions are opened and lost, and groups are closed, in slices: what happens between two of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from proxy.coordinator import events as ev
from proxy.coordinator.codes import RegistrationCode
from proxy.coordinator.wire import PING, ConsumedOffset, RegisterConsumerRequest
from tests.unit.coordinator.driver import GROUP, Consumer, Driver, owned, topic

MEMBERS = ("c1", "c2", "c3")
ALL = [("t", number) for number in range(6)]

Change = Callable[[Driver, list[Consumer]], None]


def step(driver: Driver, event: ev.Event) -> None:
    """One call of the machine, and what it asks for; not what follows from that."""
    for effect in driver.machine.handle(event, driver.now):
        driver.history.append((driver.now, effect))
        driver._perform(effect)


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


# Opening


def successor(before: Driver) -> Driver:
    after = Driver(hold=False, units=1)
    after.now, after.topics = before.now, before.topics
    after.committed, after.records = before.committed, before.records
    return after


def opening(before: Driver) -> Driver:
    """A successor that has begun to take the records over."""
    after = successor(before)
    step(after, ev.PartitionAssigned(after.partition, is_empty=False))
    step(after, after._pending.pop())
    assert after.partitions()[0].state == "opening"
    assert after.machine.due() == after.now
    return after


def come_back(after: Driver, consumers: list[Consumer]) -> list[Consumer]:
    return [after.register(one.consumer_id, fetches=one.fetches) for one in consumers]


@pytest.mark.promise(
    "coordinator.md", "While a partition with thousands of members is opened, who registers is answered with 14."
)
def test_who_registers_meanwhile_is_answered_later() -> None:
    before, consumers = stable()
    after = opening(before)
    assert register_in_a_step(after, "c1").code == RegistrationCode.LOADING
    after.do(None)
    assert after.partitions()[0].state == "open"
    back = come_back(after, consumers)
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


# Losing


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


CHANGES = (leave, fail, answer, register, grow, thaw, deny)


def test_nobody_is_sent_anything_once_the_partition_is_lost() -> None:
    for change, slices, reason in itertools.product(CHANGES, (0, 1, 3, 5), ("fenced", "evacuated")):
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
        back = come_back(driver, consumers)
        driver.advance(1000)
        assert owned(back) == ALL, slices


# Closing


def test_a_group_with_an_ordinary_member_is_closed_whatever_happens_meanwhile() -> None:
    for change, slices in itertools.product(CHANGES, (0, 1, 2)):
        driver, consumers = stable()
        orders = [one.kinds() for one in consumers]
        driver.ordinary = True
        step(driver, ev.OrdinaryMembersFound(GROUP, True))
        for _ in range(slices):
            step(driver, None)
        change(driver, consumers)
        driver.do(None)
        driver.advance(1000)
        case = (change.__name__, slices)
        assert all(one.closed is not None for one in consumers), case
        assert [one.kinds() for one in consumers] == orders, f"no attempt is made: {case}"
        assert driver.groups()[0].state == "empty", case


def test_offsets_that_come_while_a_group_with_an_ordinary_member_is_closed_are_not_committed() -> None:
    driver, consumers = stable()
    late = consumers[-1]
    late.answers = False
    driver.advance(2500)
    step(driver, ev.OrdinaryMembersFound(GROUP, True))
    assert late.closed is None, "not yet"
    reported = tuple(ConsumedOffset(topic, 1, partition, 13) for topic, partition in late.fetches)
    step(driver, late.response(late.last(PING).correlation_id, PING, offsets=reported))
    driver.advance(30_000)
    assert late.closed == "group_has_members"
    assert driver.committed == {}


def failed() -> tuple[Driver, list[Consumer]]:
    """A group whose rebalance fails for good, since one of its members answers no StopFetcher."""
    driver = Driver(units=1, max_rebalance_retries=0)
    driver.topics["t"] = topic(6)
    consumers = driver.stable(*MEMBERS)
    consumers[0].answers = False
    driver.register("c4")
    driver.now += 200
    while not driver.logs("ConsumerRebalanceFailedException"):
        step(driver, driver._pending.pop(0) if driver._pending else None)
        if not driver._pending and (due := driver.machine.due()) is not None:
            driver.now = max(driver.now, due)
    return driver, consumers


def test_who_registers_while_a_group_is_closed_is_a_member_after() -> None:
    driver, consumers = failed()
    assert any(one.closed is None for one in consumers)
    register(driver, consumers)
    driver.consumers[100].closed = "refused"
    driver.do(None)
    assert [one.closed for one in consumers] == ["rebalance_failed"] * 3
    assert driver.register("c1").code == RegistrationCode.REBALANCE_FAILED
    driver.advance(20_000)
    others = [driver.register("c2"), driver.register("c3")]
    driver.advance(2000)
    assert owned(others) == ALL


# After a takeover, and after silence


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
