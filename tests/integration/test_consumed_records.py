"""Records that real consumers took are the records in the audit events of their fetches."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from observers.event import RequestEvent, decoder
from proxy.local.broker import AUDIT_TOPIC
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.feature_sidecars import await_ends_of_transactions
from tests.integration.sidecars import until
from tests.tools.kafka_tools import KafkaTools
from tests.tools.topic import create

pytestmark = pytest.mark.kafka

PARTITIONS = 3
BATCHES = 10
BATCH = 20
"""Records of each batch."""

DEADLINE = 60.0
"""Seconds for one consumer, and for its events."""

FETCH_WAIT = 50
"""Milliseconds that the broker holds back a fetch of nothing, by which a consumer learns that it is at the end."""


class Reading(NamedTuple):
    """What a consumer has to do."""

    bootstrap: str
    client_id: str
    topic: str
    starts: Mapping[int, int]
    """Offset to begin at, by partition."""
    count: int
    """Records that are there from ``starts`` on, as the client sees them."""
    isolation: str = "read_uncommitted"
    fetch_max_bytes: int = 50_000_000


def librdkafka(reading: Reading, _: KafkaTools) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": reading.bootstrap,
            "client.id": reading.client_id,
            "group.id": f"g-{uuid.uuid4().hex[:8]}",
            "isolation.level": reading.isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FETCH_WAIT,
            "fetch.message.max.bytes": min(reading.fetch_max_bytes, 1_000_000),
        }
    )
    consumer.assign([TopicPartition(reading.topic, *start) for start in reading.starts.items()])
    read, left, deadline = 0, set(reading.starts), time.monotonic() + DEADLINE
    while left:
        assert time.monotonic() < deadline, "it did not come to the end"
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is None:
                read += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    consumer.close()
    return read


def kafka_python(reading: Reading, _: KafkaTools) -> int:
    consumer = KafkaConsumer(
        bootstrap_servers=reading.bootstrap,
        client_id=reading.client_id,
        isolation_level=reading.isolation,
        fetch_max_bytes=reading.fetch_max_bytes,
        max_partition_fetch_bytes=min(reading.fetch_max_bytes, 1_000_000),
        fetch_max_wait_ms=FETCH_WAIT,
    )
    starts = {PythonTopicPartition(reading.topic, partition): start for partition, start in reading.starts.items()}
    consumer.assign(list(starts))
    for partition, start in starts.items():
        consumer.seek(partition, start)
    ends = consumer.end_offsets(list(starts))
    read, deadline = 0, time.monotonic() + DEADLINE
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, "it did not come to the end"
        read += sum(map(len, consumer.poll(50).values()))
    consumer.close()
    return read


def java(reading: Reading, tools: KafkaTools) -> int:
    group = f"g-{uuid.uuid4().hex[:8]}"
    committing = Consumer({"bootstrap.servers": reading.bootstrap, "group.id": group})
    committing.commit(
        offsets=[TopicPartition(reading.topic, *start) for start in reading.starts.items()], asynchronous=False
    )
    committing.close()
    done = tools.run(
        "console-consumer", "--bootstrap-server", reading.bootstrap, "--topic", reading.topic, "--group", group,
        "--isolation-level", reading.isolation, "--max-messages", str(reading.count), "--timeout-ms", "30000",
        "--command-property", f"client.id={reading.client_id}",
        "--command-property", f"fetch.max.bytes={reading.fetch_max_bytes}",
        "--command-property", f"max.partition.fetch.bytes={min(reading.fetch_max_bytes, 1_000_000)}",
    )  # fmt: skip
    done.check_returncode()
    return done.stdout.splitlines().count("value")


Client = Callable[[Reading, KafkaTools], int]
every_client = pytest.mark.parametrize("client", [librdkafka, kafka_python, pytest.param(java, marks=pytest.mark.slow)])


class Audited:
    """The requests in the sidecar's events, read as they come."""

    def __init__(self, cluster: ClusterState) -> None:
        self._through = cluster.bootstrap
        self._found: dict[str, dict[int, Any]] = {}
        """Events by run and number."""
        self._consumer = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": "audited"})
        parts = until(lambda: self._consumer.list_topics(AUDIT_TOPIC, timeout=30).topics[AUDIT_TOPIC].partitions)
        self._consumer.assign([TopicPartition(AUDIT_TOPIC, number, OFFSET_BEGINNING) for number in parts])

    def close(self) -> None:
        self._consumer.close()

    def fetched(self, client_id: str) -> tuple[int, int]:
        """Records of this client, which has got all its answers, and for how many partitions the number is a bound."""
        records = bounds = 0
        for event in self._so_far():
            if isinstance(event, RequestEvent) and event.client_id == client_id and event.api == "Fetch":
                for part in event.topics:
                    records += part.records
                    bounds += part.claimed or part.upper_bound
        return records, bounds

    def _so_far(self) -> list[Any]:
        """The events of all that was answered before now: numbers before that of a request that is sent now."""
        marker = f"marker-{uuid.uuid4().hex[:8]}"
        AdminClient({"bootstrap.servers": self._through, "client.id": marker}).list_topics(timeout=DEADLINE)
        run: dict[int, Any] = {}
        last = None
        deadline = time.monotonic() + DEADLINE
        while last is None or not all(number in run for number in range(1, last)):
            assert time.monotonic() < deadline, "not all events have come"
            for message in self._consumer.consume(1000, 0.05):
                assert message.error() is None, message.error()
                envelope = decoder.decode(message.value() or b"")
                events = self._found.setdefault(envelope.boot_id, {})
                events.update((event.seq, event) for event in envelope.events)
                for event in envelope.events:
                    if last is None and isinstance(event, RequestEvent) and event.client_id == marker:
                        last, run = event.seq, events
        return [run[number] for number in range(1, last + 1)]


