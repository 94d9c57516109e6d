"""One Spark session for all tests that need one. What of the jobs needs none is tested in tests/unit/jobs."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from proxy.local.jars import resolve
from proxy.local.state import ClusterState
from spark_jobs.session import spark_conf, spark_session
from tests.ledger.build import Built, build
from tests.tools.topic import create

DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta reads its log in 50 partitions by default.
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""Settings of a session that reads and writes Delta tables by itself. No job has them: all else is delta-rs."""

FEW_ROWS = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    return resolve("spark-4.2.0", progress=False)


@pytest.fixture(scope="session")
def spark(jars: list[Path]) -> Iterator[SparkSession]:
    """The jobs' own session; a job that a test runs in this process uses it, too."""
    delta = resolve("delta-4.4.0", progress=False)
    with spark_session("tests", spark_conf("local[2]", [*jars, *delta], DELTA_CONF | FEW_ROWS, short=True)) as spark:
        yield spark


@pytest.fixture(scope="session")
def bootstrap(cluster: ClusterState) -> str:
    return cluster.internal_bootstrap


@pytest.fixture(scope="session")
def ledger_root(spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Tables of the scripted load, made by the real job; to be read only."""
    return build(tmp_path_factory.mktemp("ledger") / "tables", bootstrap, [])


class AuditTopic:
    """An audit topic of two partitions that tests write to."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"audit-{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        create(self.admin, NewTopic(self.name, 2, 1))
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000})

    def send(self, *values: bytes | None, partition: int = 0) -> list[int]:
        """Write ``values`` in order; returns their offsets."""
        offsets: list[int] = []
        for value in values:
            self._producer.produce(
                self.name, value, partition=partition,
                on_delivery=lambda error, message: offsets.append(message.offset()),
            )  # fmt: skip
        assert not self._producer.flush(120)  # at once, and in one batch: no job sees some of them and not the rest
        return offsets


@pytest.fixture
def audit(bootstrap: str) -> AuditTopic:
    return AuditTopic(bootstrap)
