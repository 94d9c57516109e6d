"""``proxy.client.consumer`` with a real broker, and a coordinator that does what the test says."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.client.consumer import CommitRefused, ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer import consumer as consumer_module
from proxy.client.consumer.streams import MessageStream
from proxy.coordinator import wire
from proxy.local.cluster import ClusterState
from tests.integration.topics import committed
from tests.tools.topic import create

pytestmark = pytest.mark.kafka

SECONDS = 60.0
"""For anything of the consumer's."""

CONSUMER = "c1"
SMALLEST = -2

SESSION_TIMEOUT_MS = 60_000
"""The coordinator of the tests does not ping."""


class ScriptedCoordinator:
    """Does what the test says. It is the only sidecar of its fleet, of broker 1, and has one consumer at a time."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(SECONDS)
        self._port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._correlation_id = 0
        self.connection: socket.socket | None = None
        self._last_response: wire.ConsumerResponse | None = None

    def close(self) -> None:
        self.hang_up()
        self._server.close()

    def hang_up(self) -> None:
        """Close the consumer's connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def register(self) -> wire.RegisterConsumerRequest:
        """Take a connection, and answer ClusterMetadata and RegisterConsumer."""
        self.connection, _ = self._server.accept()
        self.connection.settimeout(SECONDS)
        key, version, correlation_id, body = self._request()
        if key == wire.CLUSTER_METADATA:
            here = wire.EndpointEntry(1, "127.0.0.1", self._port)
            response = wire.encode_cluster_metadata_response(wire.ClusterMetadataResponse(0, 1, (here,)))
            self._send(wire.response_frame(correlation_id, response))
            key, version, correlation_id, body = self._request()
        assert key == wire.REGISTER_CONSUMER
        response = wire.RegisterConsumerResponse(0, 1, 1)
        self._send(wire.response_frame(correlation_id, wire.encode_register_consumer_response(version, response)))
        return wire.decode_register_consumer_request(version, body)

    def ping(self) -> wire.ConsumerResponse:
        return self._call(wire.encode_ping(self._next(), wire.PingRequest(CONSUMER, 0)))

    def ping_until_end(self) -> list[wire.ConsumerResponse]:
        """Ping until the consumer has closed its connection, and return its responses."""
        found = []
        try:
            while True:
                found.append(self.ping())
        except ConnectionError:
            return found

    def stop(self) -> wire.ConsumerResponse:
        """Stop all partitions."""
        return self._call(wire.encode_stop_fetcher(self._next(), wire.StopFetcherRequest(CONSUMER, None)))

    def start(self, *threads: list[tuple[str, int, int]]) -> wire.ConsumerResponse:
        """Assign topic, partition and offset, by thread."""
        assigned = tuple(
            wire.AssignedThread(
                f"{CONSUMER}-{number}",
                tuple(wire.ConsumedOffset(topic, 1, partition, offset) for topic, partition, offset in partitions),
            )
            for number, partitions in enumerate(threads)
        )
        return self._call(wire.encode_start_fetcher(self._next(), wire.StartFetcherRequest(CONSUMER, assigned, ())))

    def receives_end(self) -> bool:
        """Wait until the consumer has closed its connection; whether it did so with a FIN."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return False

    def _next(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def _send(self, frame: bytes) -> None:
        self.connection.sendall(frame)

    def _call(self, frame: bytes) -> wire.ConsumerResponse:
        self._send(frame)
        response = wire.decode_response(self._frame())
        if response == self._last_response:  # a consumer that leaves repeats it, and so asks for the next ping
            response = wire.decode_response(self._frame())
        assert response.correlation_id == self._correlation_id
        self._last_response = response
        return response

    def _request(self) -> tuple[int, int, int, bytes]:
        frame = self._frame()
        key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        return key, version, correlation_id, frame[10 + max(0, length) :]

    def _frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self.connection.recv(size - len(data))):
                raise ConnectionResetError("the consumer has closed the connection")
            data += more
        return data


@pytest.fixture
def topic(cluster: ClusterState) -> str:
    """Two partitions, with 100 messages each."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    create(admin, NewTopic(name, 2, 1))
    produce(cluster, name)
    return name


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    before = set(threading.enumerate())
    with closing(ScriptedCoordinator()) as scripted:
        yield scripted
    assert {one.name for one in set(threading.enumerate()) - before} == set()


