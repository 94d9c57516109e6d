"""How much memory clients make the sidecar hold that have requests open, or do not read what they asked for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import yaml

from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, METADATA, request, response
from tests.integration.peer import Reader, Writer, read_frame, upstream
from tests.integration.weighed import KIB, MIB, Weighed
from tests.tools.messages import uvarint

HOARDERS = 12
PARTITIONS = 190_000
"""Of one Produce request, six bytes each."""

BUDGET = 64 * MIB
PER_CONNECTION = 512 * KIB
"""Bytes a connection may take besides: sessions, what was read at a time, what waits to be written."""

WAIT_MS = 60_000
"""Milliseconds after which the broker answers the request before those."""

SLOW_READERS = 60
METADATA_SIZE = 4 * MIB


@asynccontextmanager
async def sidecar(folder: Path, config: dict[str, Any]) -> AsyncIterator[Weighed]:
    """Run it as ``config`` says."""
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    process = await asyncio.to_thread(SidecarProcess.start, path, folder / "sidecar.log", config["admin"]["bind"])
    host, port = config["listeners"][0]["bind"].split(":")
    try:
        yield Weighed(process, (host, int(port)))
    finally:
        assert await asyncio.to_thread(process.stop)


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


async def ask(address: tuple[str, int]) -> None:
    """An honest client's request is answered."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request(API_VERSIONS, 0, 7))
    async with asyncio.timeout(60):
        frame = await read_frame(reader)
    assert struct.unpack_from(">i", frame, 4) == (7,)
    writer.close()


@pytest.mark.kafka
async def test_partitions_of_open_produce_requests_are_held_in_the_budget(
    cluster: ClusterState, topic: str, tmp_path: Path
) -> None:
    name = topic.encode()
    wait = pack(">iiiib", -1, WAIT_MS, 1 << 30, 1 << 20, 0) + pack(">ih", 1, len(name)) + name
    fetch = request(1, 4, 1, wait + pack(">iiqi", 1, 0, 0, 1 << 20))
    partitions = uvarint(PARTITIONS + 1) + b"\0\0\0\1\0\0" * PARTITIONS
    produce = request(
        0, 9, 2, b"\0" + b"\0" + pack(">hi", 1, 1000) + b"\2" + uvarint(len(name) + 1) + name + partitions + b"\0\0"
    )
    config = yaml.safe_load((cluster.nodes[0].home.parent / "sidecar-1.yaml").read_text())
    config["drain.timeout.ms"] = 500
    async with sidecar(tmp_path, config) as running:
        await ask(running.address)
        before = running.start_measuring()
        with contextlib.ExitStack() as sockets:
            hoarders = [sockets.enter_context(socket.create_connection(running.address)) for _ in range(HOARDERS)]
            for sock in hoarders:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))  # closing resets it
            least = 2 * len(produce)
            sent = await asyncio.gather(*(push(sock, fetch + 4 * produce, least) for sock in hoarders))
            assert min(sent) > least, "the broker reads no more, and two are whole"
            await running.until("requests_total", 1 + 3 * HOARDERS)
            await running.until("decode_total", HOARDERS, outcome="not_kept")
            assert await running.metric("memory_charged_bytes") > BUDGET / 2
            grown = running.peak() - before
            print(f"{sum(sent) / 1e6:.0f} MB in, {grown / 1e6:.0f} MB held")
            assert grown < 2 * BUDGET + HOARDERS * PER_CONNECTION
            await ask(running.address)


async def test_of_a_long_metadata_response_little_is_held_for_clients_that_do_not_read(tmp_path: Path) -> None:
    brokers = pack(">iih9sih", 1, 1, 9, b"127.0.0.1", 19_092, -1)
    topics = pack(">hh5sb", 0, 5, b"topic", 0) + pack(">i", 0)
    count = METADATA_SIZE // len(topics)
    body = brokers + pack(">ii", 1, count) + topics * count

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            writer.write(response(correlation_id, body if key == METADATA else b"\0\x23\0\0\0\0"))
            await writer.drain()

    bind, admin = free_ports(2)
    async with upstream(answer) as port:
        listener = {"name": "CLIENT", "bind": f"127.0.0.1:{bind}", "upstream": f"127.0.0.1:{port}"}
        listener |= {"rewrite.addresses": True, "advertised": "edge.example:9092"}
        config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"127.0.0.1:{admin}"}}
        async with sidecar(tmp_path, config) as running:
            before = running.start_measuring()
            with contextlib.ExitStack() as sockets:
                slow = [sockets.enter_context(socket.create_connection(running.address)) for _ in range(SLOW_READERS)]
                for sock in slow:
                    sock.sendall(request(METADATA, 1, 1))
                await running.until("edited_responses_total", SLOW_READERS, api="Metadata")
                await asyncio.sleep(1)
                grown = running.peak() - before
                print(f"{SLOW_READERS} x {len(body) / 1e6:.1f} MB, {grown / 1e6:.0f} MB held")
                assert grown < SLOW_READERS * PER_CONNECTION
                got = await asyncio.to_thread(received, slow[-1], len(body) + 8 + len("edge.example") - 9)
        assert (
            got[8:43] == pack(">iih12sih", 1, 1, 12, b"edge.example", 9092, -1) + pack(">i", 1)[:0]
            or b"edge.example" in got[:60]
        )
        assert got.endswith(topics)


def received(sock: socket.socket, size: int) -> bytes:
    """The next ``size`` bytes."""
    sock.settimeout(20)
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        assert piece
        data += piece
    return bytes(data)
