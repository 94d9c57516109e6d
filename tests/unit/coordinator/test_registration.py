"""RegisterConsumer (S1-47 to S1-54, S1-56, S1-63): every code of the table, in order."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.coordinator import lease
from proxy.coordinator.effects import ConsumerAccepted, OpenPartition, SendFrame, WriteRecords
from proxy.coordinator.events import ConsumerConnectionEnded, PartitionAssigned, PartitionLost, RightsChanged
from proxy.coordinator.records import MemberRecord
from proxy.coordinator.wire import STOP_FETCHER
from tests.unit.coordinator.driver import GROUP, Driver, T


def test_accepted_after_its_record_is_committed() -> None:
    driver = Driver()
    driver.writes_hang = True
    c1 = driver.register("c1")
    (write,) = (write for write in driver.hung if isinstance(write, WriteRecords))
    assert c1.code is None
    assert [record for record in write.records if isinstance(record, MemberRecord)]
    driver.commit(write)
    assert (c1.code, c1.generation) == (0, 0)
    assert driver.all(ConsumerAccepted) == [ConsumerAccepted(c1.connection, lease.user_timeout(T))]


def test_at_once_where_the_record_is_there_and_the_claim_is_fresh() -> None:
    driver = Driver()
    driver.stable("c1")
    successor = driver.successor()
    successor.writes_hang = True
    c1 = successor.register("c1")
    assert c1.code == 0
    written = [record for write in successor.all(WriteRecords) for record in write.records]
    assert not any(isinstance(record, MemberRecord) for record in written)


def test_waits_for_a_confirmation_where_the_claim_is_old() -> None:
    driver = Driver()
    driver.stable("c1")
    successor = driver.successor()
    successor.now += 6000
    successor.writes_hang = True
    c1 = successor.register("c1")
    assert c1.code is None
    (confirm,) = successor.hung
    successor.commit(confirm, began_at=successor.now - 5000)
    assert c1.code is None, "that began too long ago"
    successor.advance(2000)
    successor.commit(successor.hung[-1])
    assert c1.code == 0


def test_not_written_is_14() -> None:
    driver = Driver()
    driver.writes_hang = True
    c1 = driver.register("c1")
    driver.abort(next(write for write in driver.hung if isinstance(write, WriteRecords)))
    assert c1.code == 14
    driver.writes_hang = False
    assert driver.register("c1").code == 0


def test_partition_that_is_not_held_is_16() -> None:
    assert Driver(hold=False).register("c1").code == 16


def test_no_level_finalized_is_15() -> None:
    assert Driver(level=0).register("c1").code == 15


def test_nominal_partition_is_opened_by_the_first_and_says_14() -> None:
    driver = Driver(hold=False)
    driver.do(PartitionAssigned(driver.partition, is_empty=True))
    assert not driver.all(OpenPartition)
    assert driver.register("c1").code == 14
    assert driver.all(OpenPartition) == [OpenPartition(driver.partition)]
    assert driver.register("c1").code == 0


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (24, {"group": ""}),
        (24, {"group": "g" * 256}),
        (24, {"group": "a\0b"}),
        (42, {"consumer_id": ""}),
        (42, {"consumer_id": "ü" * 128}),
        (42, {"consumer_id": "a\0b"}),
        (42, {"reset": "earliest"}),
        (42, {"reset": ""}),
        (42, {"level": 0}),
        (42, {"topic_count": "{"}),
        (42, {"topic_count": '{"t": 0}'}),
        (42, {"topic_count": "*1*("}),
        (17, {"topic_count": '{"a/b": 1}'}),
        (26, {"timeout": 3000}),
        (26, {"timeout": 600_001}),
        (0, {"timeout": 3001}),
        (0, {"timeout": 600_000}),
        (0, {"reset": "largest"}),
        (24, {"group": "", "consumer_id": "", "timeout": 1}),
        (42, {"consumer_id": "", "timeout": 1}),
        (17, {"topic_count": '{"a/b": 1}', "timeout": 1}),
    ],
)
def test_request(code: int, change: dict[str, Any]) -> None:
    driver = Driver()
    for partition in range(driver.settings.partition_count):
        driver.do(PartitionAssigned(partition, is_empty=False))
    registered = {"consumer_id": "c1", **change}
    assert driver.register(**registered).code == code


def test_named_topic_that_may_not_be_read_is_29_also_while_loading() -> None:
    driver = Driver(hold=False)
    driver.do(PartitionAssigned(driver.partition, is_empty=True))
    assert driver.register("c1", '{"t": 1, "u": 1}', unreadable=frozenset({"u"})).code == 29
    assert not driver.all(OpenPartition)


def test_wildcard_leaves_unreadable_topics_out() -> None:
    driver = Driver()
    driver.topics["u"] = driver.topics["t"]
    (c1,) = driver.stable("c1", topic_count="*1*.*", unreadable=frozenset({"u"}))
    assert {topic for topic, _ in c1.partitions()} == {"t"}


def test_ordinary_members_are_68_from_then_on_and_asked_about_again() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.ordinary = True
    driver.advance(10_000)
    assert c1.closed == "group_has_members"
    assert driver.register("c2").code == 68
    driver.ordinary = False
    driver.advance(10_000)
    assert driver.register("c2").code == 68
    assert driver.register("c2").code == 0


def test_a_question_about_ordinary_members_that_was_not_answered_is_asked_for_the_next_member() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    driver.ordinary = None
    driver.advance(10_000)
    c1.end()
    driver.advance(1000)
    driver.ordinary = True
    c1 = driver.register("c1")
    assert (c1.code, c1.closed) in ((68, None), (0, "group_has_members"))


def test_first_generation_waits_for_what_kafka_says_of_ordinary_members() -> None:
    driver = Driver()
    driver.ordinary = None
    (c1,) = driver.stable("c1")
    assert c1.kinds() == []
    driver.ordinary = False
    driver.advance(1000)
    assert c1.kinds() == ["start"]


def test_id_of_a_living_member_is_92_and_the_first_is_undisturbed() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    assert driver.register("c1").code == 92
    driver.advance(5000)
    assert c1.closed is None
    assert c1.kinds() == ["start"]


def test_id_of_a_killed_one_is_accepted() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.end()
    again = driver.register("c1")
    driver.advance(1000)
    assert again.code == 0
    assert len(again.partitions()) == 4


def test_id_of_one_with_an_expired_ping_is_replaced_and_waits_for_its_partitions() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.answers = False
    driver.advance(5500)
    again = driver.register("c1")
    assert again.code == 0
    assert c1.closed == "consumer_replaced"
    driver.advance(4000 + 8000 - 6500 - 1)  # pinged last at 4000; at 6000 the third was withheld
    assert again.partitions() == []
    driver.advance(1000)
    assert len(again.partitions()) == 4


def test_id_that_registers_already_is_92() -> None:
    driver = Driver()
    driver.writes_hang = True
    driver.register("c1")
    assert driver.register("c1").code == 92


def test_bounds_are_81() -> None:
    driver = Driver(max_consumers=1)
    driver.stable("c1")
    assert driver.register("c2").code == 81
    driver = Driver()
    for number in range(32):
        assert driver.register(f"c{number}", '{"t": 1000}').code == 0
    assert driver.register("c32", '{"t": 768}').code == 81
    assert driver.register("c32", '{"t": 767}').code == 0


def test_number_of_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.coordinator.admission.MAX_GROUPS", 1)
    driver = Driver(partition_count=1)
    driver.stable("c1")
    assert driver.register("c2").code == 0
    assert driver.register("c1", group="h").code == 81


def test_number_of_topics_that_are_named_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.coordinator.topics.MAX_NAMED_TOPICS", 3)
    driver = Driver(partition_count=1)
    c1 = driver.register("c1", '{"t": 1, "u": 1}')
    c2 = driver.register("c2", '{"t": 1, "u": 1}')
    assert c2.code == 0, "the same of the same group"
    assert driver.register("c1", '{"t": 1, "u": 1}', group="h").code == 81
    assert driver.register("c1", '{"t": 1}', group="h").code == 0
    assert driver.register("c3", '{"v": 1}').code == 81
    c1.end()
    assert driver.register("c4", '{"v": 1}').code == 81, "another member has it still"
    c2.end()
    driver.advance(2000)
    assert driver.register("c5", '{"v": 1}').code == 0


def test_refused_connection_may_ask_again_and_is_closed_when_silent() -> None:
    driver = Driver()
    c1 = driver.register("c1", timeout=1)
    assert c1.code == 26
    driver.advance(59_999)
    assert c1.closed is None
    again = driver.register("c1", timeout=2, connection=c1.connection)
    driver.advance(59_999)
    assert again.closed is None
    driver.advance(1)
    assert again.closed == "registration_idle"


def test_second_registration_on_a_connection_ends_it() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    again = driver.register("c2", connection=c1.connection)
    assert again.closed == "consumer_malformed"


def test_connection_ends_while_it_registers() -> None:
    driver = Driver()
    driver.writes_hang = True
    c1 = driver.register("c1")
    driver.do(ConsumerConnectionEnded(c1.connection, True, "client_closed"))
    driver.writes_hang = False
    for write in list(driver.hung):
        driver.commit(write)
    driver.advance(1000)
    assert c1.code is None
    assert not driver.records, "its record is deleted again"
    assert driver.machine.sizes().group_registry == 0


def test_rights_that_are_taken_away() -> None:
    for may_read_group, unreadable in ((False, frozenset[str]()), (True, frozenset({"t"}))):
        driver = Driver()
        (c1,) = driver.stable("c1")
        driver.do(RightsChanged(c1.connection, may_read_group, unreadable))
        assert c1.closed == "consumer_denied"


def test_rights_on_a_topic_of_a_wildcard() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1", topic_count="*1*.*")
    driver.do(RightsChanged(c1.connection, True, frozenset({"t"})))
    driver.advance(1000)
    assert c1.closed is None
    assert c1.partitions() == []


def test_lost_partition_closes_its_consumers_and_drops_its_memory() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.offsets["t", 0] = 7
    driver.advance(2000)
    driver.do(PartitionLost(driver.partition, "fenced"))
    assert c1.closed == "coordinator_moved"
    assert driver.committed == {}, "a fenced one writes nothing"
    assert driver.groups() == []
    assert driver.machine.due() is None
    sent = len(driver.all(SendFrame))
    driver.advance(60_000)
    assert len(driver.all(SendFrame)) == sent
    assert driver.register("c1").code == 16


def test_clean_end_commits_offsets_first() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.offsets["t", 0] = 7
    driver.advance(2000)
    driver.do(PartitionLost(driver.partition, "stopping"))
    assert driver.committed == {("t", 0): 7}


def test_group_is_not_disturbed_by_a_refused_one() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    assert driver.register("c2", "{").code == 42
    driver.advance(1000)
    assert STOP_FETCHER not in [frame.api_key for _, frame in c1.received]
    assert [group.group_id for group in driver.groups()] == [GROUP]


def test_a_record_that_another_one_may_have_replaced_is_written_again() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    c1.end()
    driver.writes_hang = True
    driver.register("c1", timeout=9000).end()
    (other,) = (write for write in driver.hung if isinstance(write, WriteRecords) and write.records)
    driver.writes_hang = False
    driver.commit(other)
    driver.register("c1")
    record = driver.records["g", "ids", "c1"]
    assert isinstance(record, MemberRecord)
    assert record.value is not None
    assert record.value.session_timeout_ms == T
