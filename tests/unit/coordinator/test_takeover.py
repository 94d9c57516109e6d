"""Takeovers and claims (S1-11 to S1-13, S1-35, S1-36, S1-62, S1-63): who may speak, and what a successor waits for."""

from __future__ import annotations

import itertools

from proxy.coordinator.effects import ConfirmClaim, HoldPartition, OpenPartition, SendFrame, WatchTopics, WriteRecords
from proxy.coordinator.events import ConsumerConnectionEnded, PartitionAssigned, PartitionLost, PartitionOpened
from proxy.coordinator.records import MemberRecord
from proxy.coordinator.wire import PING, START_FETCHER, ConsumedOffset, StartFetcherRequest
from tests.unit.coordinator.driver import Consumer, Driver, T, owned, topic

T4 = [("t", 0), ("t", 1), ("t", 2), ("t", 3)]
C = 5000
GIVEN_UP_AFTER = 5100 + 8000
"""Milliseconds from the claim until the partitions of a member that does not come back are free."""


def back(driver: Driver, *consumers: Consumer) -> list[Consumer]:
    return [driver.register(consumer.consumer_id, fetches=consumer.fetches) for consumer in consumers]


# Opening


def test_fresh_partition_writes_nothing_before_the_first_registration() -> None:
    driver = Driver()
    driver.advance(60_000)
    assert not driver.all(WriteRecords)
    assert not driver.all(ConfirmClaim)
    assert driver.all(HoldPartition) == [HoldPartition(driver.partition, 0), HoldPartition(driver.partition, 1)]


def test_startup_in_the_order_of_the_seed() -> None:
    driver = Driver()
    assert [fields["step"] for fields in driver.logs("coordinator_startup")] == [1, 2, 3, 4, 5]


def test_empty_partition_is_held_by_name_only() -> None:
    driver = Driver(hold=False)
    driver.do(PartitionAssigned(driver.partition, is_empty=True))
    driver.advance(60_000)
    assert driver.all(HoldPartition) == [HoldPartition(driver.partition, 0)]
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


# Coming back


def test_all_back_is_one_resume_without_stop_or_write() -> None:
    before = Driver()
    consumers = before.stable(*(f"c{number}" for number in range(4)))
    driver = before.successor()
    returned = back(driver, *consumers)
    driver.advance(1000)
    assert [consumer.kinds() for consumer in returned] == [["start"]] * 4
    assert owned(returned) == T4
    (told,) = driver.logs("rebalance")
    assert (told["reason"], told["result"], told["generation"]) == ("returned", "resumed", 1)
    driver.advance(60_000)
    assert len(driver.logs("rebalance")) == 1


def test_returned_member_is_pinged_at_once_and_starts_where_it_is() -> None:
    before = Driver()
    (c1,) = before.stable("c1")
    driver = before.successor()
    again = driver.register("c1", fetches=c1.fetches, offsets={("t", 0): 77})
    assert again.kinds(pings=True) == ["ping", "start"]
    request = again.last(START_FETCHER).request
    assert isinstance(request, StartFetcherRequest)
    assert request.threads[0].partitions[0] == ConsumedOffset("t", 1, 0, 77)


def test_the_others_go_on_soon_and_the_missing_one_is_waited_for() -> None:
    before = Driver()
    consumers = before.stable("c1", "c2")
    driver = before.successor()
    (c1,) = back(driver, consumers[0])
    driver.advance(2999)
    assert c1.kinds() == []
    driver.advance(1)
    assert c1.kinds() == ["start"]
    driver.advance(GIVEN_UP_AFTER - 3000 - 1)
    assert c1.partitions() == T4[:2]
    driver.advance(1000)
    assert c1.kinds() == ["start", "stop", "start"]
    assert c1.partitions() == T4
    assert ("g", "ids", "c2") not in driver.records


def test_late_one_comes_back_to_what_it_had() -> None:
    before = Driver()
    consumers = before.stable("c1", "c2")
    driver = before.successor()
    (c1,) = back(driver, consumers[0])
    driver.advance(8000)
    (c2,) = back(driver, consumers[1])
    driver.advance(20_000)
    assert (c1.kinds(), c2.kinds()) == (["start"], ["start"])
    assert owned([c1, c2]) == T4


