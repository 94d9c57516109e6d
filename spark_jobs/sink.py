"""Writes each batch to the tables, exactly once however often it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from spark_jobs import checkpoint as points
from spark_jobs import io
from spark_jobs.dedup_ranges import RANGES_FOLDER, DedupRanges
from spark_jobs.definitions import Definitions
from spark_jobs.errors import JobError
from spark_jobs.events import KINDS
from spark_jobs.parse import apply_decision, collect_valid_records
from spark_jobs.table_root import TableRoot, table_of_every_batch
from spark_jobs.tables.registry import DEAD, FED_BY, STREAMED, Batch, undeclared

MAX_CONCURRENT_WRITES = 3
"""Tables that are written at the same time: a commit is mostly waiting."""

BATCH_STORAGE_LEVEL = StorageLevel.MEMORY_AND_DISK
"""How a batch is kept for its tables: serialized, so that it is compressed (see ``session.COMMON_CONF``)."""


@dataclass(frozen=True)
class BatchCounts:
    """What one batch had."""

    events: int
    """Of all kinds that are known; none twice."""
    dead_letters: int
    duplicates: int
    """Records that had nothing new."""
    unknown: int
    """Events of other kinds."""


class TableSink:
    """What Spark calls with each batch."""

    def __init__(
        self,
        target: TableRoot,
        identity: points.CheckpointIdentity,
        names: Collection[str],
        definitions: Definitions,
        after: Callable[[], None],
    ) -> None:
        """``names``: the streamed tables. ``after``: is called when a batch is written."""
        self._target = target
        self._writer = identity.writer
        self._definitions = definitions
        self._always = table_of_every_batch(names)
        nothing = undeclared(names, definitions)
        self._names = [name for name in names if name == self._always or name not in nothing]
        self._after = after
        self._taken = (-1, DedupRanges())
        self._counts: dict[int, BatchCounts] = {}
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT_WRITES, thread_name_prefix="table")

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch. Spark calls this again with the same rows and number if it did not come to the end."""
        folder = io.Folder(rows.sparkSession, self._target.checkpoint)
        points.check_no_backfill(folder, self._target.checkpoint)
        rows.persist(BATCH_STORAGE_LEVEL)
        batch: Batch | None = None
        try:
            new, duplicates = self._new(rows, number)
            batch = Batch(new, self._definitions)
            made = {name: STREAMED[name](batch) for name in self._due(batch, number, duplicates)}

            def write(name: str) -> None:
                io.append_once(made[name], self._target.path(name), self._writer, number)

            list(self._pool.map(inheritable_thread_target(rows.sparkSession)(write), made))
        finally:
            if batch:
                batch.release()
            rows.unpersist()
        self._after()

    def counts(self, number: int) -> BatchCounts:
        """Return what was counted of a batch, once."""
        return self._counts.pop(number)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown()

    def _new(self, rows: DataFrame, number: int) -> tuple[DataFrame, int]:
        """Return what of ``rows`` was not taken before, and how many of them have nothing of it.

        What was taken up to this batch is noted before a table has it. If the batch is repeated that is passed over:
        it begins with what was taken up to the one before, so it decides the same.
        """
        where = f"{self._target.checkpoint}/{RANGES_FOLDER}"
        folder = io.Folder(rows.sparkSession, where)
        last, taken = self._taken
        if last != number - 1:
            noted = folder.read(str(number - 1)) if number else "[]"
            if noted is None:
                raise JobError(
                    f"{where}/{number - 1} was removed; restore it, or begin anew with other folders for tables and"
                    " checkpoint"
                )
            taken = DedupRanges.read(noted)
        self._taken = (number, taken)
        decision = taken.take(collect_valid_records(rows))
        folder.write(str(number), taken.text())
        folder.remove(str(number - 2))
        return apply_decision(rows, decision), decision.duplicates

    def _due(self, batch: Batch, number: int, duplicates: int) -> list[str]:
        """Return the tables that the batch has something for, and the one that gets every batch; count what it has."""
        told = F.flatten(F.collect_set(F.array_distinct("events.kind"))).alias("kinds")
        (found,) = batch.parsed.agg(told, *count_columns()).collect()
        self._counts[number] = BatchCounts(found["events"], found["dead_letters"], duplicates, found["unknown"])
        there = {*found["kinds"], *([DEAD] if found["dead_letters"] else [])}
        return [
            name
            for name in self._names
            if name == self._always or name not in FED_BY or not there.isdisjoint(FED_BY[name])
        ]


def count_columns() -> list[Column]:
    """Return what is counted of records: ``dead_letters``, ``events`` of known kinds, and those of ``unknown`` ones."""
    # The events of dead letters are NULL and do not count.
    of_others = f"filter(events.kind, kind -> kind NOT IN ({', '.join(map(repr, KINDS))}))"
    unknown = f"coalesce(sum(array_size({of_others})), 0)"
    return [
        F.count_if(F.col("reason").isNotNull()).alias("dead_letters"),
        F.expr(f"coalesce(sum(array_size(events)), 0) - {unknown} AS events"),
        F.expr(f"{unknown} AS unknown"),
    ]
