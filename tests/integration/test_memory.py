"""How much memory the sidecar's process takes where a body is huge, and where many clients do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import METADATA, batch, request, response
from tests.integration.peer import Reader, Writer, read_frame, upstream
from tests.integration.weighed import KIB, MIB, Weighed

FETCH = 1
BATCH = batch(1000, bytes(MIB))
"""What fetch responses here are made of: about 1 MiB."""

SLOW_READERS = 500
PER_SLOW_READER = 160 * KIB
"""Bytes the sidecar may take for each."""

BROKER_SEND_BUFFER, CONSUMER_RECEIVE_BUFFER = 102_400, 65_536
"""Bytes of socket buffers: Kafka's defaults of socket.send.buffer.bytes and receive.buffer.bytes."""


@asynccontextmanager
async def sidecar(folder: Path, **settings: object) -> AsyncIterator[Weighed]:
    """Start it before a peer whose fetch responses are as large as the request's ``max_bytes`` says."""
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

    async with upstream(answer) as upstream_port:
        path = folder / "sidecar.yaml"
        listener = {"name": "CLIENT", "bind": f"127.0.0.1:{bind}", "upstream": f"127.0.0.1:{upstream_port}"}
        config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"127.0.0.1:{admin}"}, **settings}
        path.write_text(yaml.safe_dump(config))
        log = folder / "sidecar.log"
        process = await asyncio.to_thread(SidecarProcess.start, path, log, f"127.0.0.1:{admin}")
        try:
            yield Weighed(process, ("127.0.0.1", bind))
        finally:
            assert await asyncio.to_thread(process.stop)


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


async def receive(sock: socket.socket, size: int) -> None:
    """Read ``size`` bytes and keep none."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(256 * KIB)
    while size:
        count = await loop.sock_recv_into(sock, memoryview(buffer)[:size])
        assert count
        size -= count


async def fetch_all(sock: socket.socket, size: int) -> None:
    """Fetch ``size`` bytes of records and read the whole response."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, fetch(1, size))
    head = await loop.sock_recv(sock, 4)
    await receive(sock, int.from_bytes(head, "big"))


@pytest.mark.kafka
async def test_a_fetch_of_100_mb_takes_less_than_2_mib(cluster: ClusterState, tmp_path: Path) -> None:
    observed = {
        "internal.bootstrap.servers": cluster.internal_bootstrap,
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": "audit-of-memory"},
    }
    async with sidecar(tmp_path, **observed) as running:
        with socket.create_connection(running.address) as sock:
            sock.setblocking(False)
            for _ in range(20):  # what is made once, such as the producer's buffers, is not the question
                await fetch_all(sock, 2 * len(BATCH))
            await running.until("audit_delivered_total", 21)  # the connection, too
            before = running.start_measuring()
            await fetch_all(sock, 100_000_000)
            await running.until("observer_delivered_total", 22)
            assert running.peak() - before < 2 * MIB
        assert await running.metric("decode_total", outcome="full") == 42  # of each fetch the request and the response
        assert await running.metric("bytes_total", direction="broker_to_client") > 100_000_000


class Keeper:
    """An observer that wants to read every body, and keeps none."""

    def configure(self, configs: object) -> None:
        pass

    def record_request(self, struct: object, *context: object) -> None:
        pass

    def record_response(self, struct: object, *context: object) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass


async def test_a_fetch_of_100_mb_that_somebody_wants_to_read_takes_less_than_2_mib(tmp_path: Path) -> None:
    keeper = f"tests.integration.{Path(__file__).stem}:Keeper"
    observed = {"internal.bootstrap.servers": "127.0.0.1:1", "observer.class.names": [keeper]}
    async with sidecar(tmp_path, **observed) as running:
        with socket.create_connection(running.address) as sock:
            sock.setblocking(False)
            for _ in range(20):
                await fetch_all(sock, 2 * len(BATCH))
            before = running.start_measuring()
            await fetch_all(sock, 100_000_000)
            assert running.peak() - before < 2 * MIB
        assert await running.metric("decode_total", outcome="not_kept") == 21


async def test_500_readers_of_1_kib_a_second_take_160_kib_each_and_stop_nobody_else(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()

    async def read_slowly(sock: socket.socket) -> None:
        await loop.sock_sendall(sock, fetch(1, 10 * MIB))
        while True:
            assert await loop.sock_recv(sock, KIB)
            await asyncio.sleep(1)

    async with sidecar(tmp_path) as running:
        with contextlib.ExitStack() as sockets:
            slow = [sockets.enter_context(socket.socket()) for _ in range(SLOW_READERS)]
            for sock in slow:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CONSUMER_RECEIVE_BUFFER)
                sock.setblocking(False)
                await loop.sock_connect(sock, running.address)
            other = sockets.enter_context(socket.create_connection(running.address))
            other.setblocking(False)
            await fetch_all(other, 10 * len(BATCH))
            before = running.start_measuring()
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read_slowly(sock)) for sock in slow]
                await fetch_all(other, 10 * len(BATCH))
                await running.until("read_pauses_total", SLOW_READERS, side="broker")
                await fetch_all(other, 10 * len(BATCH))
                await asyncio.sleep(2)  # the slow ones have read a little more
                peak = running.peak()
                for reader in readers:
                    reader.cancel()
            grown = peak - before
            assert grown <= SLOW_READERS * PER_SLOW_READER
            assert await running.metric("connections_closed_total") <= 1  # the probe of /readyz
