"""`brokerside observers try`: real clients of a real broker, their packets in a file, and an observer over them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from proxy.core.exchange import ProducedPartition
from proxy.local.cluster import ClusterState
from proxy.local.workload import create_topics
from tests.golden.frames import Frame
from tests.integration.librdkafka import produce
from tests.integration.tap import tap

pytestmark = pytest.mark.kafka

PORT = 9092
SYN, ACK, FIN = 2, 16, 1

MODULE = """
class Counting:
    def configure(self, configs):
        self.limit = configs["settings"].get("limit", 10**9)
        self.bytes = 0
    def wants(self, api_key, api_version):
        return api_key == 0
    def record_request(self, struct, client_address, principal, api_key, api_version, correlation_id):
        for topic in struct.get_observable_struct_array("topic_data"):
            for partition in topic.get_observable_struct_array("data"):
                self.bytes += partition.get_records("record_set").records
        if self.bytes > self.limit:
            raise ValueError(f"more than {self.limit}")
    def record_response(self, struct, api_version, correlation_id): pass
    def close(self, timeout):
        print("records", self.bytes)
"""


NAME = "counting:Counting"


class Recording:
    """Writes packets as tcpdump does, on a link of type Ethernet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packets: list[bytes] = []
        self.now = 1_700_000_000.0
        self.records = 0  # in requests to produce; those of one that the broker refused are sent again

    def add(self, client: int, side: str, sequence: int, flags: int, data: bytes = b"") -> None:
        ports = (client, PORT) if side == "client" else (PORT, client)
        tcp = struct.pack(">HHIIBBHHH", *ports, sequence & 0xFFFFFFFF, 0, 5 << 4, flags, 65535, 0, 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
        self.packets.append(bytes(12) + b"\x08\0" + ip + tcp + data)

    def converse(self, client: int, requests: bytes, responses: bytes) -> None:
        """A whole connection: each request, then its response; the numbers wrap in the middle."""
        at = {"client": 0xFFFFFFF0, "broker": 100}
        for side in at:
            self.add(client, side, at[side], SYN)
            at[side] += 1
        sent = [split(requests), split(responses)]
        for pair in zip(*sent, strict=True):
            for side, frame in zip(at, pair, strict=True):
                for start in range(0, len(frame), 1000):
                    part = frame[start : start + 1000]
                    self.add(client, side, at[side], ACK, part)
                    at[side] += len(part)
        for side in at:
            self.add(client, side, at[side], FIN | ACK)

    def write(self) -> None:
        head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        lines = [struct.pack("<IIII", int(self.now), n, len(one), len(one)) + one for n, one in enumerate(self.packets)]
        self.path.write_bytes(head + b"".join(lines))


def split(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        found.append(data[:end])
        data = data[end:]
    return found


def records_in(frame: bytes) -> int:
    key, version = struct.unpack_from(">hh", frame, 4)
    if key != 0:
        return 0
    facts = Frame("request", key, version, frame).facts()
    return sum(one.records.records for one in facts.partitions if isinstance(one, ProducedPartition))


@pytest.fixture(scope="module")
def recorded(cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """What a producer sent to the broker, and what came back."""
    folder = tmp_path_factory.mktemp("clients")
    made = Recording(folder / "clients.pcap")
    (folder / "counting.py").write_text(MODULE)
    node = cluster.nodes[0]
    topic = f"tried-{uuid.uuid4().hex[:8]}"
    create_topics(cluster.internal_bootstrap, {topic: {}}, 1)
    with tap(node.advertised, node.upstream) as tapped:
        assert produce(node.advertised, topic, [os.urandom(2000) for _ in range(30)]) == 30
    for number, one in enumerate(tapped):
        requests, responses = split(bytes(one.requests)), split(bytes(one.responses))
        made.records += sum(map(records_in, requests[: len(responses)]))
        made.converse(40_000 + number, b"".join(requests[: len(responses)]), b"".join(responses))
    assert made.records >= 30
    return made


@pytest.fixture
def recording(recorded: Recording) -> Recording:
    """The same, as a test may change it."""
    made = Recording(recorded.path)
    made.packets, made.records = list(recorded.packets), recorded.records
    made.write()
    return made


def try_it(recording: Recording, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxy", "observers", "try", str(recording.path), "--observer", NAME, *more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(recording.path.parent), os.getcwd()))}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def settings(recording: Recording, **values: int) -> tuple[str, str]:
    path = recording.path.with_name("sidecar.yaml")
    one = {"name": "CLIENT", "bind": f"127.0.0.1:{PORT}", "upstream": "127.0.0.1:2"}
    config = {
        "broker.id": 1,
        "internal.bootstrap.servers": "127.0.0.1:3",
        "listeners": [one],
        "observer.class.names": [NAME],
        "observers": {NAME: values},
    }
    path.write_text(yaml.safe_dump(config))
    return "--config", str(path)


@pytest.mark.promise("observers.md", "observers try reports every request in a capture.")
def test_every_record_of_a_real_producer_is_reported(recording: Recording) -> None:
    """Packets may come again and in another order."""
    done = try_it(recording, "--memory")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"records {recording.records}\n" in done.stdout
    assert "raised       nothing\n" in done.stdout
    assert "held         " in done.stdout
    packets = recording.packets
    large = [n for n, one in enumerate(packets) if len(one) == 1054]  # there is more of the frame after these
    for number in large:
        packets[number], packets[number + 1] = packets[number + 1], packets[number]
    recording.packets = [one for packet in packets for one in [packet] * (1 + (len(packet) > 60))]
    recording.write()
    done = try_it(recording)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"records {recording.records}\n" in done.stdout


@pytest.mark.promise("observers.md", "observers try shows an error of the observer with its traceback.")
def test_an_observer_that_raises_is_shown_where(recording: Recording) -> None:
    done = try_it(recording, *settings(recording, limit=recording.records - 1))
    assert done.returncode == 1
    assert f"ValueError: more than {recording.records - 1}\n" in done.stderr
    assert "counting.py" in done.stderr
    assert "raised       record_request 1\n" in done.stdout
