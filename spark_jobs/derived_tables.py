"""Computes the derived tables from the tables they are made of: as a whole, or from the first changed day on."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from datetime import date
from functools import cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import io, schemas
from spark_jobs.compaction import first_retained_day
from spark_jobs.definitions import Definitions
from spark_jobs.definitions.load import fingerprint
from spark_jobs.errors import JobError
from spark_jobs.merge import merge_rows
from spark_jobs.progress import Notice, Notify
from spark_jobs.schemas import Table
from spark_jobs.session import summarize_error
from spark_jobs.stored_table import ConcurrentChange, StoredTable
from spark_jobs.table_root import TableRoot, create_or_upgrade_table
from spark_jobs.tables.registry import (
    COMPUTATION_VERSIONS,
    DEFINITIONS_USED,
    DERIVED_FUNCTIONS,
    UNMATCHED_FUNCTIONS,
    UNMERGED_INPUTS,
    InputTables,
    tables_without_definitions,
)

MAX_COMPUTE_ATTEMPTS = 3
"""How often a table is computed while another job replaces rows of it at the same time."""

HISTORY_COMMITS = 100
"""Commits of a table, the newest ones, that are searched for the provenance of its rows."""

MAX_COMMITS_SCANNED = 1_000
"""Commits of an input that are scanned for changed days. After more commits every day counts as changed."""


class _Inputs:
    """The inputs of one computation by name. The log of each is read once, although several tables are made of it.

    Rows that a job adds meanwhile may be read with those of the version noted here. They count as changed for the next
    computation.
    """

    def __init__(self, spark: SparkSession, root: TableRoot) -> None:
        self.snapshot = cache(lambda name: io.open_table(spark, root.table_path(name)))
        self.first_day_after = cache(lambda name, version: self.snapshot(name).first_day_added(version))


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
        if name not in DERIVED_FUNCTIONS or name in skipped:
            continue
        try:
            _compute_table(spark, root, inputs, schemas.DERIVED[name], definitions, notify, since)
        except Exception as error:
            failed.append(name)
            reason = str(error) if isinstance(error, JobError) else summarize_error(error)
            notify(Notice(f"table {name} could not be computed: {reason}"))
    return tuple(failed)


def _compute_table(
    spark: SparkSession,
    root: TableRoot,
    inputs: _Inputs,
    table: Table,
    definitions: Definitions,
    notify: Notify,
    since: date | None,
) -> None:
    for attempt in range(MAX_COMPUTE_ATTEMPTS):
        stored = create_or_upgrade_table(spark, root, table.name, notify)
        snapshots = {name: inputs.snapshot(name) for name in table.derived_from}
        if any(snapshot.version < 0 for snapshot in snapshots.values()):
            return
        used = DEFINITIONS_USED[table.name](definitions) if table.name in DEFINITIONS_USED else ()
        columns = [(column.name, column.type) for column in table.columns]
        provenance: dict[str, Any] = {
            "inputs": {name: [snapshot.id, snapshot.version] for name, snapshot in snapshots.items()},
            "made_by": fingerprint(used, columns, COMPUTATION_VERSIONS[table.name]),
        }
        changed = _first_changed_day(inputs, _read_provenance(stored), provenance)
        if since is not None:
            changed = min(since, changed) if changed else since
        if changed is None:
            return
        started = time.monotonic()
        # Rows of days that the inputs no longer retain are kept, even if Delta's log of these days is gone.
        whole_table = table.whole or not stored.files
        first = None if whole_table else max(changed, _first_retained_day_of_inputs(spark, root, table, definitions))
        try:
            rows = _compute_rows(spark, root, table, definitions, first)
            replaced = [file for file in stored.files if first is None or (file.day is not None and file.day >= first)]
            io.replace_files(rows, stored, replaced, metadata=json.dumps(provenance))
        except ConcurrentChange:
            if attempt == MAX_COMPUTE_ATTEMPTS - 1:
                raise
        else:
            days = f" from {first} on" if first and first > date.min else ""
            notify(Notice(f"table {table.name}: computed{days}, {time.monotonic() - started:.1f} s"))
            if table.name in UNMATCHED_FUNCTIONS:
                computed = spark.read.format("delta").load(stored.path)
                for unmatched in UNMATCHED_FUNCTIONS[table.name](computed, definitions):
                    notify(Notice(f"{unmatched}: nothing has matched it so far"))
            return


def _first_changed_day(inputs: _Inputs, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> date | None:
    """Return the first day that changed in an input, ``date.min`` if every day may have changed, None if none has.

    ``before`` and ``now``: the provenance of the stored rows (None: unknown) and of the rows to be computed.
    """
    if before is None or before["made_by"] != now["made_by"]:
        return date.min
    changed = None
    for name, (id, version) in now["inputs"].items():
        id_before, version_before = before["inputs"].get(name, (None, -1))
        if id != id_before or version - version_before > MAX_COMMITS_SCANNED:
            return date.min
        if version > version_before:
            changed = min(filter(None, (changed, inputs.first_day_after(name, version_before))), default=None)
    return changed


def _first_retained_day_of_inputs(spark: SparkSession, root: TableRoot, table: Table, definitions: Definitions) -> date:
    """Return the first day that every input still retains. Rows of earlier days cannot be computed again.

    Read anew for each table: maintenance may have deleted a day since another table was computed.
    """
    days = {name: io.open_table(spark, root.table_path(name)).files_by_day for name in table.derived_from}
    return max(first_retained_day(found, schemas.TABLES[name], definitions) for name, found in days.items())


def _compute_rows(
    spark: SparkSession, root: TableRoot, table: Table, definitions: Definitions, since: date | None
) -> DataFrame:
    tables = {}
    for name in table.derived_from:
        rows = spark.read.format("delta").load(root.table_path(name))
        unmerged = name in UNMERGED_INPUTS.get(table.name, ())
        tables[name] = rows if unmerged else merge_rows(rows, schemas.TABLES[name])
    rows = DERIVED_FUNCTIONS[table.name](InputTables(tables, definitions, since))
    return rows if since is None else rows.where(F.col("day") >= F.lit(since))


def _read_provenance(stored: StoredTable) -> Mapping[str, Any] | None:
    """Return the provenance of the last computation of the table ``stored``, None if there is none."""
    found = stored.last_metadata(HISTORY_COMMITS)
    return json.loads(found) if found else None
