"""Topics of audit records that the jobs of the bench read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

from confluent_kafka import Producer

from observers.event import EVENTS_PER_RECORD, Envelope, RequestEvent, TopicPartition, encoder
from proxy.errors import LocalError
from proxy.local.workload import create_topics

APIS = [("Produce", 0, 13), ("Fetch", 1, 18), ("Metadata", 3, 13), ("Heartbeat", 12, 4), ("OffsetCommit", 8, 9)]
"""Names, keys and versions of requests, in the shares of a busy broker."""

SHARES = [45, 40, 3, 7, 5]
SOFTWARE = [("apache-kafka-java", "4.3.1"), ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), (None, None)]

EVERY_US = 200
"""Time between two events: a broker of 5,000 requests/s."""

KEYS_OF_CLIENT = 9
"""Rows that a client has in each minute of ``traffic``: five of its requests, four of its topics."""

PARTITIONS = 4
FLUSH_TIMEOUT = 180.0


def fill(bootstrap: str, topic: str, count: int, keys: int) -> None:
    """Create a topic with ``count`` requests, which make about ``keys`` rows of ``traffic`` a minute."""
    create_topics(bootstrap, {topic: {}}, PARTITIONS)
    producer = new_producer(bootstrap)
    made = events(count, round(keys / KEYS_OF_CLIENT))
    for first in range(1, count + 1, EVENTS_PER_RECORD):
        produce(producer, topic, first, list(islice(made, EVENTS_PER_RECORD)))
    flush(producer)


def new_producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})


def produce(producer: Producer, topic: str, first: int, some: Sequence[RequestEvent]) -> None:
    """Produce one record of events, which are numbered from ``first`` on."""
    last, sent_at = first + len(some) - 1, some[-1].ts_request
    envelope = Envelope(1, "ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0", first, last, 0, sent_at, [*some])
    producer.produce(topic, encoder.encode(envelope), partition=first // EVENTS_PER_RECORD % PARTITIONS)
    producer.poll(0)


def flush(producer: Producer) -> None:
    """Wait until all records are acknowledged. Raises LocalError."""
    if left := producer.flush(FLUSH_TIMEOUT):
        raise LocalError(f"{left} records of events were not acknowledged within {FLUSH_TIMEOUT:.0f} s")


def events(count: int, clients: int) -> Iterator[RequestEvent]:
    """Requests of ``clients`` of two topics each; a third of the fetches waits for data in vain."""
    chance = random.Random(1)
    for seq, (api, key, version) in enumerate(chance.choices(APIS, SHARES, k=count), 1):
        client = chance.randrange(clients)
        waits = key == 1 and chance.random() < 0.33
        parts = 0 if key > 1 or waits else chance.choice((1, 1, 2, 3))
        latency = 500_000 if waits else int(chance.lognormvariate(7, 1))
        software, software_version = SOFTWARE[client % len(SOFTWARE)]
        yield RequestEvent(
            seq=seq,
            listener="CLIENT",
            connection_id=f"c{client}",
            correlation_id=seq % 1_000_000,
            api_key=key,
            api=api,
            api_version=version,
            principal=f"User:team-{client % 40}",
            client_ip=f"10.0.{client // 250}.{client % 250}",
            ts_request=1_795_260_000_000_000 + seq * EVERY_US,
            latency_us=latency,
            upstream_us=max(latency - 40, 1),
            request_bytes=300,
            response_bytes=60,
            decode="full" if key < 2 else "none",
            client_id=f"service-{client}",
            client_software_name=software,
            client_software_version=software_version,
            max_wait_ms=500 if key == 1 else 0,
            acks=-1 if key == 0 else None,
            topics=tuple(_part(chance, key, 2 * client + chance.randrange(2)) for _ in range(parts)),
        )


def _part(chance: random.Random, key: int, number: int) -> TopicPartition:
    records, produced = chance.randrange(1, 60), key == 0
    return TopicPartition(
        topic=f"team-{number % 5}.orders-{number}",
        partition=chance.randrange(12),
        topic_id=f"{number:_>20}AA",
        bytes=200 * records,
        records=records,
        producer_id=1_000 + number if produced else -1,
        producer_epoch=0 if produced else -1,
        base_sequence=chance.randrange(1_000_000) if produced else -1,
        base_offset=chance.randrange(10_000_000),
    )
