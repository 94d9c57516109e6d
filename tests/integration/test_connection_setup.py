"""Clients whose first request does not come in time, at a real broker, and those who look like them and stay."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node
from tests.brokers import TlsBroker
from tests.frames import API_VERSIONS, batch, produce, request
from tests.integration.metrics import sample
from tests.integration.peer import Reader, Writer, read_frame

pytestmark = pytest.mark.kafka

SETUP = 6.0
"""Seconds that stand for ``connection.setup.timeout.ms``: longer than a test is paused on a busy machine."""

SLOW = 60.0
"""Seconds after which something is taken to hang."""

LARGE = 30_000_000
"""Bytes that do not fit into the kernel's buffers."""


@dataclass(frozen=True)
class Site:
    """A sidecar. ``ports``: of its listeners. ``clients``: whoever was dialled for; closed after the test."""

    process: SidecarProcess
    ports: Mapping[str, int]
    clients: list[Writer] = field(default_factory=list)

    async def dial(self, listener: str = "CLIENT", **options: Any) -> tuple[Reader, Writer]:
        client = await asyncio.open_connection(HOST, self.ports[listener], **options)
        self.clients.append(client[1])
        return client

    def closed(self, listener: str) -> float:
        """Connections that ended because of this timeout."""
        name, cause = "brokerside_connections_closed_total", "connection_setup_timeout"
        return sample(self.process.metrics(), name, listener=listener, cause=cause)

    def hang_up(self) -> None:
        for writer in self.clients:
            writer.transport.abort()
        self.clients.clear()


def config_of(node: Node, **settings: Any) -> dict[str, Any]:
    """Of a sidecar before it, on a port of its own."""
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    del config["observer.class.names"], config["audit"]
    ports = iter(free_ports(2))
    config["listeners"][0] |= {"bind": f"{HOST}:{next(ports)}", "advertised": node.advertised}
    return {**config, "admin": {"bind": f"{HOST}:{next(ports)}"}, **settings}


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """A process that does nothing for a while."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def slow() -> Iterator[socket.socket]:
    """Stands for a broker that accepts on command, which no real one can be made to do."""
    with socket.create_server((HOST, 0)) as slow:
        slow.setblocking(False)
        yield slow


@pytest.fixture(scope="module")
def running(tls_broker: TlsBroker, slow: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With the listeners CLIENT, TLS and SLOW."""
    # Of the listener SLOW the upstream accepts after more than ``SETUP``.
    times = {"connection.setup.timeout.ms": int(SETUP * 1000), "upstream.connect.timeout.ms": 60_000}
    config = config_of(tls_broker.node, **times)
    upstreams = {"TLS": tls_broker.listeners["TLS"].address, "SLOW": f"{HOST}:{slow.getsockname()[1]}"}
    for (name, upstream), port in zip(upstreams.items(), free_ports(2), strict=True):
        bind = f"{HOST}:{port}"
        config["listeners"].append({"name": name, "bind": bind, "upstream": upstream, "security.protocol": "SSL"})
    process = started(tmp_path_factory.mktemp("sidecar"), config)
    yield Site(process, {one["name"]: int(one["bind"].rpartition(":")[2]) for one in config["listeners"]})
    assert process.stop()


@pytest.fixture
async def site(running: Site) -> AsyncIterator[Site]:
    yield running
    running.hang_up()


def started(folder: Path, config: Mapping[str, Any]) -> SidecarProcess:
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    return SidecarProcess.start(path, folder / "sidecar.log", config["admin"]["bind"])


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


