"""Groups of real clients, and how far behind they are: as Kafka's own tool says it."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from pyspark.sql import SparkSession

from proxy.local import cluster as local_cluster
from proxy.local.broker import AUDIT_TOPIC
from proxy.local.cluster import ClusterState, tool
from proxy.local.sidecars import SidecarProcess
from proxy.local.workload import confluent_consume, create_topics
from spark_jobs.query import query
from spark_jobs.run import run

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = ("orders", "clicks", "payments")
TRANSACTED = "payments"
RECORDS = 600  # of each topic, half of them written after the groups have stopped
DEADLINE = 180.0  # seconds for each consumer
LIBRDKAFKA = tuple(f"librdkafka-{number}" for number in range(9))
CONSUMER_PROTOCOL = tuple(f"consumer-protocol-{number}" for number in range(3))
KAFKA_PYTHON = tuple(f"kafka-python-{number}" for number in range(3))
JAVA = ("java-classic", "java-consumer")
SET_BY_ADMIN = ("set-0", "set-1")
TRANSACTIONAL = "transactional"


@dataclass
class Load:
    root: Path
    described: dict[tuple[str, str, int], tuple[int, int, int]]
    """By group, topic and partition: committed offset, end offset and lag, as the tool says."""

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return query(self.root, sql)[1]


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    folder = tmp_path_factory.mktemp("lag")
    cluster = local_cluster.up(folder / "cluster", nodes=3, progress=False)
    try:
        create_topics(cluster.internal_bootstrap, {topic: {} for topic in TOPICS}, 4)
        with ExitStack() as running:
            for number in range(1, len(cluster.nodes) + 1):
                running.callback(_sidecar(cluster, number).stop)
            _work(cluster)
        described = _describe(cluster)
        run(
            bootstrap_servers=cluster.internal_bootstrap, topic=AUDIT_TOPIC, tables=str(folder / "tables"),
            checkpoint=str(folder / "checkpoint"), jars=[], only=["completeness", "groups", "lag"], available_now=True,
        )  # fmt: skip
        yield Load(folder / "tables", described)
    finally:
        local_cluster.down(folder / "cluster")


def _sidecar(cluster: ClusterState, number: int) -> SidecarProcess:
    """The second one rolls up, and has two workers. All have time to deliver the last offsets on a busy machine."""
    folder = cluster.nodes[0].home.parent
    path = folder / f"sidecar-{number}.yaml"
    config = yaml.safe_load(path.read_text())
    config["observer.shutdown.timeout.ms"] = 20_000
    if number == 2:
        config["audit"] = {**config.get("audit", {}), "mode": "rollup", "offsets.interval.ms": 1000}
        config["workers"] = 2
    path.write_text(yaml.safe_dump(config))
    return SidecarProcess.start(path, path.with_suffix(".log"), cluster.nodes[number - 1].admin)


def _work(cluster: ClusterState) -> None:
    bootstrap = cluster.bootstrap
    _produce(bootstrap)
    for number, client_id in enumerate((*LIBRDKAFKA, *CONSUMER_PROTOCOL)):
        protocol = "consumer" if client_id in CONSUMER_PROTOCOL else "classic"
        confluent_consume(bootstrap, client_id, TOPICS[number % 3], 20 * number + 10, protocol)
    for number, group in enumerate(KAFKA_PYTHON):
        _consume_with_kafka_python(bootstrap, group, TOPICS[number], 40 + number)
    for group in JAVA:
        _consume_with_java(bootstrap, group)
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "operator"})
    for number, group in enumerate(SET_BY_ADMIN):
        offsets = [TopicPartition("clicks", partition, 5 + number) for partition in range(4)]
        wanted = [ConsumerGroupTopicPartitions(group, offsets)]
        admin.alter_consumer_group_offsets(wanted)[group].result(DEADLINE)
    _process_in_transactions(bootstrap)
    _produce(bootstrap)
    confluent_consume(bootstrap, "last", TRANSACTED, RECORDS, "classic")  # sees the ends of transactions


def _produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer", "client.id": "writer"})
    producer.init_transactions(DEADLINE)
    producer.begin_transaction()
    for number in range(RECORDS // 2):
        producer.produce(TRANSACTED, b"x" * 50, partition=number % 4)
    producer.commit_transaction(DEADLINE)
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "writer"})
    for topic in set(TOPICS) - {TRANSACTED}:
        for number in range(RECORDS // 2):
            producer.produce(topic, b"x" * 50, partition=number % 4)
    assert producer.flush(DEADLINE) == 0


def _consume_with_kafka_python(bootstrap: str, group: str, topic: str, count: int) -> None:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, client_id=f"of-{group}", auto_offset_reset="earliest",
        enable_auto_commit=False, max_poll_records=count,
    )  # fmt: skip
    read, deadline = 0, time.monotonic() + DEADLINE
    while read < count:
        assert time.monotonic() < deadline, f"{group} read {read} of {count}"
        read += sum(map(len, consumer.poll(500).values()))
    consumer.commit()
    consumer.close(autocommit=False)


def _consume_with_java(bootstrap: str, group: str) -> None:
    command = tool(
        "console-consumer", "--bootstrap-server", bootstrap, "--topic", "orders", "--group", group, "--from-beginning",
        "--max-messages", "100", "--timeout-ms", "120000", "--command-property",
        f"group.protocol={group.removeprefix('java-')}", "--command-property", f"client.id=of-{group}",
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)


def _process_in_transactions(bootstrap: str) -> None:
    """Read clicks, and commit its offsets with what is written to another topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": TRANSACTIONAL, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "client.id": "of-transactional",
        }
    )  # fmt: skip
    consumer.subscribe(["clicks"])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "processor"})
    producer.init_transactions(DEADLINE)
    read, deadline = 0, time.monotonic() + DEADLINE
    while read < 60:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        read += 1
    producer.begin_transaction()
    producer.produce(TRANSACTED, b"sum", partition=0)
    positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE)
    producer.commit_transaction(DEADLINE)
    consumer.close()


