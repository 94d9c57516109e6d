"""The audit topic, as Spark reads it, and what must be known of it before that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.authentication import authenticate
from spark_jobs.errors import JobError

MAX_RECORDS_PER_BATCH = 2_000
"""Kafka records of one batch: up to 400,000 events, which fit into the 1 GiB that Spark has by default."""

MAX_BATCH_DELAY = "15s"
"""How long records wait for others, where they are too few for a full batch."""

ADMIN_TIMEOUT_MS = 15_000
"""How long the cluster may take to answer whether the topic is there."""


@dataclass(frozen=True)
class AuditTopicSource:
    """Where the records are."""

    bootstrap_servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Kafka client by their own names."""
    hmac_keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Keys of the sidecars, by id; with them the records have ``authentication.REFUSED_COLUMN`` of what they did not sign."""

    @property
    def reading(self) -> dict[str, str]:
        """Options of Spark's source, but for which records."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "failOnDataLoss": "true",
            "includeHeaders": str(bool(self.hmac_keys)).lower(),
        }
        return options | {f"kafka.{name}": value for name, value in self.options.items()}

    def checked(self, records: DataFrame) -> DataFrame:
        """Return what Spark's source gave, with what is said of its signatures where there are keys."""
        return authenticate(records, self.hmac_keys) if self.hmac_keys else records


def read_stream(spark: SparkSession, source: AuditTopicSource, *, wait: bool) -> DataFrame:
    """Return the stream of the topic: from its beginning where the checkpoint says nothing else.

    ``wait``: for a full batch, at most ``MAX_BATCH_DELAY``; the next full one follows at once.

    Records that were deleted before they were read end the job instead of being passed over.
    """
    reader = (
        spark.readStream.format("kafka")
        .options(**source.reading)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(MAX_RECORDS_PER_BATCH))
    )
    if wait:
        reader = reader.option("minOffsetsPerTrigger", str(MAX_RECORDS_PER_BATCH)).option(
            "maxTriggerDelay", MAX_BATCH_DELAY
        )
    return source.checked(reader.load())


def fetch_cluster_id(spark: SparkSession, source: AuditTopicSource) -> str:
    """Return the id of the cluster that has the topic.

    Raises JobError if it cannot be reached, or has no such topic: Spark itself would try for minutes.
    """
    with _admin_client(spark, source) as client:
        client.describeTopics(_jvm(spark).java.util.List.of(source.topic)).allTopicNames().get()
        return str(client.describeCluster().clusterId().get())


@dataclass(frozen=True)
class OffsetRange:
    """What a topic has, or a part of it, by partition: the first offset, and the one after the last."""

    first: Mapping[int, int]
    end: Mapping[int, int]

    @property
    def records(self) -> int:
        """How many offsets there are in it."""
        return sum(max(end - self.first[partition], 0) for partition, end in self.end.items())


def fetch_offset_range(spark: SparkSession, source: AuditTopicSource) -> OffsetRange:
    """Return what the topic has now."""
    jvm = _jvm(spark)
    spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
    with _admin_client(spark, source) as client:
        told = client.describeTopics(jvm.java.util.List.of(source.topic)).allTopicNames().get()
        partitions = [each.partition() for each in told.get(source.topic).partitions()]

        def offsets(which: Any) -> dict[int, int]:
            asked = {each: jvm.org.apache.kafka.common.TopicPartition(source.topic, each) for each in partitions}
            question = jvm.java.util.HashMap()
            for each in asked.values():
                question.put(each, which)
            answer = client.listOffsets(question)
            return {each: int(answer.partitionResult(asked[each]).get().offset()) for each in partitions}

        return OffsetRange(offsets(spec.earliest()), offsets(spec.latest()))


def read_range(spark: SparkSession, source: AuditTopicSource, what: OffsetRange) -> DataFrame:
    """Return the records of the topic that are in ``what``, once. Raises when it is read if one of them is gone."""
    first = {partition: min(what.first[partition], end) for partition, end in what.end.items()}
    reader = (
        spark.read.format("kafka")
        .options(**source.reading)
        .option("assign", json.dumps({source.topic: sorted(what.end)}))
        .option("startingOffsets", json.dumps({source.topic: first}))
        .option("endingOffsets", json.dumps({source.topic: what.end}))
    )
    return source.checked(reader.load())


@contextmanager
def _admin_client(spark: SparkSession, source: AuditTopicSource) -> Iterator[Any]:
    """Give Kafka's own admin client; what the cluster answers to it becomes a JobError."""
    jvm = _jvm(spark)
    settings = jvm.java.util.HashMap()
    timeouts = {name: str(ADMIN_TIMEOUT_MS) for name in ("request.timeout.ms", "default.api.timeout.ms")}
    for name, value in {**timeouts, **source.options, "bootstrap.servers": source.bootstrap_servers}.items():
        settings.put(name, value)
    try:
        client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except Py4JJavaError as error:
        raise JobError(f"the Kafka client refuses its settings: {_root_cause(error)}") from error
    try:
        yield client
    except Py4JJavaError as error:
        raise _admin_error(error, source) from error
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _admin_error(error: Py4JJavaError, source: AuditTopicSource) -> JobError:
    cause = error.java_exception.getCause() or error.java_exception
    match cause.getClass().getSimpleName():
        case "TimeoutException":
            return JobError(
                f"no Kafka broker answers at {source.bootstrap_servers}; is it the address of a running broker?"
            )
        case "UnknownTopicOrPartitionException":
            return JobError(
                f"there is no topic {source.topic} at {source.bootstrap_servers}; sidecars create it once they reach"
                " the cluster"
            )
        case name:
            return JobError(
                f"Kafka at {source.bootstrap_servers} does not let topic {source.topic} be read: {name}:"
                f" {cause.getMessage()}"
            )


def _root_cause(error: Py4JJavaError) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage())


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
