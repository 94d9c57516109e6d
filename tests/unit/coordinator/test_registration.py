"""RegisterConsumer: every code of the table, in order; and who is closed again."""

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
    assert driver.register("c1").code == 92, "that id registers already"
    driver.commit(write)
    assert (c1.code, c1.generation) == (0, 0)
    assert driver.all(ConsumerAccepted) == [ConsumerAccepted(c1.connection, lease.user_timeout(T))]
    other = driver.register("c2")
    driver.abort(next(write for write in driver.hung if isinstance(write, WriteRecords)))
    assert other.code == 14, "it was not written"
    driver.writes_hang = False
    assert driver.register("c2").code == 0


def test_at_once_where_the_record_is_there_and_the_claim_is_fresh() -> None:
    before = Driver()
    before.stable("c1")
    driver = before.successor()
    driver.writes_hang = True
    c1 = driver.register("c1")
    assert c1.code == 0
    written = [record for write in driver.all(WriteRecords) for record in write.records]
    assert not any(isinstance(record, MemberRecord) for record in written)
    driver = before.successor()
    driver.now += 6000
    driver.writes_hang = True
    c1 = driver.register("c1")
    assert c1.code is None, "the claim is old: it has to be confirmed"
    (confirm,) = driver.hung
    driver.commit(confirm, began_at=driver.now - 5000)
    assert c1.code is None, "that began too long ago"
    driver.advance(2000)
    driver.commit(driver.hung[-1])
    assert c1.code == 0


def test_a_partition_that_is_not_open_is_14_15_or_16() -> None:
    assert Driver(hold=False).register("c1").code == 16
    assert Driver(level=0).register("c1").code == 15, "no level is finalized"
    driver = Driver(hold=False)
    driver.do(PartitionAssigned(driver.partition, is_empty=True))
    assert not driver.all(OpenPartition)
    assert driver.register("c1", '{"t": 1, "u": 1}', unreadable=frozenset({"u"})).code == 29, "also while it is loaded"
    assert not driver.all(OpenPartition)
    assert driver.register("c1").code == 14, "a nominal one is opened by the first who registers"
    assert driver.all(OpenPartition) == [OpenPartition(driver.partition)]
    assert driver.register("c1").code == 0


REQUESTS: list[tuple[int, dict[str, Any]]] = [
    (24, {"group": ""}),
    (24, {"group": "g" * 256}),
    (24, {"group": "a\0b"}),
    (42, {"consumer_id": ""}),
    (42, {"consumer_id": "ü" * 128}),
    (42, {"consumer_id": "a\0b"}),
    (42, {"reset": "earliest"}),
    (42, {"reset": ""}),
    (42, {"level": 0}),
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
]


@pytest.mark.promise(
    "coordinator.md", "RegisterConsumer answers an invalid topic with 17, an id with 24, a timeout with 26, others 42."
)
@pytest.mark.promise(
    "config/coordinator.md", "The session timeout of a consumer has to be above `min.session.timeout.ms`."
)
def test_an_invalid_request_has_its_own_code() -> None:
    for code, change in REQUESTS:
        driver = Driver()
        for partition in range(driver.settings.partition_count):
            driver.do(PartitionAssigned(partition, is_empty=False))
        assert driver.register(**{"consumer_id": "c1", **change}).code == code, change


@pytest.mark.promise(
    "coordinator.md", "A coordinator closes its consumers within 10 s when a member of Kafka's own protocol has joined."
)
def test_ordinary_members_are_68_from_then_on_and_asked_about_again() -> None:
    driver = Driver()
    driver.ordinary = None
    (c1,) = driver.stable("c1")
    assert c1.kinds() == [], "the first generation waits for what Kafka says of them"
    driver.ordinary = False
    driver.advance(1000)
    assert c1.kinds() == ["start"]
    driver.ordinary = True
    driver.advance(10_000)
    assert c1.closed == "group_has_members"
    assert driver.register("c2").code == 68
    driver.ordinary = False
    driver.advance(10_000)
    assert [driver.register("c2").code, driver.register("c2").code] == [68, 0]


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


