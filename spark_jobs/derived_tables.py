"""Computes the derived tables from the tables they are made of: the days whose inputs changed, by DuckDB.

A day is the unit, as it is that of the tables' files: one commit replaces the files of the computed days and stores the
versions of the inputs that they were computed from. So a computation that is interrupted anywhere changed nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from functools import cache, partial
from typing import Any

from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from spark_jobs import io, schemas
from spark_jobs.compaction import first_retained_day
from spark_jobs.computation import add_rows, compute_rows, create_result, open_database, result_days, rows_of_day
from spark_jobs.definitions import Definitions
from spark_jobs.definitions.load import fingerprint
from spark_jobs.errors import JobError
from spark_jobs.progress import Notice, Notify
from spark_jobs.schemas import Table
from spark_jobs.session import summarize_error
from spark_jobs.spark_types import arrow_schema
from spark_jobs.stored_table import StoredTable, repeat
from spark_jobs.table_root import TableRoot, create_or_upgrade_table
from spark_jobs.tables.registry import (
    COMPUTATION_VERSIONS,
    DAYS_READ,
    DEFINITIONS_USED,
    DERIVED_QUERIES,
    SUMMED_BY_DAY,
    UNMATCHED_FUNCTIONS,
    UNMERGED_INPUTS,
    tables_without_definitions,
)

HISTORY_COMMITS = 100
"""Commits of a table, the newest ones, that are searched for the provenance of its rows."""

MAX_COMMITS_SCANNED = 15_000
"""Commits of an input that are scanned for changed days. After more commits every day counts as changed.

