"""Takeovers and claims: who may speak, what a successor waits for, and who is taken for whom."""

import pytest

from proxy.coordinator.effects import ConfirmClaim, HoldPartition, OpenPartition, SendFrame, WatchTopics, WriteRecords
from proxy.coordinator.events import PartitionAssigned, PartitionLost, PartitionOpened
from proxy.coordinator.records import MemberRecord
from proxy.coordinator.wire import PING, START_FETCHER, ConsumedOffset
from tests.unit.coordinator.driver import Driver, T, owned

T4 = [("t", 0), ("t", 1), ("t", 2), ("t", 3)]
C = 5000
GIVEN_UP_AFTER = 5100 + 8000
"""Milliseconds from the claim until the partitions of a member that does not come back are free."""


def test_fresh_partition_writes_nothing_before_the_first_registration() -> None:
    driver = Driver()
    assert [fields["step"] for fields in driver.logs("coordinator_startup")] == [1, 2, 3, 4, 5]
    driver.advance(60_000)
    assert not driver.all(WriteRecords)
    assert not driver.all(ConfirmClaim)
    assert driver.all(HoldPartition) == [HoldPartition(driver.partition, 0), HoldPartition(driver.partition, 1)]
    driver = Driver(hold=False)
    driver.do(PartitionAssigned(driver.partition, is_empty=True))
    driver.advance(60_000)
    assert driver.all(HoldPartition) == [HoldPartition(driver.partition, 0)], "an empty one is held by name only"
    assert not driver.all(OpenPartition)
    driver.do(PartitionLost(driver.partition, "other_holder"))
    assert driver.partitions() == []


def test_late_reports_of_a_lost_partition_do_nothing() -> None:
    driver = Driver()
    driver.writes_hang = True
    driver.register("c1")
    (write,) = driver.hung[:1]
    driver.do(PartitionLost(driver.partition, "fenced"))
    driver.commit(write)
    driver.do(PartitionOpened(driver.partition, 2, 0, []))
    assert driver.partitions() == []


@pytest.mark.promise(
    "coordinator.md", "A successor whose consumers are all back resumes the group, and stops or restarts nobody."
)
def test_all_back_is_one_resume_without_stop_or_write() -> None:
    before = Driver()
    consumers = before.stable(*(f"c{number}" for number in range(4)))
    driver = before.successor()
    returned = driver.back(*consumers)
    driver.advance(1000)
    assert [consumer.kinds() for consumer in returned] == [["start"]] * 4
    assert owned(returned) == T4
    (told,) = driver.logs("rebalance")
    assert (told["reason"], told["result"], told["generation"]) == ("returned", "resumed", 1)
    driver.advance(60_000)
    assert len(driver.logs("rebalance")) == 1
    driver = before.successor()
    driver.back(*consumers[1:])
    again = driver.register("c0", fetches=consumers[0].fetches, offsets={("t", 0): 77})
    assert again.kinds(pings=True) == ["ping", "start"], "pinged at once"
    request = again.last(START_FETCHER).request
    assert request.threads[0].partitions == (ConsumedOffset("t", 1, 0, 77),), "it starts where it is"


@pytest.mark.promise(
    "coordinator.md", "A successor lets those that are back go on, and keeps the partitions of missing ones for 4T/3."
)
def test_the_others_go_on_soon_and_the_missing_one_is_waited_for() -> None:
    before = Driver()
    consumers = before.stable("c1", "c2")
    driver = before.successor()
    (c1,) = driver.back(consumers[0])
    driver.advance(2999)
    assert c1.kinds() == []
    driver.advance(1)
    assert c1.kinds() == ["start"]
    driver.advance(GIVEN_UP_AFTER - 3000 - 1)
    assert c1.partitions() == T4[:2]
    assert ("g", "ids", "c2") in driver.records
    driver.advance(1000)
    assert (c1.kinds(), c1.partitions()) == (["start", "stop", "start"], T4)
    assert ("g", "ids", "c2") not in driver.records

    before = Driver()
    consumers = before.stable("c1", "c2")
    driver = before.successor()
    (c1,) = driver.back(consumers[0])
    driver.advance(8000)
    (c2,) = driver.back(consumers[1])
    driver.advance(20_000)
    assert (c1.kinds(), c2.kinds()) == (["start"], ["start"]), "a late one comes back to what it had"
    assert owned([c1, c2]) == T4


