"""Real clients of two real clusters count for themselves; the tables that are made of the sidecars' events agree."""

import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from proxy.local import cluster as local_cluster
from proxy.local import workload
from proxy.local.broker import AUDIT_TOPIC, sidecar_config
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.workload import ClientLedger
from spark_jobs.definitions import load
from spark_jobs.query import query
from spark_jobs.run import run
from tests.faults.gate import Gate

TIMEOUT = 120.0


def stored(cluster: ClusterState, topic: str) -> int:
    return sum(file.stat().st_size for file in cluster.nodes[0].data.glob(f"{topic}-[0-9]*/*.log"))


@contextmanager
def watched(cluster: ClusterState) -> Iterator[Gate]:
    """A sidecar before the broker and a door before that, until the sidecar has delivered everything."""
    node = cluster.nodes[0]
    config, (inside,) = sidecar_config(node), free_ports(1)
    (listener,) = config["listeners"]
    listener |= {"bind": f"{HOST}:{inside}", "advertised": node.advertised}
    config["observer.shutdown.timeout.ms"] = 20_000  # a busy broker takes some of it for the last events
    path = node.home.parent / "watched.yaml"
    path.write_text(yaml.safe_dump(config))
    sidecar = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    try:
        with Gate(int(node.advertised.rpartition(":")[2]), inside) as door:
            yield door
    finally:
        assert sidecar.stop()


def mirror(source: str, topic: str, target: str, to: str, client_id: str, dropped: Container[int]) -> int:
    """Copy ``topic`` record by record, but for those at the offsets ``dropped``; return how many were delivered."""
    delivered: list[bool] = []
    common: dict[str, Any] = {"client.id": client_id, "log_level": 3}
    reader = Consumer({"bootstrap.servers": source, "group.id": client_id, "enable.auto.commit": False, **common})
    writer = Producer({"bootstrap.servers": target, "enable.idempotence": True, **common})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        end = reader.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT)[1]
        at = 0
        while at < end:
            for message in reader.consume(1_000, TIMEOUT):
                assert message.error() is None
                at = message.offset() + 1
                if message.offset() not in dropped:
                    writer.produce(to, message.value(), on_delivery=lambda error, _: delivered.append(error is None))
                writer.poll(0)
    finally:
        reader.close()
    assert not writer.flush(TIMEOUT)
    return sum(delivered)


def poll_in_vain(bootstrap: str, client_id: str, topic: str) -> None:
    who = {"group.id": client_id, "client.id": client_id}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.partition.eof": True, **who})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(TIMEOUT)
    consumer.close()
    assert message.error().code() == KafkaError._PARTITION_EOF


pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

CODECS = ("zstd", "lz4", "gzip", "snappy", "none")
SMALL, SILENT, BUILT, MIRRORED, EMPTY, UNTOUCHED = "small", "silent", "built", "mirrored", "empty", "untouched"
TOPICS: dict[str, dict[str, str]] = {f"with-{codec}": {} for codec in CODECS}
TOPICS |= {SMALL: {"max.message.bytes": "2000"}, SILENT: {}, BUILT: {}, MIRRORED: {}, EMPTY: {}, UNTOUCHED: {}}

DROPPED = (17, 1_234, 2_345, 5_005, 6_789, 8_888, 9_999)
PRICE = Decimal(1_000)  # of a GB in, so that there are cents
LAG = 1  # seconds that the mirror may take

DEFINITIONS = """
apiVersion: brokerside/v1
kind: Mirror
metadata: {{name: copy}}
spec: {{sourceClusterId: {source}, targetClusterId: {target}, topics: mirrored, prefix: "a.", lag: {lag}s}}
---
apiVersion: brokerside/v1
kind: Prices
metadata: {{name: all}}
spec:
  currency: EUR
  account: {{id: all}}
  provider: us
  prices: [{{name: ingress, dimension: data_in_gb, price: "{price}", validFrom: 2020-01-01}}]
"""


