"""Maintenance of the stored tables: it compacts small files, merges rows of equal keys, and deletes expired days.

Without a JVM: DuckDB merges the rows, by the views that queries use, and delta-rs commits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pyarrow
from pyspark.sql import SparkSession

from spark_jobs import io
from spark_jobs.computation import open_database
from spark_jobs.definitions import Definitions
from spark_jobs.progress import Notice, Notify
from spark_jobs.schemas import TABLES, Table
from spark_jobs.session import summarize_error
from spark_jobs.stored_table import DataFile, StoredTable, repeat
from spark_jobs.table_root import TableRoot
from spark_jobs.views import view_statement

MIN_FILES_TO_COMPACT = 32
"""Files of one open day from which on they are compacted. A closed day is compacted from two files on."""

CLOSED_AFTER_DAYS = 2
"""A day that is this many days older than the newest one is closed: few rows are still added to it."""

MEMORY_LIMIT = "512MB"
"""Memory for the merge of the rows of a day; beyond it DuckDB uses temporary files."""

ROWS_PER_ROW_GROUP = 122_880

OpenTable = Callable[[], StoredTable]
"""Opens the current snapshot of a table."""


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

    An error is reported and does not stop the other tables; the next maintenance tries again. ``vacuum``: also remove
    files that were replaced 12 hours ago or earlier.
    """
    for name in names:
        try:
            open_table = partial(io.open_table, spark, root.table_path(name))
            maintain_table(open_table, TABLES[name], definitions, vacuum=vacuum)
        except Exception as error:
            notify(Notice(f"table {name}: maintenance failed and is retried later: {summarize_error(error)}"))


def maintain_table(open_table: OpenTable, table: Table, definitions: Definitions, *, vacuum: bool) -> None:
    """Delete the expired days and commits of a table, compact its days, and vacuum it, whoever else writes it.

    Raises ConcurrentChange if other processes changed the same files in each of ``stored_table.MAX_ATTEMPTS`` attempts,
    and JobError, before it changes anything, for a table with features that are not known here.
    """
    open_table().check_features()
    repeat(partial(_delete_expired_days, open_table, table, definitions))
    for day in _files_to_compact_by_day(open_table()):
        repeat(partial(_compact_day, open_table, table, day))
    stored = open_table()
    stored.remove_expired_commits()
    if vacuum:
        stored.vacuum()


def first_retained_day(days: Collection[date], table: Table, definitions: Definitions) -> date:
    """Return the first day that ``table`` retains, counted back from the newest of ``days`` by its retention."""
    retention = definitions.retention.get(table.name, timedelta(days=table.retention_days))
    newest = _newest_day(days)
    return newest - retention + timedelta(days=1) if newest - date.min > retention else date.min


def files_to_compact(files: Sequence[DataFile], *, closed: bool) -> list[DataFile]:
    """Return those of the ``files`` of one day that become one file; none if that is not worth it yet.

    Of an open day these are the smallest files: as many that the largest of them is not larger than the others
    together. So a row is written again only as its file at least doubles, and not in each hour.
    """
    if closed:
        return list(files) if len(files) > 1 else []
    if len(files) < MIN_FILES_TO_COMPACT:
        return []
    by_size = sorted(files, key=lambda file: file.size)
    smaller = itertools.accumulate((file.size for file in by_size), initial=0)
    enough = (count for count, (file, sum_) in enumerate(zip(by_size, smaller, strict=False), 1) if file.size <= sum_)
    return by_size[: max(enough, default=0)]


def _newest_day(days: Collection[date]) -> date:
    # A sidecar whose clock is years ahead must not cause all other days to be deleted, or to count as closed.
    return min(max(days, default=date.min), datetime.now(UTC).date())


def _delete_expired_days(open_table: OpenTable, table: Table, definitions: Definitions) -> None:
    stored = open_table()
    first = first_retained_day(stored.files_by_day, table, definitions)
    expired = [file for file in stored.files if file.day is not None and file.day < first]
    if expired:
        stored.replace_files(expired, [])


def _files_to_compact_by_day(stored: StoredTable) -> dict[date, list[DataFile]]:
    by_day: dict[date, list[DataFile]] = {}
    for file in stored.files:
        if file.day is not None:
            by_day.setdefault(file.day, []).append(file)
    last_closed = _newest_day(by_day) - timedelta(days=CLOSED_AFTER_DAYS) if by_day else date.min
    found = {day: files_to_compact(files, closed=day <= last_closed) for day, files in sorted(by_day.items())}
    return {day: files for day, files in found.items() if files}


def _compact_day(open_table: OpenTable, table: Table, day: date) -> None:
    """Replace small files of ``day`` by one file with one row for each key. Query results do not change.

    Files that another writer appends at the same time are kept: only the files that were read are replaced.
    """
    stored = open_table()
    files = _files_to_compact_by_day(stored).get(day)
    if files:
        with _merged_rows(stored, table, files) as rows:
            added = stored.write_file(rows, day)
        stored.replace_files(files, [added], data_change=False)


@contextmanager
def _merged_rows(stored: StoredTable, table: Table, files: Sequence[DataFile]) -> Iterator[pyarrow.RecordBatchReader]:
    with open_database(MEMORY_LIMIT) as database:
        database.register("as stored", stored.read_files({file.path for file in files}))
        database.execute(view_statement(table, "as stored", [field.name for field in stored.schema.fields]))
        yield database.table(table.name).to_arrow_reader(ROWS_PER_ROW_GROUP)
