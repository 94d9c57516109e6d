"""What passes a whole sidecar before a real broker: every byte as it came, and what observers get of it."""

import gc
import os
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.core.exchange import ProducedPartition
from proxy.features.catalog import PREFIX
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.workload import create_topics
from proxy.rpc.feature_messages import decode_described
from tests.cases import each
from tests.frames import API_VERSIONS
from tests.golden.frames import Frame
from tests.integration import recorder
from tests.integration.feature_sidecars import delete_topics
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample
from tests.integration.recorder import FETCH, METADATA, PRODUCE, ObservedCall
from tests.integration.sidecars import config_of, running, until
from tests.integration.tap import Tapped, frames, tap
from tests.tools.kafka_tools import KafkaTools
from tests.tools.topic import create
from tests.unit.observers.test_packet_capture import capture

pytestmark = pytest.mark.kafka


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv(recorder.FILE, str(path))
    return path


@contextmanager
def onlooking(cluster: ClusterState, file: Path, *names: str) -> Iterator[SidecarProcess]:
    classes = [f"tests.integration.recorder:{name}" for name in names]
    with running(config_of(cluster.nodes[0], **{"observer.class.names": classes}), file.parent) as sidecar:
        yield sidecar


def settled(sidecar: SidecarProcess, file: Path) -> list[ObservedCall]:
    """Wait until the observer has got what has happened so far; return all of it. On a busy machine a look may find
    nothing new though something is on its way: it takes five."""
    deadline = time.monotonic() + 60
    reported: list[ObservedCall] = []
    quiet = 0
    while True:
        assert time.monotonic() < deadline, "it never became quiet"
        time.sleep(0.2)  # more than a flush of the data path
        waiting, before, reported = (
            sidecar.metric("brokerside_observer_queued"),
            len(reported),
            recorder.read(file, ObservedCall),
        )
        quiet = quiet + 1 if reported and not waiting and len(reported) == before else 0
        if quiet == 5:
            return reported


@pytest.mark.promise("observers.md", "An observer gets every request and every response once.")
def test_each_request_is_reported_with_its_response_and_what_is_known_besides(cluster, file):
    """S3-09, S3-10. Topics that go by id are named by what the broker reported before, without asking it: one that was
    deleted and made again has two ids and one name."""
    began = time.time()
    topic = f"again-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    with onlooking(cluster, file, "Onlooker") as sidecar:
        for _ in range(2):
            create(admin, NewTopic(topic, 1, 1))
            produce(cluster.bootstrap, topic, [b"x"] * 100, **{"client.id": "billing", "batch.num.messages": 4})
            consume(cluster.bootstrap, topic, 100)
            delete_topics(admin, topic)
        reported = settled(sidecar, file)
        text = sidecar.metrics()
    requests = {one.correlation_id: one for one in reported if one.method == "request"}
    responses = [one.correlation_id for one in reported if one.method == "response"]
    assert len(requests) == sum(one.method == "request" for one in reported), "no correlation id twice"
    assert (set(responses), len(responses)) == (set(requests), len(requests))
    produced = [one for one in requests.values() if one.api_key == PRODUCE]
    assert len(produced) >= 50
    for one in produced:
        assert one.topics == [topic]
        context = one.context
        assert (context.broker_id, context.listener, context.client_id) == (1, "CLIENT", "billing")
        assert (context.principal_source, context.client_software_name) == ("anonymous", "confluent-kafka-python")
        times = [context.received_at, context.forwarded_at, context.responded_at, context.answered_at]
        assert times == sorted(times)
        assert began - 1 < times[0] < times[-1] < time.time() + 1
    fetches = [one for one in requests.values() if one.api_key == FETCH and one.ids]
    assert {name for one in fetches for name in one.topics} == {topic}, "librdkafka fetches by topic id"
    assert len({topic_id for one in fetches for topic_id in one.ids}) == 2
    assert max(one.look_ups for one in fetches) == 0
    assert sample(text, "brokerside_observer_errors_total") == 0
    assert sample(text, "brokerside_observer_delivered_total") == len(requests)


