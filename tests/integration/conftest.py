"""A sidecar before the broker of a run (tests/brokers.py), and Kafka's own tools."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.librdkafka import LARGE
from tests.integration.topics import described_by
from tests.tools.kafka_tools import KafkaTools


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def sidecar(cluster: ClusterState) -> Iterator[SidecarProcess]:
    """The sidecar before the broker, as configured for the cluster: with the audit observer."""
    yield from _running(cluster, "sidecar-1.yaml")


@pytest.fixture(scope="module")
def bare_sidecar(cluster: ClusterState) -> Iterator[SidecarProcess]:
    """The same without any observer; a module uses one or the other, they listen on the same port."""
    folder = cluster.nodes[0].home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    del config["observer.class.names"]
    (folder / "bare-1.yaml").write_text(yaml.safe_dump(config))
    yield from _running(cluster, "bare-1.yaml")


def _running(cluster: ClusterState, config: str) -> Iterator[SidecarProcess]:
    folder = cluster.nodes[0].home.parent
    process = SidecarProcess.start(folder / config, folder / f"{config}.log", cluster.nodes[0].admin)
    yield process
    assert process.stop()


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    """Kafka's own tools."""
    with KafkaTools() as started:
        yield started


@pytest.fixture
def topic(cluster: ClusterState) -> Iterator[str]:
    """A new topic of two partitions that takes large records."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    config = {"max.message.bytes": str(2 * LARGE)}
    admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result(30)
    described_by(cluster, name)
    yield name
    admin.delete_topics([name])[name].result(30)