@dataclass
class Load:
    root: Path
    source: ClusterState
    target: ClusterState
    ledgers: list[ClientLedger] = field(default_factory=list)
    connections: dict[str, int] = field(default_factory=dict)
    """Of the listener CLIENT, by cluster."""
    mirrored: int = 0

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.root, sql)[1]


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    folder = tmp_path_factory.mktemp("real")
    try:
        source, target = (local_cluster.up(folder / name, progress=False) for name in ("source", "target"))
        made = Load(folder / "tables", source, target)
        workload.create_topics(source.internal_bootstrap, TOPICS, 1)
        workload.create_topics(target.internal_bootstrap, {f"a.{MIRRORED}": {}}, 1)
        with watched(source) as door, watched(target) as other:
            made.ledgers = list(_work(source.bootstrap))
            made.mirrored = mirror(source.bootstrap, MIRRORED, target.bootstrap, f"a.{MIRRORED}", "mirror", DROPPED)
            time.sleep(1.5 * LAG)  # what was produced is due before the sidecars' last statuses
            made.connections = {source.cluster_id: door.connections, target.cluster_id: other.connections}
        _run_jobs(made, folder)
        yield made
    finally:
        for name in ("source", "target"):
            local_cluster.down(folder / name)


def _work(bootstrap: str) -> Iterator[ClientLedger]:
    for codec in CODECS:
        settings: dict[str, str | int] = {"compression.type": codec, "enable.idempotence": "true"}
        yield workload.confluent_produce(bootstrap, f"p-{codec}", f"with-{codec}", 2_000, settings)
        yield workload.confluent_consume(bootstrap, f"c-{codec}", f"with-{codec}", 2_000, "classic")
    yield workload.confluent_produce(bootstrap, "refused", SMALL, 300, {"batch.size": 1_500}, oversized=4)
    yield workload.confluent_produce(bootstrap, "silent", SILENT, 500, {"acks": 0})
    yield workload.aiokafka_produce(bootstrap, "builder", BUILT, 1_000, 1)
    yield workload.aiokafka_consume(bootstrap, "reader", BUILT, 1_000)
    yield workload.confluent_produce(bootstrap, "mirrored", MIRRORED, 10_000, {"enable.idempotence": "true"})
    poll_in_vain(bootstrap, "poller", EMPTY)


def _run_jobs(loaded: Load, folder: Path) -> None:
    ids = {"source": loaded.source.cluster_id, "target": loaded.target.cluster_id}
    (folder / "definitions.yaml").write_text(DEFINITIONS.format(**ids, price=PRICE, lag=LAG))
    for cluster in (loaded.source, loaded.target):
        run(
            bootstrap_servers=cluster.internal_bootstrap, topic=AUDIT_TOPIC, tables=str(loaded.root),
            checkpoint=str(folder / f"checkpoint-{cluster.cluster_id}"), jars=[],
            definitions=load([folder / "definitions.yaml"]), available_now=True,
        )  # fmt: skip


@pytest.mark.promise("README.md", "The numbers of `traffic` are those that real clients counted themselves.")
def test_traffic_is_what_the_clients_counted(loaded: Load) -> None:
    columns = ("records", "bytes", "unconfirmed_records", "rejected_records", "topic_requests", "estimated_records")
    sums = ", ".join(f"sum({name})::BIGINT" for name in columns)
    found = {
        row[:3]: dict(zip(columns, row[3:], strict=True))
        for row in loaded.ask(f"SELECT client_id, api, topic, {sums} FROM traffic WHERE topic IS NOT NULL GROUP BY ALL")
    }
    for ledger in loaded.ledgers:
        row = found[ledger.client_id, ledger.api, ledger.topic]
        assert {name: row[name] for name in ledger.counts} == ledger.counts, ledger
    assert found["mirror", "Produce", f"a.{MIRRORED}"]["records"] == loaded.mirrored == 9_993
    assert found["mirror", "Fetch", MIRRORED]["records"] == 10_000


