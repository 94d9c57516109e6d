"""A bounded workload of real clients, each of which keeps its own ledger.

A ledger holds what the client itself counted: records that were acknowledged or that it read, the size of its record
batches, the requests it sent. Nothing in a ledger comes from the sidecar; the demo compares the two.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from proxy.errors import LocalError, PeerError
from proxy.rpc import messages
from proxy.rpc.call import call_once

CLIENT_TIMEOUT = 180.0
"""Seconds any one client may take; the workload takes a few, and many times that on a busy machine."""

LOG_LEVEL_ERROR = 3
"""librdkafka's level "error": warnings about a coordinator that still loads are not shown."""

STEADY_RATE = 20
"""Records per second of the client that produces all the time."""

MAX_RESPONSE_BYTES = 1 << 20
"""Bytes of a response to the clients of ``connect_at_once``; it has about 500."""

OVERSIZED_BYTES = 5_000
"""Bytes of a record that a topic with ``max.message.bytes=2000`` refuses."""

SETTLED_STATISTICS = 3
"""Equal statistics in a row after which a librdkafka client has nothing under way."""


@dataclass
class ClientLedger:
    """What one client counted. ``counts``: name of a column of ``traffic`` → integer."""

    client_id: str
    library: str
    api: str
    topic: str
    did: str
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StormLedger:
    """What clients saw that connected at once."""

    answered: int
    closed: int
    """Connections that ended without an answer."""