def test_newcomer_after_a_takeover_waits_for_the_missing_one() -> None:
    for timeout in (T, 9000):  # that of the record counts
        before = Driver()
        before.stable("c1", timeout=timeout)
        driver = before.successor()
        (new,) = driver.stable("c2")
        driver.advance(5100 + timeout * 4 // 3 - 1001)
        assert new.partitions() == [], timeout
        driver.advance(1000)
        assert new.partitions() == T4, timeout
    before = Driver()
    before.stable("c1", timeout=9000)
    driver = before.successor()
    again = driver.register("c1", timeout=T, answers=False)
    again.end(by_peer=False)
    assert driver.logs("consumer_gone")[-1]["free_in_ms"] == 5100 + 12_000, "the longest one of an id"
    driver.advance(5100 + 13_000)
    assert driver.groups()[0].state == "empty", "nobody comes back"


def test_topics_and_offsets_have_to_be_known_first() -> None:
    before = Driver()
    consumers = before.stable("c1")
    driver = Driver(hold=False)
    driver.topics_hang = True
    driver.records = before.records
    driver.do(PartitionAssigned(driver.partition, is_empty=False))
    (c1,) = driver.back(*consumers)
    driver.advance(5000)
    assert c1.kinds() == []
    assert driver.all(WatchTopics)[-1].names == {"t"}
    driver.do(driver._snapshot())
    driver.advance(100)
    assert c1.kinds() == ["start"]
    driver = Driver()
    driver.reads_hang = True
    (c1,) = driver.stable("c1")
    assert c1.kinds() == []


@pytest.mark.promise(
    "coordinator.md", "A coordinator sends nothing once no write began within `state.write.timeout.ms`."
)
def test_mute_when_no_write_began_in_time() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    c2.answers = False
    driver.advance(3000)
    driver.writes_hang = True
    confirmed_at = max(at for at, effect in driver.history if isinstance(effect, ConfirmClaim | WriteRecords))
    driver.advance(confirmed_at + C - driver.now - 1)
    assert driver.partitions()[0].state == "open"
    driver.advance(1)
    assert driver.partitions()[0].state == "mute"
    sent = len(driver.all(SendFrame))
    driver.advance(30_000)
    assert len(driver.all(SendFrame)) == sent
    assert (c1.closed, c2.closed) == (None, None), "nobody fails of pings that were not sent"
    assert driver.register("c3").code == 14
    (confirm,) = (write for write in driver.hung if isinstance(write, ConfirmClaim))
    driver.commit(confirm, began_at=driver.now - C)
    assert driver.partitions()[0].state == "mute", "that began too early"
    driver.advance(2000)
    c1.received.clear()
    driver.commit(next(write for write in driver.hung if isinstance(write, ConfirmClaim)))
    assert driver.partitions()[0].state == "open"
    assert c1.times(PING) == [driver.now]
    driver.writes_hang = False
    driver.advance(10_000)
    assert (c1.closed, c2.closed) == (None, "consumer_failed"), "the second has answered nothing since"


def test_aborted_confirmations_are_repeated() -> None:
    driver = Driver()
    driver.stable("c1")
    driver.writes_hang = True
    for _ in range(3):
        driver.advance(1700)
        (confirm,) = (write for write in driver.hung if isinstance(write, ConfirmClaim))
        driver.abort(confirm)
    assert driver.partitions()[0].state == "mute"


def test_tombstone_that_is_not_written_is_repeated_unless_the_id_is_in_use() -> None:
    for comes_back in (False, True):
        driver = Driver()
        c1, _ = driver.stable("c1", "c2")
        driver.writes_hang = True
        c1.end()
        driver.advance(100)
        (write,) = (
            write
            for write in driver.hung
            if isinstance(write, WriteRecords) and any(isinstance(record, MemberRecord) for record in write.records)
        )
        driver.writes_hang = False
        if comes_back:
            driver.register("c1")
        driver.abort(write)
        driver.advance(2000)
        assert (("g", "ids", "c1") in driver.records) is comes_back


@pytest.mark.promise(
    "coordinator.md", "Another process with the id of one that was cut off gets its partitions when that lease is over."
)
def test_another_process_with_the_id_of_one_that_was_cut_off_waits_for_its_lease() -> None:
    driver = Driver()
    (cut_off,) = driver.stable("c1")
    cut_off.end(by_peer=False)
    other = driver.register("c1")
    driver.advance(1000)
    assert (other.code, other.partitions()) == (0, [])
    driver.advance(4 * T // 3)
    assert other.partitions() == T4


@pytest.mark.promise(
    "coordinator.md",
    "After a takeover another process with the id of a missing one is taken for it, and starts at once.",
)
def test_the_records_name_an_id_so_another_process_with_it_is_taken_for_one_that_is_missing() -> None:
    before = Driver()
    before.stable("c1")
    driver = before.successor()
    other = driver.register("c1")
    driver.advance(1000)
    assert (other.kinds(), other.partitions()) == (["start"], T4)
