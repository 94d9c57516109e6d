"""Two real clusters behind sidecars, with a door before the first that can keep answers from its clients."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from proxy.local import cluster as local_cluster
from proxy.local.broker import sidecar_config
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.workload import ClientLedger
from tests.faults.gate import Gate

TIMEOUT = 120.0
USER, PASSWORD = "alice", "of-alice"
LOGIN: dict[str, str | int] = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD,
}  # fmt: skip
BATCH = 50
"""Records of a batch of ``retried``."""

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Door(Gate):
    """Carries bytes both ways; while it is ``deaf``, answers are taken and not handed on."""

    def __init__(self, port: int, upstream: int) -> None:
        super().__init__(port, upstream)
        self.deaf = False
        self.kept = b""
        """Answers that were not handed on."""
        self.carried = 0
        """Connections that were let through."""
        self._port_of_clients = port

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.carried += 1
        await super()._carry(reader, writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = writer.get_extra_info("sockname")[1] == self._port_of_clients
        while data := await reader.read(65_536):
            if answers and self.deaf:
                self.kept += data
                continue
            writer.write(data)
            await writer.drain()


@dataclass
class Place:
    """A cluster of one node."""

    folder: Path
    state: ClusterState
    sasl: str = ""
    """Where clients log in, host:port; empty where they do not."""
    sasl_upstream: str = ""
    """The broker's own address for that."""

    @property
    def bootstrap(self) -> str:
        return self.state.bootstrap

    def segments(self, topic: str) -> bytes:
        """What is on the broker's disk of a topic."""
        files = sorted(self.state.nodes[0].data.glob(f"{topic}-[0-9]*/*.log"))
        return b"".join(file.read_bytes() for file in files)

    def stored(self, topic: str) -> int:
        """Records of ``topic`` that the broker has."""
        consumer = Consumer({"bootstrap.servers": self.state.internal_bootstrap, "group.id": "none"})
        try:
            partitions = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
            marks = [consumer.get_watermark_offsets(TopicPartition(topic, each), TIMEOUT) for each in partitions]
            return sum(high for _, high in marks)
        finally:
            consumer.close()


def batch_sizes(segments: bytes) -> dict[int, int]:
    """Size of each batch by its first offset, of a topic with one partition."""
    sizes, at = {}, 0
    while at < len(segments):
        offset, length = struct.unpack_from(">qi", segments, at)
        sizes[offset] = 12 + length
        at += 12 + length
    return sizes


@contextmanager
def clusters(folder: Path) -> Iterator[tuple[Place, Place]]:
    """Give both, without topics and without sidecars."""
    try:
        yield (
            _with_login(folder / "source"),
            Place(folder / "target", local_cluster.up(folder / "target", progress=False)),
        )
    finally:
        for name in ("source", "target"):
            local_cluster.down(folder / name)


def _with_login(folder: Path) -> Place:
    node = local_cluster.plan(folder).nodes[0]
    behind, before = (f"{HOST}:{port}" for port in free_ports(2))
    listeners = {"CLIENT": node.upstream, "INTERNAL": node.internal, "CONTROLLER": node.controller, "SASL": behind}
    advertised = {"CLIENT": node.advertised, "INTERNAL": node.internal, "SASL": before}
    protocols = dict.fromkeys(listeners, "PLAINTEXT") | {"SASL": "SASL_PLAINTEXT"}
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{PLAIN} required user_{USER}="{PASSWORD}";',
    }
    state = local_cluster.up(folder, broker_properties=properties, progress=False)
    return Place(folder, state, before, behind)


@contextmanager
def watched(place: Place) -> Iterator[Door]:
    """A sidecar before the broker and a door before that, until the sidecar has delivered everything."""
    node = place.state.nodes[0]
    config = sidecar_config(node)
    (listener,) = config["listeners"]
    (inside,) = free_ports(1)
    listener |= {"bind": f"{HOST}:{inside}", "advertised": node.advertised}
    config["observer.shutdown.timeout.ms"] = 20_000  # a busy broker takes some of it for the last events
    if place.sasl:
        login = {"bind": place.sasl, "upstream": place.sasl_upstream, "security.protocol": "SASL_PLAINTEXT"}
        config["listeners"].append({"name": "SASL", **login})
    (place.folder / "watched.yaml").write_text(yaml.safe_dump(config))
    sidecar = SidecarProcess.start(place.folder / "watched.yaml", place.folder / "watched.log", node.admin)
    try:
        with Door(int(node.advertised.rpartition(":")[2]), inside) as door:
            yield door
    finally:
        assert sidecar.stop()


def retried(bootstrap: str, client_id: str, topic: str, door: Door, stored: Callable[[], int]) -> tuple[int, int]:
    """Produce 10,000 records, one batch of which is answered twice; return delivered ones and those of that batch."""
    delivered: list[bool] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "client.id": client_id, "log_level": 3, "enable.idempotence": True,
            "compression.type": "lz4", "max.in.flight": 1, "batch.num.messages": BATCH,
            "linger.ms": 60_000,  # batches are full, however long this thread stands still between two records
        }
    )  # fmt: skip

    def send(count: int) -> None:
        for number in range(count):
            producer.produce(
                topic, f"record {number}" * 9, on_delivery=lambda error, _: delivered.append(error is None)
            )
            producer.poll(0)

    send(5_000)
    assert not producer.flush(TIMEOUT)
    door.deaf = True
    send(BATCH)
    deadline = time.monotonic() + TIMEOUT
    while stored() < 5_000 + BATCH or topic.encode() not in door.kept:  # the answer to another request has no topic
        assert time.monotonic() < deadline
        producer.poll(0.05)
    door.shut()
    door.deaf = False
    door.open()
    send(5_000 - BATCH)
    assert not producer.flush(TIMEOUT)
    return sum(delivered), BATCH


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
                offset = message.offset()
                assert offset is not None
                at = offset + 1
                if offset not in dropped:
                    writer.produce(to, message.value(), on_delivery=lambda error, _: delivered.append(error is None))
                writer.poll(0)
    finally:
        reader.close()
    assert not writer.flush(TIMEOUT)
    return sum(delivered)


def poll_in_vain(bootstrap: str, client_id: str, topic: str) -> None:
    """Ask for a topic that has nothing."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": client_id, "client.id": client_id, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(TIMEOUT)
        assert message is not None, f"{topic}: no answer"
        error = message.error()
        assert error is not None, f"{topic}: a record"
        assert error.code() == KafkaError._PARTITION_EOF, error
    finally:
        consumer.close()


def transact(bootstrap: str, topic: str) -> None:
    """Produce transactions of two batches each; every second one is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{topic}", "linger.ms": 10_000})
    producer.init_transactions(TIMEOUT)
    for number in range(10):
        producer.begin_transaction()
        for _ in range(2):
            for _ in range(BATCH):
                producer.produce(topic, b"value", partition=0)
            assert producer.flush(TIMEOUT) == 0
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(TIMEOUT)


def consume_from(bootstrap: str, client_id: str, topic: str, offset: int, isolation: str) -> ClientLedger:
    """Read partition 0 of ``topic`` from ``offset`` to its end, without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "client.id": client_id, "group.id": "none", "isolation.level": isolation,
            "enable.partition.eof": True, "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, offset)])
    read = 0
    while True:
        message = consumer.poll(TIMEOUT)
        assert message is not None, f"{topic}: neither a record nor its end"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        read += 1
    consumer.close()
    did = f"read {read:,} records from {offset} on, {isolation}"
    return ClientLedger(client_id, "librdkafka", "Fetch", topic, did, {"records": read, "estimated_records": 0})
