"""Writes the ledger's audit topics and runs the job over them: ``python -m tests.ledger.build DIR``."""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from proxy.local import cluster
from proxy.local.jars import resolve
from spark_jobs import kafka
from spark_jobs.definitions import Definitions, load
from spark_jobs.run import run
from spark_jobs.session import spark_conf, spark_session
from tests.ledger.script import happened
from tests.ledger.tables import DEFINITIONS
from tests.ledger.wire import PARTITIONS, Emitted, Record, emit


@dataclass(frozen=True)
class Built:
    root: Path
    bootstrap: str
    topics: dict[str, str]
    emitted: Emitted
    definitions: Definitions


def build(root: Path, bootstrap: str, jars: Sequence[Path]) -> Built:
    """Make the tables below ``root``; a broker at ``bootstrap`` gets an audit topic for each cluster."""
    emitted = emit(happened())
    topics = {cluster: f"audit-{cluster}" for cluster in emitted.topics}
    built = Built(root, bootstrap, topics, emitted, load([DEFINITIONS]))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The script's records are as old, or as new, as it says.
    config = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    new = [NewTopic(name, PARTITIONS, 1, config=config) for name in topics.values()]
    for future in admin.create_topics(new).values():
        future.result(180)
    with patch.object(kafka, "MAX_RECORDS_PER_BATCH", 600):  # each topic takes two batches
        for cluster_id, name in topics.items():
            _write(bootstrap, name, emitted.topics[cluster_id])
            run(
                bootstrap_servers=bootstrap, topic=name, tables=str(root), jars=jars, definitions=built.definitions,
                available_now=True,
            )  # fmt: skip
    return built


def _write(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Write ``records`` in their order, each at the offset that it has in the script."""
    wrong: list[object] = []

    def check(expected: int, error: KafkaError | None, message: Message) -> None:
        if error is not None or message.offset() != expected:
            wrong.append((error, message.offset(), expected))

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 3})
    for record in records:
        producer.produce(
            topic, record.value, partition=record.partition, timestamp=record.at // 1000,
            on_delivery=partial(check, record.offset),
        )  # fmt: skip
        producer.poll(0)
    assert not producer.flush(120)
    assert not wrong, wrong[:3]


def main(root: Path) -> None:
    from tests.spark.conftest import FEW_ROWS  # which imports this

    jars = resolve("spark-4.2.0", progress=False)
    with tempfile.TemporaryDirectory() as folder:
        state = cluster.up(Path(folder), advertise="broker", progress=False)
        try:
            with spark_session("ledger", spark_conf("local[2]", jars, FEW_ROWS, short=True)):
                built = build(root, state.internal_bootstrap, jars)
        finally:
            cluster.down(Path(folder))
    print(f"{len(built.emitted.acts):,} acts of the script are in {root}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