def _describe(cluster: ClusterState) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """What ``kafka-consumer-groups --describe`` says, past the sidecars."""
    command = tool("groups", "--bootstrap-server", cluster.internal_bootstrap, "--describe", "--all-groups")
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 6 or words[0] == "GROUP" or words[3] == "-":
            continue
        group, topic, partition, committed, end, behind = words[:6]
        found[group, topic, int(partition)] = (int(committed), int(end), int(behind))
    return found


@pytest.mark.promise("groups.md", "Committed offset, end offset and lag equal those of `kafka-consumer-groups.sh`.")
def test_lag_is_what_kafka_says(loaded: Load) -> None:
    assert loaded.ask("SELECT coalesce(sum(lost), 0) FROM completeness") == [(0,)]
    groups = {group for group, _, _ in loaded.described}
    assert len(groups) == 21, sorted(groups)
    found = loaded.ask(
        "SELECT group_id, topic, partition, arg_max(committed_offset, minute), arg_max(end_offset, minute),"
        " arg_max(lag, minute) FROM lag GROUP BY ALL"
    )
    assert {row[:3]: row[3:] for row in found} == loaded.described
    assert sum(behind for _, _, behind in loaded.described.values()) > RECORDS


@pytest.mark.promise(
    "groups.md", "Groups of clients of every kind have their members and topics, also those that an administrator set."
)
def test_groups_have_their_members_and_topics(loaded: Load) -> None:
    found = {
        row[0]: row[1:]
        for row in loaded.ask(
            "SELECT group_id, any_value(group_type), list(DISTINCT topic ORDER BY topic),"
            " list(DISTINCT topic_source ORDER BY topic_source), list(DISTINCT client_id),"
            " bool_and(member_id IS NOT NULL), max(commits) > 0"
            " FROM groups GROUP BY ALL ORDER BY ALL"
        )
    }
    for number, client_id in enumerate(LIBRDKAFKA):
        assert found[f"{client_id}-group"] == ("classic", [TOPICS[number % 3]], ["commit"], [client_id], True, True)
    for number, client_id in enumerate(CONSUMER_PROTOCOL):
        assert found[f"{client_id}-group"][:2] == ("consumer", [TOPICS[(9 + number) % 3]])
    for group in SET_BY_ADMIN:
        assert found[group] == (None, ["clicks"], ["commit"], ["operator"], False, True)
    # The producer commits, under its own client id, what the consumer fetches.
    assert found[TRANSACTIONAL][:3] == ("classic", ["clicks"], ["client", "commit"])
    (marked,) = loaded.ask("SELECT DISTINCT transactional FROM lag WHERE group_id = 'transactional'")
    assert marked == (True,)
