"""How much memory large responses, slow readers and hoarders make a sidecar hold; a peer stands for some brokers."""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.net.data_plane import AUDIT_OBSERVER
from tests.frames import API_VERSIONS, METADATA, batch, request, response
from tests.integration import sidecars
from tests.integration.metrics import sample
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame, upstream
from tests.integration.quotas import Peer
from tests.integration.test_tls import HandMade
from tests.tools.authority import Authority
from tests.tools.messages import uvarint

KIB, MIB = 1024, 1024 * 1024
FETCH = 1
BATCH = batch(1000, bytes(MIB))
"""What fetch responses here are made of: about 1 MiB."""

SLOW_READERS = 200
BROKER_SEND_BUFFER, CONSUMER_RECEIVE_BUFFER = 102_400, 65_536
"""Bytes of socket buffers: Kafka's defaults of socket.send.buffer.bytes and receive.buffer.bytes."""


HOARDERS = 12
PARTITIONS = 190_000
"""Of one Produce request, six bytes each."""

BUDGET = 64 * MIB
PER_CONNECTION = 512 * KIB
"""Bytes a connection may take besides: sessions, what was read at a time, what waits to be written."""

TOGETHER = 50
"""Clients with TLS that connect at a time."""

METADATA_READERS = 60
METADATA_SIZE = 4 * MIB


class Weighed:
    def __init__(self, process: SidecarProcess, address: tuple[str, int]) -> None:
        self._process = process
        self.address = address

    async def metric(self, name: str, **labels: str) -> float:
        return sample(await asyncio.to_thread(self._process.metrics), f"brokerside_{name}", **labels)

    async def until(self, name: str, least: float, **labels: str) -> None:
        async with asyncio.timeout(60):
            while await self.metric(name, **labels) < least:  # noqa: ASYNC110  # only asking shows it
                await asyncio.sleep(0.05)

    def start_measuring(self) -> int:
        """Return the resident bytes of now, and forget those of before in ``peak``."""
        (self._proc / "clear_refs").write_text("5")
        return self.resident()

    def resident(self) -> int:
        return self._kib("VmRSS") * KIB

    def peak(self) -> int:
        """Most resident bytes since ``start_measuring``."""
        return self._kib("VmHWM") * KIB

    def descriptors(self) -> int:
        return len([*(self._proc / "fd").iterdir()])

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self._process.process.pid}")

    def _kib(self, name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        return int(found[1])


@asynccontextmanager
async def sidecar(folder: Path, config: dict[str, Any]) -> AsyncIterator[Weighed]:
    host, port = config["listeners"][0]["bind"].split(":")
    process = sidecars.running(config, folder)
    started = await asyncio.to_thread(process.__enter__)
    try:
        yield Weighed(started, (host, int(port)))
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


@asynccontextmanager
async def before_a_peer(folder: Path, **settings: Any) -> AsyncIterator[Weighed]:
    """A sidecar before a peer whose fetch responses are as large as the request's ``max_bytes`` says."""
    bind, admin = free_ports(2)

    async def answer(reader: Reader, writer: Writer) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BROKER_SEND_BUFFER)
        while True:
            frame = await read_frame(reader)
            key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            if key == FETCH:
                await send_fetched(writer, correlation_id, frame)
            elif key == METADATA:
                broker = struct.pack(">iih9sih", 1, 1, 9, b"127.0.0.1", bind, -1)
                writer.write(response(correlation_id, broker + struct.pack(">ii", 1, 0)))
            await writer.drain()

    async with upstream(answer) as port, sidecar(folder, config_of(bind, admin, port) | settings) as running:
        yield running


def config_of(bind: int, admin: int, port: int, **listener: Any) -> dict[str, Any]:
    one = {"name": "CLIENT", "bind": f"127.0.0.1:{bind}", "upstream": f"127.0.0.1:{port}", **listener}
    return {"broker.id": 1, "listeners": [one], "admin": {"bind": f"127.0.0.1:{admin}"}}