class _Statistics:
    """How many Produce requests a librdkafka client has sent, from its statistics callback.

    Its totals by connection would say more, but it forgets those of the connection it bootstrapped on.
    """

    def __init__(self) -> None:
        self.produce_requests = 0
        self.unchanged = 0

    def __call__(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        sent = sum(broker["req"].get("Produce", 0) for broker in brokers)
        idle = not sum(broker["outbuf_cnt"] + broker["waitresp_cnt"] for broker in brokers)
        self.unchanged = self.unchanged + 1 if idle and sent == self.produce_requests else 0
        self.produce_requests = sent

    def settle(self, poll: Callable[[float], object]) -> int:
        """Poll until nothing moves any more; return the number."""
        deadline = time.monotonic() + CLIENT_TIMEOUT
        self.unchanged = 0
        while self.unchanged < SETTLED_STATISTICS:
            if time.monotonic() > deadline:
                raise LocalError("a client's statistics do not settle")
            poll(0.05)
        return self.produce_requests


def create_topics(bootstrap: str, topics: dict[str, dict[str, str]], partitions: int) -> None:
    """Create ``topics``: name → topic configs. Wait until they have leaders, since a ledger has no retries."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "demo-admin"})
    new = [NewTopic(name, partitions, 1, config=config) for name, config in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(CLIENT_TIMEOUT)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(name, number): latest for name in topics for number in range(partitions)}
    deadline = time.monotonic() + CLIENT_TIMEOUT
    while not all(future.exception(CLIENT_TIMEOUT) is None for future in admin.list_offsets(wanted).values()):
        if time.monotonic() > deadline:
            raise LocalError("the new topics have no leaders")


def confluent_produce(
    bootstrap: str, client_id: str, topic: str, records: int, settings: dict[str, str | int], oversized: int = 0
) -> ClientLedger:
    """Produce ``records`` records of varying size, and ``oversized`` ones that the topic refuses; librdkafka."""
    statistics = _Statistics()
    stored = failed = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal stored, failed
        if error is None:
            stored += 1
        else:
            failed += 1

    producer = _producer(bootstrap, client_id, statistics, settings)
    for n in range(records):
        producer.produce(topic, key=f"{n % 97}", value=_value(n), on_delivery=delivered)
        if n % 500 == 0:
            producer.poll(0)
    for _ in range(oversized):
        producer.produce(topic, value=bytes(OVERSIZED_BYTES), on_delivery=delivered)
    producer.flush(CLIENT_TIMEOUT)
    unconfirmed = settings.get("acks") == 0
    counts = {"unconfirmed_records": stored} if unconfirmed else {"records": stored, "rejected_records": failed}
    counts["topic_requests"] = statistics.settle(producer.poll)
    codec, acks = settings.get("compression.type", "uncompressed"), settings.get("acks", "all")
    did = f"produced {records + oversized:,} records, {codec}, acks={acks}"
    return ClientLedger(client_id, "librdkafka", "Produce", topic, did, counts)


def _producer(bootstrap: str, client_id: str, statistics: _Statistics, settings: dict[str, str | int]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "log_level": LOG_LEVEL_ERROR,
            "linger.ms": 5,
            "statistics.interval.ms": 100,
            "stats_cb": statistics,
            **settings,
        }
    )


@contextmanager
def steady_producer(bootstrap: str, client_id: str, topic: str) -> Iterator[Callable[[], ClientLedger]]:
    """Produce ``STEADY_RATE`` records per second in a thread until the yielded function is called, or the block ends.

    That function returns the ledger.
    """
    statistics, stop = _Statistics(), threading.Event()
    stored: list[bool] = []
    producer = _producer(bootstrap, client_id, statistics, {})

    def produce() -> None:
        n = 0
        while not stop.wait(1 / STEADY_RATE):
            producer.produce(topic, value=_value(n), on_delivery=lambda error, _: stored.append(error is None))
            producer.poll(0)
            n += 1
        producer.flush(CLIENT_TIMEOUT)

    thread = threading.Thread(target=produce, name=client_id, daemon=True)
    started = time.time()

    def finish() -> ClientLedger:
        stop.set()
        thread.join(CLIENT_TIMEOUT)
        counts = {"records": sum(stored), "rejected_records": len(stored) - sum(stored)}
        counts["topic_requests"] = statistics.settle(producer.poll)
        did = f"produced {STEADY_RATE} records a second for {time.time() - started:.0f} s"
        return ClientLedger(client_id, "librdkafka", "Produce", topic, did, counts)

    thread.start()
    try:
        yield finish
    finally:
        stop.set()


def connect_at_once(bootstrap: str, client_id: str, source: str, connections: int) -> StormLedger:
    """Connect so often at once from the local address ``source``, and ask for ApiVersions on each connection."""
    return asyncio.run(_connect_at_once(bootstrap, client_id, source, connections))


async def _connect_at_once(bootstrap: str, client_id: str, source: str, connections: int) -> StormLedger:
    host, _, port = bootstrap.rpartition(":")

    async def ask() -> bool:
        try:
            streams = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
            await call_once(streams, messages.api_versions_request(), client_id=client_id, max_size=MAX_RESPONSE_BYTES)
        except (OSError, EOFError, PeerError):
            return False
        return True

    async with asyncio.timeout(CLIENT_TIMEOUT):
        answered = sum(await asyncio.gather(*(ask() for _ in range(connections))))
    return StormLedger(answered, connections - answered)


def confluent_consume(bootstrap: str, client_id: str, topic: str, records: int, protocol: str) -> ClientLedger:
    """Read ``topic`` from its start to its end in a consumer group; ``protocol``: classic or consumer (KIP-848)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "log_level": LOG_LEVEL_ERROR,
            "group.id": f"{client_id}-group",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    read = 0
    deadline = time.monotonic() + CLIENT_TIMEOUT
    try:
        consumer.subscribe([topic])
        while read < records and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    read += 1
        ends = [TopicPartition(p.topic, p.partition, p.offset) for p in consumer.position(consumer.assignment())]
        consumer.commit(offsets=ends, asynchronous=False)
    finally:
        consumer.close()
    return ClientLedger(
        client_id, "librdkafka", "Fetch", topic, f"read {read:,} records, {protocol} group", {"records": read}
    )


def aiokafka_produce(bootstrap: str, client_id: str, topic: str, records: int, partitions: int) -> ClientLedger:
    """Produce ``records`` records in batches built by hand, whose size in bytes the client therefore knows."""
    return asyncio.run(_aiokafka_produce(bootstrap, client_id, topic, records, partitions))


async def _aiokafka_produce(bootstrap: str, client_id: str, topic: str, records: int, partitions: int) -> ClientLedger:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, client_id=client_id, acks="all")
    await producer.start()
    stored = size = 0
    try:
        n = 0
        while n < records:
            batch = producer.create_batch()
            while n < records and batch.append(key=None, value=_value(n), timestamp=None) is not None:
                n += 1
            batch.close()
            size += batch.size()
            stored += batch.record_count()
            await (await producer.send_batch(batch, topic, partition=stored % partitions))
    finally:
        await producer.stop()
    did = f"produced {records:,} records, uncompressed, acks=all"
    return ClientLedger(client_id, "aiokafka", "Produce", topic, did, {"records": stored, "bytes": size})


