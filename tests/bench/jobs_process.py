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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import json
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from proxy.local.jars import resolve
from spark_jobs import spark_types
from spark_jobs.definitions.load import load
from spark_jobs.derived_tables import compute_derived_tables
from spark_jobs.progress import Notice
from spark_jobs.run import INTERPRETED_QUERIES_CONF, run
from spark_jobs.schemas import TABLES
from spark_jobs.session import spark_conf, spark_session
from spark_jobs.table_root import TableRoot, create_or_upgrade_table
from tests.bench.measure import cpu_seconds, family

DEFINITIONS = "deploy/examples/definitions"
CLUSTER, SOURCE = "MkU3OEVBNTcwNTJENDM2Qg", "q1Sh-9_ISia_zwGINzRvyQ"
"""Of its brokers the zones are known; to it a mirror copies from the other one."""

KEYS = 700
"""Rows of traffic in each minute of the day: 1,008,000 are one day."""

ROW = {
    "day": "date(at)",
    "minute": "at",
    "hour": "date_trunc('HOUR', at)",
    "cluster_id": f"'{CLUSTER}'",
    "broker_id": "1 + key % 3",
    "boot_id": "concat('boot-', key % 3)",
    "connection_id": "concat('c', id)",
    "listener": "element_at(array('CLIENT', 'PUBLIC'), int(1 + key % 2))",
    "api": "element_at(array('Produce', 'Fetch', 'Metadata'), int(1 + key % 3))",
    "topic": "if(key % 3 = 2, NULL, concat('payments.', key div 3))",
    "principal": "concat('User:payments-', key % 40)",
    "client_id": "concat('service-', key)",
    "client_ip": "concat('10.', 1 + key % 2, '.0.', key % 250)",
}
"""What a row is about, by column: SQL of ``id``, its number; ``key``, one of KEYS; and ``at``, its minute."""

INPUTS: dict[str, tuple[float, dict[str, str]]] = {
    "traffic": (
        1.0,
        {
            "requests": "if(topic IS NULL, 60, 0)",
            "request_bytes": "if(topic IS NULL, 18000, 0)",
            "response_bytes": "if(topic IS NULL, 3600, 0)",
            "topic_requests": "if(topic IS NULL, 0, 60)",
            "records": "if(topic IS NULL, 0, 600)",
            "bytes": "if(topic IS NULL, 0, 120000 + key)",
            "polled": "0",
        },
    ),
    "latency": (
        1.0,
        {"requests": "60", "idle": "0", "latencies": "counts", "service_latencies": "counts"},
    ),
    "connections": (
        0.02,
        {
            "opened_at": "at",
            "closed_at": "at + INTERVAL 3 HOURS",
            "requests": "600",
            "received_bytes": "180000",
            "sent_bytes": "36000",
            "last_seq": "id",
        },
    ),
    "throttles": (
        0.02,
        {
            "scope": "'client'",
            "quota": "'produce'",
            "action": "'delay'",
            "count": "1",
            "quota_limit": "1000",
            "observed": "1200",
            "delay_ms": "50",
            "first_at": "at",
            "last_at": "at",
        },
    ),
    "inventory": (
        0.02,
        {
            "topic": "concat('payments.', key div 3)",
            "partitions": "12",
            "internal": "false",
            "part": "1",
            "parts": "1",
            "first_seen": "at",
            "last_seen": "at",
            "told": "1",
        },
    ),
    "completeness": (
        0.01,
        {
            "envelopes": "10",
            "events": "2000",
            "lost": "0",
            "statuses": "4",
            "last_status": "at + INTERVAL 45 SECONDS",
            "started_at": "date_trunc('DAY', at)",
            "clock_step_ms": "0",
            "waiting": "0",
        },
    ),
    "produced": (
        0.25,
        {
            "at": "at",
            "cluster_id": f"if(id % 2 = 0, '{SOURCE}', '{CLUSTER}')",
            "topic": "concat(if(id % 2 = 0, '', 'eu.'), 'payments.', key div 2)",
            "principal": "if(id % 2 = 0, 'User:payments-1', 'User:mirrormaker')",
            "partition": "key div 2 % 12",
            "producer_id": "key",
            "producer_epoch": "0",
            "base_sequence": "id div 2",
            "base_offset": "id div 2",
            "outcome": "'acknowledged'",
            "records": "10",
            "bytes": "2000",
        },
    ),
}
"""Of each table its rows, as a share of those of traffic, and what else than ROW it says."""


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
        figures = _jobs(spark, bootstrap, arguments[5:], count, rounds, folder) | _tables(spark, f"{folder}/day", rows)
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


def _tables(spark: SparkSession, folder: str, rows: int) -> dict[str, float]:
    """CPU seconds of each table that is computed from others."""
    target, definitions = TableRoot(folder), load([DEFINITIONS])
    for name, (share, said) in INPUTS.items():
        _write(spark, target, name, int(rows * share), said)
    figures = {}
    failures: list[Notice] = []
    for name in ("cost", "topics", "slo", "quota_advice", "mirror_check"):
        failed = False

        def work(name: str = name) -> None:
            nonlocal failed
            failed = bool(compute_derived_tables(spark, target, [name], definitions, failures.append))

        figures[f"{name}_s"] = _spent(work).cpu
        if failed:
            sys.exit(str(failures[-1]))
        _say(f"{failures[-1]}; {figures[f'{name}_s']:.1f} CPU s")
    return figures


def _write(spark: SparkSession, target: TableRoot, name: str, rows: int, said: Mapping[str, str]) -> None:
    """Write ``rows`` rows of the table ``name``, over one day: in each column what ``said`` or ROW has for it."""
    create_or_upgrade_table(spark, target, name, _say)
    sql = ROW | said
    day = spark.range(rows).selectExpr(
        "id",
        f"id % {KEYS} AS key",
        f"timestamp '2026-11-20' + make_dt_interval(0, 0, int(id * 1440 div {rows})) AS at",
        "transform(sequence(0, 38), place -> if(place = 5 + id % 9, 60L, 0L)) AS counts",
    )
    columns = TABLES[name].columns
    made = day.withColumn("topic", F.expr(sql["topic"])).selectExpr(
        *[f"CAST({sql.get(column.name, 'NULL')} AS {column.type}) AS {column.name}" for column in columns]
    )
    made.write.format("delta").mode("append").save(target.table_path(name))


def _decode(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Read the topic and decode each event, and do nothing with it."""
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    envelopes = records.select(
        F.from_json(F.col("value").cast("string"), spark_types.envelope_type()).alias("envelope")
    )
    events = envelopes.select("envelope.cluster_id", F.explode("envelope.events").alias("event"))
    events.write.format("noop").mode("overwrite").save()


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
