"""Clients whose first request does not come in time, at a real broker, and those who look like them and stay."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node
from tests.frames import API_VERSIONS, request
from tests.integration.metrics import sample
from tests.integration.peer import Reader, Writer, read_frame

pytestmark = pytest.mark.kafka

SLOW = 60.0
"""Seconds after which something is taken to hang."""


class Site:
    """A sidecar before a broker, and its clients."""

    def __init__(self, process: SidecarProcess, config: dict[str, Any]) -> None:
        self.process = process
        self.config = config
        self.ports = {one["name"]: int(one["bind"].rpartition(":")[2]) for one in config["listeners"]}
        self.clients: list[Writer] = []

    async def dial(self, listener: str = "CLIENT", **options: Any) -> tuple[Reader, Writer]:
        client = await asyncio.open_connection(HOST, self.ports[listener], **options)
        self.clients.append(client[1])
        return client

    def closed(self, listener: str) -> float:
        """Connections that ended because of this timeout."""
        name, cause = "brokerside_connections_closed_total", "connection_setup_timeout"
        return sample(self.process.metrics(), name, listener=listener, cause=cause)


@asynccontextmanager
async def running(folder: Path, node: Node, tls: str, **settings: Any) -> AsyncIterator[Site]:
    """With the listeners CLIENT and TLS, which passes through to the address ``tls``."""
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    del config["observer.class.names"], config["audit"]
    bind, bind_tls, admin = (f"{HOST}:{port}" for port in free_ports(3))
    config["listeners"][0] |= {"bind": bind, "advertised": node.advertised}
    config["listeners"].append({"name": "TLS", "bind": bind_tls, "upstream": tls, "security.protocol": "SSL"})
    config |= {"admin": {"bind": admin}, **settings}
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    process = await asyncio.to_thread(SidecarProcess.start, path, folder / "sidecar.log", admin)
    site = Site(process, config)
    try:
        yield site
    finally:
        for writer in site.clients:
            writer.transport.abort()
        assert await asyncio.to_thread(process.stop)


async def ask(reader: Reader, writer: Writer) -> None:
    writer.write(request(API_VERSIONS, 0, 5))
    await answered(reader, 5)


async def answered(reader: Reader, correlation_id: int) -> None:
    frame = await asyncio.wait_for(read_frame(reader), SLOW)
    assert int.from_bytes(frame[4:8], "big") == correlation_id


async def lasts(reader: Reader, began: float) -> float:
    """Seconds from ``began`` until the other side ends it."""
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), SLOW) == b""
    return time.monotonic() - began


@pytest.mark.promise(
    "config/process.md",
    "A client whose first request is not there after `connection.setup.timeout.ms` is closed; one whose "
    "request was may be silent.",
)
@pytest.mark.slow
async def test_a_reload_changes_the_time_of_those_who_wait_in_every_worker(
    cluster: ClusterState, tmp_path: Path
) -> None:
    node, name = cluster.nodes[0], "connection.setup.timeout.ms"
    async with running(tmp_path, node, node.upstream, **{"workers": 2, name: 3_600_000}) as site:
        clients = [await site.dial() for _ in range(4)]
        for reader, writer in clients[2:]:
            await ask(reader, writer)
        part = site.process.config.with_suffix(".part")
        part.write_text(yaml.safe_dump(site.config | {name: 100}))
        part.replace(site.process.config)
        os.kill(site.process.process.pid, signal.SIGHUP)
        await asyncio.gather(*[lasts(reader, time.monotonic()) for reader, _ in clients[:2]])
        for reader, writer in clients[2:]:
            await ask(reader, writer)
        deadline = time.monotonic() + SLOW
        while site.closed("CLIENT") < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert site.closed("CLIENT") == 2
