"""Real clients through the sidecar: what they do, and that what they send and get are the same bytes as without it."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.librdkafka import LARGE, consume, produce
from tests.integration.sidecars import until
from tests.integration.topics import committed

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.promise(
    "README.md", "Clients stay as they are: through the sidecar they read back what they produced, with every codec."
)
@pytest.mark.promise(
    "supported-versions.md", "Consumer groups of both protocols work through a sidecar, and their offsets are kept."
)
def test_groups_of_both_protocols_read_back_what_was_produced_with_every_codec(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str
) -> None:
    values = [[f"{codec} {n} ".encode() * (n % 50 + 1) for n in range(200)] for codec in CODECS]
    for codec, some in zip(CODECS, values, strict=True):
        assert produce(cluster.bootstrap, topic, some, **{"compression.type": codec}) == 200
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for protocol in ("classic", "consumer"):
        group = f"{protocol}-{topic}"
        read = consume(cluster.bootstrap, topic, 1000, **{"group.id": group, "group.protocol": protocol})
        assert sorted(read) == sorted(value for some in values for value in some), protocol
        assert sum(committed(admin, group).values()) == 1000
        assert group in {listed.group_id for listed in admin.list_consumer_groups().result(30).valid}


@pytest.mark.promise("supported-versions.md", "Transactions commit and abort through a sidecar.")
def test_transactions_commit_and_abort(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"x-{topic}"})
    producer.init_transactions(60)
    for kind in ("aborted", "committed"):
        producer.begin_transaction()
        for n in range(50):
            producer.produce(topic, f"{kind} {n}".encode())
        (producer.commit_transaction if kind == "committed" else producer.abort_transaction)(60)
    read = consume(cluster.bootstrap, topic, 50, **{"isolation.level": "read_committed"})
    assert sorted(read) == sorted(f"committed {n}".encode() for n in range(50))


@pytest.mark.promise("supported-versions.md", "Administration of topics and settings works through a sidecar.")
def test_admin_calls(cluster: ClusterState, sidecar: SidecarProcess) -> None:
    """The broker hears from the controller later what has been created, or deleted."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = f"a-{uuid.uuid4().hex[:8]}"
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)

    def is_deleted() -> bool:
        try:
            admin.describe_configs([resource])[resource].result(30)
        except KafkaException as error:
            return error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return False

    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    until(lambda: len(admin.list_topics(name, timeout=30).topics[name].partitions) == 3)
    assert admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value == "delete"
    assert admin.describe_cluster().result(30).nodes[0].id == 1
    admin.delete_topics([name])[name].result(30)
    until(is_deleted)


@pytest.mark.promise("architecture.md", "A record of 50 MB passes the sidecar unchanged.")
def test_a_50_mb_record(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> None:
    value = hashlib.sha256(b"seed").digest() * (LARGE // 32)
    assert produce(cluster.bootstrap, topic, [value], **{"message.max.bytes": 2 * LARGE}) == 1
    limits = {
        "fetch.message.max.bytes": 2 * LARGE,
        "fetch.max.bytes": 2 * LARGE,
        "receive.message.max.bytes": 3 * LARGE,
    }
    (read,) = consume(cluster.bootstrap, topic, 1, **limits)
    assert hashlib.sha256(read).digest() == hashlib.sha256(value).digest()
