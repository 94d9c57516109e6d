"""Behind a real HAProxy: clients keep the address that they have before it, and limits are theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from proxy.local.ports import HOST
from tests.frames import METADATA, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import answer_in_order, read_frame
from tests.integration.tls_bench import Bench, bench, silent_sidecar  # noqa: F401
from tests.tools import fetched


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
async def balanced(folder: Path, option: str) -> AsyncIterator[tuple[Bench, int]]:
    """A sidecar whose connections need a header each, and the port of an HAProxy before it."""
    settings = {"proxy.protocol": "required", "proxy.protocol.trusted": ["127.0.0.1/32"]}
    quotas = {"max.connections.per.ip": 1}
    async with (
        bench(folder, answer_in_order, quotas=quotas, **settings) as running,
        haproxy(folder, running.port, option) as port,
    ):
        yield running, port


@pytest.mark.slow
@pytest.mark.promise("limits.md", "PROXY headers of version 1 and 2 are read, as HAProxy sends them.")
async def test_limits_and_names_are_those_of_the_client_before_the_load_balancer(tmp_path: Path) -> None:
    for option in ("send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"):
        async with balanced(tmp_path, option) as (running, port):
            clients = [
                await asyncio.open_connection(HOST, port, local_addr=(source, 0))
                for source in ("127.0.0.5", "127.0.0.6", "127.0.0.6")
            ]
            for number, (reader, writer) in enumerate(clients):
                writer.write(request(METADATA, 1, number, b"x" * 5000))
                async with asyncio.timeout(60):
                    if number == 2:
                        assert await reader.read() == b"", "the second one of an address"
                    else:
                        assert await read_frame(reader) == response(number)
            known = {relay.id.split("-")[1] for relay in running.manager.relays}
            known = {name for name in known if not name.startswith(f"{HOST}:")}  # with which HAProxy was found ready
            assert known == {"{}:{}".format(*writer.get_extra_info("sockname")) for _, writer in clients[:2]}
            assert running.counters.closed["quota_exceeded"] == 1
            for _, writer in clients:
                writer.close()
    async with balanced(tmp_path, "") as (running, port):  # no header, from HAProxy or past it
        for count, to in enumerate((running.port, port), start=1):
            reader, writer = await asyncio.open_connection(HOST, to)
            writer.write(b"\x00\x00\x00\x10 no header here")
            async with asyncio.timeout(60):
                with suppress(ConnectionResetError):  # what it sent was not read
                    assert await reader.read() == b""
            writer.close()
            assert running.counters.closed["invalid_proxy_header"] == count
