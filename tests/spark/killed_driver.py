"""A job whose driver is killed, with its JVM, at one instant: ``killed_driver.py INSTANT TIMES DELAY ARGUMENTS``.

INSTANT: see ``INSTANTS``. TIMES: how often it has come by then. DELAY: seconds
after it, to be in the middle of something. ARGUMENTS: those of ``run``, and of a few settings, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import compaction, io, kafka, maintenance, sink
from spark_jobs.definitions import load
from spark_jobs.run import run
from spark_jobs.schemas import TABLES
from spark_jobs.stored_table import StoredTable

INSTANTS = (
    "create",
    "begin",
    *[f"{when} {name}" for name in TABLES for when in ("before", "after")],
    "written",
    *[f"{when} joining {name}" for name in ("completeness", "traffic", "clients") for when in ("before", "after")],
    *[f"{when} cleaning {name}" for name in ("completeness", "traffic") for when in ("before", "after")],
    "looked after",
)
"""``begin``: Spark noted which records the batch has. ``written``: all tables have it, and Spark does not know yet."""


class Fate:
    """Waits for the instant."""

    def __init__(self, instant: str, times: int, delay: float) -> None:
        self._instant, self._times, self._delay = instant, times, delay
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def at(self, instant: str) -> None:
        """Say that this is now."""
        with self._lock:
            self._seen[instant] += 1
            now = instant == self._instant and self._seen[instant] == self._times
        if now and self._delay:
            threading.Timer(self._delay, die).start()
        elif now:
            die()


def main() -> None:
    fate = Fate(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    arguments = json.loads(sys.argv[4])
    append, create, write, look_after = (
        io.append_once, io.create_table, sink.TableSink.__call__, maintenance.maintain_tables
    )  # fmt: skip
    replace, vacuum = StoredTable.replace_files, StoredTable.vacuum

    def append_once(spark: SparkSession, rows: pyarrow.Table, path: str, writer: str, number: int) -> None:
        fate.at(f"before {name_of(path)}")
        append(spark, rows, path, writer, number)
        fate.at(f"after {name_of(path)}")

    def replaced(self: StoredTable, removed: Any, added: Any, **options: Any) -> None:
        what = name_of(self.path) if options.get("data_change", True) else f"joining {name_of(self.path)}"
        fate.at(f"before {what}")
        replace(self, removed, added, **options)
        fate.at(f"after {what}")

    def cleaned(self: StoredTable) -> None:
        fate.at(f"before cleaning {name_of(self.path)}")
        vacuum(self)
        fate.at(f"after cleaning {name_of(self.path)}")

    def create_table(spark: SparkSession, table: Any, path: str) -> StoredTable:
        stored = create(spark, table, path)
        fate.at("create")
        return stored

    def call(self: sink.TableSink, rows: DataFrame, number: int) -> None:
        fate.at("begin")
        write(self, rows, number)
        fate.at("written")

    def looked_after(*given: Any, **options: Any) -> None:
        look_after(*given, **options)
        fate.at("looked after")

    io.append_once, io.create_table = append_once, create_table
    StoredTable.replace_files, StoredTable.vacuum = replaced, cleaned  # type: ignore[method-assign]
    sink.TableSink.__call__ = call  # type: ignore[method-assign]
    maintenance.maintain_tables = looked_after
    kafka.MAX_RECORDS_PER_BATCH = arguments.pop("records_per_batch")
    maintenance.MAINTENANCE_INTERVAL_S, maintenance.VACUUM_INTERVAL_S, compaction.MIN_FILES_TO_COMPACT = 0.0, 0.0, 2
    arguments["jars"] = [Path(jar) for jar in arguments["jars"]]
    arguments["definitions"] = load(arguments["definitions"])
    run(**arguments)


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[1]


def die() -> None:
    gateway: Any = SparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


if __name__ == "__main__":
    main()
