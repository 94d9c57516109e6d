"""Real Kafka: how fast librdkafka's producer and consumer are through a contestant.

The broker advertises the address at which one contestant after the other listens, so that a client stays with it.
"""

from __future__ import annotations

import time
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from proxy.errors import LocalError
from proxy.local.workload import create_topics
from tests.tools.bench.contestants import Contestant
from tests.tools.bench.scenarios import Measured, Scenario
from tests.tools.bench.stage import Stage, port_of

CONTESTANTS = ("direct", "haproxy", "brokerside", "brokerside-audit")
"""Enough to compare; each takes some seconds."""

RECORD = 1024
WARM_UP = 0.1
"""Share of the records that goes before those that are timed."""

TIMEOUT = 180.0
"""Seconds until what takes a few has to be done, on a machine that others use."""

PRODUCER = {"acks": "1", "linger.ms": 5, "batch.size": 262_144, "queue.buffering.max.messages": 1_000_000}
CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # By default it stops fetching for a second whenever 100,000 records wait in it: that is what would be measured.
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 5,
}
MB = 1e6


class RealKafka(Scenario):
    """Produces records of 1 KiB to a new topic of one partition, and reads them back."""

    name, whom = "kafka", CONTESTANTS

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        [node] = stage.start_cluster().nodes
        own = node.upstream if contestant.command else node.internal  # which advertises itself
        running = stage.start(contestant, listen=port_of(node.advertised), upstream=port_of(own))
        # Not named as the contestant is: sidecars refuse what clients write to topics of `brokerside-*`.
        topic = f"bench-{running.wiring.folder.name}"
        count = stage.sizes.kafka_records
        try:
            create_topics(node.internal, {topic: {}}, 1)
            before = stage.read(running.pids)
            bootstrap = f"127.0.0.1:{running.port}"
            figures = {
                "produce_mb_s": _produce(bootstrap, topic, count),
                "consume_mb_s": _consume(bootstrap, topic, count),
            }
            foreign = stage.read(running.pids).foreign(before)
        finally:
            stage.stop(running)
            with suppress(TimeoutError):  # it only takes room on the disk
                AdminClient({"bootstrap.servers": node.internal}).delete_topics([topic])[topic].exception(TIMEOUT)
        return Measured(figures, foreign)


def _produce(bootstrap: str, topic: str, count: int) -> float:
    """Return MB/s of ``count`` records, from the first one handed over to the last one acknowledged.

    Raises LocalError where one was refused, or not acknowledged in time: a rate of failures is none.
    """
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    _send(producer, topic, int(count * WARM_UP))
    begun = time.perf_counter()
    _send(producer, topic, count)
    return count * RECORD / (time.perf_counter() - begun) / MB


def _send(producer: Producer, topic: str, count: int) -> None:
    record = bytes(RECORD)
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    for _ in range(count):
        producer.produce(topic, record, partition=0, on_delivery=delivered)
    left = producer.flush(TIMEOUT)
    if left or refused:
        raise LocalError(f"of {count} records {left} were not acknowledged in time, and refused: {refused[:1]}")


def _consume(bootstrap: str, topic: str, count: int) -> float:
    """Return MB/s of ``count`` records, from when the first ones are there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        _receive(consumer, max(1, int(count * WARM_UP)))
        begun = time.perf_counter()
        got = _receive(consumer, int(count * (1 - WARM_UP)))
        return got * RECORD / (time.perf_counter() - begun) / MB
    finally:
        consumer.close()


def _receive(consumer: Consumer, count: int) -> int:
    deadline = time.monotonic() + TIMEOUT
    got = 0
    while got < count:
        got += sum(1 for message in consumer.consume(min(10_000, count - got), 0.1) if not message.error())
        if time.monotonic() > deadline:
            raise LocalError(f"only {got} of {count} records came within {TIMEOUT:.0f} s")
    return got
