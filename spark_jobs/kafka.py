"""The audit topic, as Spark reads it, and what must be known of it before that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.errors import JobError

RECORDS_PER_BATCH = 2_000
"""Kafka records of one batch: up to 400,000 events, which fit into the 1 GiB that Spark has by default."""

CHECK_TIMEOUT_MS = 15_000
"""How long the cluster may take to answer whether the topic is there."""


@dataclass(frozen=True)
class Source:
    """Where the records are."""

    bootstrap_servers: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Kafka client by their own names."""


def stream(spark: SparkSession, source: Source) -> DataFrame:
    """Return the stream of the topic: from its beginning where the checkpoint says nothing else.

    Records that were deleted before they were read end the job instead of being passed over.
    """
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", source.bootstrap_servers)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", str(RECORDS_PER_BATCH))
    )
    return reader.options(**{f"kafka.{name}": value for name, value in source.options.items()}).load()


def cluster_id(spark: SparkSession, source: Source) -> str:
    """Return the id of the cluster that has the topic.

    Raises JobError if it cannot be reached, or has no such topic: Spark itself would try for minutes.
    """
    with _admin(spark, source) as client:
        client.describeTopics(_jvm(spark).java.util.List.of(source.topic)).allTopicNames().get()
        return str(client.describeCluster().clusterId().get())


@contextmanager
def _admin(spark: SparkSession, source: Source) -> Iterator[Any]:
    """Give Kafka's own admin client; what the cluster answers to it becomes a JobError."""
    jvm = _jvm(spark)
    settings = jvm.java.util.HashMap()
    timeouts = {name: str(CHECK_TIMEOUT_MS) for name in ("request.timeout.ms", "default.api.timeout.ms")}
    for name, value in {**timeouts, **source.options, "bootstrap.servers": source.bootstrap_servers}.items():
        settings.put(name, value)
    try:
        client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except Py4JJavaError as error:
        raise JobError(f"the Kafka client refuses its settings: {_root_cause(error)}") from error
    try:
        yield client
    except Py4JJavaError as error:
        raise _unreachable(error, source) from error
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _unreachable(error: Py4JJavaError, source: Source) -> JobError:
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
