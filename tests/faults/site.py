"""A sidecar process before a peer in the test's own loop, and crowds of clients."""

import asyncio
import hashlib
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import yaml

from proxy.local.ports import HOST, free_ports
from proxy.local.process import Process
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, METADATA, request, response
from tests.integration.metrics import sample
from tests.integration.peer import read_frame
from tests.tools.admin import get
from tests.tools.conformance.crowd import Plan, Visits

FULL = bool(os.environ.get("FAULTS_FULL"))
"""Whether to run with the numbers of RELIABILITY.md; otherwise with a tenth of them."""

PATIENT = {"connection.setup.timeout.ms": 600_000}
"""Settings for crowds that say nothing for longer than usual."""

PATIENCE = 60.0
"""Seconds that anything may take before a test fails; nothing is expected to take more than a few."""

DESCRIPTORS = 65_536
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

METADATA_KEY, API_VERSIONS_KEY = (key.to_bytes(2, "big") for key in (METADATA, API_VERSIONS))


class Peer:
    """Stands for the broker: answers each request with its correlation id, and counts connections and requests of
    clients. ``seen`` is one too many while a connection of the sidecar itself has not sent anything yet.

    ``advertised``: the port in Metadata, so that the sidecar knows its broker. ``unanswered``: api keys on
    the wire whose requests get no response, as a fetch that waits for records. ``answers``: other responses, by the
    correlation ids on the wire. ``digests``: of what each connection has sent.
    """

    def __init__(self, advertised: int) -> None:
        self.seen = 0
        self.requests = 0
        self.unanswered: set[bytes] = set()
        self.answers: dict[bytes, bytes] = {}
        self.digests: list[Any] = []
        self.open = 0
        host = HOST.encode()
        broker = struct.pack(">iih", 1, 1, len(host)) + host + struct.pack(">ih", advertised, -1)
        self.metadata = broker + struct.pack(">ii", 1, 0)  # the controller, no topics
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: PeerConnection(self), HOST, 0, backlog=4096)
        self.port: int = server.sockets[0].getsockname()[1]
        self._server = server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class PeerConnection(asyncio.Protocol):
    """One connection of the sidecar."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._received = bytearray()
        self._digest = hashlib.sha256()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer.seen += 1
        self._peer.open += 1
        self._peer.digests.append(self._digest)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.open -= 1

    def data_received(self, data: bytes) -> None:
        self._digest.update(data)
        self._received += data
        if data[4:6] == API_VERSIONS_KEY and data[14:25] == b"brokerside-":  # asked by the sidecar itself
            self._peer.seen -= 1
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            self._peer.requests += self._received[14:25] != b"brokerside-"
            body = self._peer.metadata if self._received[4:6] == METADATA_KEY else b""
            if bytes(self._received[4:6]) not in self._peer.unanswered:
                asked = bytes(self._received[8:12])
                self._transport.write(self._peer.answers.get(asked) or struct.pack(">i", 4 + len(body)) + asked + body)
            del self._received[: 4 + size]


class Site:
    """What a test works with. ``port``: of the sidecar's only listener, CLIENT. ``settings``: of its configuration."""

    def __init__(self, folder: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DESCRIPTORS)), hard))
        self.folder = folder
        self.port, admin = free_ports(2)
        self.peer = Peer(self.port)
        self.admin = f"{HOST}:{admin}"
        self.path = folder / "sidecar.yaml"
        self.settings: dict[str, Any] = {}
        self.sidecar: SidecarProcess | None = None
        self._clients: list[asyncio.StreamWriter] = []

    def config(self, quotas: Mapping[str, Any]) -> dict[str, Any]:
        """What the sidecar's file holds."""
        listener = {"name": "CLIENT", "bind": f"{HOST}:{self.port}", "upstream": f"{HOST}:{self.peer.port}"}
        config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": self.admin}, "quotas": dict(quotas)}
        return config | self.settings

    def write(self, quotas: Mapping[str, Any]) -> None:
        """Write the configuration, whole or not at all."""
        self.write_text(yaml.safe_dump(self.config(quotas), sort_keys=False))

    def write_text(self, text: str) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(text)
        part.replace(self.path)

    async def start(self, quotas: Mapping[str, Any]) -> None:
        await self.peer.start()
        self.write(quotas)
        self.sidecar = await asyncio.to_thread(SidecarProcess.start, self.path, self.folder / "sidecar.log", self.admin)

        await self.quiet()
        self.peer.seen = 0  # those that asked whether it is ready

    async def stop(self) -> None:
        for writer in self._clients:
            writer.close()
        if self.sidecar is not None:
            await asyncio.to_thread(self.sidecar.stop)
        self.peer.close()

    @property
    def pid(self) -> int:
        assert self.sidecar is not None
        return self.sidecar.process.pid

    async def crowd(self, plan: Plan) -> Visits:
        """Run a crowd, and return what became of it."""
        return await self.finished(await self.crowd_process(plan))

    async def crowd_process(self, plan: Plan) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.tools.conformance.crowd",
            json.dumps(asdict(plan)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )

    async def finished(self, process: asyncio.subprocess.Process) -> Visits:
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 3 * PATIENCE)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0
        return Visits(**json.loads(said))

    async def left(self, process: asyncio.subprocess.Process) -> Visits:
        """End a crowd that has connected, and return what became of it."""
        process.terminate()
        return await self.finished(process)

    async def get(self, path: str) -> str:
        return (await asyncio.to_thread(get, f"http://{self.admin}/{path}", PATIENCE))[1]

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of one metric."""
        return sample(await self.get("metrics"), f"brokerside_{name}", **labels)

    async def until(self, condition: Callable[[str], object]) -> str:
        """Wait for metrics of which ``condition`` holds, and return them."""
        async with asyncio.timeout(PATIENCE):
            while not condition(text := await self.get("metrics")):  # noqa: ASYNC110  # they have no event to wait for
                await asyncio.sleep(0.02)
            return text

    async def quiet(self) -> str:
        """Wait until no connection is open, waits or is held, on either side of the sidecar; return the metrics."""

        def nothing(text: str) -> bool:
            living = ("connections_active", "connections_waiting", "connections_held", "connections_queued")
            return not self.peer.open and not any(sample(text, f"brokerside_{name}") for name in living)

        return await self.until(nothing)

    async def dial(self, port: int | None = None) -> Connection:
        """Open a connection that lasts until the end of the test, if not closed before."""
        reader, writer = await asyncio.open_connection(HOST, port or self.port)
        self._clients.append(writer)
        return reader, writer

    def descriptors(self) -> int:
        """How many descriptors the sidecar has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def gives_back(self, descriptors: int) -> None:
        """Wait until it has so many open again, or one more: the first connection opens the poller of all of them."""
        async with asyncio.timeout(PATIENCE):
            while self.descriptors() > descriptors + 1:  # noqa: ASYNC110  # nor have descriptors
                await asyncio.sleep(0.02)


async def asks(connection: Connection, number: int = 1) -> None:
    """Send a request, and get its response."""
    reader, writer = connection
    writer.write(request(API_VERSIONS, 0, number))
    assert await asyncio.wait_for(read_frame(reader), PATIENCE) == response(number)


async def ended(one: Process, within: float = PATIENCE) -> None:
    """Wait until it has exited."""
    began = time.monotonic()
    async with asyncio.timeout(within + PATIENCE):
        while one.alive():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert time.monotonic() - began <= within
