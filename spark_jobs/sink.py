"""Writes each batch to the tables exactly once, however often the batch is repeated."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.util import inheritable_thread_target

from spark_jobs import io
from spark_jobs.batch import read_batch
from spark_jobs.checkpoint import CheckpointIdentity, check_no_backfill
from spark_jobs.decode import DecodeOptions
from spark_jobs.dedup_ranges import RANGES_FOLDER, DedupRanges
from spark_jobs.definitions import Definitions
from spark_jobs.errors import JobError
from spark_jobs.progress import BatchCounts
from spark_jobs.schemas import STREAMED
from spark_jobs.spark_types import arrow_schema
from spark_jobs.table_root import TableRoot, table_of_every_batch
from spark_jobs.tables.produced import mirror_sides
from spark_jobs.tables.registry import tables_without_definitions

MAX_CONCURRENT_WRITES = 3
"""Tables that are written at the same time. A commit mostly waits for the storage."""


class TableSink:
    """The ``foreachBatch`` function of the streaming query."""

    def __init__(
        self,
        root: TableRoot,
        identity: CheckpointIdentity,
        names: Collection[str],
        definitions: Definitions,
        hmac_keys: Mapping[str, bytes],
    ) -> None:
        """``names``: the streamed tables."""
        self._root = root
        self._writer = identity.writer
        self._table_of_every_batch = table_of_every_batch(names)
        skipped = tables_without_definitions(names, definitions)
        self._names = [name for name in names if name == self._table_of_every_batch or name not in skipped]
        self._options = DecodeOptions(self._names, mirror_sides(definitions.mirrors), hmac_keys)
        # The last batch, and the ranges that were written up to it.
        self._last_batch, self._ranges = -1, DedupRanges()
        self.written: SimpleQueue[tuple[int, BatchCounts, float]] = SimpleQueue()
        """Number, counts and seconds of each batch that had records, from when it was written."""
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT_WRITES, thread_name_prefix="table")

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch. Spark calls this again with the same rows and number if the first call was interrupted."""
        started = time.monotonic()
        spark = rows.sparkSession  # of the query alone
        spark.conf.set("spark.sql.adaptive.enabled", "false")  # its plan needs no statistics: what is shuffled are sums
        check_no_backfill(io.Folder(spark, self._root.checkpoint), self._root.checkpoint)
        tables, counts = self._read(rows, number)
        tables.setdefault(self._table_of_every_batch, arrow_schema(STREAMED[self._table_of_every_batch]).empty_table())

        def write(name: str) -> None:
            io.append_once(spark, tables[name], self._root.table_path(name), self._writer, number)

        list(self._pool.map(inheritable_thread_target(spark)(write), tables))
        if counts.records:
            self.written.put((number, counts, time.monotonic() - started))

    def close(self) -> None:
        """Wait for running writes and stop the threads."""
        self._pool.shutdown()

    def _read(self, rows: DataFrame, number: int) -> tuple[dict[str, pa.Table], BatchCounts]:
        """Return the rows of all tables, without events that were written before.

        The ranges including this batch are stored before any table is written. A repeated batch does not use them: it
        starts from the ranges of the batch before, so it gives the same result.
        """
        path = f"{self._root.checkpoint}/{RANGES_FOLDER}"
        folder = io.Folder(rows.sparkSession, path)
        ranges = self._ranges
        if self._last_batch != number - 1:
            stored = folder.read(str(number - 1)) if number else "[]"
            if stored is None:
                raise JobError(
                    f"{path}/{number - 1} is missing; restore it, or start over with new folders for tables and"
                    " checkpoint"
                )
            ranges = DedupRanges.from_json(stored)
        self._last_batch, self._ranges = number, ranges
        found = read_batch(rows, ranges, self._options)
        folder.write(str(number), ranges.to_json())
        folder.remove(str(number - 2))
        return found