def fetch(correlation_id: int, size: int) -> bytes:
    """A FetchRequest of one partition, version 4; the peer here answers it with about ``size`` bytes of records."""
    body = struct.pack(">iiiib", -1, 500, 1, size, 0)
    return request(FETCH, 4, correlation_id, body + struct.pack(">ih1siiqi", 1, 1, b"t", 1, 0, 0, size))


async def send_fetched(writer: Writer, correlation_id: int, frame: bytes) -> None:
    """Answer the request ``frame``, piece by piece so that nothing here holds the response either."""
    (size,) = struct.unpack_from(">i", frame, len(frame) - 4)
    batches = size // len(BATCH)
    topic = struct.pack(">iih1siihqqi", 0, 1, 1, b"t", 1, 0, 0, 0, 0, -1)
    payload = struct.pack(">i", correlation_id) + topic + struct.pack(">i", batches * len(BATCH))
    writer.write(struct.pack(">i", len(payload) + batches * len(BATCH)) + payload)
    for _ in range(batches):
        for start in range(0, len(BATCH), 64 * KIB):
            writer.write(BATCH[start : start + 64 * KIB])
            await writer.drain()


async def fetch_all(reader: Reader, writer: Writer, size: int) -> None:
    writer.write(fetch(1, size))
    left = int.from_bytes(await reader.readexactly(4), "big")
    while left:
        left -= len(await reader.readexactly(min(left, MIB)))


def observed_by(observer: str, cluster: ClusterState) -> dict[str, Any]:
    observed = {"observer.class.names": [observer], "audit": {"topic": "audit-of-memory"}}
    return observed | {"internal.bootstrap.servers": cluster.internal_bootstrap}


class Keeper:
    """An observer that wants to read every body, and keeps none."""

    def _ignore(self, *given: object) -> None:
        pass

    configure = record_request = record_response = close = _ignore


@pytest.mark.kafka
@pytest.mark.promise(
    "architecture.md", "A fetch of 100 MB takes less than 2 MiB of the sidecar's memory, with any observer."
)
@pytest.mark.slow
async def test_a_fetch_of_100_mb_takes_less_than_2_mib(cluster, tmp_path):
    for observer, outcome, count in (
        (AUDIT_OBSERVER, "full", 42),  # of each fetch the request and the response
        (f"tests.integration.{Path(__file__).stem}:Keeper", "not_kept", 21),
    ):
        async with before_a_peer(tmp_path, **observed_by(observer, cluster)) as running:
            client = await asyncio.open_connection(*running.address)
            for _ in range(20):  # what is made once, such as the producer's buffers, is not the question
                await fetch_all(*client, 2 * len(BATCH))
            if outcome == "full":
                await running.until("audit_delivered_total", 21)  # the connection, too
            before = running.start_measuring()
            await fetch_all(*client, 100_000_000)
            await running.until("decode_total", count, outcome=outcome)
            if outcome == "full":
                await running.until("observer_delivered_total", 22)
            assert running.peak() - before < 2 * MIB, observer
            client[1].close()
            assert await running.metric("decode_total", outcome=outcome) == count, observer
            assert await running.metric("bytes_total", direction="broker_to_client") > 100_000_000


@pytest.mark.kafka
@pytest.mark.promise(
    "operations.md", "A process with the audit takes 80 MiB of memory, an idle connection 4 KiB and two descriptors."
)
async def test_idle_connections_take_little(cluster, tmp_path):
    audit = observed_by(AUDIT_OBSERVER, cluster)
    async with before_a_peer(tmp_path, **audit) as running, contextlib.AsyncExitStack() as clients:

        async def come(count):
            """Let ``count`` clients come, ask and stay; return the resident bytes and the open descriptors."""
            for _ in range(count):
                reader, writer = await asyncio.open_connection(*running.address)
                clients.callback(lambda writer=writer: writer.transport.abort())  # as long as it is held, it is open
                writer.write(request(METADATA, 1, 7))
                await read_frame(reader)
            await running.until("audit_delivered_total", 1)
            return running.resident(), running.descriptors()

        first = await come(100)
        last = await come(1200)
        assert first[0] < 80 * MIB
        assert last[0] - first[0] < 1200 * 5 * KIB
        assert abs(last[1] - first[1] - 1200 * 2) < 10, "connections of its own may come or go meanwhile"


