"""What Java says when something fails, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.errors import JobError
from spark_jobs.session import (
    OUT_OF_MEMORY_MESSAGE,
    _package_as_zip,
    _spark_log,
    spark_conf,
    summarize_error,
)

CREATED = """An error occurred while calling o112.execute.
: org.apache.spark.sql.delta.DeltaIOException: [DELTA_CANNOT_CREATE_LOG_PATH] Cannot create /x/_delta_log
\tat org.apache.spark.sql.delta.DeltaLog.create(DeltaLog.scala:1)
\tSuppressed: java.io.IOException: closing failed
\tCaused by: java.lang.IllegalStateException: closed
Caused by: java.io.UncheckedIOException: java.nio.file.AccessDeniedException: /x
\tat java.base/java.io.File.create(File.java:1)
Caused by: java.nio.file.AccessDeniedException: /x/_delta_log
\t... 50 more
"""

IN_A_BATCH = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy.
py4j.protocol.Py4JJavaError: An error occurred while calling o9.save.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(FileOutputStream.java:1)
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (CREATED, "AccessDeniedException: /x/_delta_log"),
        (IN_A_BATCH, "IOException: No space left on device"),
        ("x\n: java.lang.NullPointerException\n\tat y", "NullPointerException"),
        ("one\ntwo", "RuntimeError: one"),
        ("", "RuntimeError"),
    ],
)
def test_the_first_cause_is_reported(said: str, line: str) -> None:
    assert summarize_error(RuntimeError(said)) == line


def test_too_little_memory_is_reported_whatever_failed_for_it() -> None:
    def fail() -> None:
        with _spark_log() as log:
            log.write(b"WARN x\njava.lang.OutOfMemoryError: Java heap space\n")
            log.flush()
            raise RuntimeError("something is null")

    with pytest.raises(JobError, match=OUT_OF_MEMORY_MESSAGE) as raised:
        fail()
    Path(str(raised.value).rpartition(": ")[2].rstrip(")")).unlink()


@pytest.mark.parametrize("master", ["local[*]", "spark://spark:7077"])
def test_more_memory_is_enough_for_a_batch_of_any_size(master: str) -> None:
    """As the report of too little memory promises: Spark's own limit of what is collected is off."""
    assert spark_conf(master, [], {}, short=True)["spark.driver.maxResultSize"] == "0"


def test_what_executors_are_sent_is_all_that_they_need() -> None:
    """Of the packages that a driver has they need no others than msgspec, PyArrow, PySpark."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import spark_jobs.decode as one;"
        "print(one.__file__, *[name for name in ('pydantic', 'deltalake', 'duckdb') if name in sys.modules])"
    )
    with _package_as_zip() as path:
        package = Path(path)
        done = subprocess.run(
            [sys.executable, "-c", code, path], cwd=package.parent, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [f"{package}/spark_jobs/decode.py"]
    assert not package.exists()


def test_the_archive_of_classes_is_used_where_there_is_one(tmp_path: Path) -> None:
    jars = [tmp_path / "kafka.jar", tmp_path / "pool.jar"]

    def options() -> str:
        return spark_conf("local[*]", jars, {}, short=False)["spark.driver.extraJavaOptions"]

    assert options() == ""
    (tmp_path / "classes.jsa").touch()
    assert options() == f'"-XX:SharedArchiveFile={tmp_path}/classes.jsa"'
