"""Reads and writes the storage of the jobs: Delta tables that take each batch exactly once, and small files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache, partial
from itertools import chain
from typing import Any

import pyarrow
from deltalake import Schema
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from spark_jobs import storage_options, stored_table
from spark_jobs.errors import JobError
from spark_jobs.schemas import Table
from spark_jobs.spark_types import table_schema
from spark_jobs.stored_table import DELTA_PROPERTIES, DataFile, StoredTable

ROW_GROUP_BYTES = 32 * 2**20
"""Rows of a day that a task has in memory: they become a row group of its file."""

ArrowFunction = Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]


def open_table(spark: SparkSession, path: str) -> StoredTable:
    """Return the current snapshot of the table at ``path``; without a table its version is −1."""
    return StoredTable(path, delta_options(spark, path))


def create_table(spark: SparkSession, table: Table, path: str) -> StoredTable:
    """Create ``table`` at ``path``, empty, if it does not exist. Set ``DELTA_PROPERTIES`` if it has others.

    Return its snapshot.
    """
    stored = open_table(spark, path)
    if stored.version < 0:
        stored_table.create_table(path, delta_options(spark, path), _delta_schema(table), table.meaning)
        return open_table(spark, path)
    if {name: stored.properties.get(name) for name in DELTA_PROPERTIES} == DELTA_PROPERTIES:
        return stored
    stored.set_properties(DELTA_PROPERTIES)
    return open_table(spark, path)


def add_new_columns(stored: StoredTable, table: Table) -> list[str]:
    """Add to ``stored`` the columns of ``table`` that it does not have yet, and return their names.

    New columns are NULL in existing rows. Raises JobError if a column is stored as another type.
    """
    there = {field.name: field.dataType.simpleString() for field in _spark_schema(stored)}
    for column in table.columns:
        if column.name in there and there[column.name] != column.type:
            raise JobError(
                f"the column {column.name} of table {table.name} is stored as {there[column.name]}, and this release"
                f" writes {column.type}; start over with new folders for tables and checkpoint"
            )
    new = [field for field in _delta_schema(table).fields if field.name not in there]
    if new:
        stored.add_columns(new)
    return [field.name for field in new]


def append_once(spark: SparkSession, rows: pyarrow.Table, path: str, writer: str, batch: int) -> None:
    """Append ``rows`` to the table at ``path``, unless ``writer`` already wrote ``batch`` or a later one there."""
    stored_table.append_once(rows, path, delta_options(spark, path), writer, batch)


def read_rows(spark: SparkSession, stored: StoredTable, files: Iterable[DataFile]) -> DataFrame:
    """Return the rows of some ``files`` of the snapshot ``stored``. Tasks of Spark read them; see ``write_files``."""
    paths = spark.createDataFrame([(file.path,) for file in files], "path string")
    return map_in_arrow(paths, partial(_read, stored=stored), _spark_schema(stored))


def _read(paths: Iterator[pyarrow.RecordBatch], stored: StoredTable) -> Iterator[pyarrow.RecordBatch]:
    for some in paths:
        yield from stored.read_files({*some["path"].to_pylist()}).to_batches()


def map_in_arrow(rows: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """Return the rows with ``schema`` that ``function`` makes of the batches of each partition.

    As ``DataFrame.mapInArrow``, which imports pandas without using it: half a second of CPU in each process.
    """
    mapped = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(*rows.columns)
    return DataFrame(rows._jdf.mapInArrow(mapped._jc, False, None), rows.sparkSession)


def write_files(rows: DataFrame, stored: StoredTable) -> list[AddAction]:
    """Write ``rows`` as files of the folder of ``stored``, one for each day, which no version of the table has yet.

    They may be too many for the driver, so tasks of Spark write them. They are given the options of the storage with
    the table: keys must live until the last one has ended. Each attempt of a task writes files of its own; those that
    are not returned here stay until a vacuum.
    """
    function = UserDefinedFunction(
        partial(_write_day, stored=stored), "action string", evalType=PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF
    )
    written = rows.groupBy("day")._jgd.flatMapGroupsInArrow(function(*rows.columns)._jc)
    return [AddAction(**json.loads(action)) for (action,) in DataFrame(written, rows.sparkSession).collect()]


def _write_day(
    key: tuple[pyarrow.Scalar], rows: Iterator[pyarrow.RecordBatch], stored: StoredTable
) -> Iterator[pyarrow.RecordBatch]:
    first = next(rows)
    reader = pyarrow.RecordBatchReader.from_batches(first.schema, in_row_groups(chain([first], rows)))
    added = stored.write_file(reader, key[0].as_py())
    yield pyarrow.record_batch({"action": [json.dumps(asdict(added))]})


def in_row_groups(rows: Iterable[pyarrow.RecordBatch], size: int = ROW_GROUP_BYTES) -> Iterator[pyarrow.RecordBatch]:
    """Yield ``rows`` in batches of ``size`` bytes or a little more."""
    some: list[pyarrow.RecordBatch] = []
    held = 0
    for batch in rows:
        some.append(batch)
        held += batch.nbytes
        if held >= size:
            yield pyarrow.concat_batches(some)
            some, held = [], 0
    if some:
        yield pyarrow.concat_batches(some)


def delta_options(spark: SparkSession, path: str) -> dict[str, str]:
    """Return the options of delta-rs for the storage of ``path``: what Spark uses for it.

    Keys may expire: do not keep the result. Raises JobError for a storage that has no atomic commit here.
    """
    if "://" not in path:
        return {}
    files = _jvm(spark).org.apache.hadoop.fs.Path(path).getFileSystem(spark._jsc.hadoopConfiguration())
    # Of the connector, not of the session: it has replaced settings of all buckets by those of its own.
    options = storage_options.storage_options(path, files.getConf().get)
    return options | _s3_keys(files) if path.startswith("s3a://") else options


def _s3_keys(files: Any) -> dict[str, str]:
    """Return the keys that Hadoop's connector for S3 uses now, and the region of the bucket."""
    found = files.getS3AInternals().shareCredentials("delta-rs")
    try:
        keys = found.resolveCredentials()
    finally:
        found.close()
    options = {"aws_access_key_id": str(keys.accessKeyId()), "aws_secret_access_key": str(keys.secretAccessKey())}
    if keys.getClass().getSimpleName() == "AwsSessionCredentials":
        options["aws_session_token"] = str(keys.sessionToken())
    configured = files.getConf().get("fs.s3a.endpoint.region")
    if not configured and not os.environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        options["aws_region"] = _s3_region(files)
    return options


@cache
def _s3_region(files: Any) -> str:
    return str(files.getS3AInternals().getBucketLocation() or "us-east-1")


def _delta_schema(table: Table) -> Schema:
    return Schema.from_json(table_schema(table).json())


def _spark_schema(stored: StoredTable) -> StructType:
    return StructType.fromJson(json.loads(stored.schema.to_json()))


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
        entries = self._storage.listStatus(path) if self._storage.exists(path) else []
        return [entry.getPath().getName() for entry in entries]

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