def aiokafka_consume(bootstrap: str, client_id: str, topic: str, records: int) -> ClientLedger:
    """Read ``topic`` from its start to its end in a consumer group."""
    return asyncio.run(_aiokafka_consume(bootstrap, client_id, topic, records))


async def _aiokafka_consume(bootstrap: str, client_id: str, topic: str, records: int) -> ClientLedger:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        client_id=client_id,
        group_id=f"{client_id}-group",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    read = 0
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT):
            while read < records:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    read += len(messages)
        await consumer.commit()
    finally:
        await consumer.stop()
    return ClientLedger(
        client_id, "aiokafka", "Fetch", topic, f"read {read:,} records, classic group", {"records": read}
    )


def java_produce(tool: list[str], bootstrap: str, client_id: str, topic: str, records: int) -> ClientLedger:
    """``kafka-producer-perf-test``; the ledger is the producer's own metrics."""
    output = _java(
        [
            *tool, "--topic", topic, "--num-records", str(records), "--record-size", "200", "--throughput", "-1",
            "--print-metrics", "--command-property", f"bootstrap.servers={bootstrap}", f"client.id={client_id}",
            "acks=all", "compression.type=lz4",
        ]
    )  # fmt: skip
    counts = {
        "records": _java_metric(
            output, rf"producer-topic-metrics:record-send-total:{{client-id={client_id}, topic={topic}}}"
        ),
        "bytes": _java_metric(output, rf"producer-topic-metrics:byte-total:{{client-id={client_id}, topic={topic}}}"),
    }
    return ClientLedger(client_id, "Java", "Produce", topic, f"produced {records:,} records, lz4, acks=all", counts)


def java_consume(tool: list[str], bootstrap: str, client_id: str, topic: str, records: int) -> ClientLedger:
    """``kafka-consumer-perf-test``; the ledger is its own count of messages."""
    output = _java(
        [
            *tool, "--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records), "--timeout",
            str(int(CLIENT_TIMEOUT * 1000)), "--group", f"{client_id}-group",
            "--command-property", f"client.id={client_id}",
        ]
    )  # fmt: skip
    fields = output.strip().splitlines()[-1].split(", ")
    read = int(fields[4])
    return ClientLedger(client_id, "Java", "Fetch", topic, f"read {read:,} records, classic group", {"records": read})


def _java(command: list[str]) -> str:
    what = next((part for part in command if part.startswith(("org.apache.kafka", "kafka."))), command[0])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * CLIENT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise LocalError(f"{what} did not end within {2 * CLIENT_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise LocalError(f"{what} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _java_metric(output: str, name: str) -> int:
    found = re.search(re.escape(name) + r"\s*:\s*([0-9.]+)", output)
    if found is None:
        raise LocalError(f"the Java producer did not print its metric {name}")
    return int(float(found.group(1)))


def _value(n: int) -> bytes:
    """Record ``n``: 20 to 400 bytes, compressible like real data."""
    return (f'{{"id":{n},"text":"' + "lorem ipsum " * (n % 32) + '"}').encode()
