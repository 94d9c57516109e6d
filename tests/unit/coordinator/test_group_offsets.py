"""Offsets: which are taken, when they are committed, and where the next owner starts."""

import pytest

from proxy.coordinator.effects import ReadCommittedOffsets, WriteRecords
from proxy.coordinator.events import CommittedOffsetsRead
from proxy.coordinator.offsets import GroupOffsets, OffsetReport
from proxy.coordinator.records import GenerationRecord, GenerationValue
from proxy.coordinator.wire import PING, START_FETCHER, STOP_FETCHER
from tests.unit.coordinator.driver import Consumer, Driver, topic

HOLDS = frozenset({("t", 0), ("t", 1)})


def of_topic(topic_id: str = "1") -> GroupOffsets:
    offsets = GroupOffsets()
    offsets.owners_are_of({"t": topic_id})
    return offsets


def offset_writes(driver: Driver) -> list[WriteRecords]:
    return [write for write in driver.all(WriteRecords) if write.offsets]


def test_which_reports_are_accepted_and_become_uncommitted() -> None:
    offsets = GroupOffsets()
    assert offsets.report(HOLDS, "t", 0, 5) is OffsetReport.ACCEPTED
    assert offsets.report(HOLDS, "t", 0, 4) is OffsetReport.BACKWARDS
    assert offsets.report(HOLDS, "t", 2, 4) is OffsetReport.NOT_OWNER
    assert offsets.report(HOLDS, "t", 1, -1) is OffsetReport.NOTHING
    assert offsets.report(HOLDS, "t", 0, 5) is OffsetReport.ACCEPTED
    assert offsets.take_uncommitted() == {("t", 0): 5}
    assert offsets.take_uncommitted() == {}
    assert offsets.report(HOLDS, "t", 0, 5) is OffsetReport.ACCEPTED
    assert not offsets.has_uncommitted(), "nothing has changed"
    offsets.handed_over([("t", 0)], auto_commit=True)
    assert offsets.start_at(("t", 0)) == 5
    assert offsets.report(HOLDS, "t", 0, 3) is OffsetReport.ACCEPTED, "the next owner may be behind"
    offsets = GroupOffsets()
    offsets.report(HOLDS, "t", 0, 5)
    offsets.report(HOLDS, "t", 1, 5)
    taken = offsets.take_uncommitted()
    offsets.report(HOLDS, "t", 0, 6)
    offsets.write_ended(taken, committed=False)
    assert offsets.take_uncommitted() == {("t", 0): 6, ("t", 1): 5}


def test_offsets_of_an_earlier_topic_of_that_name_are_forgotten() -> None:
    offsets = of_topic()
    offsets.report(HOLDS, "t", 0, 5)
    offsets.topic_is("t", "1")
    assert offsets.start_at(("t", 0)) == 5
    offsets.topic_is("t", "2")
    assert offsets.start_at(("t", 0)) is None
    assert offsets.report(HOLDS, "t", 0, 6) is OffsetReport.RECREATED
    offsets.loaded({("t", 0): 5})
    assert offsets.start_at(("t", 0)) is None
    assert not offsets.has_uncommitted()
    offsets.owners_are_of({"t": "2"})
    offsets.handed_over([("t", 0)], auto_commit=True)
    assert offsets.report(HOLDS, "t", 0, 1) is OffsetReport.ACCEPTED

    offsets = of_topic()
    offsets.owners_are_of({})
    offsets.topic_is("t", "2")
    offsets.owners_are_of({"t": "2"})
    assert offsets.report(HOLDS, "t", 0, 1) is OffsetReport.ACCEPTED, "it was not owned meanwhile"

    # An attempt for the earlier topic is under way: some partitions are handed over, others stay where they are.
    offsets = of_topic()
    offsets.topic_is("t", "2")
    offsets.owners_are_of({"t": "1"})
    offsets.handed_over([("t", 1)], auto_commit=True)
    assert offsets.report(HOLDS, "t", 0, 241) is OffsetReport.RECREATED
    assert offsets.report(HOLDS, "t", 1, 1) is OffsetReport.RECREATED
    assert not offsets.has_uncommitted()

    offsets = of_topic()
    offsets.report(HOLDS, "t", 0, 5)
    taken = offsets.take_uncommitted()
    offsets.topic_is("t", None)
    offsets.write_ended(taken, committed=False)
    assert not offsets.has_uncommitted(), "a transaction with those of a deleted topic would fail for ever"
    assert offsets.report(HOLDS, "t", 0, 6) is OffsetReport.RECREATED


