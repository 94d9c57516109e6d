"""While clients work, the level of the audit changes again and again. The tables stay those of all events."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from observers.event import SCHEMA_FEATURE, decoder
from observers.event_observer import AuditStats
from proxy.config import load
from proxy.local import cluster, workload
from proxy.local.broker import sidecar_config
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import Node
from proxy.net.data_plane import AUDIT_OBSERVER, DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from spark_jobs.batch import WholeTopic
from spark_jobs.decode import DecodeOptions
from spark_jobs.schemas import CLIENTS, TRAFFIC
from tests.tools.topic import messages
from tests.unit.observers.audit_levels import check_records, levels_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

LEVELS = [1, 2, 1, 2, 1, 2, 1]
"""Levels in use, one after the other."""

REQUESTS = 100
"""Requests at each level, at least."""


class OwnSidecar:
    """A sidecar in this process, on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run_loop)

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config, ticker = load(self._path), Ticker()
        self._data_plane = DataPlane(config, ticker)
        listeners = ListenerManager(config, self._data_plane, ticker)
        listeners.start()
        ticker.start()
        self._ready.set()
        await self._stop.wait()
        listeners.close()
        await self._data_plane.stop(asyncio.Event())

    def __enter__(self) -> OwnSidecar:
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def use(self, level: int) -> None:
        dispatcher: Any = self._data_plane._dispatcher
        self._loop.call_soon_threadsafe(dispatcher.set_finalized_levels, {SCHEMA_FEATURE: level})

    def audit(self) -> AuditStats:
        dispatcher: Any = self._data_plane._dispatcher
        stats: AuditStats = dispatcher.observers[AUDIT_OBSERVER].stats()
        return stats


@contextmanager
def working(bootstrap: str) -> Iterator[None]:
    """A producer of small requests and a consumer work until the end, when they have no request under way.

    Before them, producers of every acks and with a refused record.
    """
    workload.create_topics(bootstrap, {"one": {"max.message.bytes": "2000"}, "two": {}}, 3)
    workload.confluent_produce(bootstrap, "zstd", "two", 5_000, {"compression.type": "zstd"})
    workload.confluent_produce(bootstrap, "unconfirmed", "one", 500, {"acks": 0, "batch.size": 1_500})
    workload.confluent_produce(bootstrap, "refused", "one", 0, {}, oversized=1)
    workload.aiokafka_produce(bootstrap, "batches", "two", 2_000, 3)
    stopping = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer", "linger.ms": 0})
        while not stopping.is_set():
            for topic in ("one", "two"):
                producer.produce(topic, b"x" * 100)
            producer.flush()

    def consume() -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "client.id": "reader", "group.id": "none"})
        partitions = [TopicPartition("one", number, 0) for number in range(3)]
        consumer.assign(partitions)
        while not stopping.is_set():
            consumer.consume(500, 0.2)
        consumer.pause(partitions)
        settled = time.monotonic() + 5  # longer than the broker lets a fetch wait
        while time.monotonic() < settled:
            consumer.poll(0.1)
        consumer.close()

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


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


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)


@pytest.mark.promise(
    "features.md", "While the level of the audit changes under load, the tables stay those of all events."
)
def test_changes_under_load_give_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """F11. Clients dial a sidecar that changes its level; its broker is a sidecar that writes all events."""
    state = cluster.up(tmp_path / "cluster", progress=False)
    try:
        node = state.nodes[0]
        between, admin = (f"{HOST}:{port}" for port in free_ports(2))
        path = tmp_path / "changing.yaml"
        path.write_text(yaml.safe_dump(changing(node, between)))
        with sidecar(node, "event", tmp_path, bind=between, upstream=node.upstream, admin=admin):
            with OwnSidecar(path) as changes:
                changes.use(LEVELS[0])
                until(lambda: changes.audit().levels == {LEVELS[0]: 1})
                with working(state.bootstrap):
                    for level in LEVELS:
                        changes.use(level)
                        until(lambda level=level: changes.audit().levels == {level: 1})  # type: ignore[misc]
                        before = changes.audit().taken
                        until(lambda before=before: changes.audit().taken >= before + REQUESTS)  # type: ignore[misc]
            stats = changes.audit()
        read = sorted(
            (
                decoder.decode(message.value() or b"")
                for message in messages(state.internal_bootstrap, "audit-changing")
            ),
            key=lambda envelope: envelope.first_seq,
        )
        event, changed = (stored(spark, state.internal_bootstrap, f"audit-{one}") for one in ("event", "changing"))
    finally:
        cluster.down(tmp_path / "cluster")
    assert levels_of(read) == LEVELS
    found = check_records(read)
    assert found["missing"] == 0
    assert (stats.dropped, stats.emitted, set(stats.undelivered.values())) == ({}, stats.delivered, {0})
    assert min(found["alone"], found["in rollups"]) >= REQUESTS
    assert {"Produce", "Fetch"} <= changed.alone & changed.rolled_up
    assert not event.rolled_up
    assert len(event.rows) > 20
    assert changed.rows == event.rows


def changing(node: Node, upstream: str) -> dict[str, Any]:
    """The configuration of the sidecar that clients dial."""
    config = sidecar_config(node)
    config["listeners"][0] |= {"bind": node.advertised, "upstream": upstream, "advertised": node.advertised}
    config["audit"] = {"topic": "audit-changing", "mode": "rollup", "rollup.interval.ms": 200}
    config["admin"] = {"bind": node.admin}
    config["observer.shutdown.timeout.ms"] = 20_000
    return config
