"""What a job does beside its batches: it computes the other tables and looks after all of them, by the time since."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from spark_jobs import io, schemas
from spark_jobs.compaction import maintain_tables
from spark_jobs.definitions import Definitions
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.progress import Notice
from spark_jobs.session import release_ended_queries
from spark_jobs.table_root import TableRoot
from spark_jobs.tables.registry import undeclared

DERIVE_INTERVAL_S = 300.0
"""Seconds between computations of the other tables in a continuous job, from the end of one to the next."""

MAINTENANCE_INTERVAL_S = 3_600.0
"""Seconds between looks after the tables in a job that runs for longer."""

VACUUM_INTERVAL_S = 86_400.0
"""Seconds between cleanings: a look after the tables that also removes files that nothing needs any more."""

LAST_VACUUM_FILE = "cleaned"
"""Name of the file in a checkpoint that says when its tables were last cleaned, in seconds since 1970."""


class MaintenanceScheduler:
    """What is to be done, and when it was last done. Batches and the thread that follows them may both ask for it."""

    def __init__(
        self,
        spark: SparkSession,
        target: TableRoot,
        names: Sequence[str],
        definitions: Definitions,
        say: Callable[[Notice], None],
        *,
        continuous: bool,
    ) -> None:
        """``names``: of all tables that are made. Without ``continuous`` the other tables are computed at the end."""
        self._of = (spark, target, names, definitions, say)
        self._folder = io.Folder(spark, target.checkpoint)
        nothing = undeclared(names, definitions)
        self._computed = [name for name in names if name in schemas.DERIVED and name not in nothing]
        self._continuous = continuous
        self._at_work = threading.Lock()
        # What an earlier run left undone, or other definitions ask for, is done soon after the start.
        self._behind = bool(self._computed)
        self._derived = -DERIVE_INTERVAL_S
        self._looked_after = time.monotonic()
        self._cleaned = self._read()

    def after_batch(self) -> None:
        """Do what is due when a batch is written."""
        release_ended_queries(self._of[0])
        with self._at_work:
            self._behind = bool(self._computed)
            self._do()

    def at_rest(self) -> None:
        """Do what is due while there is no batch."""
        with self._at_work:
            self._do()

    def at_end(self) -> tuple[str, ...]:
        """Do what a run that ends by itself leaves done; return the names of tables that could not be computed."""
        with self._at_work:
            if self._continuous:
                if self._behind:
                    say = self._of[-1]
                    say(Notice(f"the next run computes what the last batches changed in {', '.join(self._computed)}"))
                return ()
            failed = compute_derived_tables(*self._of)
            if self._unclean():
                self._look_after()
            return failed

    def _do(self) -> None:
        if self._continuous and self._behind and time.monotonic() - self._derived >= DERIVE_INTERVAL_S:
            compute_derived_tables(*self._of)
            self._behind, self._derived = False, time.monotonic()
        if time.monotonic() - self._looked_after >= MAINTENANCE_INTERVAL_S or (self._continuous and self._unclean()):
            self._look_after()

    def _unclean(self) -> bool:
        # A clock that was ahead once must not keep the tables from being cleaned until it is that late.
        return not 0 <= time.time() - self._cleaned < VACUUM_INTERVAL_S

    def _look_after(self) -> None:
        clean = self._unclean()
        maintain_tables(*self._of, clean=clean)
        self._looked_after = time.monotonic()
        if clean:
            self._write()

    def _read(self) -> float:
        try:
            return float(self._folder.read(LAST_VACUUM_FILE) or "")
        except ValueError:
            return self._write()

    def _write(self) -> float:
        self._cleaned = time.time()
        self._folder.write(LAST_VACUUM_FILE, f"{self._cleaned:.0f}")
        return self._cleaned
