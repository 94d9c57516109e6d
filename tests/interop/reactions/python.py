"""librdkafka, aiokafka and kafka-python: ``python -m tests.interop.reactions.python CLIENT ROLE BOOTSTRAP TOPIC ID``.

See ``tests.interop.reactions`` for what it does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

WAIT = 15
"""Seconds in which one attempt has to come to something."""

Attempt = Callable[[], object]

heard: list[str] = []
"""What the client reports by itself: its log, its error callback."""


def librdkafka(role: str, bootstrap: str, topic: str, client_id: str) -> Attempt:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    common: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "error_cb": lambda error: heard.append(str(error)),
        "logger": logging.getLogger("librdkafka"),
    }
    if role == "producer":
        producer = Producer({**common, "message.timeout.ms": (WAIT - 5) * 1000})

        def produce() -> object:
            said: list[Any] = []
            producer.produce(topic, b"x", on_delivery=lambda error, message: said.append(error))
            producer.flush(WAIT)
            return said[0] if said else "nothing"

        return produce
    if role == "consumer":
        consumer = Consumer({**common, "group.id": client_id, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])

        def consume() -> object:
            message = consumer.poll(WAIT)
            return "nothing" if message is None else message.error()

        return consume
    admin = AdminClient(common)
    return lambda: next(iter(admin.create_topics([NewTopic(_new(), 1, 1)]).values())).result(WAIT)


def kafka_python(role: str, bootstrap: str, topic: str, client_id: str) -> Attempt:
    import kafka
    from kafka.admin import NewTopic

    common = {"bootstrap_servers": bootstrap, "client_id": client_id}
    if role == "producer":
        producer = kafka.KafkaProducer(**common, delivery_timeout_ms=(WAIT - 5) * 1000, request_timeout_ms=5000)
        return lambda: _nothing(producer.send(topic, b"x").get(WAIT))
    if role == "consumer":
        consumer = kafka.KafkaConsumer(topic, **common, group_id=client_id, auto_offset_reset="earliest")
        return lambda: None if consumer.poll(WAIT * 1000, max_records=1) else "nothing"
    admin = kafka.KafkaAdminClient(**common, request_timeout_ms=WAIT * 1000)
    return lambda: _nothing(admin.create_topics([NewTopic(_new(), 1, 1)]))


def aiokafka(role: str, bootstrap: str, topic: str, client_id: str) -> Attempt:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    runner = asyncio.Runner()
    common = {"bootstrap_servers": bootstrap, "client_id": client_id}

    async def start() -> Any:
        client: Any
        if role == "producer":
            client = AIOKafkaProducer(**common, request_timeout_ms=5000)
        elif role == "consumer":
            client = AIOKafkaConsumer(topic, **common, group_id=client_id, auto_offset_reset="earliest")
        else:
            client = AIOKafkaAdminClient(**common)
        await client.start()
        return client

    client = runner.run(start())

    async def once() -> object:
        async with asyncio.timeout(WAIT):
            if role == "producer":
                return _nothing(await client.send_and_wait(topic, b"x"))
            if role == "consumer":
                return _nothing(await client.getone())
            return _nothing(await client.create_topics([NewTopic(_new(), 1, 1)]))

    return lambda: runner.run(once())


def _nothing(_: object) -> None:
    return None


def _new() -> str:
    return f"new-{uuid.uuid4().hex[:8]}"


class _Heard(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        heard.append(record.getMessage())


def main() -> None:
    name, role, bootstrap, topic, client_id = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, handlers=[_Heard()])
    attempt = {"librdkafka": librdkafka, "aiokafka": aiokafka, "kafka-python": kafka_python}[name](
        role, bootstrap, topic, client_id
    )
    for _ in sys.stdin:
        heard.clear()
        began = time.monotonic()
        try:
            problem = attempt()
            said = "" if problem is None else str(problem)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        took = time.monotonic() - began
        print(json.dumps({"said": said, "heard": heard[:1], "seconds": round(took, 1)}), flush=True)


if __name__ == "__main__":
    main()
