"""Reads the audit topic with Spark, and asks Kafka what has to be known before that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.errors import JobError

MAX_RECORDS_PER_BATCH = 10_000
"""Kafka records of one batch: up to 2,000,000 events. Memory holds only a few records at a time, and their sums."""

MAX_BATCH_DELAY = "6s"
"""Seconds from the start of a batch to that of the next one, if there are too few records for a full batch. An event
waits that long for its row, and for the batch itself; a batch of few events costs 0.8 CPU s."""

ADMIN_TIMEOUT_MS = 15_000
"""How long the cluster may take to answer a request about the topic."""


@dataclass(frozen=True)
class AuditTopicSource:
    """Where the records are, and how to read them."""

    bootstrap_servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of Kafka's Java client by their own names."""
    hmac_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Signing keys of the sidecars by id. With them, records have their headers."""

    @property
    def reader_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source, without the offsets."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "failOnDataLoss": "true",
            "includeHeaders": str(bool(self.hmac_keys)).lower(),
        }
        return options | {f"kafka.{name}": value for name, value in self.options.items()}


def read_stream(spark: SparkSession, source: AuditTopicSource, *, wait: bool) -> DataFrame:
    """Return the stream of the topic. Without a checkpoint it starts at the beginning of the topic.

    ``wait``: wait for a full batch, at most ``MAX_BATCH_DELAY``. The next full batch follows without a pause. Records
    that were deleted before they were read fail the job; they are never skipped.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**source.reader_options)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(MAX_RECORDS_PER_BATCH))
    )
    if wait:
        reader = reader.option("minOffsetsPerTrigger", str(MAX_RECORDS_PER_BATCH))
        reader = reader.option("maxTriggerDelay", MAX_BATCH_DELAY)
    return reader.load()


def fetch_cluster_id(spark: SparkSession, source: AuditTopicSource) -> str:
    """Return the id of the cluster that has the topic.

    Raises JobError if the cluster cannot be reached or has no such topic. Spark itself would retry for minutes.
    """
    with _admin_client(spark, source) as client:
        client.describeTopics(_jvm(spark).java.util.List.of(source.topic)).allTopicNames().get()
        return str(client.describeCluster().clusterId().get())


@dataclass(frozen=True)
class OffsetRange:
    """A part of a topic: by partition the first offset, and the offset after the last one."""

    first: Mapping[int, int]
    end: Mapping[int, int]

    @property
    def record_count(self) -> int:
        """Number of offsets in the range."""
        return sum(max(end - self.first[partition], 0) for partition, end in self.end.items())


def fetch_offset_range(spark: SparkSession, source: AuditTopicSource) -> OffsetRange:
    """Return the offsets that the topic has now."""
    jvm = _jvm(spark)
    spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
    with _admin_client(spark, source) as client:
        topics = client.describeTopics(jvm.java.util.List.of(source.topic)).allTopicNames().get()
        numbers = [each.partition() for each in topics.get(source.topic).partitions()]
        partitions = [jvm.org.apache.kafka.common.TopicPartition(source.topic, number) for number in numbers]

        def list_offsets(offset_spec: Any) -> dict[int, int]:
            request = jvm.java.util.HashMap()
            for each in partitions:
                request.put(each, offset_spec)
            offsets = client.listOffsets(request).all().get()
            return {each.partition(): int(offsets[each].offset()) for each in partitions}

        return OffsetRange(list_offsets(spec.earliest()), list_offsets(spec.latest()))


def read_range(spark: SparkSession, source: AuditTopicSource, offsets: OffsetRange) -> DataFrame:
    """Return the records of the topic in ``offsets``, as a batch. Reading it fails if one of them was deleted."""
    first = {partition: min(offsets.first[partition], end) for partition, end in offsets.end.items()}
    reader = (
        spark.read.format("kafka")
        .options(**source.reader_options)
        .option("assign", json.dumps({source.topic: sorted(offsets.end)}))
        .option("startingOffsets", json.dumps({source.topic: first}))
        .option("endingOffsets", json.dumps({source.topic: offsets.end}))
    )
    return reader.load()


def client_settings(spark: SparkSession, source: AuditTopicSource, settings: Mapping[str, str]) -> Any:
    """Return the settings of a Java client for the cluster of ``source``; ``settings`` override those of ``source``."""
    merged = _jvm(spark).java.util.HashMap()
    for name, value in {**source.options, **settings, "bootstrap.servers": source.bootstrap_servers}.items():
        merged.put(name, value)
    return merged


@contextmanager
def _admin_client(spark: SparkSession, source: AuditTopicSource) -> Iterator[Any]:
    """Yield Kafka's own admin client. Errors of its requests become a JobError."""
    jvm = _jvm(spark)
    timeouts = {name: str(ADMIN_TIMEOUT_MS) for name in ("request.timeout.ms", "default.api.timeout.ms")}
    settings = client_settings(spark, source, {**timeouts, **source.options})
    try:
        client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except Py4JJavaError as error:
        raise JobError(f"the Kafka client rejects its settings: {root_cause(error)}") from error
    try:
        yield client
    except Py4JJavaError as error:
        raise _admin_error(error, source) from error
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _admin_error(error: Py4JJavaError, source: AuditTopicSource) -> JobError:
    cause = error.java_exception.getCause() or error.java_exception
    topic, at = source.topic, source.bootstrap_servers
    match cause.getClass().getSimpleName():
        case "TimeoutException":
            return JobError(
                f"no Kafka broker answers at {at}; is this the address of a running broker, and security.protocol"
                " that of its listener?"
            )
        case "UnknownTopicOrPartitionException":
            return JobError(f"there is no topic {topic} at {at}; sidecars create it when they reach the cluster")
        case name:
            return JobError(f"the topic {topic} at {at} cannot be read: {name}: {cause.getMessage()}")


def root_cause(error: Py4JJavaError) -> str:
    """Return class and message of the exception that caused ``error``."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