@pytest.mark.promise(
    "coordinator.md", "A second process with the consumer id of one that is connected and answers is refused with 92."
)
def test_the_id_of_a_living_member_is_92_and_that_of_a_killed_one_is_free() -> None:
    driver = Driver()
    (c1,) = driver.stable("c1")
    assert driver.register("c1").code == 92
    driver.advance(5000)
    assert (c1.closed, c1.kinds()) == (None, ["start"]), "the first is undisturbed"
    c1.end()
    again = driver.register("c1")
    driver.advance(1000)
    assert (again.code, len(again.partitions())) == (0, 4)


@pytest.mark.promise(
    "coordinator.md", "A second process replaces one with its id that left a ping unanswered, and waits for its lease."
)
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


@pytest.mark.promise("config/coordinator.md", "A sidecar refuses more consumers than `max.consumers` with 81.")
def test_bounds_are_81(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(max_consumers=1)
    driver.stable("c1")
    assert driver.register("c2").code == 81
    driver = Driver()
    for number in range(32):
        assert driver.register(f"c{number}", '{"t": 1000}').code == 0
    assert driver.register("c32", '{"t": 768}').code == 81, "threads of a group"
    assert driver.register("c32", '{"t": 767}').code == 0

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
    monkeypatch.setattr("proxy.coordinator.admission.MAX_GROUPS", 2)
    assert driver.register("c6", '{"t": 1}', group="h").code == 0
    assert driver.register("c6", '{"t": 1}', group="i").code == 81


@pytest.mark.promise(
    "coordinator.md", "A connection that was refused may register again for 60 s, and is closed if it does not."
)
def test_refused_connection_may_ask_again_and_is_closed_when_silent() -> None:
    driver = Driver()
    (living,) = driver.stable("c0")
    c1 = driver.register("c1", "{")
    assert c1.code == 42
    driver.advance(59_999)
    assert c1.closed is None
    again = driver.register("c1", timeout=2, connection=c1.connection)
    driver.advance(59_999)
    assert again.closed is None
    driver.advance(1)
    assert again.closed == "registration_idle"
    assert STOP_FETCHER not in [frame.api_key for _, frame in living.received]
    assert [group.group_id for group in driver.groups()] == [GROUP]
    second = driver.register("c2", connection=living.connection)
    assert second.closed == "consumer_malformed", "a member registers once"


def test_connection_ends_while_it_registers() -> None:
    driver = Driver()
    driver.writes_hang = True
    c1 = driver.register("c1")
    driver.do(ConsumerConnectionEnded(c1.connection, True, "client_closed"))
    driver.commit_all()
    driver.advance(1000)
    assert c1.code is None
    assert not driver.records, "its record is deleted again"
    assert driver.machine.sizes().group_registry == 0


@pytest.mark.promise(
    "coordinator.md", "A consumer whose right is revoked is closed; a topic that only matches its pattern is left out."
)
def test_rights_that_are_missing_or_taken_away() -> None:
    for may_read_group, unreadable in ((False, frozenset[str]()), (True, frozenset({"t"}))):
        driver = Driver()
        (c1,) = driver.stable("c1")
        driver.do(RightsChanged(c1.connection, may_read_group, unreadable))
        assert c1.closed == "consumer_denied"
    driver = Driver()
    driver.topics["u"] = driver.topics["t"]
    (c1,) = driver.stable("c1", topic_count="*1*.*", unreadable=frozenset({"u"}))
    assert {topic for topic, _ in c1.partitions()} == {"t"}
    driver.do(RightsChanged(c1.connection, True, frozenset({"t", "u"})))
    driver.advance(1000)
    assert (c1.closed, c1.partitions()) == (None, [])


def test_lost_partition_closes_its_consumers_and_drops_its_memory() -> None:
    for reason, committed in (("fenced", {}), ("stopping", {("t", 0): 7})):
        driver = Driver()
        (c1,) = driver.stable("c1")
        c1.offsets["t", 0] = 7
        driver.advance(2000)
        driver.do(PartitionLost(driver.partition, reason))
        assert c1.closed == "coordinator_moved"
        assert driver.committed == committed, "a fenced one writes nothing, one that ends commits the offsets first"
        assert driver.groups() == []
        assert driver.machine.due() is None
        sent = len(driver.all(SendFrame))
        driver.advance(60_000)
        assert len(driver.all(SendFrame)) == sent
        assert driver.register("c1").code == 16


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
    assert record.value.session_timeout_ms == T
