"""Writes each batch to the tables exactly once, however often the batch is repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from spark_jobs import io
from spark_jobs.checkpoint import CheckpointIdentity, check_no_backfill
from spark_jobs.dedup_ranges import RANGES_FOLDER, DedupRanges
from spark_jobs.definitions import Definitions
from spark_jobs.errors import JobError
from spark_jobs.events import KINDS
from spark_jobs.parse import apply_decision, collect_valid_records
from spark_jobs.table_root import TableRoot, table_of_every_batch
from spark_jobs.tables.changes import is_change
from spark_jobs.tables.registry import (
    CHANGE_KIND,
    DEAD_LETTER_KIND,
    EVENT_KINDS,
    STREAMED_FUNCTIONS,
    ParsedBatch,
    tables_without_definitions,
)

MAX_CONCURRENT_WRITES = 3
"""Tables that are written at the same time. A commit mostly waits for the storage."""

BATCH_STORAGE_LEVEL = StorageLevel.MEMORY_AND_DISK
"""How a batch is kept until all tables are written: serialized, so that it is compressed (``session.COMMON_CONF``)."""


@dataclass(frozen=True)
class BatchCounts:
    """The counts of one batch."""

    events: int
    """Events of known kinds, without duplicates."""
    dead_letters: int
    duplicates: int
    """Records all of whose events were written before."""
    unknown: int
    """Events of unknown kinds."""


class TableSink:
    """The ``foreachBatch`` function of the streaming query."""

    def __init__(
        self,
        root: TableRoot,
        identity: CheckpointIdentity,
        names: Collection[str],
        definitions: Definitions,
        after_batch: Callable[[], None],
    ) -> None:
        """``names``: the streamed tables. ``after_batch``: called when all tables of a batch are written."""
        self._root = root
        self._writer = identity.writer
        self._definitions = definitions
        self._table_of_every_batch = table_of_every_batch(names)
        skipped = tables_without_definitions(names, definitions)
        self._names = [name for name in names if name == self._table_of_every_batch or name not in skipped]
        self._after_batch = after_batch
        # The last batch, and the ranges that were written up to it.
        self._last_batch, self._ranges = -1, DedupRanges()
        self._counts: dict[int, BatchCounts] = {}
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT_WRITES, thread_name_prefix="table")

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch. Spark calls this again with the same rows and number if the first call was interrupted."""
        check_no_backfill(io.Folder(rows.sparkSession, self._root.checkpoint), self._root.checkpoint)
        rows.persist(BATCH_STORAGE_LEVEL)
        batch: ParsedBatch | None = None
        try:
            new, duplicates = self._deduplicate(rows, number)
            batch = ParsedBatch(new, self._definitions)
            names = self._count_and_select_tables(batch, number, duplicates)
            table_rows = {name: STREAMED_FUNCTIONS[name](batch) for name in names}

            def write(name: str) -> None:
                rows_of_table = table_rows[name].toArrow()
                io.append_once(rows.sparkSession, rows_of_table, self._root.table_path(name), self._writer, number)

            list(self._pool.map(inheritable_thread_target(rows.sparkSession)(write), table_rows))
        finally:
            if batch:
                batch.unpersist()
            rows.unpersist()
        self._after_batch()

    def counts_of_batch(self, number: int) -> BatchCounts:
        """Return and forget the counts of a batch."""
        return self._counts.pop(number)

    def close(self) -> None:
        """Wait for running writes and stop the threads."""
        self._pool.shutdown()

    def _deduplicate(self, rows: DataFrame, number: int) -> tuple[DataFrame, int]:
        """Return ``rows`` without events that were written before, and how many records have no other events.

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
        decision = ranges.add_records(collect_valid_records(rows))
        folder.write(str(number), ranges.to_json())
        folder.remove(str(number - 2))
        return apply_decision(rows, decision), decision.duplicates

    def _count_and_select_tables(self, batch: ParsedBatch, number: int, duplicates: int) -> list[str]:
        """Count the batch, and return the tables it has rows for, with the table that every batch is written to."""
        kinds_column = F.flatten(F.collect_set(F.array_distinct("events.kind"))).alias("kinds")
        changed = F.expr(f"coalesce(bool_or(exists(events, event -> {is_change('event')})), false) AS changed")
        (found,) = batch.parsed.agg(kinds_column, changed, *count_columns()).collect()
        self._counts[number] = BatchCounts(found["events"], found["dead_letters"], duplicates, found["unknown"])
        kinds = {*found["kinds"], *([DEAD_LETTER_KIND] if found["dead_letters"] else [])}
        kinds |= {CHANGE_KIND} if found["changed"] else set()
        return [
            name
            for name in self._names
            if name == self._table_of_every_batch or name not in EVENT_KINDS or not kinds.isdisjoint(EVENT_KINDS[name])
        ]


def count_columns() -> list[Column]:
    """Return aggregates of parsed records: ``dead_letters``, ``events`` of known kinds, ``unknown`` events."""
    # The events of dead letters are NULL and are not counted.
    of_other_kinds = f"filter(events.kind, kind -> kind NOT IN ({', '.join(map(repr, KINDS))}))"
    unknown = f"coalesce(sum(array_size({of_other_kinds})), 0)"
    return [
        F.count_if(F.col("reason").isNotNull()).alias("dead_letters"),
        F.expr(f"coalesce(sum(array_size(events)), 0) - {unknown} AS events"),
        F.expr(f"{unknown} AS unknown"),
    ]