As many as its log retains: those of 12 hours, of two topics, each with a batch every 6 s (``kafka.MAX_BATCH_DELAY``).
"""

SLICE_BYTES = 64_000_000
"""Compressed input of the days that are computed at once, but at least one day is."""


class _Inputs:
    """The inputs of one computation by name. The log of each is read once, although several tables are made of it."""

    def __init__(self, spark: SparkSession, root: TableRoot) -> None:
        self.spark, self.root = spark, root
        self.snapshot = cache(lambda name: io.open_table(spark, root.table_path(name)))
        self.days_changed = cache(lambda name, version: self.snapshot(name).days_changed(version))


def check_definitions_given(definitions: Definitions, filled: Collection[str]) -> None:
    """Raise JobError if no definitions were given but one of the tables ``filled`` was written with definitions.

    Only streamed tables are checked: rows that a run leaves out of them are not added by any later run.
    """
    needing = [name for name in tables_without_definitions(filled, Definitions()) if name in schemas.STREAMED]
    if needing and definitions == Definitions():
        raise JobError(
            f"the table {needing[0]} was written with definitions, and this run has none: the rows of this run would be"
            " missing from it; give --definitions as before, or definitions without this table's kind"
        )


def compute_derived_tables(
    spark: SparkSession,
    root: TableRoot,
    names: Collection[str],
    definitions: Definitions,
    notify: Notify,
    since: date | None = None,
) -> tuple[str, ...]:
    """Compute those of the tables ``names`` whose inputs or definitions changed; return the names of those that failed.

    ``since``: a day that counts as changed in any case. An error is reported and does not stop the other tables.
    """
    failed = []
    skipped = tables_without_definitions(names, definitions)
    inputs = _Inputs(spark, root)
    for name in names:
        if name not in DERIVED_QUERIES or name in skipped:
            continue
        try:
            repeat(partial(_compute_table, inputs, schemas.DERIVED[name], definitions, notify, since))
        except Exception as error:
            failed.append(name)
            reason = str(error) if isinstance(error, JobError) else summarize_error(error)
            notify(Notice(f"table {name} could not be computed: {reason}"))
    return tuple(failed)


def _compute_table(inputs: _Inputs, table: Table, definitions: Definitions, notify: Notify, since: date | None) -> None:
    stored = create_or_upgrade_table(inputs.spark, inputs.root, table.name, notify)
    stored.check_features()
    snapshots: dict[str, StoredTable] = {name: inputs.snapshot(name) for name in table.derived_from}
    if any(snapshot.version < 0 for snapshot in snapshots.values()):
        return
    used = DEFINITIONS_USED[table.name](definitions) if table.name in DEFINITIONS_USED else ()
    columns = [(column.name, column.type) for column in table.columns]
    provenance: dict[str, Any] = {
        "inputs": {name: [snapshot.id, snapshot.version] for name, snapshot in snapshots.items()},
        "made_by": fingerprint(used, columns, COMPUTATION_VERSIONS[table.name]),
    }
    changed = _days_changed(inputs, _read_provenance(stored), provenance)
    if changed is not None and since is not None:
        changed = {name: days | {day for day in snapshots[name].files_by_day if day >= since}
                   for name, days in changed.items()}  # fmt: skip
    if changed is not None and not any(changed.values()):
        return
    started = time.monotonic()
    wanted, others = _divide_days(table, stored, snapshots, definitions, changed)
    if changed is not None and not wanted:
        return
    added = _write_rows(table, stored, snapshots, definitions, wanted, others)
    removed = [file for file in stored.files if table.whole or file.day in wanted]
    stored.replace_files(removed, added, metadata=json.dumps(provenance))
    days = f" from {wanted[0]} on" if wanted and others else ""
    notify(Notice(f"table {table.name}: computed{days}, {time.monotonic() - started:.1f} s"))
    for unmatched in _find_unmatched(io.open_table(inputs.spark, stored.path), table, definitions):
        notify(Notice(f"{unmatched}: nothing has matched it so far"))


def _days_changed(
    inputs: _Inputs, before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> dict[str, set[date]] | None:
    """Return by input the days that changed, None if every day may have.

    ``before`` and ``now``: the provenance of the stored rows (None: unknown) and of the rows to be computed.
    """
    if before is None or before["made_by"] != now["made_by"]:
        return None
    changed = {}
    for name, (id, version) in now["inputs"].items():
        id_before, version_before = before["inputs"].get(name, (None, -1))
        if id != id_before or version - version_before > MAX_COMMITS_SCANNED:
            return None
        # Another job may have computed from a later version.
        days = inputs.days_changed(name, version_before) if version > version_before else set()
        if days is None:
            return None
        changed[name] = days
    return changed


def _divide_days(
    table: Table,
    stored: StoredTable,
    snapshots: Mapping[str, StoredTable],
    definitions: Definitions,
    changed: Mapping[str, set[date]] | None,
) -> tuple[list[date], set[date]]:
    """Return the days to be computed, in order, and the days whose stored rows are still those of their inputs.

    ``changed``: changed days by input, None: all of them. Days that an input no longer retains cannot be computed, and
    that their rows were deleted is no change.
    """
    of_inputs = {name: snapshot.files_by_day for name, snapshot in snapshots.items()}
    retained = {name: first_retained_day(days, schemas.TABLES[name], definitions) for name, days in of_inputs.items()}
    first = max(retained.values())
    days = sorted(day for day in {*stored.files_by_day}.union(*of_inputs.values()) if day >= first)
    if changed is None or table.whole:
        return days, set()
    read = DAYS_READ[table.name](definitions)
    wanted = {
        day
        for name, before in read.items()
        for one in changed[name]
        if one >= retained[name]
        for day in days
        if one <= day and (before is None or (day - one).days <= before[-1])
    }
    return sorted(wanted), {day for day in stored.files_by_day if day >= first} - wanted


def _write_rows(
    table: Table,
    stored: StoredTable,
    snapshots: Mapping[str, StoredTable],
    definitions: Definitions,
    wanted: Sequence[date],
    others: Collection[date],
) -> list[AddAction]:
    """Write the rows of the days ``wanted`` as files, one for each day. ``others``: days whose stored rows stay."""
    query = DERIVED_QUERIES[table.name](definitions)
    is_summed = table.name in SUMMED_BY_DAY
    before = DAYS_READ[table.name](definitions) if not table.whole else dict.fromkeys(snapshots)
    own = {*others, *wanted} if is_summed else None
    schema = arrow_schema(table)
    added = []
    with open_database() as database:
        create_result(database, table)
        for days in _slices(wanted, snapshots, before) if not table.whole else [wanted]:
            for name, snapshot in snapshots.items():
                read = None if table.whole else _days_to_read(snapshot, before[name], days, own)
                merged = name not in UNMERGED_INPUTS.get(table.name, ())
                add_rows(database, schemas.TABLES[name], snapshot.dataset(read), merged=merged)
            if is_summed:
                add_rows(database, table, stored.dataset(others), merged=False, with_result=True)
            compute_rows(database, query, days, keep=is_summed)
            computed = [day for day in result_days(database) if table.whole or day in days]
            added += [stored.write_file(rows_of_day(database, day, schema), day) for day in computed]
    return added


def _slices(
    wanted: Sequence[date], snapshots: Mapping[str, StoredTable], before: Mapping[str, Sequence[int] | None]
) -> Iterator[list[date]]:
    """Yield ``wanted`` in parts with an input of about ``SLICE_BYTES``; ``before``: as in ``DAYS_READ``.

    Inputs that are read from their first day on do not count: they would be read again for each part.
    """
    sizes = dict.fromkeys(wanted, 0)
    for name, snapshot in snapshots.items():
        for file in snapshot.files if before[name] is not None else ():
            if file.day in sizes:
                sizes[file.day] += file.size
    part: list[date] = []
    for day in wanted:
        if part and sum(sizes[each] for each in (*part, day)) > SLICE_BYTES:
            yield part
            part = []
        part.append(day)
    if part:
        yield part


def _days_to_read(
    snapshot: StoredTable, before: Sequence[int] | None, days: Sequence[date], own: Collection[date] | None
) -> list[date]:
    """Return the days of an input that ``days`` are computed from; ``before``: as in ``DAYS_READ``.

    ``own``: the days that the computed table itself has sums of, if it is one of ``SUMMED_BY_DAY``.
    """

    def is_read(there: date, day: date) -> bool:
        age = (day - there).days
        if age < 0 or before is None:
            return age >= 0
        return age in before or (own is not None and there not in own and age < before[-1])

    return [there for there in snapshot.files_by_day if any(is_read(there, day) for day in days)]


def _find_unmatched(stored: StoredTable, table: Table, definitions: Definitions) -> list[str]:
    if table.name not in UNMATCHED_FUNCTIONS:
        return []
    with open_database() as database:
        add_rows(database, table, stored.dataset(), merged=False)
        return UNMATCHED_FUNCTIONS[table.name](lambda sql: database.execute(sql).fetchall(), definitions)


def _read_provenance(stored: StoredTable) -> Mapping[str, Any] | None:
    """Return the provenance of the last computation of the table ``stored``, None if there is none."""
    found = stored.last_metadata(HISTORY_COMMITS)
    return json.loads(found) if found else None