def test_a_group_that_begins_anew_reads_again_but_for_what_kafka_does_not_show_yet() -> None:
    offsets = GroupOffsets()
    offsets.report(HOLDS, "t", 0, 5)
    taken = offsets.take_uncommitted()
    offsets.begin_anew()
    offsets.loaded({("t", 0): 3})
    assert offsets.start_at(("t", 0)) == 5, "it is being written"
    offsets.write_ended(taken, committed=True)
    offsets.begin_anew()
    offsets.loaded({("t", 0): 3})
    assert offsets.start_at(("t", 0)) == 3

    offsets = of_topic()
    offsets.report(HOLDS, "t", 0, 5)
    offsets.write_ended(offsets.take_uncommitted(), committed=True)
    offsets.begin_anew()
    offsets.loaded({})
    assert offsets.start_at(("t", 0)) == 5, "the first commit is not shown at once"
    offsets.loaded({("t", 0): 3})
    assert offsets.start_at(("t", 0)) == 3, "an operator has reset it"
    offsets.topic_is("t", None)
    offsets.loaded({})
    assert offsets.start_at(("t", 0)) is None


@pytest.mark.promise(
    "config/coordinator.md", "Reported offsets are committed every `offset.commit.interval.ms`, if they have changed."
)
def test_committed_every_interval_and_when_a_member_goes() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    for offset in (3, 4, 5):
        c1.offsets["t", 0] = offset
        driver.advance(10_000)
    assert len(offset_writes(driver)) in (2, 3)
    driver.advance(20_000)
    assert driver.committed == {("t", 0): 5}
    count = len(offset_writes(driver))
    driver.advance(60_000)
    assert len(offset_writes(driver)) == count, "nothing has changed"

    driver = Driver(offset_commit_interval_ms=600_000)
    (c1,) = driver.stable("c1")
    c1.offsets["t", 2] = 30
    driver.advance(2000)
    c1.end()
    driver.advance(100)
    assert driver.committed == {("t", 2): 30}


@pytest.mark.promise(
    "consumer.md", "With `auto_commit=False` the coordinator commits nothing, and reads offsets after all have stopped."
)
def test_members_that_commit_by_themselves() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1", auto_commit=False)
    driver.advance(20_000)
    assert not offset_writes(driver)
    driver.committed["t", 3] = 40
    reads = len(driver.all(ReadCommittedOffsets))
    (c2,) = driver.stable("c2", auto_commit=False)
    assert len(driver.all(ReadCommittedOffsets)) == reads + 1, "after all have stopped"
    assert c2.fetches["t", 3] == 40
    assert c1.fetches["t", 0] == -2


def test_reading_is_repeated_until_it_succeeds() -> None:
    driver = Driver()
    driver.reads_hang = True
    c1 = driver.register("c1")
    driver.advance(1000)
    (read,) = driver.all(ReadCommittedOffsets)
    driver.do(CommittedOffsetsRead(read.partition, "g", read.read, None))
    driver.advance(499)
    assert len(driver.all(ReadCommittedOffsets)) == 1
    driver.advance(1)
    _, again = driver.all(ReadCommittedOffsets)
    driver.do(CommittedOffsetsRead(read.partition, "g", read.read, {("t", 0): 1}))
    assert c1.kinds() == [], "an answer to the first question comes too late"
    driver.do(CommittedOffsetsRead(read.partition, "g", again.read, {("t", 0): 2}))
    assert c1.fetches["t", 0] == 2

    for fails_while_it_hangs in (True, False):
        driver = Driver()
        driver.reads_hang = True
        c1 = driver.register("c1")
        (read,) = driver.all(ReadCommittedOffsets)
        c1.end()
        driver.reads_hang = fails_while_it_hangs
        driver.do(CommittedOffsetsRead(read.partition, "g", read.read, None))
        driver.advance(10_000)
        driver.reads_hang = False
        (again_there,) = driver.stable("c1")
        assert (len(again_there.partitions()), again_there.kinds()) == (4, ["start"]), "nobody was there meanwhile"


@pytest.mark.promise(
    "coordinator.md", "An operator may reset the offsets of a group without consumers; the next one begins there."
)
def test_operator_may_reset_the_offsets_of_a_group_without_members() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.offsets["t", 0] = 50
    driver.advance(2000)
    c1.end()
    driver.advance(1000)
    driver.committed["t", 0] = 7
    (again,) = driver.stable("c1")
    assert again.fetches["t", 0] == 7


def test_offsets_of_many_groups_are_written_some_at_a_time() -> None:
    driver = Driver(partition_count=1)
    for number in range(60):
        consumer = driver.register("c1", group=f"g{number:02}")
        consumer.offsets["t", 0] = 1
    driver.advance(15_000)
    sizes = [len(write.offsets) for write in offset_writes(driver)]
    assert max(sizes) <= 25
    assert sum(sizes) == 60


