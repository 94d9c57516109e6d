"""The Spark session: tuned for small batches on few cores where Spark runs on this machine, left alone elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.archive import ClassArchive
from spark_jobs.errors import JobError
from spark_jobs.java import java

END_TIMEOUT = 60.0
"""Seconds that the JVM may take to end when it leaves an archive; it takes about 15."""

ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # PySpark looks for the line of code behind each column it makes: half of the time of making a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # An empty batch after each batch with data, to throw away old state at once, would double the work.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Delta keeps its log in 50 partitions by default: a small commit takes 3.6 s then, 1.1 s with 2.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}

SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""For a JVM that ends soon: compiling as well as it can costs it more than it gains (124 → 53 s on two busy cores)."""


def settings(master: str, jars: Sequence[Path], overrides: Mapping[str, str], *, short: bool) -> dict[str, str]:
    """Return Spark's configuration for ``master``; ``overrides`` win. ``short``: the session ends by itself soon."""
    chosen = dict(ALWAYS)
    if master.startswith("local"):
        chosen |= LOCAL | {"spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 4))}
        if short:
            chosen |= SHORT_RUN
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    return chosen | {"spark.master": master} | dict(overrides)


@contextmanager
def session(name: str, conf: Mapping[str, str], class_archives: Path | None = None) -> Iterator[SparkSession]:
    """Give a Spark session for as long as the block lasts; one that this process already has is used and left alone.

    ``class_archives``: a folder for what makes later sessions start faster. What Spark prints and logs goes to a file.
    It is removed in the end, unless something fails that this package has no words for: then the error names it.
    Raises JobError if there is no Java or Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    archive = None
    # spark-submit sets it: the JVM runs already.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        found = java()
        if class_archives is not None and SparkContext._gateway is None:
            archive = ClassArchive(class_archives, found, f"{pyspark.__version__} {pyspark.__file__}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _log() as log:
        spark = _start(name, archive.added_to(conf) if archive else conf, log)
        ended_well = False
        try:
            yield spark
            ended_well = True
        finally:
            # The JVM may be what failed.
            with suppress(Py4JError, OSError):
                spark.stop()
            if archive is not None and archive.made:
                archive.finish(complete=_end_jvm(gracefully=ended_well))


def _start(name: str, conf: Mapping[str, str], log: IO[bytes]) -> SparkSession:
    chosen = SparkConf().setAppName(name).setAll(list(conf.items()))
    try:
        # A second session of a process runs in the JVM of the first.
        gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call]  # pyspark has no types for it
            chosen, popen_kwargs={"stdout": log, "stderr": log}
        )
        return SparkSession(SparkContext(conf=chosen, gateway=gateway))
    except PySparkRuntimeError as error:
        raise RuntimeError(f"Spark does not start: {error}") from error


def _end_jvm(*, gracefully: bool) -> bool:
    """End this process's JVM, which otherwise ends with the process; return whether it ended well."""
    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    SparkContext._gateway = SparkContext._jvm = None
    if not gracefully:
        process.kill()
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    try:
        return process.wait(END_TIMEOUT) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        return False


@contextmanager
def _log() -> Iterator[IO[bytes]]:
    keep = False
    with tempfile.NamedTemporaryFile(prefix="brokerside-spark-", suffix=".log", delete=False) as log:
        try:
            yield log
        except JobError:
            raise
        except Exception as error:
            keep = True
            raise JobError(f"{_first_line(error)} (Spark's log: {log.name})") from error
        finally:
            if not keep:
                os.unlink(log.name)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
