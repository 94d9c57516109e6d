"""The jobs' only reads and writes: the Kafka source, and Delta tables that take each batch exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.errors import JobError
from spark_jobs.schemas import Table
from spark_jobs.structs import table_schema

RECORDS_PER_BATCH = 2_000
"""Kafka records of one batch: up to 400,000 events, which fit into the 1 GiB that Spark has by default."""

CHECK_TIMEOUT_MS = 15_000
"""How long the cluster may take to answer whether the topic is there."""


def records(spark: SparkSession, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Return the stream of ``topic``: from its beginning where the checkpoint says nothing else.

    ``options``: settings of the Kafka client by their own names. Records that were deleted before they were read end
    the job instead of being passed over.
    """
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", str(RECORDS_PER_BATCH))
    )
    return reader.options(**{f"kafka.{name}": value for name, value in options.items()}).load()


def check_topic(spark: SparkSession, bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> None:
    """Raise JobError if the cluster cannot be reached, or has no ``topic``: Spark itself would try for minutes."""
    jvm = _jvm(spark)
    settings = jvm.java.util.HashMap()
    timeouts = {name: str(CHECK_TIMEOUT_MS) for name in ("request.timeout.ms", "default.api.timeout.ms")}
    for name, value in {**timeouts, **options, "bootstrap.servers": bootstrap_servers}.items():
        settings.put(name, value)
    try:
        client = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except Py4JJavaError as error:
        raise JobError(f"the Kafka client refuses its settings: {_root_cause(error)}") from error
    try:
        client.describeTopics(jvm.java.util.List.of(topic)).allTopicNames().get()
    except Py4JJavaError as error:
        raise _unreachable(error, bootstrap_servers, topic) from error
    finally:
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _unreachable(error: Py4JJavaError, bootstrap_servers: str, topic: str) -> JobError:
    cause = error.java_exception.getCause() or error.java_exception
    match cause.getClass().getSimpleName():
        case "TimeoutException":
            return JobError(f"no Kafka broker answers at {bootstrap_servers}; is it the address of a running broker?")
        case "UnknownTopicOrPartitionException":
            return JobError(
                f"there is no topic {topic} at {bootstrap_servers}; sidecars create it once they reach the cluster"
            )
        case name:
            return JobError(
                f"Kafka at {bootstrap_servers} does not let topic {topic} be read: {name}: {cause.getMessage()}"
            )


def _root_cause(error: Py4JJavaError) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage())


def create_table(spark: SparkSession, table: Table, path: str) -> None:
    """Create ``table`` at ``path``, empty, if it is not there."""
    (
        DeltaTable.createIfNotExists(spark)
        .location(path)
        .comment(table.meaning)
        .addColumns(table_schema(table))
        .partitionedBy(*table.partitioned_by)
        .execute()
    )


def append_once(rows: DataFrame, path: str, writer: str, batch: int) -> None:
    """Append ``rows`` to the table at ``path``, unless ``writer`` already wrote ``batch`` or a later one there.

    For rows that are few, as sums and dead letters are: they go into one file.
    """
    (
        rows.coalesce(1).write.format("delta")
        .mode("append")
        .option("txnAppId", writer)
        .option("txnVersion", batch)
        .save(path)
    )  # fmt: skip


def compact(spark: SparkSession, path: str) -> None:
    """Join the small files of the table at ``path``, and remove those that nothing has needed for a week."""
    table = DeltaTable.forPath(spark, path)
    table.optimize().executeCompaction()
    table.vacuum()


class StoredTable:
    """What a Delta table says of itself: None of it where there is no table at ``path``."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm = _jvm(spark)
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
        self._snapshot = log.update(False, nothing, nothing)

    @property
    def version(self) -> int:
        """Number of the last commit: 0 of a table that was only created, −1 where there is none."""
        return int(self._snapshot.version())

    @property
    def id(self) -> str:
        """Id of the table, made with it; stays when the table is moved."""
        return str(self._snapshot.metadata().id())

    def last_batch(self, writer: str) -> int:
        """Return the last batch that ``writer`` wrote here, −1 if none."""
        found = self._snapshot.transactions().get(writer)
        return int(found.get()) if found.isDefined() else -1


class Folder:
    """Small files in a folder of whatever storage Spark reads: a disk, or an object store."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm = _jvm(spark)
        self._path = self._jvm.org.apache.hadoop.fs.Path(path)
        self._storage = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self, below: str = "") -> list[str]:
        """Return the names of what is in the folder, or in the folder ``below`` it; none where it is missing."""
        path = self._at(below) if below else self._path
        return (
            [entry.getPath().getName() for entry in self._storage.listStatus(path)]
            if self._storage.exists(path)
            else []
        )

    def read(self, name: str) -> str | None:
        """Return the text of a file, None where there is none."""
        path = self._at(name)
        if not self._storage.exists(path):
            return None
        stream = self._storage.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file whole: others see all of it or nothing."""
        unfinished = self._at(f"{name}.tmp")
        stream = self._storage.create(unfinished, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self._storage.rename(unfinished, self._at(name))

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
