"""Real clients through the sidecar: what they do, and that what they send and get are the same bytes as without it."""

from __future__ import annotations

import hashlib
import socket
import uuid
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from proxy.features.catalog import PREFIX, SUPPORTED
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from proxy.rpc.feature_messages import decode_described
from tests.cases import each
from tests.frames import request
from tests.integration.consuming import until
from tests.integration.librdkafka import LARGE, consume, produce

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_librdkafka_reads_back_what_it_produced_with_every_codec(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str
) -> None:
    values = {codec: [f"{codec} {n} ".encode() * (n % 50 + 1) for n in range(500)] for codec in CODECS}
    for codec, some in values.items():
        assert produce(cluster.bootstrap, topic, some, **{"compression.type": codec}) == 500
    read = consume(cluster.bootstrap, topic, 500 * len(CODECS))
    assert sorted(read) == sorted(value for some in values.values() for value in some)


def test_groups_of_both_protocols_read_everything_and_keep_their_offsets(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str
) -> None:
    values = [str(n).encode() for n in range(200)]
    produce(cluster.bootstrap, topic, values)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for protocol in ("classic", "consumer"):
        group = f"{protocol}-{topic}"
        read = consume(cluster.bootstrap, topic, 200, **{"group.id": group, "group.protocol": protocol})
        assert sorted(read) == sorted(values), protocol
        with closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})) as consumer:
            committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 30)
        assert sum(max(partition.offset, 0) for partition in committed) == 200  # a partition may have no record
        assert group in {listed.group_id for listed in admin.list_consumer_groups().result(30).valid}


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


def _converse(address: str, frames: list[bytes]) -> bytes:
    """Send ``frames`` at once and return the bytes of as many responses."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as sock, sock.makefile("rb") as reader:
        sock.settimeout(60)
        sock.sendall(b"".join(frames))
        answers = b""
        for _ in frames:
            head = reader.read(4)
            answers += head + reader.read(int.from_bytes(head, "big"))
        return answers


@each("version", range(6))
def test_api_versions_is_the_brokers_with_an_api_and_features_more(
    cluster: ClusterState, sidecar: SidecarProcess, version: int
) -> None:
    frame = request(18, version, 8, b"\0\x02a\x02b\0" if version >= 3 else b"")
    node = cluster.nodes[0]
    for _ in range(20):  # from v3 on it has a number that counts up twice a second
        before, through, after = (
            _converse(address, [frame]) for address in (str(node.upstream), str(node.advertised), str(node.upstream))
        )
        if before == after:
            break
    if version > 4:  # 4.3.1 does not know it, and says so
        assert through == after
        return
    if version >= 3:  # its bytes are compared in tests/unit/interceptors
        found, known = (decode_described(version, response[8:]) for response in (through, after))
        assert found is not None
        assert known is not None
        assert found.apis == known.apis | {30000: (0, 0)}
        assert found.epoch == known.epoch
        for described, expected in ((found.supported, known.supported), (found.finalized, known.finalized)):
            assert {name: levels for name, levels in described.items() if not name.startswith(PREFIX)} == expected
        assert found.supported.items() >= SUPPORTED.items()
        return
    own = (30000).to_bytes(2, "big") + bytes(4)
    at = through.index(own)
    size, count = int.from_bytes(after[:4], "big"), int.from_bytes(after[10:14], "big")
    reported = (size + len(own)).to_bytes(4, "big") + after[4:10] + (count + 1).to_bytes(4, "big")
    assert through[:at] + through[at + len(own) :] == reported + after[14:]