def test_newcomer_after_a_takeover_waits_for_the_missing_one() -> None:
    before = Driver()
    before.stable("c1")
    driver = before.successor()
    (new,) = driver.stable("c2")
    driver.advance(GIVEN_UP_AFTER - 1000 - 1)
    assert new.partitions() == []
    driver.advance(1000)
    assert new.partitions() == T4


def test_nobody_comes_back() -> None:
    before = Driver()
    before.stable("c1")
    driver = before.successor()
    driver.advance(GIVEN_UP_AFTER - 1)
    assert ("g", "ids", "c1") in driver.records
    driver.advance(1000)
    assert ("g", "ids", "c1") not in driver.records
    assert driver.groups()[0].state == "empty"


def test_session_timeout_of_the_record_counts() -> None:
    before = Driver()
    before.stable("c1", timeout=9000)
    driver = before.successor()
    (new,) = driver.stable("c2")
    driver.advance(5100 + 12_000 - 1001)
    assert new.partitions() == []
    driver.advance(1000)
    assert new.partitions() == T4


def test_member_that_returns_and_ends_before_it_answers_is_waited_for() -> None:
    """Its connection may be one of several: what the predecessor told it may still hold."""
    before = Driver()
    consumers = before.stable("c1", "c2")
    driver = before.successor()
    (c1,) = back(driver, consumers[0])
    c2 = driver.register("c2", answers=False)
    driver.do(ConsumerConnectionEnded(c2.connection, True, "client_closed"))
    driver.advance(GIVEN_UP_AFTER - 1)
    assert owned([c1]) == T4[:2]
    driver.advance(1000)
    assert owned([c1]) == T4


def test_partitions_that_are_not_free_are_known_to_a_successor() -> None:
    """A failed member keeps what it may be fetching in the records, over a rebalance without it."""
    before = Driver()
    c1, c2, c3 = before.stable("c1", "c2", "c3")
    before.advance(1000)
    c3.end(by_peer=False)
    before.stable("c4")
    assert ("t", 3) not in owned([consumer for consumer in before.consumers.values() if consumer is not c3])
    driver = before.successor()
    assert ("g", "ids", "c3") in driver.records
    back(driver, c1, c2)
    driver.register("c4")
    driver.advance(GIVEN_UP_AFTER - 1)
    alive = list(driver.consumers.values())
    assert ("t", 3) not in owned(alive)
    driver.advance(1000)
    assert owned(alive) == T4


def test_generation_goes_on() -> None:
    before = Driver()
    consumers = before.stable("c1")
    before.stable("c2")
    driver = before.successor()
    (c1,) = back(driver, *consumers)
    assert c1.generation == 2
    driver.advance(20_000)
    assert driver.logs("rebalance")[-1]["generation"] == 3


def test_topics_have_to_be_known_first() -> None:
    before = Driver()
    consumers = before.stable("c1")
    driver = before.successor()
    driver = Driver(hold=False)
    driver.topics_hang = True
    driver.records = before.records
    driver.do(PartitionAssigned(driver.partition, is_empty=False))
    (c1,) = back(driver, *consumers)
    driver.advance(5000)
    assert c1.kinds() == []
    assert driver.all(WatchTopics)[-1].names == {"t"}
    driver.do(driver._snapshot())
    driver.advance(100)
    assert c1.kinds() == ["start"]


def test_offsets_have_to_be_known_first() -> None:
    driver = Driver()
    driver.reads_hang = True
    (c1,) = driver.stable("c1")
    assert c1.kinds() == []


# Claims


def test_claim_is_confirmed_while_consumers_are_registered() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.advance(20_000)
    times = [at for at, effect in driver.history if isinstance(effect, ConfirmClaim)]
    assert max(b - a for a, b in itertools.pairwise(times)) == C // 3
    c1.end()
    driver.advance(1000)
    count = len(driver.all(ConfirmClaim))
    driver.advance(60_000)
    assert len(driver.all(ConfirmClaim)) <= count + 1


