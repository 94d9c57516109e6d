"""Real clients through the sidecar: what they do, and that what they send and get are the same bytes as without it."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import subprocess
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from proxy.features.catalog import PREFIX, SUPPORTED
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from proxy.rpc.feature_messages import decode_described
from tests.frames import request
from tests.integration.consuming import until
from tests.integration.librdkafka import LARGE, consume, produce

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_back_what_it_produced(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str, codec: str
) -> None:
    values = [f"{codec} {n} ".encode() * (n % 50 + 1) for n in range(500)]
    assert produce(cluster.bootstrap, topic, values, **{"compression.type": codec}) == 500
    assert sorted(consume(cluster.bootstrap, topic, 500)) == sorted(values)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups_of_both_protocols(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str, protocol: str
) -> None:
    values = [str(n).encode() for n in range(200)]
    produce(cluster.bootstrap, topic, values)
    assert sorted(consume(cluster.bootstrap, topic, 200, **{"group.protocol": protocol})) == sorted(values)


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


def test_aiokafka_and_kafka_python_read_what_the_other_wrote(
    cluster: ClusterState, sidecar: SidecarProcess, topic: str
) -> None:
    import kafka
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip")
        await producer.start()
        for n in range(100):
            await producer.send(topic, f"aio {n}".encode())
        await producer.stop()

    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        values: list[bytes] = []
        async with asyncio.timeout(60):
            while len(values) < 200:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    values += [message.value or b"" for message in messages]
        await consumer.stop()
        return values

    asyncio.run(write())
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip")
    for n in range(100):
        producer.send(topic, f"kpy {n}".encode())
    producer.flush(60)
    producer.close()
    expected = sorted(f"{who} {n}".encode() for who in ("aio", "kpy") for n in range(100))
    assert sorted(asyncio.run(read())) == expected
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert sorted(message.value for _, message in zip(range(200), consumer, strict=False)) == expected
    consumer.close()


def test_java_tools_produce_and_consume(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> None:
    common = ["--topic", topic, "--num-records", "3000"]
    produced = subprocess.run(
        [
            *local_cluster.tool("producer-perf"), *common, "--record-size", "100", "--throughput", "-1",
            "--command-property", f"bootstrap.servers={cluster.bootstrap}", "acks=all",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "3000 records sent" in produced.stdout
    consumed = subprocess.run(
        [*local_cluster.tool("consumer-perf"), *common, "--bootstrap-server", cluster.bootstrap, "--timeout", "60000"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert consumed.stdout.strip().splitlines()[-1].split(", ")[4] == "3000"


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


def test_relayed_bytes_are_the_direct_bytes(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> None:
    produce(cluster.bootstrap, topic, [b"x" * 1000] * 3000, **{"compression.type": "none"})
    name = topic.encode()
    fetches = []
    for partition in (0, 1):  # Fetch v4: replica, max wait, min bytes, max bytes, isolation, one topic, one partition
        body = b"\xff\xff\xff\xff" + bytes(4) + (1).to_bytes(4, "big") + (1 << 24).to_bytes(4, "big") + b"\0"
        body += (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name
        body += (1).to_bytes(4, "big") + partition.to_bytes(4, "big") + bytes(8) + (1 << 24).to_bytes(4, "big")
        fetches.append(request(1, 4, 100 + partition, body))
    metadata = request(3, 4, 7, (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name + b"\0")
    frames = [metadata, *fetches, metadata, *fetches]
    node = cluster.nodes[0]
    through, direct = _converse(str(node.advertised), frames), _converse(str(node.upstream), frames)
    assert len(direct) > 6_000_000
    assert hashlib.sha256(through).hexdigest() == hashlib.sha256(direct).hexdigest()


@pytest.mark.parametrize("version", range(6))
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


def test_100_pipelined_requests(cluster: ClusterState, sidecar: SidecarProcess) -> None:
    frames = [request(18, 0, n) if n % 2 else request(3, 1, n, bytes(4)) for n in range(100)]
    answers = _converse(str(cluster.nodes[0].advertised), frames)
    ids = []
    while answers:
        size = int.from_bytes(answers[:4], "big")
        ids.append(int.from_bytes(answers[4:8], "big"))
        answers = answers[4 + size :]
    assert ids == list(range(100))


def test_a_group_survives_and_offsets_are_kept(cluster: ClusterState, sidecar: SidecarProcess, topic: str) -> None:
    produce(cluster.bootstrap, topic, [b"v"] * 100)
    group = f"g-{topic}"
    consume(cluster.bootstrap, topic, 100, **{"group.id": group})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 30)
    assert sum(max(partition.offset, 0) for partition in committed) == 100  # a partition may have no record
    consumer.close()
    assert group in {listed.group_id for listed in admin.list_consumer_groups().result(30).valid}
