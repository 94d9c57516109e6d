"""A job whose driver is killed, with its JVM, at one instant: ``killed_driver.py INSTANT ARGUMENTS``.

INSTANT: ``create``, ``begin`` (Spark noted which records the batch has), ``written`` (all tables have it, and
Spark does not know), ``looked after``, or ``before`` or ``after`` a table, ``joining`` its files, or ``cleaning`` it.
ARGUMENTS: those of ``run``, and of a setting, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import compaction, io, kafka, maintenance, sink
from spark_jobs.definitions import load
from spark_jobs.run import run
from spark_jobs.stored_table import StoredTable


def main() -> None:
    arguments = json.loads(sys.argv[2])
    append, create, write, look_after = (
        io.append_once, io.create_table, sink.TableSink.__call__, maintenance.maintain_tables
    )  # fmt: skip
    replace, vacuum = StoredTable.replace_files, StoredTable.vacuum

    def append_once(spark: SparkSession, rows: pyarrow.Table, path: str, writer: str, number: int) -> None:
        at(f"before {name_of(path)}")
        append(spark, rows, path, writer, number)
        at(f"after {name_of(path)}")

    def replaced(self: StoredTable, removed: Any, added: Any, **options: Any) -> None:
        what = name_of(self.path) if options.get("data_change", True) else f"joining {name_of(self.path)}"
        at(f"before {what}")
        replace(self, removed, added, **options)
        at(f"after {what}")

    def cleaned(self: StoredTable) -> None:
        at(f"before cleaning {name_of(self.path)}")
        vacuum(self)
        at(f"after cleaning {name_of(self.path)}")

    def create_table(spark: SparkSession, table: Any, path: str) -> StoredTable:
        stored = create(spark, table, path)
        at("create")
        return stored

    def call(self: sink.TableSink, rows: DataFrame, number: int) -> None:
        at("begin")
        write(self, rows, number)
        at("written")

    def looked_after(*given: Any, **options: Any) -> None:
        look_after(*given, **options)
        at("looked after")

    io.append_once, io.create_table = append_once, create_table
    StoredTable.replace_files, StoredTable.vacuum = replaced, cleaned  # type: ignore[method-assign]
    sink.TableSink.__call__ = call  # type: ignore[method-assign]
    maintenance.maintain_tables = looked_after
    kafka.MAX_RECORDS_PER_BATCH = arguments.pop("records_per_batch")
    maintenance.MAINTENANCE_INTERVAL_S, maintenance.VACUUM_INTERVAL_S, compaction.MIN_FILES_TO_COMPACT = 0.0, 0.0, 2
    arguments["jars"] = [Path(jar) for jar in arguments["jars"]]
    arguments["definitions"] = load(arguments["definitions"])
    run(**arguments)


def at(instant: str) -> None:
    """Say that this is now."""
    if instant == sys.argv[1]:
        gateway: Any = SparkContext._gateway
        os.kill(gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[1]


if __name__ == "__main__":
    main()
