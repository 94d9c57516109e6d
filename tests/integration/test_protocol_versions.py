"""What a broker says and takes is what its range of ProtocolVersions, and its formats of records, say of it."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record import MemoryRecordsBuilder

from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.protocol.versions import message_formats, ranges, release_of, release_range
from tests.frames import request
from tests.integration.topics import described_by
from tests.tools.record_ranges import ask, recorded

pytestmark = pytest.mark.kafka

PRODUCE = {"v0": 1, "v1": 2, "v2": 3}
"""A version of Produce that records of the format come in."""


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    if request.param == "4.3.1":
        yield request.getfixturevalue("cluster")
        return
    folder = tmp_path_factory.mktemp("broker")
    yield local_cluster.up(folder, kafka_version=request.param, advertise="broker", progress=False)
    local_cluster.down(folder)


def produce(address: str, topic: str, version: int, magic: int) -> int | None:
    """Send one record and return the error code of the answer, None where the connection is closed instead."""
    records = MemoryRecordsBuilder(magic, 0, 1 << 16)
    records.append(timestamp=None if magic == 0 else 1, key=None, value=b"value")
    records.close()
    data = bytes(records.buffer())
    name = topic.encode()
    body = b"\xff\xff" if version >= 3 else b""
    body += struct.pack(f">hiih{len(name)}siii", 1, 10_000, 1, len(name), name, 1, 0, len(data)) + data
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client, client.makefile("rb") as answers:
        client.sendall(request(0, version, 1, body))
        if not (size := answers.read(4)):
            return None
        answer = answers.read(int.from_bytes(size, "big"))
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    return int(error)


@pytest.mark.promise(
    "protocol.md", "A broker's range of ProtocolVersions and its formats of messages are those that it takes."
)
def test_a_range_and_formats_are_what_the_broker_has_and_takes(broker: ClusterState) -> None:
    address = broker.nodes[0].upstream
    supported = ask(address)
    release = broker.kafka_version.rpartition(".")[0]
    assert supported == recorded()[broker.kafka_version]
    assert ranges(supported) == release_range(release)
    assert release_of(supported) == f"{release}.x"
    admin = AdminClient({"bootstrap.servers": broker.internal_bootstrap})
    topic = f"formats-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    described_by(broker, topic)
    taken = [form for form, version in PRODUCE.items() if produce(address, topic, version, int(form[1])) == 0]
    assert ",".join(taken) == message_formats(supported)
