"""What Java says when something fails, in one line."""

from __future__ import annotations

import pytest

from spark_jobs.session import first_line

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
def test_the_first_cause_is_told(said: str, line: str) -> None:
    assert first_line(RuntimeError(said)) == line
