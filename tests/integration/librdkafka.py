"""Producing and consuming with confluent-kafka, as most tests do."""

import uuid

from confluent_kafka import Consumer, Producer

LARGE = 50 * 1024 * 1024
"""Size of the large record, bytes."""


def produce(bootstrap: str, topic: str, values: list[bytes], **settings: str | int) -> int:
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    return acknowledged


def consume(bootstrap: str, topic: str, count: int, **settings: str | int) -> list[bytes]:
    """Read ``count`` values from the start of ``topic`` in a new group, commit and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    values: list[bytes] = []
    try:
        consumer.subscribe([topic])
        for _ in range(600):
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
            if len(values) >= count:
                break
        positions = consumer.position(consumer.assignment())
        consumer.commit(offsets=[p for p in positions if p.offset >= 0], asynchronous=False)
    finally:
        consumer.close()
    return values
