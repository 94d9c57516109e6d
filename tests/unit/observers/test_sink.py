"""What the sink says of records, without a cluster: a producer that never reaches one, and errors made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from observers import sink as module
from observers.cluster import Cluster, Prepared
from observers.sink import Sink, producer_settings

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}

Told = list[tuple[Any, str | None, bool]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def sink(told: Told) -> Iterator[Sink]:
    """Takes records of 2,000 bytes, and 100 KiB of them."""
    chosen = {"message.max.bytes": 2000, "queue.buffering.max.kbytes": 100}
    sink = Sink(
        Cluster(NOBODY, "me"),
        producer_settings(NOBODY, chosen, "me"),
        "audit",
        lambda load, reason, passing, refused: told.append((load, reason, passing)),
    )
    yield sink
    sink.close(0)


def test_a_topic_that_was_mended_has_no_problem_any_more(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Prepared("cluster", {"compacted": "it is"}), Prepared("cluster")]
    mended = threading.Event()

    def prepare(self: Cluster, topic: str, record: int) -> Prepared:
        if len(answers) == 1:
            assert sink.found == Prepared("cluster", {"compacted": "it is"})
            mended.set()
            return answers[0]
        return answers.pop(0)

    monkeypatch.setattr(Cluster, "prepare", prepare)
    monkeypatch.setattr(module, "LOOK_AGAIN", 0.01)
    sink.start()
    assert mended.wait(10)
    deadline = time.monotonic() + 10
    while sink.found.problems:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_too_large_is_reported_at_once(sink: Sink, told: Told) -> None:
    assert sink.send(b"x" * 3000, "large")
    assert told == [("large", "too_large", False)]
    assert (sink.queued, sink.queued_bytes) == (0, 0)


def test_what_finds_no_room_is_not_taken(sink: Sink, told: Told) -> None:
    taken = 0
    while sink.send(b"x" * 1500, taken) and not told:
        taken += 1
    assert 60 < taken < 70
    assert (sink.queued, sink.queued_bytes, sink.max_bytes) == (taken, taken * 1500, 102_400)
    assert told == []


def test_at_the_end_what_is_left_is_taken_back(sink: Sink, told: Told) -> None:
    sink.send(b"x", 1)
    sink.send(b"x", 2)
    sink.close(0)
    assert told == [(1, "closed", True), (2, "closed", True)]
    assert (sink.queued, sink.queued_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("code", "reason", "passing"),
    [
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
    ],
)
def test_errors_have_names_and_are_the_records_fault_or_not(
    sink: Sink, told: Told, code: int | None, reason: str | None, passing: bool
) -> None:
    sink._reported("load", 1, None if code is None else KafkaError(code), None)
    assert told == [("load", reason, passing)]
    assert sink.records_delivered == (reason is None)


class Message:
    """One that a producer reports on."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def value(self) -> bytes:
        return b"xyz"


def test_what_was_acknowledged_without_a_place_on_the_topic_is_sent_again(sink: Sink, told: Told) -> None:
    report: Any = sink._delivered
    sink.send(b"xyz", "unsure")
    report("unsure", 3, None, Message(None))
    assert (told, sink.queued, sink.queued_bytes) == ([], 1, 3)
    report("unsure", 3, None, Message(0))
    assert (told, sink.queued, sink.records_delivered) == ([("unsure", None, False)], 0, 1)


def test_a_producer_that_failed_for_good_is_replaced_and_what_it_held_taken_back(sink: Sink, told: Told) -> None:
    sink.send(b"x", 1)
    failed = sink._producer
    sink._reported(0, 0, KafkaError(KafkaError._FATAL, "fenced", fatal=True), None)
    sink.poll(0)
    assert told == [(0, "fatal", True), (1, "producer_failed", True)]
    assert sink._producer is not failed
    sink.send(b"x", 2)
    assert sink.queued == 0  # the made-up report was of a record that was never queued
