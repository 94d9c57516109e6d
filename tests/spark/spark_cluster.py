"""A Spark cluster on this machine: a master and a worker, whose executors are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tests.tools.log import said

HOST = "127.0.0.1"

DRIVER = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST, "spark.ui.enabled": "false"}
"""What a driver on this machine needs to say, for no one else is to reach it."""


@contextmanager
def spark_cluster(folder: Path, *, cores: int, memory: str) -> Iterator[str]:
    """Start a cluster that keeps its files in ``folder``, and give its address, ``spark://…``."""
    master = _start(folder, "master", "--host", HOST, "--port", "0", "--webui-port", "0")
    try:
        address = said(folder / "master.log", r"Starting Spark master at (spark://\S+)", master)
        sizes = ("--cores", str(cores), "--memory", memory)
        worker = _start(
            folder, "worker", "--host", HOST, "--webui-port", "0", "--work-dir", str(folder / "work"), *sizes, address
        )
        try:
            said(folder / "worker.log", r"Successfully registered with master", worker)
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
                "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m",
                # They do little: with the first compiler level they start sooner.
                "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(120)
