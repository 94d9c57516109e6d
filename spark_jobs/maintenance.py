"""Decides when a running job computes the derived tables, and when it compacts and vacuums all tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_jobs import io, schemas
from spark_jobs.compaction import maintain_tables
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.errors import JobError
from spark_jobs.progress import Notice, Notify
from spark_jobs.session import summarize_error
from spark_jobs.table_root import TableRoot
from spark_jobs.tables.registry import tables_without_definitions

DERIVE_INTERVAL_S = 300.0
"""Seconds from the end of one computation of the derived tables to the next one, in a continuous job."""

MAINTENANCE_INTERVAL_S = 3_600.0
"""Seconds from the end of one maintenance of the tables to the next one."""

VACUUM_INTERVAL_S = 86_400.0
"""Seconds between vacuums: a maintenance that also removes files that no table version needs any more."""

LAST_VACUUM_FILE = "cleaned"
"""Name of the file in a checkpoint with the time of the last vacuum of its tables, in seconds since 1970."""


class MaintainedTables(NamedTuple):
    """The arguments that ``compute_derived_tables`` and ``maintain_tables`` share, in their order."""

    spark: SparkSession
    root: TableRoot
    names: Sequence[str]
    definitions: Definitions
    notify: Notify


class MaintenanceScheduler:
    """Runs each task when it is due: beside the batches, which go on meanwhile."""

    def __init__(self, tables: MaintainedTables, *, continuous: bool) -> None:
        """``tables`` names every table of the job. Without ``continuous`` derived tables are computed at the end."""
        self._tables = tables
        self._folder = io.Folder(tables.spark, tables.root.checkpoint)
        skipped = tables_without_definitions(tables.names, tables.definitions)
        self._derived_names = [name for name in tables.names if name in schemas.DERIVED and name not in skipped]
        self._continuous = continuous
        # An earlier run may have left derived tables outdated, and the definitions may have changed since.
        self._derived_outdated = bool(self._derived_names)
        self._last_derived = -DERIVE_INTERVAL_S
        self._last_maintenance = time.monotonic()
        self._last_vacuum = self._read_last_vacuum()
        self._report_unknown_features()

    def batch_written(self) -> None:
        """Note that the derived tables are older than their inputs."""
        self._derived_outdated = bool(self._derived_names)

    def run_at_end(self) -> tuple[str, ...]:
        """Run the tasks of a run that ends, and return the names of derived tables that could not be computed."""
        if self._continuous:
            if self._derived_outdated:
                names = ", ".join(self._derived_names)
                self._tables.notify(Notice(f"the last batches are not in {names} yet; the next run computes them"))
            return ()
        failed = compute_derived_tables(*self._tables)
        self._maintain_if_due()
        return failed

    def run_due_tasks(self) -> None:
        """Run the tasks that are due, of a continuous job. A run that ends by itself has them at its end."""
        if not self._continuous:
            return
        if self._derived_outdated and time.monotonic() - self._last_derived >= DERIVE_INTERVAL_S:
            self._derived_outdated = False
            compute_derived_tables(*self._tables)
            self._last_derived = time.monotonic()
        self._maintain_if_due()

    def _report_unknown_features(self) -> None:
        for name in self._tables.names:
            try:
                io.open_table(self._tables.spark, self._tables.root.table_path(name)).check_features()
            except JobError as error:
                self._tables.notify(Notice(f"table {name}: {error}"))
            except Exception as error:
                self._tables.notify(Notice(f"table {name} cannot be opened: {summarize_error(error)}"))

    def _maintain_if_due(self) -> None:
        # A time in the future means that the clock was ahead. Waiting for it could postpone the vacuum for years.
        vacuum = not 0 <= time.time() - self._last_vacuum < VACUUM_INTERVAL_S
        if not vacuum and time.monotonic() - self._last_maintenance < MAINTENANCE_INTERVAL_S:
            return
        maintain_tables(*self._tables, vacuum=vacuum)
        self._last_maintenance = time.monotonic()
        if vacuum:
            self._last_vacuum = self._write_last_vacuum()

    def _read_last_vacuum(self) -> float:
        try:
            return float(self._folder.read(LAST_VACUUM_FILE) or "")
        except ValueError:
            return self._write_last_vacuum()

    def _write_last_vacuum(self) -> float:
        now = time.time()
        self._folder.write(LAST_VACUUM_FILE, f"{now:.0f}")
        return now
