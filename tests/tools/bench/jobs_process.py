"""A job, as the bench has it work: ``python -P jobs_process.py BOOTSTRAP short|continuous [CLOCKS]``.

Each line of stdin is a JSON array: a piece of work and its arguments, done in one Spark session. A JSON line on stdout
is its result, and the first line says that there is a session. CLOCKS: a folder for the clocks of
``tests.tools.bench.jobs_clocks``.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from proxy.local.jars import resolve
from spark_jobs.decode import DecodeOptions, decode_records
from spark_jobs.io import map_in_arrow
from spark_jobs.partial_rows import PARTIAL_SCHEMA
from spark_jobs.run import run
from spark_jobs.schemas import STREAMED
from spark_jobs.session import spark_conf, spark_session


def main(bootstrap: str, kind: str, clocks: str = "") -> None:
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # for whatever prints
    conf = spark_conf("local[*]", resolve("spark-4.2.0"), {}, short=kind == "short")
    with spark_session("bench", conf) as spark:
        if clocks:
            from tests.tools.bench import jobs_clocks

            jobs_clocks.install(clocks)
        print("{}", file=results)
        for line in sys.stdin:
            work, *arguments = json.loads(line)
            print(json.dumps(WORK[work](spark, bootstrap, *arguments)), file=results)


def _read(spark: SparkSession, bootstrap: str, topic: str) -> dict[str, int]:
    _discard(_records(spark, bootstrap, topic))
    return {}


def _decode(spark: SparkSession, bootstrap: str, topic: str) -> dict[str, int]:
    """Read the topic, make partial rows of its events, and do nothing with these."""
    decoded = partial(decode_records, options=DecodeOptions(tuple(STREAMED)))
    _discard(map_in_arrow(_records(spark, bootstrap, topic), decoded, from_arrow_schema(PARTIAL_SCHEMA)))
    return {}


def _job(_: SparkSession, bootstrap: str, topic: str, tables: str, mode: str = "") -> dict[str, int]:
    """Make all tables of the topic. With ``mode`` "continuous", until SIGTERM."""
    now = mode != "continuous"
    done = run(bootstrap_servers=bootstrap, topic=topic, tables=tables, jars=[], available_now=now)
    return {"events": done.events, "batches": done.batches}


def _records(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    chosen = records.select("value", "topic", "partition", "offset", "timestamp")
    return chosen.coalesce(spark.sparkContext.defaultParallelism)  # as the job


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


WORK: dict[str, Any] = {"read": _read, "decode": _decode, "job": _job}

if __name__ == "__main__":
    main(*sys.argv[1:])
