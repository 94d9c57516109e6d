"""The throughput of the whole job: ``python -m tests.bench.jobs [--quick]``.

Starts a broker and writes two topics of the same number of events, the second of ten times as many clients. In one
Spark session, as a continuous job has it, each is read and decoded, and nothing else; then the job makes all tables of
it. What is told is the CPU of Spark's processes, which others on the machine disturb little, and the time it took.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from observers.event import EVENTS_PER_RECORD, Envelope, RequestEvent, TopicPartition, encoder
from proxy.local import cluster
from proxy.local.jars import resolve
from spark_jobs import structs
from spark_jobs.run import run
from spark_jobs.schemas import TRAFFIC
from spark_jobs.session import session, settings
from tests.bench.audit_workload import APIS, SOFTWARE
from tests.bench.measure import cpu_seconds, family

CLIENTS = {"500 keys": 56, "5,000 keys": 560}
"""A client has about nine rows in each minute of ``traffic``: five of its requests, four of its topics."""

EVENTS, QUICK_EVENTS = 1_000_000, 100_000
ROUNDS = 3
EVERY_US = 200
"""Time between two events: a broker of 5,000 requests/s."""

PARTITIONS = 4


class Spent(NamedTuple):
    """Of one run: CPU and time in µs an event."""

    cpu: float
    wall: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.jobs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, each case once")
    quick = parser.parse_args(arguments).quick
    count, rounds = (QUICK_EVENTS, 1) if quick else (EVENTS, ROUNDS)
    jars = resolve("spark-4.2.0")
    with tempfile.TemporaryDirectory(prefix="bench-jobs-") as name:
        folder = Path(name)
        bootstrap = cluster.up(folder / "cluster", advertise="broker", progress=False).internal_bootstrap
        try:
            topics = {title: f"keys-{clients}" for title, clients in CLIENTS.items()}
            for title, clients in CLIENTS.items():
                _fill(bootstrap, topics[title], count, clients)
            with session("bench", settings("local[*]", jars, {}, short=False)) as spark:
                _measure(spark, bootstrap, topics, count, rounds, folder)
        finally:
            cluster.down(folder / "cluster")


def _measure(
    spark: SparkSession, bootstrap: str, topics: dict[str, str], count: int, rounds: int, folder: Path
) -> None:
    alone, whole = ({title: list[Spent]() for title in topics} for _ in range(2))
    for number in range(rounds + 1):
        for title, topic in topics.items():
            alone[title].append(_spent(count, partial(_decode, spark, bootstrap, topic)))
            whole[title].append(_spent(count, partial(_job, bootstrap, topic, f"{folder}/{topic}-{number}")))
            said = (
                f"{title}: decoding {alone[title][-1].cpu:.1f}, the whole job {whole[title][-1].cpu:.1f} CPU µs/event"
            )
            print(f"round {number}/{rounds}  {said}{'' if number else '  (warming up)'}", file=sys.stderr, flush=True)
    print(f"{count:,} events, {EVENTS_PER_RECORD} in a record; medians of {rounds}, on {os.cpu_count()} CPUs\n")
    print("| topic | | CPU µs/event | time µs/event | events/s | × decoding alone | keys | rows of traffic |")
    print("|---|---|---|---|---|---|---|---|")
    for title, topic in topics.items():
        base, all_of_it = _median(alone[title][1:]), _median(whole[title][1:])
        rows = spark.read.format("delta").load(f"{folder}/{topic}-{rounds}/{TRAFFIC.name}")
        about = [name for name in TRAFFIC.keys if name not in ("day", "minute")]
        sizes = f"{rows.select(*about).distinct().count():,} | {rows.select(*TRAFFIC.keys).distinct().count():,}"
        for what, spent, said in (("reading and decoding", base, " | "), ("the whole job", all_of_it, sizes)):
            print(
                f"| {title} | {what} | {spent.cpu:.1f} | {spent.wall:.1f} | {1e6 / spent.wall:,.0f}"
                f" | {spent.cpu / base.cpu:.2f} | {said} |"
            )


def _decode(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Read the topic and decode each event, and do nothing with it."""
    records = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    envelopes = records.select(F.from_json(F.col("value").cast("string"), structs.envelope()).alias("envelope"))
    events = envelopes.select("envelope.cluster_id", F.explode("envelope.events").alias("event"))
    events.write.format("noop").mode("overwrite").save()


