"""Maintenance of the stored tables: it compacts small files, merges rows of equal keys, and deletes expired days."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import SparkSession

from spark_jobs import io
from spark_jobs.definitions import Definitions
from spark_jobs.merge import merge_rows
from spark_jobs.progress import Notice, Notify
from spark_jobs.schemas import TABLES, Table
from spark_jobs.session import summarize_error
from spark_jobs.stored_table import StoredTable
from spark_jobs.table_root import TableRoot

MIN_FILES_TO_COMPACT = 32
"""Files of one open day from which on they are compacted. A closed day is compacted from two files on."""

CLOSED_AFTER_DAYS = 2
"""A day that is this many days older than the newest one is closed: few rows are still added to it."""


def maintain_tables(
    spark: SparkSession,
    root: TableRoot,
    names: Collection[str],
    definitions: Definitions,
    notify: Notify,
    *,
    vacuum: bool,
) -> None:
    """Compact the tables ``names`` and delete their expired days.

    An error, for example a conflict with another job, is reported and does not stop the other tables; the next
    maintenance tries again. ``vacuum``: also remove files that were replaced two days ago or earlier.
    """
    for name in names:
        try:
            _maintain_table(spark, TABLES[name], root.table_path(name), definitions, vacuum=vacuum)
        except Exception as error:
            notify(Notice(f"table {name}: maintenance failed and is retried later: {summarize_error(error)}"))


def first_retained_day(days: Collection[date], table: Table, definitions: Definitions) -> date:
    """Return the first day that ``table`` retains, counted back from the newest of ``days`` by its retention."""
    retention = definitions.retention.get(table.name, timedelta(days=table.retention_days))
    # A sidecar whose clock is years ahead must not cause all other days to be deleted.
    newest = min(max(days, default=date.min), datetime.now(UTC).date())
    return newest - retention + timedelta(days=1) if newest - date.min > retention else date.min


def _maintain_table(spark: SparkSession, table: Table, path: str, definitions: Definitions, *, vacuum: bool) -> None:
    stored = io.open_table(spark, path)
    days = stored.files_by_day
    if days:
        first = first_retained_day(days, table, definitions)
        expired = [file for file in stored.files if file.day is not None and file.day < first]
        if expired:
            stored.replace_files(expired, [])
        for day in _days_to_compact(days, first):
            _compact_day(spark, table, io.open_table(spark, path), day)
    if vacuum:
        io.open_table(spark, path).vacuum()


def _days_to_compact(days: Mapping[date, int], first: date) -> list[date]:
    """Return the days from ``first`` on that have enough files. ``days``: number of files by day."""
    last_closed = max(days) - timedelta(days=CLOSED_AFTER_DAYS)
    return sorted(
        day
        for day, files in days.items()
        if day >= first and files >= (2 if day <= last_closed else MIN_FILES_TO_COMPACT)
    )


def _compact_day(spark: SparkSession, table: Table, stored: StoredTable, day: date) -> None:
    """Replace all files of ``day`` by one file with one row for each key. Query results do not change.

    Files that another writer appends at the same time are kept: only the files that were read are replaced.
    """
    rows = merge_rows(io.read_rows(spark, stored).where(f"day = '{day}'"), table)
    io.replace_files(rows, stored, [file for file in stored.files if file.day == day], data_change=False)
