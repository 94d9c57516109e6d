"""A sidecar before the broker of a run (tests/brokers.py), and Kafka's own tools."""

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.librdkafka import LARGE
from tests.integration.sidecars import config_of, running
from tests.integration.topics import described_by
from tests.tools.kafka_tools import KafkaTools
from tests.tools.topic import create


def free_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def sidecar(cluster: ClusterState) -> Iterator[SidecarProcess]:
    """The sidecar before the broker, as configured for the cluster: with the audit observer."""
    with running(config_of(cluster.nodes[0]), cluster.nodes[0].home.parent) as process:
        yield process


@pytest.fixture(scope="module")
def bare_sidecar(cluster: ClusterState) -> Iterator[SidecarProcess]:
    """The same without any observer; a module uses one or the other, they listen on the same port."""
    with running(
        config_of(cluster.nodes[0], **{"observer.class.names": None}), cluster.nodes[0].home.parent
    ) as process:
        yield process


@pytest.fixture(scope="module")
def tools() -> Iterator[KafkaTools]:
    with KafkaTools() as started:
        yield started


@pytest.fixture
def topic(cluster: ClusterState) -> Iterator[str]:
    """A new topic of two partitions that takes large records."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    config = {"max.message.bytes": str(2 * LARGE)}
    create(admin, NewTopic(name, 2, 1, config=config))
    described_by(cluster, name)
    yield name
    admin.delete_topics([name])[name].result(180)
