"""``audit.mode: rollup`` gives the tables that ``audit.mode: event`` gives: from exchanges to rows, all real code."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ItemErrorFacts, ItemErrors
from proxy.local import cluster, workload
from proxy.local.broker import sidecar_config
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import Node
from spark_jobs.batch import WholeTopic
from spark_jobs.decode import DecodeOptions
from spark_jobs.schemas import CLIENTS, TRAFFIC
from tests.spark.decoded import kafka_records, partial_rows, summaries
from tests.spark.envelopes import Event, encoded
from tests.unit.observers.samples import connection, exchange, fetch, produce

pytestmark = pytest.mark.spark

API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata", 78: "ShareFetch"}
WALL = 1_790_078_400.0
TOPICS = [b"orders", b"clicks", b"payments", b"hidden"]

DENIED, MOVED = (ItemErrorFacts(code, "topic", b"orders", None, 0, 0, None, None) for code in (29, 6))
ITEM_ERRORS = [ItemErrors((DENIED, MOVED), 1, 1, 0), ItemErrors((MOVED,), 0, 1, 7), ItemErrors((), 0, 0, 1)]

Decoded = Callable[..., DataFrame]


def exchanges(count: int) -> list[Exchange]:
    """Exchanges of a few clients over three minutes, with every outcome and with errors of all of it and of parts.

    Some answers throttle the client, which sends its next requests all the same, and long before they are answered.
    """
    chance = random.Random(20260922)
    clients = [
        connection(
            id=f"c{n}",
            client_ip=f"10.0.0.{n % 2}",
            principal=f"User:{n % 3}",
            principal_source=source,
            client_software_name=software,
            client_software_version=f"{n}.0",
        )
        for n, (source, software) in enumerate(
            [("sasl", "kgo"), ("anonymous", None), ("sasl", "librdkafka"), ("unknown", "kgo")]
        )
    ]
    made = []
    for n in range(count):
        came = n * 179 / count
        answered = came + chance.random() ** 8 * 9
        about = {
            "connection": chance.choice(clients),
            "client_id": chance.choice(["app", "import", None]),
            "request_bytes": chance.randrange(50, 10**6),
            "response_bytes": chance.randrange(0, 10**6),
            "received_at": came,
            "forwarded_at": came,
            "responded_at": answered,
            "answered_at": answered + chance.random() / 1000,
            "api_version": chance.choice([0, 3, 12]),
            "outcome": chance.choice(["answered"] * 6 + ["no_response", "connection_lost"]),
        }
        parts = [
            (chance.choice(TOPICS), partition, chance.randrange(5_000), chance.randrange(100))
            for partition in range(chance.randrange(5))
        ]
        errors = [chance.choice([0, 0, 0, 6, 79, -1]) for _ in parts]
        if n % 4 == 0:
            one = produce(parts, error_code=errors[0] if errors else 0, **about)
        elif n % 4 == 1:
            one = produce(parts, response=None, **about)  # an answer that could not be read, or none
        elif n % 4 == 2:
            got = [(*part, error) for part, error in zip(parts, errors, strict=True)]
            wanted = [(topic, partition) for topic, partition, _, _ in parts]
            one = fetch(wanted, got, api_key=chance.choice([1, 78]), max_wait_ms=chance.choice([0, 5, 500]), **about)
        else:
            one = exchange(**about, item_errors=chance.choice([None, *ITEM_ERRORS]))
        one.error_code, one.throttle_ms = chance.choice([0, 0, 0, 29, 6, 27]), chance.choice([0, 0, 2_500, -1])
        made.append(one)
    return made


def surroundings() -> tuple[TopicNames, AuditFilter]:
    names = TopicNames(dict, clock=lambda: 0.0, sleep=lambda seconds: None)
    return names, AuditFilter(names, topics={"hidden"}, principals=())


def as_requests(
    reported: Sequence[Exchange], cluster: str, names: TopicNames, audit_filter: AuditFilter
) -> list[bytes]:
    """What a sidecar in ``audit.mode: event`` writes."""
    chunks = RequestEventEncoder(API_NAMES, names, audit_filter).encode_exchanges(reported, 1, WALL).chunks
    requests = msgspec.json.decode(b"[%b]" % b",".join(chunk.json for chunk in chunks), type=list[RequestEvent])
    return records(requests, cluster, 1)


def as_rollups(reported: Sequence[Exchange], cluster: str, names: TopicNames, audit_filter: AuditFilter) -> list[bytes]:
    """What one in ``audit.mode: rollup`` does that can gather little, so that many have the same key."""
    rollup, rolled_up, at = RollupAggregator(API_NAMES, names, audit_filter, max_rollups=20), [], 0
    while at < len(reported):
        at = rollup.add_exchanges(reported, at, WALL).until
        rolled_up += rollup.drain() if rollup.full or at == len(reported) else []
    return records(rolled_up, cluster, 2)


def records(reported: Sequence[Event], cluster: str, level: int) -> list[bytes]:
    size = 20
    return [
        encoded(*reported[at : at + size], first_seq=1 + at, cluster_id=cluster, boot_id=str(level), schema_level=level)
        for at in range(0, len(reported), size)
    ]


def test_both_modes_and_a_change_between_them_give_the_same_tables(decoded: Decoded) -> None:
    reported = exchanges(600)
    half = len(reported) // 2
    known = surroundings()  # as if the change were without a restart: what is known of connections stays
    values = [  # of three clusters, so that they are gone through at once
        *as_requests(reported, "event", *surroundings()),
        *as_rollups(reported, "rollup", *surroundings()),
        *as_requests(reported[:half], "both", *known),
        *as_rollups(reported[half:], "both", *known),
    ]
    partial = partial_rows(kafka_records(values))
    assert not any(record.dead for record in summaries(partial))
    for table in ("traffic", "latency", "clients"):
        rows: dict[str, list[str]] = {}
        for row in decoded(table, values).collect():
            rows.setdefault(row.cluster_id, []).append(str({**row.asDict(), "cluster_id": None}))
        of_event, of_rollup, of_both = (sorted(rows[cluster]) for cluster in ("event", "rollup", "both"))
        assert len(of_event) > 100
        assert of_rollup == of_event
        assert of_both == of_event
    waited = decoded("latency", values).where("api = 'Produce' AND latencies != service_latencies")
    assert waited.count() > 10, "some requests waited for a throttle alone"


@pytest.mark.kafka
def test_two_sidecars_on_one_way_give_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Real clients dial a sidecar that rolls up; its broker is a sidecar that does not, before the real broker."""
    state = cluster.up(tmp_path / "cluster", progress=False)
    try:
        node = state.nodes[0]
        between, admin = (f"{HOST}:{port}" for port in free_ports(2))
        with (
            sidecar(node, "event", tmp_path, bind=between, upstream=node.upstream, admin=admin),
            sidecar(node, "rollup", tmp_path, bind=node.advertised, upstream=between, admin=node.admin),
        ):
            work(state.bootstrap)
        event, rollup = (stored(spark, state.internal_bootstrap, f"audit-{mode}") for mode in ("event", "rollup"))
    finally:
        cluster.down(tmp_path / "cluster")
    assert len(event.rows) > 20
    assert rollup.rows == event.rows
    assert (event.rolled_up, rollup.alone) == (set(), {"CreateTopics"})