@pytest.mark.promise("security.md", "A client that does not read takes some 200 KiB of memory at most.")
async def test_readers_of_1_kib_a_second_take_160_kib_each_and_stop_nobody_else(tmp_path):
    loop = asyncio.get_running_loop()

    async def read_slowly(sock):
        await loop.sock_sendall(sock, fetch(1, 10 * MIB))
        while True:
            assert await loop.sock_recv(sock, KIB)
            await asyncio.sleep(1)

    async with before_a_peer(tmp_path) as running:
        with contextlib.ExitStack() as sockets:
            slow = [sockets.enter_context(socket.socket()) for _ in range(SLOW_READERS)]
            for sock in slow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CONSUMER_RECEIVE_BUFFER)
                sock.setblocking(False)
                await loop.sock_connect(sock, running.address)
            other = await asyncio.open_connection(*running.address)
            await fetch_all(*other, 10 * len(BATCH))
            before = running.start_measuring()
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read_slowly(sock)) for sock in slow]
                await fetch_all(*other, 10 * len(BATCH))
                await running.until("read_pauses_total", SLOW_READERS, side="broker")
                await fetch_all(*other, 10 * len(BATCH))
                await asyncio.sleep(2)  # the slow ones have read a little more
                peak = running.peak()
                for reader in readers:
                    reader.cancel()
            other[1].close()
            assert peak - before <= SLOW_READERS * 160 * KIB
            assert await running.metric("connections_closed_total") <= 1  # the probe of /readyz


async def push(sock: socket.socket, data: bytes, least: int) -> int:
    """Send more than ``least`` bytes of ``data``, and then until nothing was taken for three seconds. Returns how many
    bytes were."""
    loop = asyncio.get_running_loop()
    view, sent = memoryview(data), 0
    async with asyncio.timeout(60):
        while sent < len(data):
            piece = view[sent : sent + 65_536]
            sending = asyncio.ensure_future(loop.sock_sendall(sock, piece))
            try:
                while not (await asyncio.wait([sending], timeout=3))[0]:
                    if sent > least:
                        return sent
                await sending
            finally:
                sending.cancel()
            sent += len(piece)
    return sent


@pytest.mark.kafka
@pytest.mark.promise(
    "security.md",
    "Clients make a process hold 64 MiB at most, and some KiB for each connection; others are served meanwhile.",
)
async def test_partitions_of_open_produce_requests_are_held_in_the_budget(cluster, topic, tmp_path):
    name = topic.encode()
    wait = struct.pack(">iiiib", -1, 60_000, 1 << 30, 1 << 20, 0) + struct.pack(">ih", 1, len(name)) + name
    fetch = request(1, 4, 1, wait + struct.pack(">iiqi", 1, 0, 0, 1 << 20))
    partitions = uvarint(PARTITIONS + 1) + b"\0\0\0\1\0\0" * PARTITIONS
    produce = request(
        0,
        9,
        2,
        b"\0" + b"\0" + struct.pack(">hi", 1, 1000) + b"\2" + uvarint(len(name) + 1) + name + partitions + b"\0\0",
    )
    async with sidecar(tmp_path, sidecars.config_of(cluster.nodes[0], **{"drain.timeout.ms": 500})) as running:
        address = cluster.nodes[0].advertised
        with Peer(address) as honest:
            await asyncio.to_thread(honest.ask, API_VERSIONS, 0, b"")
        before = running.start_measuring()
        with contextlib.ExitStack() as sockets:
            hoarders = [sockets.enter_context(socket.create_connection(running.address)) for _ in range(HOARDERS)]
            for sock in hoarders:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
            least = 2 * len(produce)
            sent = await asyncio.gather(*(push(sock, fetch + 4 * produce, least) for sock in hoarders))
            assert min(sent) > least, "the broker reads no more, and two are whole"
            await running.until("requests_total", 1 + 3 * HOARDERS)
            await running.until("decode_total", HOARDERS, outcome="not_kept")
            assert await running.metric("memory_charged_bytes") > BUDGET / 2
            grown = running.peak() - before
            assert grown < 2 * BUDGET + HOARDERS * PER_CONNECTION
            with Peer(address) as honest:
                await asyncio.to_thread(honest.ask, API_VERSIONS, 0, b"")