@pytest.mark.promise("tables/traffic.md", "Bytes of `traffic` are those on the disk of the broker.")
def test_bytes_are_those_on_the_brokers_disk(loaded: Load) -> None:
    sql = "SELECT topic, sum(bytes + unconfirmed_bytes)::BIGINT FROM traffic WHERE api = 'Produce' GROUP BY ALL"
    assert {topic: size for topic, size in loaded.ask(sql) if topic is not None} == _on_disk(loaded)


def _on_disk(loaded: Load) -> dict[str, int]:
    sizes = {topic: stored(loaded.source, topic) for topic in TOPICS}
    sizes[f"a.{MIRRORED}"] = stored(loaded.target, f"a.{MIRRORED}")
    return {topic: size for topic, size in sizes.items() if size}


@pytest.mark.promise("tables/cost.md", "The bill of real clients is exact to the last digit.")
def test_the_bill_is_exact(loaded: Load) -> None:
    found = dict(loaded.ask("SELECT x_Topic, sum(BilledCost) FROM cost GROUP BY ALL"))
    charged = {topic: bytes_ for topic, bytes_ in _on_disk(loaded).items() if topic != SILENT}
    cent = Decimal("0.01")
    assert {topic: cost.quantize(cent) for topic, cost in found.items()} == {
        topic: (bytes_ * PRICE / 10**9).quantize(cent) for topic, bytes_ in charged.items()
    }
    # A load over midnight has two charges, each rounded once.
    assert abs(sum(found.values()) - sum(charged.values()) * PRICE / 10**9) <= Decimal("1e-10")


@pytest.mark.promise(
    "tables/connections.md", "Every connection of real clients is in `connections`, with its requests."
)
def test_clients_and_connections_are_those_there_were(loaded: Load) -> None:
    opened = dict(loaded.ask("SELECT cluster_id, count(*) FROM connections WHERE listener = 'CLIENT' GROUP BY ALL"))
    assert opened == loaded.connections
    unended = loaded.ask("SELECT count(*) FROM connections WHERE closed_at IS NULL OR opened_at IS NULL")
    assert unended == [(0,)]
    carried = loaded.ask("SELECT cluster_id, sum(requests)::BIGINT FROM connections GROUP BY ALL ORDER BY ALL")
    assert carried == loaded.ask("SELECT cluster_id, sum(requests)::BIGINT FROM traffic GROUP BY ALL ORDER BY ALL")
    software = dict(loaded.ask("SELECT DISTINCT client_id, software_name FROM clients WHERE software_name IS NOT NULL"))
    ours = {f"{kind}-{codec}": "confluent-kafka-python" for kind in "pc" for codec in CODECS}
    assert ours.items() <= software.items()


def test_topics_are_used_polled_or_unused(loaded: Load) -> None:
    states = dict(loaded.ask("SELECT topic, state FROM topics WHERE NOT internal"))
    used = dict.fromkeys((*TOPICS, f"a.{MIRRORED}"), "used")
    assert {topic: states.get(topic) for topic in used} == used | {EMPTY: "polled_only", UNTOUCHED: "unused"}


@pytest.mark.promise("tables/mirror_check.md", "A real mirror that drops seven records is found to miss seven.")
def test_the_mirror_misses_seven(loaded: Load) -> None:
    (row,) = loaded.ask(
        "SELECT arg_max(produced_total, day), arg_max(mirrored_total, day), sum(retried_records)::BIGINT,"
        " arg_max(missing_records, day), arg_max(state, day), bool_and(exact) FROM mirror_check"
    )
    assert row == (10_000, 9_993, 0, 7, "missing", True)


@pytest.mark.promise("audit-delivery.md", "Every event of sidecars that end in good order arrives.")
def test_nothing_is_missing(loaded: Load) -> None:
    runs = loaded.ask(
        "SELECT cluster_id, min(first_seq), max(last_seq) - sum(events)::BIGINT, coalesce(sum(lost), 0)::BIGINT,"
        " bool_or(ended) FROM completeness GROUP BY ALL"
    )
    assert sorted(runs) == sorted((cluster, 1, 0, 0, True) for cluster in loaded.connections)
