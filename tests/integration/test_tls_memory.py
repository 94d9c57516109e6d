"""What connections with TLS take of a sidecar's memory, and that they leave nothing behind; asserted loosely."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import METADATA, request, response
from tests.integration.peer import answer_in_order, upstream
from tests.tools.authority import Authority
from tests.tools.bench.measure import memory

HELD = 300
KIB_EACH = 60
PASSING = 500
"""Connections of each of three rounds, the first of which is not counted: it fills caches and pools."""

LEFT_MIB = 5
TOGETHER = 50


class Client:
    """One connection, without streams: they would take longer than the sidecar."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    async def ask(self, port: int) -> asyncio.StreamWriter:
        """Make a request; returns what closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await self._until(self._tls.do_handshake, reader, writer)
        await self._until(lambda: self._tls.write(request(METADATA, 1, 7)), reader, writer)
        assert await self._until(lambda: self._tls.read(8), reader, writer) == response(7)
        return writer

    async def _until(self, step: Callable[[], Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                writer.write(self._outgoing.read())
                received = await reader.read(16_384)
                assert received, "closed"
                self._incoming.write(received)
                continue
            writer.write(self._outgoing.read())
            return done


@pytest.mark.promise("tls.md", "A connection with TLS takes some ten KiB of memory, and leaves nothing behind.")
async def test_connections_take_little_and_leave_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    context = ssl.create_default_context(cafile=str(authority.ca))
    port, admin = free_ports(2)
    async with upstream(answer_in_order) as peer:
        listener = {
            "name": "TLS",
            "bind": f"127.0.0.1:{port}",
            "upstream": f"127.0.0.1:{peer}",
            "security.protocol": "SASL_SSL",
            "tls": {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)},
        }
        path = tmp_path / "sidecar.yaml"
        keys = {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"127.0.0.1:{admin}"}}
        path.write_text(yaml.safe_dump(keys))
        sidecar = await asyncio.to_thread(SidecarProcess.start, path, tmp_path / "log", f"127.0.0.1:{admin}")
        try:

            async def ask(count: int) -> list[asyncio.StreamWriter]:
                writers: list[asyncio.StreamWriter] = []
                while len(writers) < count:
                    batch = [Client(context).ask(port) for _ in range(min(TOGETHER, count - len(writers)))]
                    writers += await asyncio.gather(*batch)
                return writers

            async def ask_and_close(count: int) -> int:
                for _ in range(count // TOGETHER):
                    for writer in await ask(TOGETHER):
                        writer.transport.abort()
                await asyncio.sleep(0.5)
                return memory([sidecar.process.pid]).rss

            before = await ask_and_close(TOGETHER)
            held = await ask(HELD)
            each = (memory([sidecar.process.pid]).rss - before) / HELD
            for writer in held:
                writer.transport.abort()
            assert each < KIB_EACH
            filled = await ask_and_close(PASSING)
            for _ in range(2):
                left = await ask_and_close(PASSING)
            assert (left - filled) / 1024 < LEFT_MIB
        finally:
            await asyncio.to_thread(sidecar.stop)
