"""The Spark session: tuned for small batches on few cores where Spark runs on this machine, left alone elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError

_CAUSE = re.compile(r"^(?:Caused by)?: ([\w.$]+(?:: .*)?)$", re.MULTILINE)
"""An exception in a trace of Java's, as Py4J and PySpark show it; the last one is what began it."""

OUT_OF_MEMORY_MESSAGE = "Spark had not enough memory; give it more with --conf spark.driver.memory=4g"

MIN_JAVA_VERSION = 17
"""Spark 4 needs it."""

JAVA_ADVICE = f"install Java {MIN_JAVA_VERSION} or newer, and put it on PATH or set JAVA_HOME to it"

COMMON_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # PySpark looks for the line of code behind each column it makes: half of the time of making a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # What is kept of a batch, mostly fields that an event of its kind has not: 930 → 170 bytes an event.
    "spark.rdd.compress": "true",
    # The tables of one batch have more than 100 pieces of compiled code, which Spark keeps: it would compile all of
    # them again with each batch (4.2 → 3.3 s for a small one).
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Digests of events that have a map: it is hashed in the order of its text, which is the same when it comes again.
    "spark.sql.legacy.allowHashOnMapType": "true",
}

LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Delta keeps its log in 50 partitions by default: a small commit takes 3.6 s then, 1.1 s with 2.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}

SHORT_RUN_CONF = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
    "-XX:NewSize=300m -XX:MetaspaceSize=400m"
}
"""For a JVM that ends soon: compiling as well as it can costs it more than it gains (124 → 53 s on two busy cores).

Without the first level alone 240 MB are what Java reserves for compiled code; with it 48, and all tables together
need more: then Java says so, compiles nothing any more, and is slow. There is room for what is young, and for classes,
from the start: without, 9 s of 150 went into collecting.
"""


def spark_conf(master: str, jars: Sequence[Path], overrides: Mapping[str, str], *, short: bool) -> dict[str, str]:
    """Return Spark's configuration for ``master``; ``overrides`` win. ``short``: the session ends by itself soon."""
    chosen = dict(COMMON_CONF)
    if master.startswith("local"):
        chosen |= LOCAL_CONF | {"spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 4))}
        if short:
            chosen |= SHORT_RUN_CONF
    if jars:
        chosen["spark.jars"] = ",".join(str(jar) for jar in jars)
    return chosen | {"spark.master": master} | dict(overrides)


@contextmanager
def spark_session(name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Give a Spark session for as long as the block lasts; one that this process already has is used and left alone.

    What Spark logs goes to a file. It is removed in the end, unless something fails that this package has no words
    for: then the error names it. Raises JobError if there is no Java or Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _spark_log() as log:
        spark = _start_spark(name, conf, log)
        try:
            yield spark
        finally:
            # The JVM may be what failed.
            with suppress(Py4JError, OSError):
                spark.stop()


def release_ended_queries(spark: SparkSession) -> None:
    """Have the scheduler let go of the jobs of queries that have ended, with their plans.

    Spark 4.2 does so when a query ends, once. Delta reads its log in threads that may begin a job for a query that has
    ended: each is kept for ever, 8 MB a batch, until there is no room (``DAGScheduler.activeQueryToJobs``).
    """
    queries: Any = spark._jvm.org.apache.spark.sql.execution.SQLExecution  # type: ignore[union-attr]
    scheduler: Any = spark._jsparkSession.sparkContext().dagScheduler()
    with suppress(Py4JError):  # other releases of Spark have nothing of this
        for query in list(scheduler.activeQueryToJobs().keySet()):
            if queries.getQueryExecution(query) is None:
                scheduler.cleanupQueryJobs(query)


def _start_spark(name: str, conf: Mapping[str, str], log: IO[bytes]) -> SparkSession:
    chosen = SparkConf().setAppName(name).setAll(list(conf.items()))
    try:
        # A second session of a process runs in the JVM of the first.
        gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call]  # pyspark has no types for it
            chosen, popen_kwargs={"stdout": log, "stderr": log}
        )
        return SparkSession(SparkContext(conf=chosen, gateway=gateway))
    except PySparkRuntimeError as error:
        raise RuntimeError(f"Spark does not start: {error}") from error


@contextmanager
def _spark_log() -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(prefix="brokerside-spark-", suffix=".log", delete=False) as log:
        try:
            yield log
        except JobError:
            _delete_log(log)
            raise
        except Exception as error:
            said = OUT_OF_MEMORY_MESSAGE if _ran_out_of_memory(Path(log.name)) else summarize_error(error)
            log.write("".join(traceback.format_exception(error)).encode())
            raise JobError(f"{said} (Spark's log: {log.name})") from error
        _delete_log(log)


def _ran_out_of_memory(log: Path) -> bool:
    """Whether Java ran out of memory; what fails then is often something else, and says so instead."""
    with suppress(OSError), log.open("rb") as lines:
        return any(b"java.lang.OutOfMemoryError" in line for line in lines)
    return False


def _delete_log(log: IO[bytes]) -> None:
    Path(log.name).unlink(missing_ok=True)  # /tmp may have been tidied while a job ran for weeks


def summarize_error(error: BaseException) -> str:
    """Return the kind of ``error`` and the first line of what it says: of Java's first cause where it tells one."""
    text = str(error).strip()
    causes = _CAUSE.findall(text)
    if causes:
        kind, _, said = causes[-1].partition(": ")
        return f"{kind.rpartition('.')[2]}: {said.strip()}" if said.strip() else str(kind.rpartition(".")[2])
    lines = text.splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _check_java() -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit: the JVM runs already
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise JobError(f"Spark needs Java, and there is none on PATH; {JAVA_ADVICE}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"Spark needs Java, and {java} cannot be run ({error}); {JAVA_ADVICE}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < MIN_JAVA_VERSION:
        version = f"Java {found[1]}" if found else "of an unknown version"
        raise JobError(f"Spark needs Java {MIN_JAVA_VERSION} or newer, and {java} is {version}; {JAVA_ADVICE}")
