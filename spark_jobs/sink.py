"""Writes each batch to the tables, exactly once however often it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.util import inheritable_thread_target

from spark_jobs import checkpoint as points
from spark_jobs import io
from spark_jobs.definitions import Definitions
from spark_jobs.root import Target, always
from spark_jobs.tables.registry import DEAD, DECLARED, FED_BY, STREAMED, Batch

WRITERS = 3
"""Tables that are written at the same time: a commit is mostly waiting."""

KEPT = StorageLevel.MEMORY_AND_DISK
"""How a batch is kept for its tables: serialized, so that it is compressed (see ``session.ALWAYS``)."""


class Sink:
    """What Spark calls with each batch."""

    def __init__(
        self,
        target: Target,
        identity: points.Identity,
        names: Collection[str],
        definitions: Definitions,
        after: Callable[[], None],
    ) -> None:
        """``names``: the streamed tables. ``after``: is called when a batch is written."""
        self._target = target
        self._writer = identity.writer
        self._definitions = definitions
        self._names = names
        self._always = always(names)
        self._after = after
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="table")

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write one batch. Spark calls this again with the same rows and number if it did not come to the end."""
        folder = io.Folder(rows.sparkSession, self._target.checkpoint)
        points.check_no_backfill(folder, self._target.checkpoint)
        batch = Batch(rows.persist(KEPT), self._definitions)
        try:
            made = {name: STREAMED[name](batch) for name in self._due(batch)}

            def write(name: str) -> None:
                io.append_once(made[name], self._target.path(name), self._writer, number)

            list(self._pool.map(inheritable_thread_target(rows.sparkSession)(write), made))
        finally:
            batch.release()
            rows.unpersist()
        self._after()

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown()

    def _due(self, batch: Batch) -> list[str]:
        """Return the tables that the batch has something for, and the one that gets every batch."""
        kinds = sorted({kind for name in self._names for kind in FED_BY.get(name, ())} - {DEAD})
        told = [F.expr(f"coalesce(max(exists(events, one -> one.kind = '{kind}')), false) AS {kind}") for kind in kinds]
        (found,) = batch.parsed.agg(F.expr(f"coalesce(max(reason IS NOT NULL), false) AS `{DEAD}`"), *told).collect()
        return [
            name
            for name in self._names
            if name == self._always
            or (
                (name not in FED_BY or any(found[kind] for kind in FED_BY[name]))
                and (name not in DECLARED or DECLARED[name](self._definitions))
            )
        ]
