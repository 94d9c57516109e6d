"""Computes the derived tables from the tables they are made of: as a whole, or from the first changed day on."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from datetime import date
from functools import cache
from typing import Any

from pyspark.errors import AnalysisException
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

MAX_COMMITS_SCANNED = 1_000
"""Commits of an input that are scanned for changed days. After more commits every day counts as changed."""


class _Inputs:
    """The inputs of one computation by name. The log of each is read once, although several tables are made of it.

    Rows that a job adds meanwhile may be read with those of the version noted here. They count as changed for the next
    computation.
    """

    def __init__(self, spark: SparkSession, root: TableRoot) -> None:
        self.snapshot = cache(lambda name: io.StoredTable(spark, root.table_path(name)))
        self.first_day_after = cache(
            lambda name, version: first_day_in_commits(
                spark, root.table_path(name), version + 1, self.snapshot(name).version
            )
        )


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
    path = root.table_path(table.name)
    create_or_upgrade_table(spark, root, table.name, notify)
    for attempt in range(MAX_COMPUTE_ATTEMPTS):
        snapshots = {name: inputs.snapshot(name) for name in table.derived_from}
        if any(stored.version < 0 for stored in snapshots.values()):
            return
        used = DEFINITIONS_USED[table.name](definitions) if table.name in DEFINITIONS_USED else ()
        columns = [(column.name, column.type) for column in table.columns]
        provenance: dict[str, Any] = {
            "inputs": {name: [stored.id, stored.version] for name, stored in snapshots.items()},
            "made_by": fingerprint(used, columns, COMPUTATION_VERSIONS[table.name]),
        }
        changed = _first_changed_day(inputs, _read_provenance(spark, path), provenance)
        if since is not None:
            changed = min(since, changed) if changed else since
        if changed is None:
            return
        started = time.monotonic()
        # Rows of days that the inputs no longer retain are kept, even if Delta's log of these days is gone.
        whole_table = table.whole or not io.count_files_by_day(spark, path)
        first = None if whole_table else max(changed, _first_retained_day_of_inputs(spark, root, table, definitions))
        try:
            rows = _compute_rows(spark, root, table, definitions, first)
            condition = f"day >= '{first}'" if first else ""
            io.replace_rows(rows, path, condition, {"userMetadata": json.dumps(provenance)})
        except io.ConcurrentChange:
            if attempt == MAX_COMPUTE_ATTEMPTS - 1:
                raise
        else:
            days = f" from {first} on" if first and first > date.min else ""
            notify(Notice(f"table {table.name}: computed{days}, {time.monotonic() - started:.1f} s"))
            if table.name in UNMATCHED_FUNCTIONS:
                stored = spark.read.format("delta").load(path)
                for unmatched in UNMATCHED_FUNCTIONS[table.name](stored, definitions):
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


def first_day_in_commits(spark: SparkSession, path: str, first: int, last: int) -> date | None:
    """Return the first day to which the commits ``first`` to ``last`` of a table added rows, None if they added none.

    Return ``date.min`` if Delta no longer has the log of one of these commits.
    """
    log = [f"{path}/_delta_log/{version:020d}.json" for version in range(first, last + 1)]
    try:
        added = spark.read.schema("add struct<dataChange: boolean, partitionValues: map<string, string>>").json(log)
    except AnalysisException:
        return date.min
    (row,) = added.where("add.dataChange").agg(F.min(F.col("add.partitionValues")["day"])).collect()
    return date.fromisoformat(row[0]) if row[0] else None


def _first_retained_day_of_inputs(spark: SparkSession, root: TableRoot, table: Table, definitions: Definitions) -> date:
    """Return the first day that every input still retains. Rows of earlier days cannot be computed again.

    Read anew for each table: maintenance may have deleted a day since another table was computed.
    """
    days = {name: io.count_files_by_day(spark, root.table_path(name)).keys() for name in table.derived_from}
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


def _read_provenance(spark: SparkSession, path: str) -> Mapping[str, Any] | None:
    """Return the provenance that the last computation of the table at ``path`` stored, None if there is none."""
    commits = io.read_history(spark, path).where("userMetadata IS NOT NULL").orderBy(F.desc("version"))
    row = commits.select("userMetadata").first()
    return json.loads(row[0]) if row else None
