"""What the producer says of records, without a cluster: a producer that never reaches one, and errors made up."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from observers.audit_producer import AuditProducer, producer_settings
from observers.kafka_admin import DAY_MS, KafkaAdmin, find_topic_problems

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}

Settled = list[tuple[Any, str | None, bool]]


@pytest.fixture
def settled() -> Settled:
    return []


@pytest.fixture
def producer(settled: Settled) -> Iterator[AuditProducer]:
    """Takes records of 2,000 bytes, and 100 KiB of them."""
    user_settings = {"message.max.bytes": 2000, "queue.buffering.max.kbytes": 100}
    producer = AuditProducer(
        KafkaAdmin(NOBODY, "me"),
        producer_settings(NOBODY, user_settings, "me"),
        "audit",
        lambda load, reason, retriable, refused: settled.append((load, reason, retriable)),
    )
    yield producer
    producer.close(0)


def test_what_is_too_large_is_reported_at_once_and_what_finds_no_room_is_not_taken(
    producer: AuditProducer, settled: Settled
) -> None:
    assert producer.send(b"x" * 3000, "large")
    assert settled == [("large", "too_large", False)]
    assert (producer.queued, producer.queued_bytes) == (0, 0)
    settled.clear()
    taken = 0
    while producer.send(b"x" * 1500, taken) and not settled:
        taken += 1
    assert 60 < taken < 70
    assert (producer.queued, producer.queued_bytes, producer.max_bytes) == (taken, taken * 1500, 102_400)
    assert settled == []


@pytest.mark.promise("audit-delivery.md", "An invalid record is lost under Kafka's name of the error.")
def test_errors_have_names_and_are_the_records_fault_or_not(producer: AuditProducer, settled: Settled) -> None:
    for code, reason, retriable in (
        (KafkaError.MSG_SIZE_TOO_LARGE, "too_large", False),
        (KafkaError.INVALID_RECORD, "invalid_record", False),
        (KafkaError.POLICY_VIOLATION, "policy_violation", False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic_authorization_failed", True),
        (KafkaError.INVALID_TIMESTAMP, "invalid_timestamp", True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown_topic_or_part", True),
        (KafkaError._UNKNOWN_TOPIC, "unknown_topic", True),
        (KafkaError._MSG_TIMED_OUT, "msg_timed_out", True),
        (KafkaError._DESTROY, "destroy", True),
        (KafkaError._INVALID_DIFFERENT_RECORD, "invalid_different_record", True),
        (None, None, False),
    ):
        producer._settle("load", 1, None if code is None else KafkaError(code), None)
        assert settled.pop() == ("load", reason, retriable), code
        assert producer.records_delivered == (reason is None), code


class Message:
    """One that a producer reports on."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def value(self) -> bytes:
        return b"xyz"


def test_what_was_acknowledged_without_a_place_on_the_topic_is_sent_again(
    producer: AuditProducer, settled: Settled
) -> None:
    report: Any = producer._handle_report
    producer.send(b"xyz", "unsure")
    report("unsure", 3, None, Message(None))
    assert (settled, producer.queued, producer.queued_bytes) == ([], 1, 3)
    report("unsure", 3, None, Message(0))
    assert (settled, producer.queued, producer.records_delivered) == ([("unsure", None, False)], 0, 1)


def test_a_producer_that_failed_for_good_is_replaced_and_what_it_held_taken_back(
    producer: AuditProducer, settled: Settled
) -> None:
    producer.send(b"x", 1)
    failed = producer._producer
    producer._settle(0, 0, KafkaError(KafkaError._FATAL, "fenced", fatal=True), None)
    producer.poll(0)
    assert settled == [(0, "fatal", True), (1, "producer_failed", True)]
    assert producer._producer is not failed
    producer.send(b"x", 2)
    assert producer.queued == 0  # the made-up report was of a record that was never queued


@pytest.mark.promise("audit-delivery.md", "Records of a refused batch are sent again, each in a batch of its own.")
def test_after_a_batch_is_refused_each_record_has_one_of_its_own(producer: AuditProducer, settled: Settled) -> None:
    report: Any = producer._handle_report
    shared = producer._producer
    for load in ("first", "second", "third"):
        producer.send(b"xyz", load)
    for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE):
        producer.send(b"xyz", code)
        report(code, 3, KafkaError(code), Message(None), shared=True)
        assert settled.pop()[::2] == (code, True)
        assert producer._producer is shared, "what passes ends no sharing"
    for load, code in (("first", KafkaError.MSG_SIZE_TOO_LARGE), ("second", KafkaError.INVALID_RECORD)):
        report(load, 3, KafkaError(code), Message(None), shared=True)
    assert producer._producer is not shared
    assert (settled, producer.queued, producer.queued_bytes) == ([], 3, 9)
    report("first", 3, KafkaError(KafkaError.INVALID_RECORD), Message(None))
    assert ([(load, retriable) for load, _, retriable in settled], producer.queued) == ([("first", False)], 2)


@pytest.mark.promise("audit-delivery.md", "Settings of the audit topic by which events are lost are problems.")
def test_what_makes_a_topic_a_bad_place() -> None:
    good = {"cleanup.policy": "delete", "retention.ms": str(DAY_MS), "max.message.bytes": "900000"}
    for config, replicas, brokers, problems in (
        (good, 3, 3, set()),
        (good, 1, 2, set()),
        (good | {"retention.ms": "-1"}, 3, 3, set()),
        ({}, 3, 3, set()),  # it may not be read
        (good | {"cleanup.policy": "delete,compact"}, 3, 3, {"compacted"}),
        (good | {"retention.ms": str(DAY_MS - 1)}, 3, 3, {"short_retention"}),
        (good | {"max.message.bytes": "899999"}, 3, 3, {"small_messages"}),
        (good | {"message.timestamp.type": "CreateTime"}, 3, 3, {"create_time"}),
        (good | {"message.timestamp.type": "LogAppendTime"}, 3, 3, set()),
        ({}, 1, 3, {"one_replica"}),
        ({"cleanup.policy": "compact", "retention.ms": "0"}, 1, 5, {"compacted", "short_retention", "one_replica"}),
    ):
        assert set(find_topic_problems(config, replicas, brokers, 900_000)) == problems, (config, replicas, brokers)