@pytest.mark.promise(
    "security.md", "Of a long Metadata response only the brokers' part is held, for clients that do not read as well."
)
async def test_of_a_long_metadata_response_little_is_held_for_clients_that_do_not_read(tmp_path):
    brokers = struct.pack(">iih9sih", 1, 1, 9, b"127.0.0.1", 19_092, -1)
    topics = struct.pack(">hh5sb", 0, 5, b"topic", 0) + struct.pack(">i", 0)
    count = METADATA_SIZE // len(topics)
    body = brokers + struct.pack(">ii", 1, count) + topics * count

    async def answer(reader, writer):
        while True:
            frame = await read_frame(reader)
            key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            writer.write(response(correlation_id, body if key == METADATA else b"\0\x23\0\0\0\0"))
            await writer.drain()

    bind, admin = free_ports(2)
    rewriting = {"rewrite.addresses": True, "advertised": "edge.example:9092"}
    async with upstream(answer) as port:
        async with sidecar(tmp_path, config_of(bind, admin, port, **rewriting)) as running:
            before = running.start_measuring()
            with contextlib.ExitStack() as sockets:
                slow = [
                    sockets.enter_context(socket.create_connection(running.address)) for _ in range(METADATA_READERS)
                ]
                for sock in slow:
                    sock.sendall(request(METADATA, 1, 1))
                await running.until("edited_responses_total", METADATA_READERS, api="Metadata")
                await asyncio.sleep(1)
                assert running.peak() - before < METADATA_READERS * PER_CONNECTION
                size = len(body) + 8 + len("edge.example") - 9
                got = await asyncio.to_thread(slow[-1].recv, size, socket.MSG_WAITALL)
        assert len(got) == size
        assert b"edge.example" in got[:60]
        assert got.endswith(topics)


@pytest.mark.promise("tls.md", "A connection with TLS takes some ten KiB of memory, and leaves nothing behind.")
@pytest.mark.slow
async def test_connections_with_tls_take_little_and_leave_nothing(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    context = ssl.create_default_context(cafile=str(authority.ca))
    bind, admin = free_ports(2)
    tls = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    listener = {"security.protocol": "SASL_SSL", "tls": tls}

    async def ask():
        client = HandMade(context, *await asyncio.open_connection("127.0.0.1", bind))
        await client.shake_hands()
        client.tls.write(request(METADATA, 1, 7))
        assert await client.read(8) == response(7)
        return client.writer

    async with (
        upstream(answer_in_order) as port,
        sidecar(tmp_path, config_of(bind, admin, port, **listener)) as running,
    ):

        async def come_and_go(count):
            for _ in range(count // TOGETHER):
                for writer in await asyncio.gather(*(ask() for _ in range(TOGETHER))):
                    writer.transport.abort()
            await running.until("connections_closed_total", (await running.metric("connections_accepted_total")) - 1)
            return running.resident()

        before = await come_and_go(TOGETHER)
        held = [writer for _ in range(6) for writer in await asyncio.gather(*(ask() for _ in range(TOGETHER)))]
        assert (running.resident() - before) / len(held) < 60 * KIB
        for writer in held:
            writer.transport.abort()
        filled = await come_and_go(500)  # caches and pools
        for _ in range(2):
            left = await come_and_go(500)
        assert left - filled < 5 * MIB