@contextmanager
def sidecar(node: Node, mode: str, folder: Path, *, bind: str, upstream: str, admin: str) -> Iterator[None]:
    """Run a sidecar before ``upstream``; at the end all its events are in the topic ``audit-<mode>``."""
    config = sidecar_config(node)
    config["listeners"][0] |= {"bind": bind, "upstream": upstream, "advertised": node.advertised}
    config["audit"] = {"topic": f"audit-{mode}", "mode": mode}
    config["admin"] = {"bind": admin}
    config["features"] = {"enabled": False}  # two sidecars of one broker are no fleet
    path = folder / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(config))
    running = SidecarProcess.start(path, folder / f"{mode}.log", admin)
    try:
        yield
    finally:
        assert running.stop()


def work(bootstrap: str) -> None:
    """Producers of every acks and with a refused record, and a reader that has no request under way when it ends."""
    workload.create_topics(bootstrap, {"one": {"max.message.bytes": "2000"}, "two": {}}, 3)
    workload.confluent_produce(bootstrap, "zstd", "two", 5_000, {"compression.type": "zstd"})
    workload.confluent_produce(bootstrap, "unconfirmed", "one", 500, {"acks": 0, "batch.size": 1_500})
    workload.confluent_produce(bootstrap, "refused", "one", 0, {}, oversized=1)
    workload.aiokafka_produce(bootstrap, "batches", "two", 2_000, 3)
    consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": "reader", "group.id": "none"})
    partitions = [TopicPartition(topic, number, 0) for topic in ("one", "two") for number in range(3)]
    consumer.assign(partitions)
    read, deadline = 0, time.monotonic() + 180
    while read < 7_500:
        assert time.monotonic() < deadline, f"{read} records read"
        read += len(consumer.consume(500, 0.2))
    consumer.pause(partitions)
    settled = time.monotonic() + 5  # longer than the broker lets a fetch wait
    while time.monotonic() < settled:
        consumer.poll(0.1)
    consumer.close()


class Stored(NamedTuple):
    """Rows of the tables, and the apis of requests that are events of their own, and that are in rollups."""

    rows: list[str]
    alone: set[str]
    rolled_up: set[str]


def stored(spark: SparkSession, bootstrap: str, topic: str) -> Stored:
    """Rows of the tables of what a sidecar sent to ``topic``, but for one sidecar asking the other who it is.

    Minutes are added up: a request may reach two sidecars in two of them.
    """
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    records = spark.read.format("kafka").options(**source).load()
    batch = WholeTopic(records, DecodeOptions(("traffic", "clients")))
    assert batch.counts.dead_letters == 0
    apis: dict[str, set[str]] = {"request": set(), "rollup": set()}
    for (value,) in records.select("value").collect():
        for event in json.loads(value)["events"]:
            apis.get(event["kind"], set()).add(event.get("api"))
    rows: list[str] = []
    for table in (TRAFFIC, CLIENTS):
        keys = [name for name in table.keys if name not in ("day", "minute")]
        sums = [column.name for column in table.columns if column.merge == "sum"]
        of_others = batch.table(table.name).where("client_id NOT LIKE 'brokerside-%'")
        rows += sorted(map(str, of_others.groupBy(*keys).sum(*sums).collect()))
    batch.release()
    return Stored(rows, apis["request"], apis["rollup"])
