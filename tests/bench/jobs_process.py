"""What is measured of the jobs: ``python -m tests.bench.jobs_process BOOTSTRAP FOLDER EVENTS ROUNDS ROWS TOPIC…``.

In one Spark session, as a continuous job has it, each topic is read and decoded, and nothing else; then the job makes
all tables of it. The tables that are computed from others are computed from such as a day of ROWS rows of traffic has.
Figures go to stdout as one JSON object. They are of CPU, but for events/s.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import json
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from proxy.local.jars import resolve
from spark_jobs.decode import DecodeOptions, decode_records
from spark_jobs.partial_rows import PARTIAL_SCHEMA
from spark_jobs.run import INTERPRETED_QUERIES_CONF, run
from spark_jobs.schemas import STREAMED
from spark_jobs.session import spark_conf, spark_session
from tests.bench import derived_tables
from tests.bench.measure import cpu_seconds, family


class Spent(NamedTuple):
    """Seconds of one piece of work."""

    cpu: float
    wall: float


def main(arguments: list[str]) -> None:
    """Measure, and print the figures."""
    bootstrap, folder, *numbers = arguments[:5]
    count, rounds, rows = map(int, numbers)
    once = rounds == 1  # to see that it works; its figures say nothing
    conf = spark_conf("local[*]", resolve("spark-4.2.0"), INTERPRETED_QUERIES_CONF if once else {}, short=once)
    with spark_session("bench", conf) as spark:
        figures = _jobs(spark, bootstrap, arguments[5:], count, rounds, folder)
    figures |= derived_tables.figures(f"{folder}/day", rows)
    print(json.encode(figures).decode())


def _jobs(
    spark: SparkSession, bootstrap: str, topics: Sequence[str], count: int, rounds: int, folder: str
) -> dict[str, float]:
    """Figures of each topic; their names end with its name."""
    spent: dict[tuple[str, str], list[Spent]] = {}
    for number in range(rounds):
        for topic in topics:
            work = {
                "decode": partial(_decode, spark, bootstrap, topic),
                "job": partial(_job, bootstrap, topic, f"{folder}/{topic}-{number}"),
            }
            for name, each in work.items():
                spent.setdefault((name, topic), []).append(_spent(each))
                _say(f"{name} {topic}, round {number + 1}/{rounds}: {spent[name, topic][-1].cpu:.1f} CPU s")
    figures = {}
    for topic in topics:
        # The first round is the one in which Java compiles.
        jobs, decoded = (spent[name, topic][min(1, rounds - 1) :] for name in ("job", "decode"))
        job, decode = (statistics.median(one.cpu for one in each) for each in (jobs, decoded))
        figures |= {
            f"per_s_{topic}": count / statistics.median(one.wall for one in jobs),
            f"cpu_us_{topic}": job / count * 1e6,
            f"decode_cpu_us_{topic}": decode / count * 1e6,
            f"times_decoding_{topic}": job / decode,
        }
    return figures


def _decode(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Read the topic and decode its events into partial rows, and do nothing with these."""
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    options = DecodeOptions(tuple(STREAMED))
    decoded = records.select(*options.columns).mapInArrow(
        partial(decode_records, options=options), from_arrow_schema(PARTIAL_SCHEMA)
    )
    decoded.write.format("noop").mode("overwrite").save()


def _job(bootstrap: str, topic: str, tables: str) -> None:
    run(bootstrap_servers=bootstrap, topic=topic, tables=tables, jars=[], available_now=True)


def _spent(work: Callable[[], None]) -> Spent:
    processes = family(os.getpid())
    begun, cpu = time.monotonic(), cpu_seconds(processes)
    work()
    return Spent(cpu_seconds(processes) - cpu, time.monotonic() - begun)


def _say(what: object) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
