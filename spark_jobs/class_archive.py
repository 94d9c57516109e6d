"""Makes the archive of the Java classes that jobs load: Java then neither reads nor checks them each time it starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from spark_jobs import io, kafka
from spark_jobs.batch import partial_rows
from spark_jobs.decode import DecodeOptions
from spark_jobs.errors import JobError
from spark_jobs.kafka import AuditTopicSource
from spark_jobs.session import SHORT_RUN_OPTIONS, class_archive, spark_conf, spark_session

_NO_KAFKA = AuditTopicSource("127.0.0.1:1", "none", {"default.api.timeout.ms": "500", "request.timeout.ms": "500"})


def make_class_archive(jars: Sequence[Path]) -> Path:
    """Run a small job, and write the archive of its classes beside ``jars``. Return its path.

    It needs no Kafka; Java needs 1.3 GB of memory. Java ignores an archive that was made by another version of it, or
    with other jars: jobs then run as without it. Raises JobError, also if Java would ignore this one.
    """
    archive = class_archive(jars)
    made = archive.with_name(f"{archive.name}.{os.getpid()}")  # running jobs keep the archive that they have opened
    options = f"{SHORT_RUN_OPTIONS} -XX:ArchiveClassesAtExit={made}"
    conf = spark_conf("local[*]", jars, {"spark.driver.extraJavaOptions": options}, short=True)
    with spark_session("brokerside archive", conf) as spark:
        columns = ["CAST('' AS BINARY) AS value", "'' AS topic", "0 AS partition", "value AS offset", "timestamp"]
        made_up = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        _run_query(made_up.selectExpr(*columns))
        with suppress(StreamingQueryException):  # there is no Kafka, but these are the classes that ask for it
            _run_query(kafka.read_stream(spark, _NO_KAFKA, wait=False))
        java = SparkContext._gateway.proc  # type: ignore[union-attr]  # there is one now
    java.stdin.close()  # this ends it
    if java.wait() or not made.exists():
        made.unlink(missing_ok=True)
        raise JobError(f"Java has written no archive; can files be written in {archive.parent}?")
    with ProcessPoolExecutor(1, get_context("spawn")) as another:  # PySpark starts one JVM in a process
        try:
            another.submit(check_archive, made, jars).result()
        except JobError:
            made.unlink()
            raise
    return made.replace(archive)


def check_archive(archive: Path, jars: Sequence[Path]) -> None:
    """Start Spark with it. Raises JobError if Java does not use ``archive``, whose log says why."""
    options = f'{SHORT_RUN_OPTIONS} -Xshare:on "-XX:SharedArchiveFile={archive}"'
    conf = spark_conf("local[1]", jars, {"spark.driver.extraJavaOptions": options}, short=True)
    try:
        with spark_session("brokerside archive", conf):
            pass
    except JobError as error:
        raise JobError(
            f"Java does not use the archive that it has written, {archive}; Java 21 uses none if a jar is on the class "
            f"path twice, see docs/jobs.md: {error}"
        ) from None


def _run_query(stream: DataFrame) -> None:
    """Run a query as a job does, with the records of ``stream``."""
    with tempfile.TemporaryDirectory(prefix="brokerside-") as folder:

        def write(records: DataFrame, number: int) -> None:
            io.Folder(records.sparkSession, folder).write(str(number), "")
            partial_rows(records, DecodeOptions([])).toArrow()

        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