@pytest.mark.slow
async def test_who_does_not_complete_a_request_is_closed_and_who_waits_for_the_broker_is_not(
    site: Site, tls_broker: TlsBroker, slow: socket.socket
) -> None:
    """Nor is who has sent a request before and is silent since, with TLS or without."""
    before, began = {name: site.closed(name) for name in ("CLIENT", "TLS", "SLOW")}, time.monotonic()
    context = ssl.create_default_context(cafile=str(tls_broker.authority.ca))
    plain, tls, shaken = await site.dial(), *[await site.dial("TLS", ssl=context) for _ in range(2)]
    for client in (plain, tls):
        await ask(*client)
    waiting, large = await site.dial(), await site.dial()
    accepted_late = asyncio.create_task(is_accepted_late(site, slow))
    with stopped(tls_broker.node.pid):
        waiting[1].write(request(API_VERSIONS, 0, 6) + request(API_VERSIONS, 0, 7)[:-1])
        large[1].write(produce(8, 1, batch(1, bytes(LARGE))))
        silent, half, slowly, without_tls = [
            await site.dial(listener) for listener in ("CLIENT", "CLIENT", "CLIENT", "TLS")
        ]
        half[1].write(produce(1, 1, batch(3, bytes(100)))[:-1])

        async def trickle() -> None:
            for byte in request(API_VERSIONS, 0, 5, client_id="c" * 1000):
                slowly[1].write(bytes([byte]))
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        try:
            ends = (lasts(reader, began) for reader, _ in (silent, half, slowly, without_tls))
            for seconds in await asyncio.gather(*ends):
                assert SETUP - 0.5 <= seconds < SLOW
        finally:
            trickling.cancel()
            await asyncio.wait([trickling])
        await asyncio.sleep(SETUP)
    await answered(waiting[0], 6)
    await answered(large[0], 8)
    for client in (plain, tls, shaken):
        await ask(*client)
    await accepted_late
    after = {name: site.closed(name) - count for name, count in before.items()}
    assert after == {"CLIENT": 3, "TLS": 1, "SLOW": 0}


async def is_accepted_late(site: Site, slow: socket.socket) -> None:
    """The time begins when the broker has accepted."""
    loop = asyncio.get_running_loop()
    with suppress(BlockingIOError):
        while True:  # the sidecar has looked whether anybody is there
            slow.accept()[0].close()
    slow.listen(0)
    with await asyncio.to_thread(socket.create_connection, slow.getsockname(), SLOW):  # fills the backlog
        _, writer = await site.dial("SLOW")
        await asyncio.sleep(SETUP + 0.3)
        (await loop.sock_accept(slow))[0].close()
        accepted, _ = await asyncio.wait_for(loop.sock_accept(slow), SLOW)
        with accepted:
            accepted.setblocking(False)
            for _ in range(2):
                await asyncio.sleep(0.3)
                writer.write(b"x")
                assert await asyncio.wait_for(loop.sock_recv(accepted, 2), SLOW) == b"x"
                await asyncio.sleep(SETUP)
    slow.listen()


@pytest.mark.slow
async def test_what_came_while_the_sidecar_was_stopped_is_read(site: Site) -> None:
    before = site.closed("CLIENT")
    clients = [await site.dial() for _ in range(20)]
    await asyncio.sleep(0.2)
    with stopped(site.process.process.pid):
        for _, writer in clients:
            writer.write(request(API_VERSIONS, 0, 5))
        await asyncio.sleep(SETUP + 1)
    for reader, _ in clients:
        await answered(reader, 5)
    assert site.closed("CLIENT") == before


@pytest.mark.promise(
    "config/process.md",
    "A client that has not sent its first request within `connection.setup.timeout.ms` is closed; one that "
    "has may be silent.",
)
async def test_a_reload_changes_the_time_of_those_who_wait_in_every_worker(
    cluster: ClusterState, tmp_path: Path
) -> None:
    config = config_of(cluster.nodes[0], **{"workers": 2, "connection.setup.timeout.ms": 3_600_000})
    process = started(tmp_path, config)
    port = int(config["listeners"][0]["bind"].rpartition(":")[2])
    site = Site(process, {"CLIENT": port})
    try:
        clients = [await site.dial() for _ in range(4)]
        for reader, writer in clients[2:]:
            await ask(reader, writer)
        part = process.config.with_suffix(".part")
        part.write_text(yaml.safe_dump(config | {"connection.setup.timeout.ms": 100}))
        part.replace(process.config)
        os.kill(process.process.pid, signal.SIGHUP)
        await asyncio.gather(*[lasts(reader, time.monotonic()) for reader, _ in clients[:2]])
        for reader, writer in clients[2:]:
            await ask(reader, writer)
        deadline = time.monotonic() + SLOW
        while site.closed("CLIENT") < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert site.closed("CLIENT") == 2
    finally:
        site.hang_up()
        assert process.stop()
