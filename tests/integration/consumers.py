"""A sidecar that coordinates groups in the test's own loop, with workers or without, and a coordinator that does what
the test says."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from proxy.config import load
from proxy.coordinator.events import ConsumerConnectionEnded, ConsumerRegistered, Event, ResponseReceived
from proxy.coordinator.view import GroupsView
from proxy.coordinator.wire import (
    RegisterConsumerRequest,
    RegisterConsumerResponse,
    encode_register_consumer_request,
    encode_register_consumer_response,
    request_frame,
    response_frame,
)
from proxy.interceptors.broker_metadata import BrokerView, FleetView
from proxy.net.consumer_handler import ConsumerHandler
from proxy.net.consumers import ConsumerConnections
from proxy.net.data_plane import DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.telemetry.snapshot import Snapshot
from tests.frames import response
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, read_frame, upstream
from tests.integration.recorder import RECORDER

REGISTER_CONSUMER = 30_002
HEARTBEAT, OFFSET_COMMIT = 12, 8
HERE = GroupsView(12, dict.fromkeys(range(12), 1), frozenset(range(12)), 1)
ASKED = RegisterConsumerRequest("g", "c1", '{"t":2}', True, "smallest", 6000)
USER_TIMEOUT_MS = 2000
PATIENCE = 60.0
"""Seconds within which what is waited for happens on a machine that is busy: a worker takes many to start."""


class Rights:
    """A broker whose authorizer denies some names, and that answers all else with its correlation id.

    ``asked``: the names of groups and of topics that it was asked about, by connection; ``ended``: of those that have
    ended.
    """

    def __init__(self, *denied: str) -> None:
        self.denied = set(denied)
        self.asked: list[list[str]] = []
        self.ended: list[list[str]] = []

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        asked: list[str] = []
        self.asked.append(asked)
        try:
            while True:
                frame = await read_frame(reader)
                writer.write(response(int.from_bytes(frame[8:12], "big"), self.answer(frame, asked)))
        finally:
            self.ended.append(asked)

    def answer(self, frame: bytes, asked: list[str]) -> bytes:
        """The body of the response; the names are added to ``asked``."""
        key, client_id = int.from_bytes(frame[4:6], "big"), max(0, int.from_bytes(frame[12:14], "big", signed=True))
        body = frame[14 + client_id :]
        if key not in (HEARTBEAT, OFFSET_COMMIT):
            return b""
        length = int.from_bytes(body[:2], "big")
        group = body[2 : 2 + length].decode()
        asked.append(group)
        if key == HEARTBEAT:
            return struct.pack(">h", 30 if group in self.denied else 25)
        pos, answer = 2 + length + 28, b""  # after generation, member and retention
        (count,) = struct.unpack_from(">i", body, pos - 4)
        for _ in range(count):
            length = int.from_bytes(body[pos : pos + 2], "big")
            name = body[pos + 2 : pos + 2 + length]
            asked.append(name.decode())
            code = 30 if group in self.denied else 29 if name.decode() in self.denied else 3
            answer += struct.pack(">h", length) + name + struct.pack(">iih", 1, 2**31 - 1, code)
            pos += 20 + length
        return struct.pack(">i", count) + answer


class Coordinating:
    """``events``: what the coordinator received. ``decide``: what it does about a registration; the error code."""

    def __init__(self, path: Path) -> None:
        self.config = load(path)
        self.ticker = Ticker()
        config = self.config
        self.inner = DataPlane(config, self.ticker) if config.workers == 1 else WorkerPool(config, self.ticker)
        self.consumers = ConsumerConnections(config, self.inner)
        self.consumers.on_event = self._on_event
        self.ticker.callbacks.append(self.consumers.on_tick)
        self.handler = ConsumerHandler(self.inner, self.consumers)
        self.sidecar = ListenerManager(config, self.handler, self.ticker)
        self.events: list[Event] = []
        self.clients: list[tuple[Reader, Writer]] = []
        self.decide: Callable[[ConsumerRegistered], int | None] = lambda event: 0
        self._closed_before = Counter[str]()

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, ConsumerRegistered) and (code := self.decide(event)) is not None:
            self.answer(event, code)

    async def begin_anew(self) -> None:
        """Forget the events and the counts of what has ended so far."""
        self.events.clear()
        self.decide = lambda event: 0
        self._closed_before = Counter()
        self._closed_before = Counter((await self.counts())[1])

    def answer(self, event: ConsumerRegistered, code: int) -> None:
        body = encode_register_consumer_response(event.api_version, RegisterConsumerResponse(code, 1, 7))
        if code == 0:
            self.consumers.accept(event.connection, USER_TIMEOUT_MS)
        self.consumers.send(event.connection, response_frame(event.correlation_id, body))

    def remove_listener(self, name: str) -> None:
        """Reload without this listener."""
        kept = tuple(listener for listener in self.config.listeners if listener.name != name)
        changed = self.config.model_copy(update={"listeners": kept})
        self.handler.update_config(changed)
        self.sidecar.update_config(changed, {})

    def view(self, view: GroupsView) -> None:
        self.handler.update_groups_view(view)

    async def dial(self, listener: str = "CLIENT") -> tuple[Reader, Writer]:
        (port,) = [each.bind.port for each in self.config.listeners if each.name == listener]
        self.clients.append(await asyncio.open_connection("127.0.0.1", port))
        return self.clients[-1]

    async def register(
        self, asked: RegisterConsumerRequest = ASKED, version: int = 1, behind: bytes = b"", listener: str = "CLIENT"
    ) -> tuple[Reader, Writer, int]:
        """Dial and register; returns the connection with the error code of the response."""
        reader, writer = await self.dial(listener)
        writer.write(registration(asked, version) + behind)
        frame = await asyncio.wait_for(read_frame(reader), PATIENCE)
        return reader, writer, int.from_bytes(frame[8:10], "big")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ends(self) -> list[tuple[str, bool]]:
        return [(event.cause, event.by_peer) for event in self.of(ConsumerConnectionEnded)]

    @property
    def frames(self) -> list[bytes]:
        return [event.frame for event in self.of(ResponseReceived)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.005)

    async def counts(self) -> tuple[int, dict[str, int]]:
        """Active connections of all listeners, and closed ones by cause since ``begin_anew``; none is missing."""
        seen: Snapshot = await self.sidecar.snapshot()
        counters = list(seen.listener_counters.values())
        accepted, active = sum(one.accepted for one in counters), sum(one.active for one in counters)
        closed = sum((Counter[str](one.closed) for one in counters), Counter[str]())
        waiting = self.sidecar.admission.waiting_connections
        assert accepted == active + waiting + closed.total(), (accepted, active, waiting, closed)
        return active, dict(closed - self._closed_before)

    async def counted(self, active: int, closed: dict[str, int]) -> None:
        """Wait until so many are active and closed. At every moment the sum is that of the accepted ones."""
        async with asyncio.timeout(PATIENCE):
            while await self.counts() != (active, closed):  # noqa: ASYNC110  # as in ``until``
                await asyncio.sleep(0.01)

    @property
    def limited(self) -> int:
        return len(self.sidecar.admission.open_numbers())


@asynccontextmanager
async def coordinating(
    tmp_path: Path, broker: Behaviour | str, workers: int = 1, *, listener: str = ""
) -> AsyncIterator[Coordinating]:
    """``broker``: a peer's behaviour, or its address. ``listener``: more keys of the listener."""
    async with AsyncExitStack() as stack:
        if not isinstance(broker, str):
            broker = f"127.0.0.1:{await stack.enter_async_context(upstream(broker))}"
        yield await stack.enter_async_context(_coordinating(tmp_path, broker, workers, listener))