@pytest.mark.promise("observers.md", "Nothing is decoded without an observer, or for one that does not want it.")
@pytest.mark.slow
def test_nothing_is_decoded_for_an_observer_that_does_not_want_it(cluster, topic, file):
    for names in ((), ("MetadataOnlooker",)):
        with onlooking(cluster, file, *names) as sidecar:
            produce(cluster.bootstrap, topic, [b"x"] * 20)
            consume(cluster.bootstrap, topic, 20)
            if names:
                assert {one.api_key for one in settled(sidecar, file) if one.method == "request"} == {METADATA}
            text = sidecar.metrics()
        assert sample(text, "brokerside_requests_total", api="Produce") > 0
        assert sample(text, "brokerside_requests_total", api="Fetch") > 0
        assert sample(text, "brokerside_decode_total") == 0
        metadata = sample(text, "brokerside_requests_total", api="Metadata")
        assert sample(text, "brokerside_observer_delivered_total") == (metadata if names else 0)


PORT = 9092
SYN, ACK, FIN = 2, 16, 1

COUNTING = """
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


def packets_of(client: int, requests: list[bytes], responses: list[bytes]) -> list[bytes]:
    """A whole connection, on a link of raw IP: each request, then its response; the numbers of the client wrap."""
    packets: list[bytes] = []
    at = {(client, PORT): 0xFFFFFFF0, (PORT, client): 100}

    def add(ports: tuple[int, int], flags: int, data: bytes = b"") -> None:
        tcp = struct.pack(">HHIIBBHHH", *ports, at[ports] & 0xFFFFFFFF, 0, 5 << 4, flags, 65535, 0, 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(data), 0, 0, 64, 6, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
        packets.append(ip + tcp + data)
        at[ports] += len(data) or 1

    for ports in at:
        add(ports, SYN)
    for pair in zip(requests, responses, strict=False):  # without what a client did not wait for
        for ports, frame in zip(at, pair, strict=True):
            for start in range(0, len(frame), 1000):
                add(ports, ACK, frame[start : start + 1000])
    for ports in at:
        add(ports, FIN | ACK)
    return packets


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
def recording(cluster, tmp_path_factory):
    """A capture, and how many records it has in requests to produce; those that were refused are sent again."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "counting.py").write_text(COUNTING)
    node = cluster.nodes[0]
    topic = f"tried-{uuid.uuid4().hex[:8]}"
    create_topics(cluster.internal_bootstrap, {topic: {}}, 1)
    with tap(node.advertised, node.upstream) as tapped:
        assert produce(node.advertised, topic, [os.urandom(2000) for _ in range(30)]) == 30
    packets, records = [], 0
    for number, one in enumerate(tapped):
        requests, responses = split(bytes(one.requests)), split(bytes(one.responses))
        records += sum(map(records_in, requests[: len(responses)]))
        packets += packets_of(40_000 + number, requests, responses)
    assert records >= 30
    (folder / "clients.pcap").write_bytes(capture(101, *packets).getvalue())
    return folder / "clients.pcap", records


def try_it(recording: tuple[Path, int], *more: str) -> subprocess.CompletedProcess[str]:
    path, _ = recording
    command = [sys.executable, "-m", "proxy", "observers", "try", str(path), "--observer", NAME, *more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(path.parent), os.getcwd()))}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.promise("observers.md", "observers try reports every request in a capture.")
def test_every_record_of_a_real_producer_is_reported(recording):
    done = try_it(recording, "--memory")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"records {recording[1]}\n" in done.stdout
    assert "raised       nothing\n" in done.stdout
    assert "held         " in done.stdout


@pytest.mark.promise("observers.md", "observers try shows an error of the observer with its traceback.")
def test_an_observer_that_raises_is_shown_where(recording):
    limit = recording[1] - 1
    path = recording[0].with_name("sidecar.yaml")
    one = {"name": "CLIENT", "bind": f"127.0.0.1:{PORT}", "upstream": "127.0.0.1:2"}
    config = {"broker.id": 1, "internal.bootstrap.servers": "127.0.0.1:3", "listeners": [one]}
    path.write_text(yaml.safe_dump(config | {"observer.class.names": [NAME], "observers": {NAME: {"limit": limit}}}))
    done = try_it(recording, "--config", str(path))
    assert done.returncode == 1
    assert f"ValueError: more than {limit}\n" in done.stderr
    assert "counting.py" in done.stderr
    assert "raised       record_request 1\n" in done.stdout


