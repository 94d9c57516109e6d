"""A driver that is killed, with its JVM, at one instant of one batch: ``killed_driver.py INSTANT BATCH ARGUMENTS``.

INSTANT: ``before`` or ``after`` the write to the table ``traffic``. ARGUMENTS: those of ``run``, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame

from spark_jobs import io, kafka
from spark_jobs.run import run


def main() -> None:
    instant, batch, arguments = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    append = io.append_once

    def append_and_die(rows: DataFrame, path: str, writer: str, number: int) -> None:
        now = number == batch and path.endswith("traffic")
        if now and instant == "before":
            die()
        append(rows, path, writer, number)
        if now and instant == "after":
            die()

    io.append_once = append_and_die
    kafka.RECORDS_PER_BATCH = arguments.pop("records_per_batch")
    arguments["jars"] = [Path(jar) for jar in arguments["jars"]]
    run(**arguments)


def die() -> Any:
    gateway: Any = SparkContext._gateway
    os.kill(gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