def _job(bootstrap: str, topic: str, tables: str) -> None:
    run(bootstrap_servers=bootstrap, topic=topic, tables=tables, jars=[], available_now=True)


def _spent(count: int, work: Callable[[], None]) -> Spent:
    processes = family(os.getpid())
    begun, cpu = time.monotonic(), cpu_seconds(processes)
    work()
    return Spent((cpu_seconds(processes) - cpu) / count * 1e6, (time.monotonic() - begun) / count * 1e6)


def _median(all_of_them: Sequence[Spent]) -> Spent:
    return Spent(*(statistics.median(each) for each in zip(*all_of_them, strict=True)))


def _fill(bootstrap: str, topic: str, count: int, clients: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})
    events = _events(count, clients)
    for first in range(1, count + 1, EVENTS_PER_RECORD):
        some = list(islice(events, EVENTS_PER_RECORD))
        last, sent_at = first + len(some) - 1, some[-1].ts_request
        envelope = Envelope(1, "ThK9ZFduS0ONy_eg3SRv7w", 1, "5f0c4c0d9a4b4e0f", "0.1.0", first, last, 0, sent_at, some)
        producer.produce(topic, encoder.encode(envelope), partition=first // EVENTS_PER_RECORD % PARTITIONS)
        producer.poll(0)
    if producer.flush(60):
        sys.exit(f"{topic}: the broker does not take the events")


def _events(count: int, clients: int) -> Iterator[RequestEvent]:
    """Requests of ``clients`` of two topics each; a third of the fetches waits for data in vain."""
    chance = random.Random(1)
    weights = [weight for *_, weight in APIS]
    for seq, (key, api, version, _) in enumerate(chance.choices(APIS, weights, k=count), 1):
        client = chance.randrange(clients)
        waits = key == 1 and chance.random() < 0.33
        parts = 0 if key > 1 or waits else chance.choice((1, 1, 2, 3))
        latency = 500_000 if waits else int(chance.lognormvariate(7, 1))
        software, software_version = SOFTWARE[client % len(SOFTWARE)]
        yield RequestEvent(
            seq=seq,
            listener="CLIENT",
            connection_id=f"c{client}",
            correlation_id=seq % 1_000_000,
            api_key=key,
            api=api,
            api_version=version,
            principal=f"User:team-{client % 40}",
            client_ip=f"10.0.{client // 250}.{client % 250}",
            ts_request=1_795_260_000_000_000 + seq * EVERY_US,
            latency_us=latency,
            upstream_us=max(latency - 40, 1),
            request_bytes=300,
            response_bytes=60,
            decode="full" if key < 2 else "none",
            client_id=f"service-{client}",
            client_software_name=software,
            client_software_version=software_version,
            max_wait_ms=500 if key == 1 else 0,
            acks=-1 if key == 0 else None,
            topics=tuple(_part(chance, key, 2 * client + chance.randrange(2)) for _ in range(parts)),
        )


def _part(chance: random.Random, key: int, number: int) -> TopicPartition:
    records, produced = chance.randrange(1, 60), key == 0
    return TopicPartition(
        topic=f"team-{number % 5}.orders-{number}",
        partition=chance.randrange(12),
        topic_id=f"{number:_>20}AA",
        bytes=200 * records,
        records=records,
        producer_id=1_000 + number if produced else -1,
        producer_epoch=0 if produced else -1,
        base_sequence=chance.randrange(1_000_000) if produced else -1,
        base_offset=chance.randrange(10_000_000),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