@pytest.fixture
def tapped(cluster):
    node = cluster.nodes[0]
    between, behind = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = config_of(node, **{"observer.class.names": None})
    config["listeners"][0] |= {"bind": between, "advertised": node.advertised, "upstream": behind}
    with (
        tap(node.advertised, between) as outside,
        tap(behind, node.upstream) as inside,
        running(config, node.home.parent),
    ):
        yield outside, inside


def librdkafka(bootstrap: str, topic: str) -> None:
    values = [str(n).encode() * 50 for n in range(500)]
    assert produce(bootstrap, topic, values, **{"compression.type": "none"}) == 500
    assert produce(bootstrap, topic, values, acks=0) == 500
    assert len(consume(bootstrap, topic, 500)) >= 500
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert topic in admin.list_topics(timeout=20).topics
    admin.list_consumer_groups().result(180)


def java(bootstrap: str, topic: str) -> None:
    server = ("--bootstrap-server", bootstrap)
    with KafkaTools() as tools:
        for arguments, text in (
            (("console-producer", *server, "--topic", topic), "".join(f"line {n}\n" for n in range(100))),
            (("console-consumer", *server, "--topic", topic, "--group", f"java-{topic}", "--from-beginning",
              "--max-messages", "100"), ""),
            (("topics", *server, "--describe", "--topic", topic), ""),
            (("groups", *server, "--list"), ""),
        ):  # fmt: skip
            done = tools.run(*arguments, text=text)
            assert done.returncode == 0, done.stderr


def assert_has_more_alone(version: int, ours: bytes, theirs: bytes) -> None:
    """An ApiVersions response has the sidecar's own api, and from version 3 on the features of the fleet."""
    if version < 3:
        assert len(ours) == len(theirs) + 6
        return
    found, known = (decode_described(version, response[4:]) for response in (ours, theirs))
    assert found.apis == known.apis | {30000: (0, 0)}
    assert {name: found.supported[name] for name in known.supported} == known.supported
    assert all(name.startswith(PREFIX) for name in found.supported.keys() - known.supported.keys())


@pytest.mark.promise(
    "architecture.md", "Every byte between clients and broker passes as it came, but for what is added to ApiVersions."
)
@each("client", [librdkafka, java])
def test_every_byte_but_those_of_api_versions(cluster, topic, tapped, client):
    outside, inside = tapped
    seen, behind = len(outside), len(inside)
    client(cluster.bootstrap, topic)
    gc.collect()  # what a client leaves open ends
    conversations = [one for one in outside[seen:] if one.requests]
    assert conversations
    until(lambda: not on_its_way(conversations, inside[behind:]))
    by_requests = defaultdict(list)  # in their order: those of one client may begin alike
    for one in inside[behind:]:
        by_requests[bytes(one.requests)].append(one)
    edited = 0
    for one in conversations:
        broker = by_requests[bytes(one.requests)].pop(0)
        asked = [frame for frame in frames(one.requests) if not without_answer(frame)]
        reported = frames(one.responses)  # first: what comes meanwhile comes from the broker
        said = frames(broker.responses)
        # A client that leaves gets no answer to what it still had asked; one that stays without it fails by itself.
        assert len(reported) <= len(said) <= len(asked)
        for request, ours, theirs in zip(asked, reported, said, strict=False):
            if int.from_bytes(request[:2], "big") == API_VERSIONS and ours != theirs:
                edited += 1
                assert_has_more_alone(int.from_bytes(request[2:4], "big"), ours, theirs)
            else:
                assert ours == theirs
    assert edited
    left = [one for some in by_requests.values() for one in some if one.requests]
    assert all(b"brokerside-" in one.requests for one in left), "what the sidecar itself asks"


def on_its_way(outside: list[Tapped], inside: list[Tapped]) -> bool:
    """Whether the broker has not got all yet, or gets other bytes than the clients send."""
    return bool(Counter(bytes(one.requests) for one in outside) - Counter(bytes(one.requests) for one in inside))


def without_answer(frame: bytes) -> bool:
    """A Produce with acks=0, outside of any transaction."""
    if frame[:2] != PRODUCE.to_bytes(2, "big"):
        return False
    pos = 10 + max(0, int.from_bytes(frame[8:10], "big", signed=True))
    null = b"\0\0" if int.from_bytes(frame[2:4], "big") >= 9 else b"\xff\xff"  # no tags, and a compact null
    assert frame[pos : pos + 2] == null, "a transactional id"
    return frame[pos + 2 : pos + 4] == b"\0\0"
