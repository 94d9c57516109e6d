"""Level 2 of the protocol: nobody stops who loses nothing; and the way up to it and down again."""

from typing import Any

import pytest

from proxy.coordinator.effects import WriteRecords
from proxy.coordinator.records import GenerationRecord
from proxy.coordinator.wire import START_FETCHER, STOP_FETCHER
from tests.unit.coordinator.driver import Consumer, Driver, owned, topic

ALL = [("t", number) for number in range(6)]


def level_two(*consumer_ids: str, partitions: int = 6, **settings: Any) -> tuple[Driver, list[Consumer]]:
    driver = Driver(level=2, **settings)
    driver.topics["t"] = topic(partitions)
    return driver, driver.stable(*consumer_ids, level=2)


def last_stop(consumer: Consumer) -> tuple[tuple[str, int], ...] | None:
    request = consumer.last(STOP_FETCHER).request
    return request.partitions


@pytest.mark.promise("coordinator.md", "At level 2 only consumers that lose partitions get StopFetcher, for these.")
def test_who_joins_takes_only_what_it_gets_and_who_loses_nothing_is_not_disturbed() -> None:
    driver, (c1, c2) = level_two("c1", "c2")
    before = {consumer.consumer_id: consumer.partitions() for consumer in (c1, c2)}
    c1.offsets.update(dict.fromkeys(c1.fetches, 5))
    (c3,) = driver.stable("c3", level=2)
    for consumer in (c1, c2):
        lost = last_stop(consumer)
        assert len(lost) == 1
        assert set(consumer.partitions()) == set(before[consumer.consumer_id]) - set(lost)
    assert owned([c1, c2, c3]) == ALL
    (moved,) = last_stop(c1) or ()
    assert c3.fetches[moved] == 5
    assert driver.groups()[0].level == 2
    kinds = [consumer.kinds() for consumer in (c1, c2)]
    c3.end()
    driver.advance(1000)
    assert [consumer.kinds() for consumer in (c1, c2)] == [[*one, "start"] for one in kinds], "without a stop"
    assert owned([c1, c2]) == ALL

    driver, (c1, c2) = level_two("c1", "c2", partitions=3)
    (c3,) = driver.stable("c3", level=2)
    assert (c1.kinds(), c2.kinds()) == (["start", "stop", "start"], ["start"])
    assert len(c3.fetches) == 1


def test_mixed_group_and_a_level_that_is_not_finalized_are_at_level_one() -> None:
    for finalized, of_second in ((2, 1), (1, 2)):
        driver = Driver(level=finalized)
        (c1,) = driver.stable("c1", level=2)
        driver.stable("c2", level=of_second)
        assert last_stop(c1) is None, (finalized, of_second)
        assert driver.groups()[0].level == 1


def test_retry_stops_everybody() -> None:
    driver, (c1, c2) = level_two("c1", "c2")
    c1.answers = False
    driver.register("c3", level=2)
    driver.advance(200 + 4000)
    assert last_stop(c1) is not None
    assert last_stop(c2) is not None
    driver.advance(2000)
    assert (last_stop(c1), last_stop(c2)) == (None, None)


def test_one_that_is_stopping_a_part_when_the_attempt_ends_is_stopped_whole() -> None:
    driver, (c1, _) = level_two("c1", "c2")
    c1.answers = False
    c3 = driver.register("c3", level=2)
    driver.advance(300)
    part = c1.last(STOP_FETCHER)
    c3.end()
    driver.advance(300)
    assert last_stop(c1) is None
    c1.answer(part)
    assert driver.groups()[0].state == "stopping", "that was answered too late to say what it does"
    c1.answer(c1.last(STOP_FETCHER))
    c1.answer(c1.last(START_FETCHER))
    assert driver.groups()[0].state == "stable"
    assert owned(list(driver.consumers.values())) == ALL


def test_a_topic_that_is_deleted_or_recreated_is_stopped_alone() -> None:
    driver, (c1,) = level_two("c1", partitions=2)
    driver.topics["u"] = topic(1)
    (c2,) = driver.stable("c2", topic_count='{"u": 1}', level=2)
    driver.change_topics(u=None)
    driver.advance(1000)
    assert c1.kinds() == ["start"]
    assert (last_stop(c2), c2.partitions()) == ((("u", 0),), [])
    assert driver.groups()[0].state == "stable"
    c1.offsets["t", 0] = 50
    driver.advance(3000)
    driver.change_topics(t=topic(2, "id-2"))
    driver.advance(1000)
    assert last_stop(c1) == (("t", 0), ("t", 1))
    assert c1.fetches == {("t", 0): -2, ("t", 1): -2}, "it begins anew"


@pytest.mark.promise("features.md", "A sidecar reports the level that it still uses until its groups have left it.")
def test_raising_needs_nothing_and_lowering_writes_the_groups_anew() -> None:
    driver = Driver(level=1)
    driver.topics["t"] = topic(6)
    c1, _ = driver.stable("c1", "c2", level=2)
    driver.change_settings(level=2)
    driver.advance(1000)
    assert c1.kinds() == ["start"]
    driver.stable("c3", level=2)
    assert last_stop(c1) is not None
    assert driver.machine.highest_level() == 2
    driver.writes_hang = True
    driver.change_settings(level=1)
    (write,) = (write for write in driver.hung if isinstance(write, WriteRecords))
    driver.abort(write)
    driver.writes_hang = False
    assert driver.machine.highest_level() == 2, "that was not written: it is repeated"
    driver.advance(1000)
    assert driver.machine.highest_level() == 1
    assert c1.kinds() == ["start", "stop", "start"]
    last = [r for w in driver.all(WriteRecords) for r in w.records if isinstance(r, GenerationRecord)][-1]
    assert last.value.level == 1

    before, (c1,) = level_two("c1")
    c1.end()
    before.advance(1000)
    driver = before.successor(level=1)
    driver.advance(1000)
    assert driver.machine.highest_level() == 1, "groups that are loaded later, too"


def test_an_attempt_at_the_level_that_was_lowered_counts_until_it_ends() -> None:
    driver = Driver(level=1)
    driver.topics["t"] = topic(6)
    c1, _ = driver.stable("c1", "c2", level=2)
    driver.change_settings(level=2)
    c1.answers = False
    driver.register("c3", level=2)
    driver.advance(300)
    assert driver.groups()[0].level == 1
    assert driver.machine.highest_level() == 2, "a partial StopFetcher is not answered yet"
    driver.change_settings(level=1)
    assert driver.machine.highest_level() == 2
    c1.answer_all()
    driver.advance(2000)
    assert driver.machine.highest_level() == 1
