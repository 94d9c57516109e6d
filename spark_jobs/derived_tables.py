"""The tables that are computed from others: from the first day on whose inputs changed, or as a whole."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from datetime import date
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
from spark_jobs.progress import Notice
from spark_jobs.schemas import Table
from spark_jobs.session import summarize_error
from spark_jobs.table_root import TableRoot, create_or_upgrade_table
from spark_jobs.tables.registry import AS_STORED, DECLARED, DERIVED, EDITIONS, UNMATCHED, Stored, undeclared

MAX_COMPUTE_ATTEMPTS = 3
"""How often a table is computed when another job replaces rows of it at the same time."""

MAX_COMMITS_SCANNED = 1_000
"""Commits of an input in which changed days are looked for; after more of them all days have changed."""


def check_definitions_given(definitions: Definitions, filled: Collection[str]) -> None:
    """Raise JobError if no definitions were given, and ``filled``, tables of the job, have rows that need some.

    Only of tables that the audit topic fills: what a run leaves out of them is a hole that no later run closes.
    """
    needing = [name for name in undeclared(filled, Definitions()) if name in schemas.STREAMED]
    if needing and definitions == Definitions():
        raise JobError(
            f"the table {needing[0]} was made by definitions, and this run has none: without them it would miss what is"
            " read now; give --definitions as before, or definitions without these"
        )


def compute_derived_tables(
    spark: SparkSession,
    target: TableRoot,
    names: Collection[str],
    definitions: Definitions,
    say: Callable[[Notice], None],
    since: date | None = None,
) -> tuple[str, ...]:
    """Compute those of the tables ``names`` again whose inputs or definitions changed; return those that failed.

    ``since``: a day that has changed in any case. One that fails is said, and does not stop the others.
    """
    failed = []
    nothing = undeclared(names, definitions)
    for name in names:
        if name not in DERIVED or name in nothing:
            continue
        try:
            _compute_table(spark, target, schemas.DERIVED[name], definitions, say, since)
        except Exception as error:
            failed.append(name)
            what = str(error) if isinstance(error, JobError) else summarize_error(error)
            say(Notice(f"table {name} could not be computed: {what}"))
    return tuple(failed)


def _compute_table(
    spark: SparkSession,
    target: TableRoot,
    table: Table,
    definitions: Definitions,
    say: Callable[[Notice], None],
    since: date | None,
) -> None:
    create_or_upgrade_table(spark, target, table.name, say)
    for attempt in range(MAX_COMPUTE_ATTEMPTS):
        inputs = {name: io.StoredTable(spark, target.path(name)) for name in table.derived_from}
        if any(stored.version < 0 for stored in inputs.values()):
            return
        declared = DECLARED[table.name](definitions) if table.name in DECLARED else ()
        note: dict[str, Any] = {
            "inputs": {name: [stored.id, stored.version] for name, stored in inputs.items()},
            "made_by": fingerprint(
                declared, [(column.name, column.type) for column in table.columns], EDITIONS[table.name]
            ),
        }
        before = _read_provenance(spark, target.path(table.name))
        changed = _first_changed_day(spark, target, before, note)
        if since is not None:
            changed = min(since, changed) if changed else since
        if changed is None:
            return
        started = time.monotonic()
        # Whatever is computed, days stay whose inputs were deleted for their age, also where the log is gone.
        all_anew = table.whole or not io.count_files_by_day(spark, target.path(table.name))
        first = None if all_anew else max(changed, _first_retained_day_of_inputs(spark, target, table, definitions))
        try:
            rows = _compute_rows(spark, target, table, definitions, first)
            condition = f"day >= '{first}'" if first else ""
            io.replace_rows(rows, target.path(table.name), condition, {"userMetadata": json.dumps(note)})
        except io.ConcurrentChange:
            if attempt == MAX_COMPUTE_ATTEMPTS - 1:
                raise
        else:
            days = f" from {first} on" if first and first > date.min else ""
            say(Notice(f"table {table.name}: computed{days}, {time.monotonic() - started:.1f} s"))
            if table.name in UNMATCHED:
                made = spark.read.format("delta").load(target.path(table.name))
                for nothing in UNMATCHED[table.name](made, definitions):
                    say(Notice(f"{nothing}: nothing matched it so far"))
            return


def _first_changed_day(
    spark: SparkSession, target: TableRoot, before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> date | None:
    """Return the first day that changed in an input, ``date.min`` if any may have, None if none has."""
    if before is None or before["made_by"] != now["made_by"]:
        return date.min
    changed = None
    for name, (id, version) in now["inputs"].items():
        id_before, version_before = before["inputs"].get(name, (None, -1))
        if id != id_before or version - version_before > MAX_COMMITS_SCANNED:
            return date.min
        if version > version_before:
            day = first_day_in_commits(spark, target.path(name), version_before + 1, version)
            changed = min(filter(None, (changed, day)), default=None)
    return changed


def first_day_in_commits(spark: SparkSession, path: str, first: int, last: int) -> date | None:
    """Return the first day that the commits ``first`` to ``last`` of a table added rows to, None if they added none.

    ``date.min`` where Delta no longer has the log of one of them.
    """
    log = [f"{path}/_delta_log/{version:020d}.json" for version in range(first, last + 1)]
    try:
        added = spark.read.schema("add struct<dataChange: boolean, partitionValues: map<string, string>>").json(log)
    except AnalysisException:
        return date.min
    (row,) = added.where("add.dataChange").agg(F.min(F.col("add.partitionValues")["day"])).collect()
    return date.fromisoformat(row[0]) if row[0] else None


def _first_retained_day_of_inputs(
    spark: SparkSession, target: TableRoot, table: Table, definitions: Definitions
) -> date:
    """Return the first day that none of the inputs has deleted for its age: what was made of days before stays."""
    return max(
        first_retained_day(io.count_files_by_day(spark, target.path(name)), schemas.TABLES[name], definitions)
        for name in table.derived_from
    )


def _compute_rows(
    spark: SparkSession, target: TableRoot, table: Table, definitions: Definitions, since: date | None
) -> DataFrame:
    tables = {}
    for name in table.derived_from:
        rows = spark.read.format("delta").load(target.path(name))
        tables[name] = rows if name in AS_STORED.get(table.name, ()) else merge_rows(rows, schemas.TABLES[name])
    rows = DERIVED[table.name](Stored(tables, definitions, since))
    return rows if since is None else rows.where(F.col("day") >= F.lit(since))


def _read_provenance(spark: SparkSession, path: str) -> Mapping[str, Any] | None:
    """Return what the last computation of the table at ``path`` noted, None where there was none, or no log of it."""
    notes = io.read_history(spark, path).where("userMetadata IS NOT NULL").orderBy(F.desc("version"))
    row = notes.select("userMetadata").first()
    return json.loads(row[0]) if row else None