def test_a_ping_from_before_startfetcher_says_nothing_of_what_was_started() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.offsets["t", 0] = 9
    c1.answers = False
    driver.change_topics(t=topic(2, "id-2"))
    driver.advance(3000)
    stop, ping = c1.last(STOP_FETCHER), c1.last(PING)
    assert ping.correlation_id > stop.correlation_id
    late = c1.obey(ping)
    c1.answer(stop)
    driver.advance(1000)
    c1.answer(c1.last(START_FETCHER))
    driver.do(late)
    driver.advance(20_000)
    assert driver.count("offsets_total", "accepted") == 0


def took_back(before: Driver) -> dict[tuple[str, int], int]:
    """c1 loses its partitions to c2, and is to have two of them again, but does not get that StartFetcher. Return the
    offsets that it had."""
    (c1,) = before.stable("c1")
    c1.offsets = dict.fromkeys(c1.fetches, 10)
    before.advance(2000)
    c1.end(by_peer=False)
    (c2,) = before.stable("c2")
    before.advance(10_000)
    assert c2.fetches == dict.fromkeys(c1.fetches, 10)
    c2.offsets = dict.fromkeys(c2.fetches, 50)
    before.advance(2000)
    again = before.register("c1", answers=False)
    before.advance(1000)
    assert again.kinds() == ["start"]
    assert before.committed == c2.offsets
    return c1.offsets


def starts(consumer: Consumer) -> dict[tuple[str, int], int]:
    request = consumer.last(START_FETCHER).request
    return {(one.topic, one.partition): one.offset for thread in request.threads for one in thread.partitions}


@pytest.mark.promise(
    "coordinator.md", "Where the record says `starting`, a successor takes no offset reported before its StartFetcher."
)
def test_what_is_older_than_another_ownership_is_not_taken_after_a_takeover() -> None:
    for others in (("c2",), ("c3", "c2")):  # nobody stops; all do
        before = Driver()
        old = took_back(before)
        after = before.successor()
        mine = [("t", 0), ("t", 1)]
        c1 = after.register("c1", offsets={**old, mine[1]: 60}, fetches=dict.fromkeys(mine, 0))
        c1.answers = False
        for other in others:
            after.register(other)
        after.advance(3000)  # c3 is pinged after 2 s
        if "stop" in c1.kinds():
            c1.answer(c1.last(STOP_FETCHER))
        assert {offset for one in after.consumers.values() for offset in starts(one).values()} == {50}, others
        c1.offsets = {mine[0]: 51}
        c1.answers = True
        c1.answer(c1.last(START_FETCHER))
        after.advance(20_000)
        assert after.committed == {**dict.fromkeys(old, 50), mine[0]: 51}, others
        assert after.count("offsets_total", "unsure") > 0
        (unsure,) = after.logs("group_unsure")
        assert unsure == {"group": "g", "generation": 3, "consumers": 2}


def test_what_surely_follows_a_startfetcher_is_taken_after_a_takeover() -> None:
    before = Driver(offset_commit_interval_ms=600_000)
    before.committed = {("t", 0): 1000}
    (c1,) = before.stable("c1")
    assert c1.fetches["t", 0] == 1000
    after = before.successor()
    (c1,) = after.stable("c1", offsets={("t", 0): 5}, fetches=c1.fetches)  # 1000 was out of range
    assert starts(c1)["t", 0] == 5
    after.advance(20_000)
    assert after.committed["t", 0] == 5
    assert not after.logs("group_unsure")


def recorded_state(driver: Driver) -> str:
    record = driver.records["g", "registry"]
    return record.value.state


def test_a_stable_generation_that_could_not_be_written_is_written_again() -> None:
    for joins in (True, False):
        driver = Driver()
        c1 = driver.register("c1", answers=False)
        driver.advance(1000)
        driver.writes_hang = True
        c1.answer_all()
        (write,) = (one for one in driver.hung if isinstance(one, WriteRecords))
        driver.writes_hang = False
        driver.abort(write)
        assert recorded_state(driver) == "starting"
        if joins:  # the next generation says nothing of this one
            driver.register("c2", answers=False)
        driver.advance(1500)
        assert recorded_state(driver) == ("starting" if joins else "stable"), joins


def test_who_is_not_back_leaves_the_generation_unsure_and_a_lower_level_says_nothing_of_it() -> None:
    before = Driver()
    for consumer_id in ("c1", "c2"):
        before.register(consumer_id, answers=False)
    before.advance(1000)
    after = before.successor()
    after.register("c1")
    after.advance(5000)
    assert after.groups()[0].state == "stable"
    assert recorded_state(after) == "starting"
    after.register("c2")
    after.advance(1000)
    assert recorded_state(after) == "stable"
    before = Driver(level=2)
    before.register("c1", level=2, answers=False)
    before.advance(1000)
    after = before.successor(level=1)
    after.advance(1000)
    assert after.records["g", "registry"] == GenerationRecord("g", GenerationValue(1, "starting", 1))