def test_mute_when_no_write_began_in_time() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.writes_hang = True
    confirmed_at = max(at for at, effect in driver.history if isinstance(effect, ConfirmClaim | WriteRecords))
    driver.advance(confirmed_at + C - driver.now - 1)
    assert driver.partitions()[0].state == "open"
    driver.advance(1)
    assert driver.partitions()[0].state == "mute"
    sent = len(driver.all(SendFrame))
    driver.advance(30_000)
    assert len(driver.all(SendFrame)) == sent
    assert c1.closed is None, "nobody fails of pings that were not sent"


def test_mute_refuses_registrations_with_14() -> None:
    driver = Driver()
    driver.stable("c1")
    driver.writes_hang = True
    driver.advance(10_000)
    assert driver.register("c2").code == 14


def test_speaks_again_and_pings_everybody_at_once() -> None:
    driver = Driver()
    c1, c2 = driver.stable("c1", "c2")
    c2.answers = False
    driver.advance(3000)
    driver.writes_hang = True
    driver.advance(10_000)
    c1.received.clear()
    (confirm,) = (write for write in driver.hung if isinstance(write, ConfirmClaim))
    driver.commit(confirm)
    assert driver.partitions()[0].state == "open"
    assert c1.times(PING) == [driver.now]
    assert c2.closed is None
    driver.writes_hang = False
    driver.advance(10_000)
    assert c1.closed is None
    assert c2.closed == "consumer_failed", "it has answered nothing since"


def test_confirmation_that_began_too_early_does_not_count() -> None:
    driver = Driver()
    driver.stable("c1")
    driver.writes_hang = True
    driver.advance(10_000)
    (confirm,) = (write for write in driver.hung if isinstance(write, ConfirmClaim))
    driver.commit(confirm, began_at=driver.now - C)
    assert driver.partitions()[0].state == "mute"


def test_attempt_stands_still_while_mute_and_goes_on_after() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.register("c2")
    driver.writes_hang = True
    driver.advance(12_000)
    assert c1.kinds() == ["start", "stop"]
    driver.writes_hang = False
    for write in list(driver.hung):
        driver.commit(write)
    driver.advance(1000)
    assert owned(list(driver.consumers.values())) == T4


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


def test_free_time_is_by_the_longest_session_timeout_of_an_id() -> None:
    before = Driver()
    consumers = before.stable("c1", timeout=9000)
    driver = before.successor()
    again = driver.register("c1", fetches=consumers[0].fetches, timeout=T, answers=False)
    again.end(by_peer=False)
    assert driver.logs("consumer_gone")[-1]["free_in_ms"] == 5100 + 12_000


def test_assignment_that_is_impossible_after_a_takeover_fails_the_group() -> None:
    before = Driver()
    consumers = before.stable("c1")
    before.topics["t"] = topic(32_768)
    driver = before.successor()
    (c1,) = back(driver, *consumers)
    driver.advance(100)
    assert c1.closed == "rebalance_failed"
    assert driver.groups()[0].state == "empty"


# Two processes with one consumer id


def test_another_process_with_the_id_of_one_that_was_cut_off_waits_for_its_lease() -> None:
    driver = Driver()
    (cut_off,) = driver.stable("c1")
    cut_off.end(by_peer=False)
    other = driver.register("c1")
    driver.advance(1000)
    assert (other.code, other.partitions()) == (0, [])
    driver.advance(4 * T // 3)
    assert other.partitions() == [("t", number) for number in range(4)]


def test_the_records_name_an_id_so_another_process_with_it_is_taken_for_one_that_is_missing() -> None:
    """docs/coordinator.md: that an id belongs to one process at a time is up to whoever starts them."""
    before = Driver()
    before.stable("c1")
    driver = before.successor()
    other = driver.register("c1")
    driver.advance(1000)
    assert other.kinds() == ["start"]
    assert other.partitions() == [("t", number) for number in range(4)]
