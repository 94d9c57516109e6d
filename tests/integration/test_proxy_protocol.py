"""Behind a real HAProxy: clients keep the address that they have before it, and limits are theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy.config import load
from proxy.net.data_plane import DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from tests.frames import METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame, upstream
from tests.tools import fetched


class Running(NamedTuple):
    data_plane: DataPlane
    port: int
    """Of the sidecar."""
    balanced: int
    """Of the HAProxy before it."""


@asynccontextmanager
async def haproxy(folder: Path, to: int, option: str) -> AsyncIterator[int]:
    """Run one that sends headers as ``option`` says; yields its port. Skips the test where there is none to run."""
    try:
        program, root = await asyncio.to_thread(fetched.debian, "haproxy", ["haproxy"])
    except fetched.MissingError as missing:
        pytest.skip(f"no HAProxy: {missing}")
    port = free_port()
    (folder / "haproxy.cfg").write_text(
        "global\n  nbthread 1\n  maxconn 100\n"
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"
        f"listen kafka\n  bind 127.0.0.1:{port}\n  unique-id-format id-%pid\n"
        f"  server sidecar 127.0.0.1:{to} {option}\n"
    )
    libraries = fetched.environment_of(root)
    process = await asyncio.create_subprocess_exec(
        program, "-db", "-f", str(folder / "haproxy.cfg"), env=os.environ | libraries
    )
    try:
        async with asyncio.timeout(60):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def sidecar(folder: Path, quotas: str) -> AsyncIterator[tuple[DataPlane, int]]:
    """Run one before a broker that answers all; yields its port, too, where each connection needs a header."""
    async with upstream(answer_in_order) as broker:
        port = free_port()
        path = folder / "sidecar.yaml"
        path.write_text(
            f"broker.id: 1\nadmin: {{bind: '127.0.0.1:{free_port()}'}}\nquotas: {{{quotas}}}\n"
            f"listeners: [{{name: CLIENT, bind: '127.0.0.1:{port}', upstream: '127.0.0.1:{broker}', "
            "proxy.protocol: required, proxy.protocol.trusted: [127.0.0.1/32]}]\n"
        )
        config, ticker = load(path), Ticker()
        data_plane = DataPlane(config, ticker)
        listening = ListenerManager(config, data_plane, ticker)
        listening.start()
        try:
            yield data_plane, port
        finally:
            listening.close()
            now = asyncio.Event()
            now.set()
            await data_plane.stop(now)
            await asyncio.sleep(0)


@asynccontextmanager
async def running(folder: Path, option: str) -> AsyncIterator[Running]:
    async with (
        sidecar(folder, "max.connections.per.ip: 1") as (data_plane, port),
        haproxy(folder, port, option) as balanced,
    ):
        yield Running(data_plane, port, balanced)


async def dial(port: int, source: str) -> tuple[Reader, Writer]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


@pytest.mark.slow
@pytest.mark.promise("limits.md", "PROXY headers of version 1 and 2 are read, as HAProxy sends them.")
async def test_limits_and_names_are_those_of_the_client_before_the_load_balancer(tmp_path: Path) -> None:
    for option in ("send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"):
        async with running(tmp_path, option) as one:
            await are_those_of_the_client(one)
    async with running(tmp_path, "") as one:  # no header, from HAProxy or past it
        for count, port in enumerate((one.port, one.balanced), start=1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x00\x00\x00\x10 no header here")
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):  # what it sent was not read
                    assert await reader.read() == b""
            writer.close()
            assert one.data_plane.listener_counters["CLIENT"].closed["invalid_proxy_header"] == count


async def are_those_of_the_client(running: Running) -> None:
    clients = [await dial(running.balanced, source) for source in ("127.0.0.5", "127.0.0.6")]
    for number, (reader, writer) in enumerate(clients):
        writer.write(request(METADATA, 1, number, b"x" * 5000))
        async with asyncio.timeout(60):
            assert await read_frame(reader) == response(number)
    known = {relay.id.split("-")[1] for relay in running.data_plane._connections.relays}
    known = {name for name in known if not name.startswith("127.0.0.1:")}  # with which HAProxy was found ready
    assert known == {"{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in clients}
    reader, again = await dial(running.balanced, "127.0.0.6")
    again.write(request(METADATA, 1, 1))
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    assert running.data_plane.listener_counters["CLIENT"].closed["quota_exceeded"] == 1
    for writer in [again, *(writer for _, writer in clients)]:
        writer.close()
    async with asyncio.timeout(60):
        while running.data_plane.listener_counters["CLIENT"].active:  # noqa: ASYNC110  # a counter has no event
            await asyncio.sleep(0.005)
