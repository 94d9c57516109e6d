"""Upkeep of the tables: few files, one row for each key, and no days beyond their retention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, timedelta

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_jobs import io
from spark_jobs.definitions import Definitions
from spark_jobs.merge import merge_rows
from spark_jobs.progress import Notice
from spark_jobs.schemas import TABLES, Table
from spark_jobs.session import summarize_error
from spark_jobs.table_root import TableRoot

MIN_FILES_TO_COMPACT = 32
"""Files of one day that are joined; of a day that is over, two are."""

CLOSED_AFTER_DAYS = 2
"""A day that is so many days before the newest one is over: little more will come of it."""


def maintain_tables(
    spark: SparkSession,
    target: TableRoot,
    names: Collection[str],
    definitions: Definitions,
    say: Callable[[Notice], None],
    *,
    clean: bool,
) -> None:
    """Look after the tables ``names``. What fails, as another job may be in the way, is said and left for next time.

    ``clean``: also remove the files that were replaced two days ago or earlier.
    """
    for name in names:
        try:
            _maintain_table(spark, TABLES[name], target.path(name), definitions, clean=clean)
        except Exception as error:
            say(Notice(f"table {name} is looked after later: {summarize_error(error)}"))


def first_retained_day(days: Collection[date], table: Table, definitions: Definitions) -> date:
    """Return the first day of ``days`` that ``table`` keeps: as many as its retention says, up to the newest."""
    kept = definitions.retention.get(table.name, timedelta(days=table.retention_days))
    # A sidecar whose clock is years ahead must not be the reason to delete everything else.
    newest = min(max(days, default=date.min), datetime.now(UTC).date())
    return newest - kept + timedelta(days=1) if newest - date.min > kept else date.min


def _maintain_table(spark: SparkSession, table: Table, path: str, definitions: Definitions, *, clean: bool) -> None:
    days = io.count_files_by_day(spark, path)
    if days:
        first = first_retained_day(days, table, definitions)
        if min(days) < first:
            DeltaTable.forPath(spark, path).delete(f"day < '{first}'")
        for day in _days_to_compact(days, first):
            _compact_day(spark, table, path, day)
    if clean and io.StoredTable(spark, path).version >= 0:
        DeltaTable.forPath(spark, path).vacuum()


def _days_to_compact(days: Mapping[date, int], first: date) -> list[date]:
    """Return the days, from ``first`` on, whose files are to be joined."""
    over = max(days) - timedelta(days=CLOSED_AFTER_DAYS)
    return sorted(
        day for day, files in days.items() if day >= first and files >= (2 if day <= over else MIN_FILES_TO_COMPACT)
    )


def _compact_day(spark: SparkSession, table: Table, path: str, day: date) -> None:
    """Make one file of all files of ``day``, with one row for each key: what every reader sees stays the same.

    What another writer appends meanwhile is not touched: only the files that were read are replaced.
    """
    condition = f"day = '{day}'"
    rows = merge_rows(spark.read.format("delta").load(path).where(condition), table)
    io.replace_rows(rows, path, condition, {"dataChange": "false"})
