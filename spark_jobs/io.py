"""Reads and writes the storage of the jobs: Delta tables that take each batch exactly once, and small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.errors import JobError
from spark_jobs.schemas import Table
from spark_jobs.spark_types import table_schema

HISTORY_COMMITS = 100
"""Commits of a table that are read from its history, the newest ones."""

DELTA_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 2 days",
    "delta.logRetentionDuration": "interval 2 days",
}
"""Properties of each table. Delta lists the whole log with each commit: its default of 30 days would be 170,000 files.
Delta does not allow replaced files to be kept for longer than the log."""


class ConcurrentChange(JobError):
    """Another job changed the same rows at the same time; the operation can be repeated."""


def create_table(spark: SparkSession, table: Table, path: str) -> None:
    """Create ``table`` at ``path``, empty, if it does not exist. Set ``DELTA_PROPERTIES`` if it has others."""
    new = DeltaTable.createIfNotExists(spark).location(path).comment(table.meaning).addColumns(table_schema(table))
    for name, value in DELTA_PROPERTIES.items():
        new = new.property(name, value)
    new.partitionedBy(*table.partitioned_by).execute()
    there = StoredTable(spark, path).properties
    if {name: there.get(name) for name in DELTA_PROPERTIES} != DELTA_PROPERTIES:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in DELTA_PROPERTIES.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({pairs})")


def add_new_columns(spark: SparkSession, table: Table, path: str) -> list[str]:
    """Add to the table at ``path`` the columns that it does not have yet, and return their names.

    New columns are NULL in existing rows. Raises JobError if a column is stored as another type.
    """
    there = {field.name: field.dataType.simpleString() for field in StoredTable(spark, path).schema}
    for column in table.columns:
        if column.name in there and there[column.name] != column.type:
            raise JobError(
                f"the column {column.name} of table {table.name} is stored as {there[column.name]}, and this release"
                f" writes {column.type}; start over with new folders for tables and checkpoint"
            )
    new = [column.name for column in table.columns if column.name not in there]
    if new:
        nothing = spark.createDataFrame([], table_schema(table))
        nothing.write.format("delta").mode("append").option("mergeSchema", "true").save(path)
    return new


def append_once(rows: DataFrame, path: str, writer: str, batch: int) -> None:
    """Append ``rows`` to the table at ``path``, unless ``writer`` already wrote ``batch`` or a later one there.

    All rows of one day go into one file, so this is for few rows, such as sums and dead letters.
    """
    (
        rows.coalesce(1).write.format("delta")
        .mode("append")
        .option("txnAppId", writer)
        .option("txnVersion", batch)
        .save(path)
    )  # fmt: skip


def replace_rows(rows: DataFrame, path: str, condition: str, options: Mapping[str, str | int]) -> None:
    """Replace the rows of the table at ``path`` that meet ``condition`` by ``rows``, atomically.

    One file is written for each day. ``condition``: SQL; empty: all rows. ``options``: options of Delta's writer.

    Raises ConcurrentChange.
    """
    writer = rows.repartition("day").write.format("delta").mode("overwrite").options(**options)
    try:
        (writer.option("replaceWhere", condition) if condition else writer).save(path)
    except Exception as error:
        if "Concurrent" not in type(error).__name__:
            raise
        raise ConcurrentChange(
            f"another job changed the same rows of {path} at the same time; run this again"
        ) from error


def count_files_by_day(spark: SparkSession, path: str) -> dict[date, int]:
    """Return the number of files of each day of the table at ``path``."""
    files = DataFrame(StoredTable(spark, path).files, spark)
    days = files.groupBy(F.col("partitionValues")["day"].cast("date")).count().collect()
    return {day: count for day, count in days if day is not None}


def read_history(spark: SparkSession, path: str) -> DataFrame:
    """Return the last ``HISTORY_COMMITS`` commits of the table at ``path``, as Delta describes them."""
    return DeltaTable.forPath(spark, path).history(HISTORY_COMMITS)


class StoredTable:
    """The current snapshot of a Delta table. Without a table at ``path`` its version is −1 and it is empty."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm = _jvm(spark)
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
        self._snapshot = log.update(False, nothing, nothing)

    @property
    def version(self) -> int:
        """Number of the last commit: 0 for a table that was only created, −1 if there is no table."""
        return int(self._snapshot.version())

    @property
    def id(self) -> str:
        """Id of the table. It is created with the table and stays the same when the table is moved."""
        return str(self._snapshot.metadata().id())

    @property
    def schema(self) -> StructType:
        """Schema of the table."""
        return StructType.fromJson(json.loads(self._snapshot.schema().json()))

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the table, by the names of Delta."""
        stored = self._snapshot.metadata().configuration()
        names = [name for name in str(stored.keys().mkString("\n")).split("\n") if name]
        return {name: str(stored.apply(name)) for name in names}

    @property
    def files(self) -> Any:
        """Files of the snapshot, as a data frame of the JVM."""
        return self._snapshot.allFiles().toDF()

    @property
    def writers(self) -> dict[str, int]:
        """Number of the last batch of each writer."""
        written = self._snapshot.transactions()
        names = [name for name in str(written.keys().mkString("\n")).split("\n") if name]
        return {name: int(written.apply(name)) for name in names}


class Folder:
    """Small files in a folder of any storage that Spark can access: a disk, or an object store."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm = _jvm(spark)
        self._path = self._jvm.org.apache.hadoop.fs.Path(path)
        conf = spark._jsc.hadoopConfiguration()
        self._storage = self._path.getFileSystem(conf)
        # Spark's own atomic write: readers see the whole file or none, on every storage.
        streaming = self._jvm.org.apache.spark.sql.execution.streaming
        self._atomic_writer = streaming.checkpointing.CheckpointFileManager.create(self._path, conf)

    def list_names(self, subfolder: str = "") -> list[str]:
        """Return the names of the entries of the folder, or of a subfolder; none if it does not exist."""
        path = self._path_of(subfolder) if subfolder else self._path
        return (
            [entry.getPath().getName() for entry in self._storage.listStatus(path)]
            if self._storage.exists(path)
            else []
        )

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if it does not exist."""
        path = self._path_of(name)
        if not self._storage.exists(path):
            return None
        stream = self._storage.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, and replace an existing one."""
        self._storage.mkdirs(self._path)
        stream = self._atomic_writer.createAtomic(self._path_of(name), True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        self._storage.delete(self._path_of(name), True)

    def _path_of(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
