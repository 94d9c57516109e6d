"""The Spark session. On this machine it is tuned for small batches on few cores; on a cluster it keeps its defaults."""

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
from typing import IO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError

_CAUSE = re.compile(r"^(?:Caused by)?: ([\w.$]+(?:: .*)?)$", re.MULTILINE)
"""An exception in a Java stack trace, as Py4J and PySpark print it; the last one is the root cause."""

OUT_OF_MEMORY_MESSAGE = "Spark ran out of memory; give it more with --conf spark.driver.memory=4g"

MIN_JAVA_VERSION = 17
"""Lowest Java version that Spark 4 supports."""

JAVA_ADVICE = f"install Java {MIN_JAVA_VERSION} or newer, and put it on PATH or set JAVA_HOME to it"

COMMON_CONF = {
    "spark.sql.session.timeZone": "UTC",
    # PySpark looks up the line of code of each column: half of the time of building a query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Records are up to 1 MB large, and each Arrow batch of them is in memory as a whole.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    # The driver collects the sums of a batch. With Spark's limit, 1 GB, a batch fails however much memory there is.
    "spark.driver.maxResultSize": "0",
}

LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}

SHORT_RUN_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:NewSize=300m -XX:MetaspaceSize=400m"
)
"""Java options for a JVM that ends soon, where the optimizing compiler costs more than it gains.

With the first compiler level alone Java reserves only 48 MB for compiled code, and a full code cache disables the
compiler, so the default of 240 MB is restored. The young generation and the metaspace are large from the start, which
saves garbage collections.
"""


LAUNCHER_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java options for the JVM that only finds out how Spark's own is started: 0.2 CPU s instead of 0.3."""


def class_archive(jars: Sequence[Path]) -> Path:
    """Return where the archive of Java's classes is, if there is one (``spark_jobs.class_archive``)."""
    return jars[0].with_name("classes.jsa")


def spark_conf(master: str, jars: Sequence[Path], overrides: Mapping[str, str], *, short: bool) -> dict[str, str]:
    """Return Spark's configuration for ``master``; ``overrides`` win. ``short``: the session ends soon by itself."""
    chosen = dict(COMMON_CONF)
    if master.startswith("local"):
        chosen |= LOCAL_CONF | {"spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 4))}
        options = [SHORT_RUN_OPTIONS] if short else []
        if jars and class_archive(jars).exists():
            options.append(f'"-XX:SharedArchiveFile={class_archive(jars)}"')
        chosen["spark.driver.extraJavaOptions"] = " ".join(options)
        # Not as spark.jars: only classes of the class path are in the archive.
        chosen["spark.driver.extraClassPath"] = ":".join(map(str, jars))
    elif jars:
        chosen["spark.jars"] = ",".join(map(str, jars))
    return chosen | {"spark.master": master} | dict(overrides)


@contextmanager
def spark_session(name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a Spark session while the block runs. An existing session of this process is used and not stopped.

    Spark's log goes to a temporary file. It is deleted at the end, unless an error other than JobError is raised: then
    it is kept, and a JobError names it. Raises JobError if there is no Java or Spark does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)
    with _spark_log() as log:
        spark = _start_spark(name, conf, log)
        try:
            if conf["spark.master"].startswith("local"):
                yield spark
            else:
                with _package_as_zip() as package:
                    spark.sparkContext.addPyFile(package)
                    yield spark
        finally:
            # The JVM may have died.
            with suppress(Py4JError, OSError):
                spark.stop()


def _start_spark(name: str, conf: Mapping[str, str], log: IO[bytes]) -> SparkSession:
    chosen = SparkConf().setAppName(name).setAll(list(conf.items()))
    try:
        # A second session of a process runs in the JVM of the first one.
        gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call]  # pyspark has no types for it
            chosen, popen_kwargs={"stdout": log, "stderr": log}
        )
        return SparkSession(SparkContext(conf=chosen, gateway=gateway))
    except PySparkRuntimeError as error:
        raise RuntimeError(f"Spark does not start: {error}") from error


@contextmanager
def _package_as_zip() -> Iterator[str]:
    """Yield a file with this package, for executors on other machines: they run the code that the driver runs."""
    package = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="brokerside-package-") as folder:
        yield shutil.make_archive(f"{folder}/{package.name}", "zip", package.parent, package.name)


@contextmanager
def _spark_log() -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(prefix="brokerside-spark-", suffix=".log", delete=False) as log:
        try:
            yield log
        except JobError:
            _delete_log(log)
            raise
        except Exception as error:
            reason = OUT_OF_MEMORY_MESSAGE if _ran_out_of_memory(Path(log.name)) else summarize_error(error)
            log.write("".join(traceback.format_exception(error)).encode())
            raise JobError(f"{reason} (Spark's log: {log.name})") from error
        _delete_log(log)


def _ran_out_of_memory(log: Path) -> bool:
    """Return whether Java ran out of memory. The error that is raised then often names another failure."""
    with suppress(OSError), log.open("rb") as lines:
        return any(b"java.lang.OutOfMemoryError" in line for line in lines)
    return False


def _delete_log(log: IO[bytes]) -> None:
    Path(log.name).unlink(missing_ok=True)  # /tmp may have been cleaned while a job ran for weeks


def summarize_error(error: BaseException) -> str:
    """Return class and first line of ``error``, or of the root cause if its text is a Java stack trace."""
    text = str(error).strip()
    causes = _CAUSE.findall(text)
    if causes:
        kind, _, text = causes[-1].partition(": ")
        return f"{kind.rpartition('.')[2]}: {text.strip()}" if text.strip() else str(kind.rpartition(".")[2])
    lines = text.splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _check_java() -> None:
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit: the JVM is already running
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise JobError(f"Spark needs Java, which is not on PATH; {JAVA_ADVICE}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"Spark needs Java, and {java} cannot be run ({error}); {JAVA_ADVICE}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < MIN_JAVA_VERSION:
        version = f"Java {found[1]}" if found else "of an unknown version"
        raise JobError(f"Spark needs Java {MIN_JAVA_VERSION} or newer, and {java} is {version}; {JAVA_ADVICE}")