@pytest.fixture(scope="module")
def audited(cluster: ClusterState, sidecar: SidecarProcess) -> Iterator[Audited]:
    made = Audited(cluster)
    yield made
    made.close()


def client_id_of(client: Client) -> str:
    return f"{client.__name__}-{uuid.uuid4().hex[:8]}"


def produce_batch(producer: Producer, topic: str, partition: int, count: int) -> None:
    for _ in range(count):
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def batches(cluster: ClusterState, sidecar: SidecarProcess) -> Iterator[str]:
    """A topic whose partitions hold batches of ``BATCH`` records."""
    yield from _topic(cluster, PARTITIONS, _fill)


def _fill(cluster: ClusterState, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.internal_bootstrap, "linger.ms": 10_000})
    for _ in range(BATCHES):
        for partition in range(PARTITIONS):
            produce_batch(producer, topic, partition, BATCH)


@pytest.fixture(scope="module")
def transactions(cluster: ClusterState, sidecar: SidecarProcess) -> Iterator[str]:
    """A topic of one partition with committed and aborted transactions of two producers, which overlap."""
    yield from _topic(cluster, 1, _fill_with_transactions)


def _fill_with_transactions(cluster: ClusterState, topic: str) -> None:
    settings = {"bootstrap.servers": cluster.internal_bootstrap, "linger.ms": 10_000}
    producers = [Producer({**settings, "transactional.id": f"{topic}-{number}"}) for number in range(2)]
    plain = Producer(settings)
    for producer in producers:
        producer.init_transactions(60)
    for number in range(6):
        for producer in producers:
            producer.begin_transaction()
        for _ in range(2):
            for producer in producers:
                produce_batch(producer, topic, 0, BATCH)
            produce_batch(plain, topic, 0, 3)
        for producer, aborts in zip(producers, (number % 2 == 0, number % 3 == 0), strict=True):
            (producer.abort_transaction if aborts else producer.commit_transaction)(60)
    await_ends_of_transactions(cluster.internal_bootstrap, TopicPartition(topic, 0))


def _topic(cluster: ClusterState, partitions: int, fill: Callable[[ClusterState, str], None]) -> Iterator[str]:
    name = f"consumed-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    create(admin, NewTopic(name, partitions, 1))
    fill(cluster, name)
    yield name
    admin.delete_topics([name])[name].result(180)


@pytest.mark.promise("consumed-records.md", "Of a fetch exactly the records that the client takes are counted.")
@every_client
def test_a_consumer_that_begins_inside_a_batch(
    cluster: ClusterState, audited: Audited, tools: KafkaTools, batches: str, client: Client
) -> None:
    for start in [0, BATCH, 2 * BATCH + 7, BATCHES * BATCH - 1]:
        count = BATCHES * BATCH - start
        reading = Reading(cluster.bootstrap, client_id_of(client), batches, {0: start}, count)
        if client is java:
            starts = dict.fromkeys(range(PARTITIONS), BATCHES * BATCH)
            reading = reading._replace(starts={**starts, 0: start})
        assert client(reading, tools) == count
        assert audited.fetched(reading.client_id) == (count, 0), start
    starts = {0: 7, 1: BATCH + 9, 2: 3 * BATCH + 11}  # partitions that a fetch session does not name again
    count = sum(BATCHES * BATCH - start for start in starts.values())
    reading = Reading(cluster.bootstrap, client_id_of(client), batches, starts, count, fetch_max_bytes=1)
    assert client(reading, tools) == count
    assert audited.fetched(reading.client_id) == (count, 0)


@pytest.mark.promise("consumed-records.md", "Aborted records count for who reads uncommitted ones alone.")
@every_client
def test_committed_and_aborted_transactions(
    cluster: ClusterState, audited: Audited, tools: KafkaTools, transactions: str, client: Client
) -> None:
    for isolation in ("read_committed", "read_uncommitted"):
        for start in (0, BATCH + 2, 4 * BATCH + 20):
            reading = Reading(cluster.bootstrap, client_id_of(client), transactions, {0: start}, 0, isolation)
            count = librdkafka(reading._replace(client_id="counts"), tools)
            assert client(reading._replace(count=count), tools) == count
            assert audited.fetched(reading.client_id) == (count, 0), (isolation, start)
