"""A Spark cluster on this machine: a master and a worker, whose executors are processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

HOST = "127.0.0.1"
STARTED_WITHIN = 60

DRIVER = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST, "spark.ui.enabled": "false"}
"""What a driver on this machine needs to say, for no one else is to reach it."""


@contextmanager
def spark_cluster(folder: Path, *, cores: int, memory: str) -> Iterator[str]:
    """Start a cluster that keeps its files in ``folder``, and give its address, ``spark://…``."""
    master = _start(folder, "master", "--host", HOST, "--port", "0", "--webui-port", "0")
    try:
        address = _said(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)
        sizes = ("--cores", str(cores), "--memory", memory)
        worker = _start(
            folder, "worker", "--host", HOST, "--webui-port", "0", "--work-dir", str(folder / "work"), *sizes, address
        )
        try:
            _said(folder / "worker.log", r"Successfully registered with master", worker)
            yield address
        finally:
            _end(worker)
    finally:
        _end(master)


def executors(folder: Path) -> list[Path]:
    """Return the folders of the executors that the cluster of ``folder`` has had."""
    return sorted(folder.glob("work/app-*/*"))


def _start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(_find_spark_home())
    kind = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [home / "bin" / "spark-class", kind, *arguments],
            # The web pages listen where SPARK_LOCAL_IP says, and nowhere else.
            env=os.environ
            | {
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": HOST,
                "SPARK_DAEMON_MEMORY": "256m",
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until ``pattern`` is in ``log``; return its group, or the whole."""
    deadline = time.monotonic() + STARTED_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(pattern, log.read_text()):
            return found[found.re.groups]
        time.sleep(0.1)
    raise AssertionError(f"nothing of {pattern!r} in\n{log.read_text()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)
