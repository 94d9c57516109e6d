"""Reads a topic as it is now, from its first record to its last."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

TIMEOUT = 30.0
"""Seconds for each answer, and for each record."""


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
    """The first offset, and the one after the last. A new partition may not have its leader yet."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