@asynccontextmanager
async def _coordinating(tmp_path: Path, address: str, workers: int, listener: str) -> AsyncIterator[Coordinating]:
    path = tmp_path / "sidecar.yaml"
    text = [
        "broker.id: 1",
        f"workers: {workers}",
        "drain.timeout.ms: 500",
        "internal.bootstrap.servers: 127.0.0.1:1",
        f"observer.class.names: '{RECORDER}'",
        "coordinator: {enabled: true}",
        "listeners:",
        *(
            f"- {{name: {name}, bind: '127.0.0.1:{free_port()}', upstream: '{address}'{listener}}}"
            for name in ("CLIENT", "EXTRA")
        ),
        f"admin: {{bind: '127.0.0.1:{free_port()}'}}",
    ]
    path.write_text("\n".join(text))
    running = Coordinating(path)
    if isinstance(running.inner, WorkerPool):
        await running.inner.start()
    port = running.config.listeners[0].bind.port
    fleet = FleetView(1, (BrokerView(1, {"client": ("127.0.0.1", port)}),))
    running.handler.update_fleet_view(fleet)
    running.view(HERE)
    running.sidecar.open()
    running.sidecar.start_accepting()
    running.ticker.start()
    try:
        yield running
    finally:
        running.sidecar.close()
        await running.handler.stop(asyncio.Event())
        running.ticker.stop()
        for _, writer in running.clients:
            writer.transport.abort()
        await asyncio.sleep(0)
        assert (await running.counts())[0] == 0
        assert len(running.consumers) == 0


def registration(asked: RegisterConsumerRequest = ASKED, version: int = 1, correlation_id: int = 3) -> bytes:
    body = encode_register_consumer_request(version, asked)
    return request_frame(REGISTER_CONSUMER, version, correlation_id, "c", body)


def reset(writer: Writer) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
