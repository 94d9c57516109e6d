"""Makes topics, and reads them as they are now, from their first records to their last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is exported, untyped

TIMEOUT = 30.0
"""Seconds for each answer, and for each record."""

LATE = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.REQUEST_TIMED_OUT)
UNKNOWN_LEADER = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION)
CREATION_TIMEOUT = 180.0


def create(admin: AdminClient, topic: NewTopic) -> None:
    """Create ``topic``, whichever broker is held still meanwhile: ask anew where an answer or a controller is late."""
    deadline = time.monotonic() + CREATION_TIMEOUT
    asked_before = False
    while True:
        try:
            admin.create_topics([topic], request_timeout=TIMEOUT)[topic.topic].result(CREATION_TIMEOUT)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if asked_before and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code not in LATE or time.monotonic() > deadline:
                raise
        asked_before = True
        with suppress(KafkaException):
            admin.list_topics(timeout=TIMEOUT)  # with it the client learns who the controller is


def messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every record of ``topic`` that is there now, partition by partition or not; an error of any fails."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader-of-tests"})
    try:
        starts, count = [], 0
        for partition in consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions:
            low, high = _offsets(consumer, TopicPartition(topic, partition))
            starts.append(TopicPartition(topic, partition, low))
            count += high - low
        consumer.assign(starts)
        for _ in range(count):
            message = consumer.poll(TIMEOUT)
            assert message is not None, f"{topic}: fewer records than its offsets say"
            assert message.error() is None, message.error()
            yield message
    finally:
        consumer.close()


def _offsets(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The first offset, and the one after the last. A partition may be without a leader for a moment."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() not in (*LATE, *UNKNOWN_LEADER) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
