"""Measure the candidate formats of an audit record, end to end: ``python -m tests.tools.bench.audit_format``.

Each format carries the same events: encoded by this process, produced with the sink's own settings to a real broker
(zstd), and decoded by Spark from that topic into the event's columns. Prints the table of docs/audit-format.md.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from observers.audit_producer import producer_settings
from proxy.local import cluster, jars
from tests.tools.bench.audit_encodings import ENCODINGS, Encoding
from tests.tools.bench.audit_workload import events

EVENTS = 50_000
COPIES = 4
"""Times the encoded events are produced, so that Spark has enough to read."""
ROUNDS = 2
"""Each time given is the best of so many."""
PARTITIONS = 4
HEAD = (
    "| format | encode µs/event | produce µs/event | raw B/event | zstd B/event in the log "
    "| Spark decode, CPU µs/event | Spark decode, events/s |\n|---|---|---|---|---|---|---|"
)


def main() -> None:
    made = events(EVENTS)
    with tempfile.TemporaryDirectory(prefix="audit-format-") as folder:
        state = cluster.up(Path(folder), advertise="broker")
        try:
            bootstrap = state.internal_bootstrap
            spark = _spark(jars.resolve("spark-4.2.0") + jars.resolve("spark-avro"))
            print(HEAD)
            sums = {}
            for number, encoding in enumerate(ENCODINGS):
                topic = f"format-{number}"
                records, encode_us = _encode(encoding, made)
                produce_us = _produce(bootstrap, topic, records)
                size = _log_bytes(state.nodes[0].data, topic)
                sums[encoding.name], cpu_us, rate = _decode(spark, bootstrap, topic, encoding)
                total = EVENTS * COPIES
                raw = sum(map(len, records)) / EVENTS
                print(
                    f"| {encoding.name} | {encode_us:.2f} | {produce_us:.2f} | {raw:.0f} | {size / total:.1f} "
                    f"| {cpu_us:.1f} | {rate:,.0f} |",
                    flush=True,
                )
            spark.stop()
        finally:
            cluster.down(Path(folder))
    if len(set(sums.values())) != 1:
        sys.exit(f"the formats do not carry the same events: {sums}")


def _encode(encoding: Encoding, made: Sequence[Any]) -> tuple[list[bytes], float]:
    """Return the records, and the CPU µs an event that they cost."""
    held = encoding.prepare(made)
    chunks = [held[n : n + encoding.events_per_record] for n in range(0, len(held), encoding.events_per_record)]
    best = float("inf")
    records: list[bytes] = []
    for _ in range(ROUNDS):
        gc.collect()
        begun = time.process_time()
        records = [encoding.encode(chunk) for chunk in chunks]
        best = min(best, time.process_time() - begun)
    return records, best / len(made) * 1e6


def _produce(bootstrap: str, topic: str, records: Sequence[bytes]) -> float:
    """Return CPU µs an event of this process, librdkafka's threads (compression) included."""
    client: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    producer = Producer(producer_settings(client, {}, "bench"))
    begun = time.process_time()
    for _ in range(COPIES):
        for record in records:
            while True:
                try:
                    producer.produce(topic, record)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
    if producer.flush(60):
        sys.exit("the broker did not take every record")
    return (time.process_time() - begun) / (EVENTS * COPIES) * 1e6


def _log_bytes(data: Path, topic: str) -> int:
    return sum(f.stat().st_size for f in data.rglob("*.log") if f.parent.name.rpartition("-")[0] == topic)


def _decode(
    spark: SparkSession, bootstrap: str, topic: str, encoding: Encoding
) -> tuple[tuple[int, ...], float, float]:
    """Return sums over what was decoded, and the best CPU µs an event and events a second of ``ROUNDS``."""
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    decoded = encoding.decode(source)
    sums = _sums(decoded)
    seconds = cpu = float("inf")
    for _ in range(ROUNDS):
        begun, cpu_begun = time.perf_counter(), _children_cpu()
        decoded.write.format("noop").mode("overwrite").save()
        seconds = min(seconds, time.perf_counter() - begun)
        cpu = min(cpu, _children_cpu() - cpu_begun)
    total = EVENTS * COPIES
    return sums, cpu / total * 1e6, total / seconds


def _sums(decoded: DataFrame) -> tuple[int, ...]:
    sizes = F.transform("topics", lambda part: F.coalesce(part["bytes"], F.lit(0)))
    parts = F.aggregate(sizes, F.lit(0).cast("bigint"), lambda total, size: total + size)
    row = decoded.select(F.count("*"), F.sum("seq"), F.sum("latency_us"), F.sum(parts)).first()
    assert row is not None
    return tuple(row)


def _children_cpu() -> float:
    """CPU seconds of all processes below this one: Spark's JVM and its Python workers."""
    used, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    below = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    ticks = sum(used[pid] for pid in below - {os.getpid()})
    return ticks / os.sysconf("SC_CLK_TCK")


def _spark(jar_files: Sequence[Path]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jar_files)))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    main()
