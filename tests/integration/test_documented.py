"""The example of docs/observers.md in a sidecar before a real broker, for every version of Produce and Fetch it has."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from proxy.core import apis
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests import frames
from tests.golden.frames import FOLDER, load
from tests.integration.test_audit import until
from tests.tools.documented import example
from tests.tools.messages import FETCH_REQUEST, PRODUCE_REQUEST, Made, Values, encode

pytestmark = pytest.mark.kafka

PRODUCE, FETCH = range(3, 14), range(4, 19)

WANTED: Values = {
    "replica_id": -1,
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 2**24,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": [],
    "rack_id": b"",
}
PARTITION: Values = {
    "partition": 0,
    "current_leader_epoch": -1,
    "fetch_offset": 0,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "partition_max_bytes": 2**20,
}

WRITING = """
import json
from pathlib import Path

class WrittenCounts(ByteCounts):
    def close(self, timeout):
        counts = self.topic_produce_bytes_count, self.topic_fetch_bytes_count
        Path(__file__).with_suffix(".json").write_text(json.dumps(counts))
"""


@pytest.fixture
def observed(cluster: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SidecarProcess]:
    """A sidecar whose observer writes at its end what it has counted, to ``byte_counts.json``."""
    (tmp_path / "byte_counts.py").write_text(example() + WRITING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    folder = cluster.nodes[0].home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    config["observer.class.names"] = ["byte_counts:WrittenCounts"]
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(path, tmp_path / "sidecar.log", cluster.nodes[0].admin)
    yield process
    process.stop()


def recorded_batch() -> Made:
    """A record batch as a client sent it, without a producer id: it may be sent any number of times."""
    for frame in load(FOLDER / "aiokafka-0.14.0-produce-gzip.txt").frames:
        if frame.moves_records():
            sums = frame.facts().partitions[0].records
            assert (sums.magic, sums.batches, sums.producer_id) == (2, 1, -1)
            at = frame.data.index(struct.pack(">qi", 0, sums.size - 12))
            return Made(frame.data[at : at + sums.size], sums)
    raise AssertionError("no batch in the recording")


def led(admin: AdminClient, topic: str) -> bool:
    """Whether the broker knows that it leads a new topic; until then it refuses records."""
    first = TopicPartition(topic, 0)
    try:
        admin.list_offsets({first: OffsetSpec.latest()})[first].result(30)
    except KafkaException:
        return False
    return True


def asked(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Send one request; return the response after its correlation id."""
    tags = b"\0" if apis.request_is_flexible(key, version) else b""
    connection.sendall(frames.request(key, version, version, tags + body))
    head = _exactly(connection, 4)
    return _exactly(connection, int.from_bytes(head, "big"))[4:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the connection was closed"
        data += more
    return data


@pytest.mark.promise("observers.md", "The example counts right with every version of Produce and Fetch.")
def test_the_example_counts_the_bytes_of_every_version(
    cluster: ClusterState, observed: SidecarProcess, topic: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    until(lambda: led(admin, topic))
    topic_id = admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    named = {"topic": topic.encode(), "name": topic.encode(), "topic_id": struct.pack(">qq", *halves)}
    batch = recorded_batch()
    size = len(PRODUCE) * len(batch.data or b"")
    host, _, port = cluster.bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for version in PRODUCE:
            topics = [{**named, "partition_data": [{"index": 0, "records": batch}]}]
            values: Values = {"transactional_id": None, "acks": 1, "timeout_ms": 30_000, "topic_data": topics}
            asked(connection, 0, version, encode(PRODUCE_REQUEST, version, values))
        for version in FETCH:
            topics = [{**named, "partitions": [PARTITION]}]
            answer = asked(connection, 1, version, encode(FETCH_REQUEST, version, {**WANTED, "topics": topics}))
            assert len(answer) > size
    until(lambda: observed.metric("brokerside_observer_delivered_total") >= len(PRODUCE) + len(FETCH))
    assert observed.stop()
    assert json.loads((tmp_path / "byte_counts.json").read_text()) == [{topic: size}, {topic: len(FETCH) * size}]