def produce(cluster: ClusterState, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.internal_bootstrap})
    for number in range(200):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(30) == 0


def consumer_of(coordinator: ScriptedCoordinator, cluster: ClusterState, **arguments: Any) -> CoordinatedConsumer:
    kafka = {"bootstrap.servers": cluster.internal_bootstrap}
    group = f"g-{uuid.uuid4().hex[:8]}"
    return CoordinatedConsumer(
        coordinator.address, group, CONSUMER, kafka=kafka, session_timeout_ms=SESSION_TIMEOUT_MS, **arguments
    )


def begin(
    consumer: CoordinatedConsumer, coordinator: ScriptedCoordinator, topic: str, *threads: list[tuple[str, int, int]]
) -> list[MessageStream]:
    """Register the consumer with as many streams as threads are assigned; its streams."""
    streams = consumer.create_message_streams({topic: len(threads)})[topic]
    assert coordinator.register().topic_count == f'{{"{topic}":{len(threads)}}}'
    assert coordinator.start(*threads).error_code == 0
    return streams


def take(stream: MessageStream, count: int) -> list[int | None]:
    """The offsets of the next messages."""
    messages = [stream.poll(SECONDS) for _ in range(count)]
    return [None if one is None else one.offset() for one in messages]


def shut_down(consumer: CoordinatedConsumer, coordinator: ScriptedCoordinator) -> dict[tuple[str, int], int]:
    """Leave, and return the offsets that the coordinator has heard last: none if it leaves before a ping."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(consumer.shutdown)
        responses = coordinator.ping_until_end()
        done.result(SECONDS)
    last = responses[-1].offsets if responses else None
    return {(one.topic, one.partition): one.offset for one in last or ()}


@pytest.mark.promise("consumer.md", "Each partition belongs to one of a consumer's streams, and `shutdown` ends them.")
@pytest.mark.promise("consumer.md", "A full stream does not hold up another one.")
def test_two_streams_iterate_whatever_one_holds_and_shutdown_reports_the_last_offsets(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.client.consumer.streams.MAX_STREAM_MESSAGES", 20)
    monkeypatch.setattr("proxy.client.consumer.fetching.MAX_BATCH", 5)
    with consumer_of(coordinator, cluster) as consumer:
        first, second = begin(consumer, coordinator, topic, [(topic, 0, SMALLEST)], [(topic, 1, 40)])
        assert take(second, 60) == list(range(40, 100))
        assert take(first, 100) == list(range(100))
        assert shut_down(consumer, coordinator) == {(topic, 0): 100, (topic, 1): 100}
        assert list(first) == list(second) == []


@pytest.mark.promise(
    "consumer.md", "A consumer reports exact offsets with StopFetcher, and hands out nothing of what was stopped."
)
def test_nothing_is_handed_out_after_stop_fetcher(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster) as consumer:
        (stream,) = begin(consumer, coordinator, topic, [(topic, 0, 0), (topic, 1, 0)])
        taken = [stream.poll(SECONDS) for _ in range(30)]
        stopped = coordinator.stop()
        assert stream.poll(0) is None
        counts = Counter((topic, one.partition()) for one in taken if one is not None)
        assert {(one.topic, one.partition): one.offset for one in stopped.offsets or ()} == counts
        produce(cluster, topic)
        assert stream.poll(0.2) is None
        coordinator.start([(topic, which, counts[topic, which]) for which in (0, 1)])
        again = [stream.poll(SECONDS) for _ in range(370)]
        offsets = sorted((one.partition(), one.offset()) for one in [*taken, *again] if one is not None)
        assert offsets == [(which, offset) for which in (0, 1) for offset in range(200)]
        shut_down(consumer, coordinator)


@pytest.mark.promise(
    "consumer.md",
    "A consumer whose application takes nothing for `max_poll_interval_ms` leaves, and its streams raise.",
)
def test_an_application_that_stands_still_leaves_its_group(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_ms = 0
    clock = consumer_module.boottime_ms
    monkeypatch.setattr(consumer_module, "boottime_ms", lambda: clock() + passed_ms)
    with consumer_of(coordinator, cluster, max_poll_interval_ms=30_000) as consumer:
        (stream,) = begin(consumer, coordinator, topic, [(topic, 0, 0)])
        assert take(stream, 10) == list(range(10))
        passed_ms = 30_000
        last = coordinator.ping_until_end()[-1]
        assert [(one.partition, one.offset) for one in last.offsets or ()] == [(0, 10)]
        with pytest.raises(ConsumerFailed, match="max_poll_interval_ms"):
            next(stream)


@pytest.mark.promise("consumer.md", "An offset that is not there any more begins anew by `auto_offset_reset`.")
def test_an_offset_out_of_range_is_reset_after_a_reconnect(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator
) -> None:
    with consumer_of(coordinator, cluster) as consumer:
        (stream,) = begin(consumer, coordinator, topic, [(topic, 0, 5000)])
        assert coordinator.receives_end()
        coordinator.hang_up()
        coordinator.register()
        coordinator.start([(topic, 0, 5000)])
        assert take(stream, 100) == list(range(100))
        shut_down(consumer, coordinator)


@pytest.mark.promise(
    "consumer.md", "With `auto_commit=False` the application commits, also in `on_revoked`, and not what it has lost."
)
def test_offsets_are_committed_by_the_application_also_while_partitions_are_revoked(
    cluster: ClusterState, topic: str, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.client.consumer.streams.MAX_STREAM_MESSAGES", 5)  # a stream is full meanwhile
    calls: list[tuple[str, list[tuple[str, int]]]] = []
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})

    def revoked(partitions: list[tuple[str, int]]) -> None:
        calls.append(("revoked", partitions))
        consumer.commit_offsets()

    def assigned(partitions: list[tuple[str, int]]) -> None:
        calls.append(("assigned", partitions))

    with consumer_of(coordinator, cluster, auto_commit=False, on_assigned=assigned, on_revoked=revoked) as consumer:
        (stream,) = consumer.create_message_streams({topic: 1})[topic]
        group = coordinator.register().group_id
        with pytest.raises(CommitRefused, match="nothing is assigned"):
            consumer.commit_offsets()
        coordinator.start([(topic, 0, 0)])
        for number in range(0, 90, 30):
            assert take(stream, 30) == list(range(number, number + 30))
            consumer.commit_offsets()
            assert committed(admin, group) == {0: number + 30}
        classic = Consumer({"bootstrap.servers": cluster.internal_bootstrap, "group.id": group})
        try:
            joined = threading.Event()
            classic.subscribe([topic], on_assign=lambda *_: joined.set())
            while not joined.is_set():
                classic.poll(0.1)
            with pytest.raises(CommitRefused, match=f"group {group} has members of Kafka's own group protocols"):
                consumer.commit_offsets()
        finally:
            classic.close()
        assert take(stream, 1) == [90]
        stopped = coordinator.stop()
        assert (stopped.error_code, stopped.offsets) == (0, None)
        assert committed(admin, group) == {0: 91}
        assert calls == [("assigned", [(topic, 0)]), ("revoked", [(topic, 0)])]
        with pytest.raises(CommitRefused, match="nothing is assigned"):
            consumer.commit_offsets()
        shut_down(consumer, coordinator)
