"""Keeps a job registered with the sidecars while it runs, and refuses to start it below the audit's level.

A raise of the level is written before its controller reads the registry. A job writes to the registry before it reads
the levels. So at least one of the two sees the other.

The job needs neither topic: where they cannot be used, a notice says so, and the job runs as without them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs import kafka
from spark_jobs.authentication import FEATURES_LABEL, REGISTRY_LABEL, SIGNATURE_HEADER, is_authentic, sign
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.progress import Notice, Notify
from spark_jobs.reader_records import FEATURE, FEATURES_KEY, AuditReader, check_levels

REGISTRY_TOPIC = "__brokerside_registry"
FEATURES_TOPIC = "__brokerside_features"

HEARTBEAT_SECONDS = 3.0
"""Seconds between two records of a reader. Sidecars find it gone when its last record is 9 s old."""

MAX_RETRY_SECONDS = 30.0
"""Most seconds until the registry is tried again; they start at ``HEARTBEAT_SECONDS``, and double."""

CALL_TIMEOUT_MS = 5_000
"""Milliseconds that one call of a Kafka client takes at most."""

START_SECONDS = 20.0
"""Seconds that the start of the job waits for the registration: three calls, and the time to open the clients."""

READ_SECONDS = 10.0
"""Seconds that reading the finalized levels takes at most."""

STOP_SECONDS = 5.0
"""Seconds that the end of the job waits until it is registered as stopped."""

CLIENT_SETTINGS = {"request.timeout.ms": str(CALL_TIMEOUT_MS), "default.api.timeout.ms": str(CALL_TIMEOUT_MS)}

PRODUCER_SETTINGS = {
    "request.timeout.ms": str(CALL_TIMEOUT_MS),
    "max.block.ms": str(CALL_TIMEOUT_MS),
    "delivery.timeout.ms": str(CALL_TIMEOUT_MS),
    "linger.ms": "0",
    "acks": "all",
    "enable.idempotence": "false",  # a record may be there twice
    # A producer that asks where a topic is creates it. So it asks only when the topic was found before.
    "metadata.max.age.ms": str(7 * 86_400_000),
}

CONSUMER_SETTINGS = {
    **CLIENT_SETTINGS,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
}


@contextmanager
def registered(spark: SparkSession, source: AuditTopicSource, reader: AuditReader, notify: Notify) -> Iterator[None]:
    """Keep ``reader`` in the registry while the block runs, and ``stopped`` afterwards.

    ``source``: of the audit topic, whose cluster has the registry. Raises JobError before the block if the fleet has
    finalized a level that the job cannot read.
    """
    registration = _Registration(spark, source, reader, notify)
    try:
        registration.start()
        try:
            check_levels(_read_finalized(spark, source, reader.registry_hmac_keys))
        except (Py4JError, OSError) as error:
            doubt = f"it is not known whether this job can read the finalized level of {FEATURE}"
            notify(Notice(f"{doubt}: {_reason(error)}"))
        yield
    finally:
        registration.stop()


class _Registration:
    """The thread that writes the record. It alone uses its clients, so that nothing else waits for them."""

    def __init__(self, spark: SparkSession, source: AuditTopicSource, reader: AuditReader, notify: Notify) -> None:
        self._spark, self._source, self._reader, self._notify = spark, source, reader, notify
        self._attempted, self._stop = threading.Event(), threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the record is acknowledged, or cannot be written."""
        self._thread.start()
        if not self._attempted.wait(START_SECONDS):
            self._report(f"no answer in {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Write that the job has stopped, if that does not take long."""
        self._stop.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        retry = HEARTBEAT_SECONDS
        while not self._stop.is_set():
            try:
                with _registry_writer(self._spark, self._source, self._reader) as write:
                    while not self._stop.is_set():
                        write(self._reader.value("running"))
                        self._report(None)
                        retry = HEARTBEAT_SECONDS
                        self._stop.wait(HEARTBEAT_SECONDS)
                    write(self._reader.value("stopped"))
            except (Py4JError, OSError) as error:
                if not self._stop.is_set():
                    self._report(_reason(error))
                self._stop.wait(retry)
                retry = min(2 * retry, MAX_RETRY_SECONDS)

    def _report(self, failure: str | None) -> None:
        """Notify of a change between registered and not."""
        if failure is not None and not self._failing:
            self._notify(Notice(f"this job is not registered with the sidecars: {REGISTRY_TOPIC}: {failure}"))
        elif failure is None and self._failing:
            self._notify(Notice(f"this job is registered with the sidecars as reader/{self._reader.name}"))
        self._failing = failure is not None
        self._attempted.set()


def _reason(error: Py4JError | OSError) -> str:
    return kafka.root_cause(error) if isinstance(error, Py4JJavaError) else str(error)


@contextmanager
def _registry_writer(
    spark: SparkSession, source: AuditTopicSource, reader: AuditReader
) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes a value of the reader's record, and returns when it is acknowledged."""
    jvm: Any = spark._jvm
    second = jvm.java.time.Duration.ofSeconds(1)
    topics = jvm.java.util.List.of(REGISTRY_TOPIC)
    clients = jvm.org.apache.kafka.clients
    with ExitStack() as stack:
        admin = clients.admin.AdminClient.create(kafka.client_settings(spark, source, CLIENT_SETTINGS))
        stack.callback(admin.close, second)
        serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer()
        settings = kafka.client_settings(spark, source, PRODUCER_SETTINGS)
        producer = clients.producer.KafkaProducer(settings, serializer, serializer)
        stack.callback(producer.close, second)

        def write(value: bytes) -> None:
            admin.describeTopics(topics).allTopicNames().get()  # unlike the producer, it does not create the topic
            record = clients.producer.ProducerRecord(REGISTRY_TOPIC, 0, reader.key, value)
            if reader.registry_hmac_keys:
                signature = sign(reader.registry_hmac_keys, REGISTRY_LABEL, reader.key, value)
                record.headers().add(SIGNATURE_HEADER, signature)
            producer.send(record).get()

        yield write


def _read_finalized(
    spark: SparkSession, source: AuditTopicSource, hmac_keys: Mapping[str, bytes]
) -> Iterator[bytes | None]:
    """Yield the values of the records with the finalized levels, up to the end that the topic has now.

    With ``hmac_keys`` only of those that are signed. Without the topic nothing is finalized. Raises Py4JJavaError;
    TimeoutError after ``READ_SECONDS``.
    """
    jvm: Any = spark._jvm
    deserializer = jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer()
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
        kafka.client_settings(spark, source, CONSUMER_SETTINGS), deserializer, deserializer
    )
    try:
        if not consumer.partitionsFor(FEATURES_TOPIC):
            return
        partition = jvm.org.apache.kafka.common.TopicPartition(FEATURES_TOPIC, 0)
        partitions = jvm.java.util.List.of(partition)
        consumer.assign(partitions)
        consumer.seekToBeginning(partitions)
        end = int(consumer.endOffsets(partitions).get(partition))
        deadline = time.monotonic() + READ_SECONDS
        while consumer.position(partition) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{FEATURES_TOPIC} was not read to its end in {READ_SECONDS:.0f} s")
            for record in consumer.poll(jvm.java.time.Duration.ofSeconds(1)).records(partition):
                if record.key() != FEATURES_KEY:
                    continue
                value, signed = record.value(), record.headers().lastHeader(SIGNATURE_HEADER)
                signature = signed.value() if signed is not None else None
                if not hmac_keys or is_authentic(hmac_keys, FEATURES_LABEL, FEATURES_KEY, value, signature):
                    yield value
    finally:
        consumer.close(jvm.java.time.Duration.ofSeconds(1))
