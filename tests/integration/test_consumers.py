"""Connections of consumers, from their registration on a listener to their end, in a sidecar that coordinates groups in
the test's own loop, with workers or without: the coordinator is scripted. And what consumers may read, asked of the
broker as them: when they register, again and again, and for new topics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # untyped

from proxy.client.consumer.events import FrameReceived, LinkConnected, LinkEnded
from proxy.client.consumer.link import CoordinatorLink, LinkEvent
from proxy.config import load
from proxy.config.values import Endpoint
from proxy.coordinator.events import (
    ConnectionBuffered,
    ConnectionDrained,
    ConsumerConnectionEnded,
    ConsumerRegistered,
    Event,
    ResponseReceived,
    RightsChanged,
)
from proxy.coordinator.view import GroupsView
from proxy.coordinator.wire import (
    RegisterConsumerRequest,
    RegisterConsumerResponse,
    encode_register_consumer_request,
    encode_register_consumer_response,
    request_frame,
    response_frame,
)
from proxy.core.encode import encode
from proxy.core.principal_tracker import SASL_AUTHENTICATE, SASL_HANDSHAKE
from proxy.core.schema import layout
from proxy.core.struct import view
from proxy.fleet.security import Security
from proxy.interceptors.broker_metadata import BrokerView, FleetView
from proxy.interceptors.consumer_groups import read_header
from proxy.net import consumer_rights, consumers
from proxy.net.consumer_handler import ConsumerHandler
from proxy.net.consumer_socket import FRAMES, MAX_CONSUMER_FRAME, PartialFrames
from proxy.net.consumers import ConsumerConnections
from proxy.net.data_plane import DataPlane
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.net.worker_pool import WorkerPool
from proxy.telemetry.snapshot import Snapshot
from tests.brokers import Acl, SharedBroker
from tests.frames import METADATA, request, response, sized
from tests.integration import recorder
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, read_frame, upstream
from tests.integration.sidecars import until_async
from tests.sasl import authenticate, handshake, plain
from tests.tools.random_messages import read_all

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
    ended. ``writers``: of its connections.
    """

    def __init__(self, *denied: str) -> None:
        self.denied = set(denied)
        self.writers: list[Writer] = []
        self.asked: list[list[str]] = []
        self.ended: list[list[str]] = []

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        asked: list[str] = []
        self.asked.append(asked)
        self.writers.append(writer)
        try:
            while True:
                frame = await read_frame(reader)
                writer.write(response(int.from_bytes(frame[8:12], "big"), self.answer(frame, asked)))
        finally:
            self.ended.append(asked)

    def answer(self, frame: bytes, asked: list[str]) -> bytes:
        """The body of the response; the names are added to ``asked``."""
        header, body = read_header(frame[4:])
        if header.api_key not in (HEARTBEAT, OFFSET_COMMIT):
            return b""
        read = read_all(view(header.api_key, header.api_version, body, response=False))
        asked.append(group := read["GroupId"])
        if header.api_key == HEARTBEAT:
            return struct.pack(">h", 30 if group in self.denied else 25)
        names = [topic["Name"] for topic in read["Topics"]]
        asked += names
        codes = [30 if group in self.denied else 29 if name in self.denied else 3 for name in names]
        topics = [
            {"Name": name, "Partitions": [{"PartitionIndex": 2**31 - 1, "ErrorCode": code}]}
            for name, code in zip(names, codes, strict=True)
        ]
        return encode(layout(OFFSET_COMMIT, header.api_version, response=True), {"Topics": topics})


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

    async def dial(self, listener: str = "CLIENT") -> tuple[Reader, Writer]:
        (port,) = [each.bind.port for each in self.config.listeners if each.name == listener]
        self.clients.append(await asyncio.open_connection("127.0.0.1", port))
        return self.clients[-1]

    async def register(
        self, asked: RegisterConsumerRequest = ASKED, behind: bytes = b"", listener: str = "CLIENT"
    ) -> tuple[Reader, Writer, int]:
        """Dial and register; returns the connection with the error code of the response."""
        reader, writer = await self.dial(listener)
        writer.write(registration(asked) + behind)
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
            while await self.counts() != (active, closed):  # noqa: ASYNC110  # a counter has no event to wait for
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
        path = tmp_path / "sidecar.yaml"
        text = [
            "broker.id: 1",
            f"workers: {workers}",
            "drain.timeout.ms: 500",
            "internal.bootstrap.servers: 127.0.0.1:1",
            f"observer.class.names: '{recorder.RECORDER}'",
            "coordinator: {enabled: true}",
            "listeners:",
            *(
                f"- {{name: {name}, bind: '127.0.0.1:{free_port()}', upstream: '{broker}'{listener}}}"
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
        running.handler.update_groups_view(HERE)
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


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "recorded"
    monkeypatch.setenv(recorder.FILE, str(path))
    return path


async def is_the_coordinators(running: Coordinating, broker: Rights) -> None:
    reader, writer = await running.dial()
    writer.write(request(METADATA, 1, 1) + registration() + sized(b"pipelined") + b"\0\0\0\7in")
    assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
    answered = await asyncio.wait_for(read_frame(reader), 60)
    assert answered.hex() == "0000000e0000000300000000000100000007"
    await until_async(lambda: running.frames == [b"pipelined"])
    writer.write(b" parts")
    await until_async(lambda: running.frames == [b"pipelined", b"in parts"[:7]])
    (registered,) = running.of(ConsumerRegistered)
    assert registered == ConsumerRegistered(
        registered.connection, 3, 1, ASKED, "c", "User:ANONYMOUS", "127.0.0.1", "CLIENT", frozenset()
    )
    running.consumers.send(registered.connection, sized(b"a ping"))
    assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"a ping")
    await until_async(lambda: ["g", "t"] in broker.ended)  # nobody needs it any more
    await running.counted(1, {})
    assert running.limited == 1
    writer.close()
    await until_async(lambda: running.ends == [("client_closed", True)])
    await running.counted(0, {"client_closed": 1})
    assert running.limited == 0


@pytest.mark.promise(
    "architecture.md", "A connection that registers is the coordinator's until it ends, and counts as active, once."
)
@pytest.mark.parametrize("workers", [1, 2], ids=["data_plane", "workers"])
async def test_consumers_are_refused_end_and_are_closed_in_every_way(
    tmp_path: Path, workers: int, recorded: Path
) -> None:
    broker = Rights("forbidden", "secret")
    async with coordinating(tmp_path, broker, workers) as running:
        await is_the_coordinators(running, broker)
        await until_async(
            lambda: (
                sorted((one.what, one.api_key, one.answered) for one in recorder.read(recorded))
                == [
                    ("closed", -1, False),
                    ("exchange", METADATA, True),
                    ("exchange", REGISTER_CONSUMER, False),
                    ("opened", -1, False),
                ]
            )
        )
        for way in (
            is_refused_by_the_coordinator,
            is_closed_after_what_was_sent,
            is_closed_by_an_operator,
            is_closed_while_it_registers,
            come_in_a_crowd,
        ):
            await running.begin_anew()
            await way(running)
        await running.begin_anew()
        gone, _, _ = await running.register(listener="EXTRA")
        stays, _, _ = await running.register(ASKED._replace(consumer_id="c2"))
        kept = tuple(listener for listener in running.config.listeners if listener.name != "EXTRA")
        changed = running.config.model_copy(update={"listeners": kept})
        running.handler.update_config(changed)
        running.sidecar.update_config(changed, {})
        assert await asyncio.wait_for(gone.read(), 60) == b""
        assert running.ends == [("drain_completed", False)]
        await running.counted(1, {"drain_completed": 1})
        running.consumers.send(running.of(ConsumerRegistered)[1].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(stays), 60) == sized(b"still here")
        ordinary, _ = await running.dial()
        await running.counted(2, {"drain_completed": 1})
        running.sidecar.close()
        await running.handler.stop(asyncio.Event())
        for reader in (stays, ordinary):
            assert await asyncio.wait_for(reader.read(), 60) == b"", "a stop closes what is left"
    assert (await running.counts())[1] == {"coordinator_moved": 1, "drain_completed": 2}
    changes = Counter(one.what for one in recorder.read(recorded))
    assert changes["closed"] == changes["opened"] > 100


async def is_refused_by_the_coordinator(running: Coordinating) -> None:
    """It may register again."""
    for number, code in enumerate((14, 24, 92), start=1):
        answers = iter([code, code, 0])
        running.decide = lambda event, answers=answers: next(answers)
        running.events.clear()
        again = registration(ASKED._replace(consumer_id="c2"), 0, 4)
        denied = registration(ASKED._replace(group_id="forbidden"), 2, 5)
        last = registration(ASKED._replace(consumer_id="c3"), 1, 6)
        reader, writer, first = await running.register(behind=again + denied + last + sized(b"an answer"))
        frames = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(3)]
        assert first == code
        assert frames[0] == response(4, code.to_bytes(2, "big"))
        assert frames[1] == response(5, bytes.fromhex("001e" + "ffffffff" * 2))
        assert frames[2] == response(6, bytes.fromhex("0000" + "00000001" + "00000007"))
        await until_async(lambda: running.frames == [b"an answer"])
        registered = running.of(ConsumerRegistered)
        assert [event.request.consumer_id for event in registered] == ["c1", "c2", "c3"]
        assert [(event.api_version, event.correlation_id) for event in registered] == [(1, 3), (0, 4), (1, 6)]
        assert len({event.connection for event in registered}) == 1
        writer.close()
        await running.counted(0, {"client_closed": number})


async def is_closed_after_what_was_sent(running: Coordinating) -> None:
    running.decide = lambda event: None
    reader, writer = await running.dial()
    writer.write(registration())
    await until_async(lambda: running.of(ConsumerRegistered))
    (registered,) = running.of(ConsumerRegistered)
    running.consumers.send(registered.connection, sized(b"x" * 1_000_000))
    running.consumers.close(registered.connection, "consumer_failed")
    await running.counted(0, {"consumer_failed": 1})
    assert await asyncio.wait_for(reader.read(), 60) == sized(b"x" * 1_000_000)
    assert running.ends == []


async def is_closed_by_an_operator(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    ordinary = await running.dial()
    await running.counted(2, {})
    (found,) = [one for one in (await running.handler.list_connections()).connections if one.group_id]
    assert (found.group_id, found.group_member_id, found.client_id) == ("g", "c1", "c")
    is_pool = isinstance(running.inner, WorkerPool)
    assert (found.worker, found.state, found.request_count) == (0 if is_pool else 1, "open", 1)
    assert (found.received_bytes, found.sent_bytes) == (len(registration()), 18)
    number = running.of(ConsumerRegistered)[0].connection
    assert (await running.handler.find_connection(number)).id == found.id
    assert running.sidecar.close_connection(number)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert running.ends == [("closed_by_operator", False)]
    assert not running.sidecar.close_connection(number)
    assert await running.handler.find_connection(number) is None
    ordinary[1].close()
    await running.counted(0, {"closed_by_operator": 1, "client_closed": 1})


async def is_closed_while_it_registers(running: Coordinating) -> None:
    """As if the order came to the worker after it has handed the connection over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.inner, "close_connection", lambda number, cause: True)
        reader, writer = await running.dial()
        await until_async(lambda: running.limited == 1)
        (number,) = running.sidecar.admission.open_numbers()
        assert running.handler.close_connection(number, "principal_quota_exceeded")
        writer.write(registration())
        accepted = sized(bytes.fromhex("00000003000000000001" + "00000007"))
        assert await asyncio.wait_for(reader.read(), 60) in (b"", accepted)
        await running.counted(0, {"principal_quota_exceeded": 1})


async def come_in_a_crowd(running: Coordinating) -> None:
    """Some of them stay until the others are counted."""
    running.decide = lambda event: None if event.request.consumer_id == "unanswered" else 0
    ways = ["closes", "resets", "unanswered", "forbidden", "malformed", "stays", "half"]

    async def behave(number: int) -> None:
        way = ways[number % len(ways)]
        reader, writer = await running.dial()
        asked = ASKED._replace(consumer_id=f"c{number}")
        if way == "forbidden":
            asked = asked._replace(group_id="forbidden")
        elif way == "unanswered":
            asked = asked._replace(consumer_id="unanswered")
        frame = registration(asked)
        writer.write(frame[: len(frame) // 2] if way == "half" else frame)
        if way not in ("unanswered", "half"):
            await asyncio.wait_for(read_frame(reader), 60)
        if way == "resets":
            reset(writer)
        elif way == "malformed":
            writer.write(b"\xff\xff\xff\xff")
            await asyncio.wait_for(reader.read(), 60)
        elif way != "stays":
            writer.close()

    crowd = [asyncio.create_task(behave(number)) for number in range(140)]
    while not all(task.done() for task in crowd):
        await running.counts()
        await asyncio.sleep(0.01)
    for task in crowd:
        task.result()
    await running.counted(20, {"client_closed": 80, "client_reset": 20, "consumer_malformed": 20})
    assert running.limited == 20
    assert len(running.consumers) == 20
    for _, writer in running.clients:
        writer.close()
    await running.counted(0, {"client_closed": 100, "client_reset": 20, "consumer_malformed": 20})


async def test_a_consumer_outlives_the_worker_that_has_passed_it_on(tmp_path: Path, recorded: Path) -> None:
    async with coordinating(tmp_path, Rights(), 2) as running:
        reader, writer, _ = await running.register()
        ordinary, _ = await running.dial()
        await running.counted(2, {})
        for worker in list(running.inner._workers.values()):
            worker.kill()
        assert await asyncio.wait_for(ordinary.read(), 60) == b""
        await running.counted(1, {"worker_lost": 1})
        running.consumers.send(running.of(ConsumerRegistered)[0].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"still here")
        await until_async(lambda: len([one for one in running.inner._workers.values() if one.is_ready]) == 2)
        writer.close()
        await running.counted(0, {"worker_lost": 1, "client_closed": 1})
    closed = [one.connection for one in recorder.read(recorded) if one.what == "closed"]
    assert len(closed) == 1, "another worker has announced it"


# ---- registration ---------------------------------------------------------------------------------------------------


async def test_who_is_refused_and_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-53"""
    monkeypatch.setattr(consumers, "REGISTRATION_IDLE", 0.3)
    async with coordinating(tmp_path, Rights()) as running:
        answers = iter([26, 0, 26])
        running.decide = lambda event: next(answers)
        silent, _, code = await running.register()
        accepted, writer, _ = await running.register()
        assert code == 26
        assert await asyncio.wait_for(silent.read(), 60) == b""
        assert running.ends == [("registration_idle", False)]
        running.consumers.send(running.of(ConsumerRegistered)[1].connection, sized(b"still here"))
        assert await asyncio.wait_for(read_frame(accepted), 60) == sized(b"still here")
        writer.close()
        await running.counted(0, {"registration_idle": 1, "client_closed": 1})


async def test_who_sends_anything_else_is_closed(tmp_path: Path) -> None:
    async with coordinating(tmp_path, Rights()) as running:
        for frame, cause in (
            (request(METADATA, 1, 4), "consumer_malformed"),
            (request(30_001, 1, 4, b"\0\1g"), "consumer_malformed"),
            (request(30_002, 3, 4), "consumer_malformed"),
            (sized(b"\x75\x32\0\1"), "client_invalid_request"),
            (sized(registration()[4:-1]), "client_invalid_request"),
            (b"\0\0\0\3abc", "consumer_malformed"),
            (b"\x00\x40\x00\x01", "consumer_malformed"),
            (b"\xff\xff\xff\xff", "consumer_malformed"),
        ):
            await running.begin_anew()
            running.decide = lambda event: 26
            reader, writer, _ = await running.register()
            writer.write(frame)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b"", frame
            assert running.ends == [(cause, False)], frame
            await running.counted(0, {cause: 1})
        await running.begin_anew()
        running.decide = lambda event: 26
        reader, writer, _ = await running.register()
        writer.write(sized(registration()[4:] + b"\0"))
        assert (await asyncio.wait_for(read_frame(reader), 60))[8:10] == b"\0\x2a", "bytes behind it are error 42"
        writer.close()
        await running.counted(0, {"client_closed": 1})


async def what_comes_before_the_answer_waits_for_it(running: Coordinating) -> None:
    running.decide = lambda event: None
    _, writer = await running.dial()
    writer.write(registration() + b"".join(sized(b"%d" % n) for n in range(1000, 3000)))
    await until_async(lambda: running.of(ConsumerRegistered))
    await asyncio.sleep(0.05)
    assert not running.frames
    running.answer(running.of(ConsumerRegistered)[0], 0)
    await until_async(lambda: len(running.frames) == 2000)
    assert running.frames == [b"%d" % n for n in range(1000, 3000)]
    writer.close()
    await running.counted(0, {"client_closed": 1})


async def test_what_is_sent_arrives_or_the_connection_ends(tmp_path: Path) -> None:
    async with coordinating(tmp_path, Rights()) as running:
        may_send = running.consumers.may_send
        for way in (
            what_comes_before_the_answer_waits_for_it,
            a_reset_that_a_send_finds_is_no_clean_end,
            a_member_that_is_closed_gets_no_request_later,
            what_waits_for_a_member_is_not_sent_once_the_right_to_send_has_ended,
            who_does_not_read_is_closed_before_too_much_waits,
            a_client_that_reads_late_gets_all_and_that_is_reported,
            the_longest_frame_comes_byte_by_byte_and_a_longer_one_ends_the_connection,
            of_who_does_not_read_refusals_no_further_request_is_taken,
        ):
            await running.begin_anew()
            running.consumers.may_send = may_send
            await way(running)


# ---- ends -----------------------------------------------------------------------------------------------------------


async def a_reset_that_a_send_finds_is_no_clean_end(running: Coordinating) -> None:
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", running.config.listeners[0].bind.port))
    await loop.sock_sendall(client, registration())
    assert len(await loop.sock_recv(client, 100)) == 18
    (registered,) = running.of(ConsumerRegistered)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    running.consumers.send(registered.connection, sized(b"a ping"))  # before the loop sees the reset
    await until_async(lambda: running.ends == [("client_reset", False)])
    await running.counted(0, {"client_reset": 1})


async def a_member_that_is_closed_gets_no_request_later(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = fill(running, registered.connection)
    running.consumers.close(registered.connection, "coordinator_moved")
    await running.counted(0, {"coordinator_moved": 1})
    assert len(await asyncio.wait_for(reader.read(), 60)) < sent
    assert not running.consumers._lingering


async def what_waits_for_a_member_is_not_sent_once_the_right_to_send_has_ended(running: Coordinating) -> None:
    reader, _, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = fill(running, registered.connection)
    running.consumers.may_send = lambda number: number != registered.connection
    assert len(await asyncio.wait_for(reader.read(), 60)) < sent
    assert running.ends == [("consumer_failed", False)]
    await running.counted(0, {"consumer_failed": 1})


def fill(running: Coordinating, connection: int) -> int:
    """Send until the kernel does not take all of it; returns the bytes."""
    sent = 0
    while not running.of(ConnectionBuffered):
        running.consumers.send(connection, sized(bytes(100_000)))
        sent += 100_004
    return sent


# ---- bounds ---------------------------------------------------------------------------------------------------------


async def who_does_not_read_is_closed_before_too_much_waits(running: Coordinating) -> None:
    _, writer, _ = await running.register()
    other, closing, _ = await running.register(ASKED._replace(consumer_id="c2"))
    first, second = (event.connection for event in running.of(ConsumerRegistered))
    sent = 0
    while not running.ends:
        running.consumers.send(first, sized(b"p" * 65_000))
        sent += 65_004
        assert sent < 64_000_000
        await asyncio.sleep(0)
    assert running.ends == [("consumer_failed", False)]
    assert [type(event) for event in running.events if event.connection == first] == [
        ConsumerRegistered,
        ConnectionBuffered,
        ConsumerConnectionEnded,
    ]
    running.consumers.send(second, sized(b"on time"))
    assert await asyncio.wait_for(read_frame(other), 60) == sized(b"on time")
    writer.transport.abort()
    closing.close()
    await running.counted(0, {"consumer_failed": 1, "client_closed": 1})


async def a_client_that_reads_late_gets_all_and_that_is_reported(running: Coordinating) -> None:
    reader, writer, _ = await running.register()
    (registered,) = running.of(ConsumerRegistered)
    sent = 0
    while running.consumers.send(registered.connection, sized(b"%06d" % sent * 10_000)):
        assert not running.of(ConnectionBuffered)
        sent += 1
    sent += 1
    assert not running.consumers.send(registered.connection, sized(b"the last"))
    for n in range(sent):
        assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"%06d" % n * 10_000)
    assert await asyncio.wait_for(read_frame(reader), 60) == sized(b"the last")
    await until_async(lambda: running.of(ConnectionDrained))
    assert len(running.of(ConnectionBuffered)) == len(running.of(ConnectionDrained)) == 1
    writer.close()
    await running.counted(0, {"client_closed": 1})


async def the_longest_frame_comes_byte_by_byte_and_a_longer_one_ends_the_connection(running: Coordinating) -> None:
    longest = sized(b"\0" * MAX_CONSUMER_FRAME)
    _, writer, _ = await running.register()
    for at in range(200):
        writer.write(longest[at : at + 1])
        await asyncio.sleep(0)
    writer.write(longest[200:])
    await until_async(lambda: [len(frame) for frame in running.frames] == [MAX_CONSUMER_FRAME])
    writer.write((MAX_CONSUMER_FRAME + 1).to_bytes(4, "big"))
    await until_async(lambda: running.ends == [("consumer_malformed", False)])
    await running.counted(0, {"consumer_malformed": 1})


async def test_of_too_many_parts_of_frames_the_longest_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "PartialFrames", lambda: PartialFrames(1_000_000))
    async with coordinating(tmp_path, Rights()) as running:
        clients = [await running.register(ASKED._replace(consumer_id=f"c{n}")) for n in range(4)]
        sizes = [300_000, 400_000, 200_000, 150_000]
        partial = running.consumers._partial_frames
        for (_, writer, _), size in zip(clients, sizes, strict=True):
            before = partial.total
            writer.write(sized(bytes(3_000_000))[:size])
            if before + size <= 1_000_000:
                await until_async(lambda most=before + size: partial.total == most)
        await until_async(lambda: running.ends == [("consumer_malformed", False)])
        assert running.of(ConsumerConnectionEnded)[0].connection == running.of(ConsumerRegistered)[1].connection
        await until_async(lambda: partial.total == 650_000)
        for _, writer, _ in clients:
            writer.close()
        await running.counted(0, {"consumer_malformed": 1, "client_closed": 3})
        assert partial.total == 0
        await running.begin_anew()
        reader, writer = await running.dial()
        running.consumers._partial_frames = PartialFrames(1000)
        writer.write(registration() + sized(bytes(2000)))  # what comes behind a registration counts, too
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.counted(0, {"consumer_malformed": 1})
        assert running.events == []
        assert running.limited == 0


async def of_who_does_not_read_refusals_no_further_request_is_taken(running: Coordinating) -> None:
    requests = 12
    refusal = sized(b"\0\0\0\3\0\x1a" + bytes(1_000_000))  # longer than real ones, to fill buffers soon

    def refuse(event: ConsumerRegistered) -> None:
        running.consumers.send(event.connection, refusal)

    running.decide = refuse
    reader, writer = await running.dial()
    writer.write(registration() * requests)
    await until_async(lambda: running.of(ConnectionBuffered))
    for _ in range(requests):
        assert await asyncio.wait_for(read_frame(reader), 60) == refusal
    assert running.ends == []
    assert len(running.of(ConsumerRegistered)) == requests
    writer.close()
    await running.counted(0, {"client_closed": 1})


@pytest.mark.promise(
    "architecture.md", "A consumer's flood of frames is reported in parts, between which others are served."
)
async def test_a_flood_is_reported_in_parts_and_whole(tmp_path: Path) -> None:
    flood = 300
    async with coordinating(tmp_path, Rights()) as running:
        for frame, code, most in ((registration(), 26, 1), (sized(bytes(20)), 0, FRAMES)):
            await running.begin_anew()
            running.decide = lambda event, code=code: code
            _, writer, _ = await running.register()
            writer.write(frame * flood)
            seen = [len(running.events)]
            while seen[-1] < 1 + flood:
                await asyncio.sleep(0)
                seen.append(len(running.events))
            assert max(after - before for before, after in pairwise(seen)) <= most
            writer.write(frame)
            await until_async(lambda: len(running.events) == 2 + flood)
            writer.close()
            await until_async(lambda: running.ends)


# ---- rights: where nobody logs in ------------------------------------------------------------------------------------

WITH_LOGIN = ", security.protocol: SASL_PLAINTEXT"

PATTERN = ASKED._replace(topic_count="*1*t.*")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask ten times a second."""
    monkeypatch.setattr(consumers, "RIGHTS_INTERVAL", (0.05, 0.1))
    monkeypatch.setattr(consumer_rights, "ANSWER_LASTS", 0.05)


@pytest.mark.promise(
    "architecture.md", "Rights to topics of a pattern are asked once for all clients of a listener without logins."
)
async def test_of_a_pattern_only_what_may_be_read_is_told_and_all_clients_share_the_answers(tmp_path: Path) -> None:
    broker = Rights("tb")
    async with coordinating(tmp_path, broker) as running:
        await running.consumers.set_topics(["ta", "tb", "x", "__t"])
        for n in range(3):
            assert (await running.register(PATTERN._replace(consumer_id=f"c{n}")))[2] == 0
        assert [event.unreadable for event in running.of(ConsumerRegistered)] == [{"tb"}] * 3
        asked = [name for names in broker.asked for name in names]
        assert sorted(asked) == ["g"] * 4 + ["ta", "tb"], "once by each client itself, and once for all of them"


async def test_the_rights_to_a_new_topic_are_known_before_it_is_told(tmp_path: Path) -> None:
    async with coordinating(tmp_path, broker := Rights("tc", "td")) as running:
        await running.register(PATTERN)
        await running.register(ASKED._replace(consumer_id="named", topic_count='{"x":1}'))
        first = running.of(ConsumerRegistered)[0].connection
        await running.consumers.set_topics(["ta", "tc", "x"])
        assert running.of(RightsChanged) == [RightsChanged(first, True, frozenset({"tc"}))]
        await running.consumers.set_topics(["ta", "tc", "td", "x"])
        assert running.of(RightsChanged)[1:] == [RightsChanged(first, True, frozenset({"tc", "td"}))]
        broker.denied.clear()
        await running.consumers.set_topics(["ta", "x"])
        assert len(running.of(RightsChanged)) == 2, "what is gone is of no interest"


@pytest.mark.usefixtures("often")
async def test_a_broker_that_is_away_changes_nothing_but_no_pattern_is_accepted(tmp_path: Path) -> None:
    async with coordinating(tmp_path, broker := Rights()) as running:
        await running.consumers.set_topics(["ta"])
        assert (await running.register())[2] == 0
        nobody = AsyncMock(connect=AsyncMock(side_effect=OSError("nobody listens")))
        running.consumers._listener_rights["CLIENT"] = consumer_rights.ListenerRights(nobody)
        assert (await running.register(PATTERN._replace(consumer_id="c2")))[2] == 14
        assert not running.ends
        assert not running.of(RightsChanged)
        assert len(broker.asked) > 1


async def test_a_connection_that_the_broker_has_closed_meanwhile_is_opened_again(tmp_path: Path) -> None:
    async with coordinating(tmp_path, broker := Rights()) as running:
        await running.consumers.set_topics(["ta"])
        await running.register(PATTERN)
        for writer in broker.writers:
            writer.close()
        await running.consumers.set_topics(["ta", "tb"])
        assert broker.asked[-1] == ["g", "tb"]
        assert not running.ends


# ---- where clients log in -------------------------------------------------------------------------------------------


async def log_in(running: Coordinating) -> tuple[Reader, Writer]:
    """A client, ``alice``."""
    reader, writer = await running.dial()
    token = authenticate(plain("alice", "alice-secret"), 1)
    for frame in (request(SASL_HANDSHAKE, 1, 1, handshake("PLAIN")), request(SASL_AUTHENTICATE, 1, 2, token)):
        writer.write(frame)
        assert (await asyncio.wait_for(read_frame(reader), 60))[8:10] == b"\0\0"
    return reader, writer


async def code(reader: Reader) -> int:
    return int.from_bytes((await asyncio.wait_for(read_frame(reader), 60))[8:10], "big")


@pytest.mark.kafka
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.promise(
    "coordinator.md", "RegisterConsumer answers 30 to who may not read the group, and 29 where a topic may not be read."
)
async def test_rights_are_those_that_the_broker_says_the_client_has(
    tmp_path: Path, secured: SharedBroker, workers: int
) -> None:
    group, t, ta, tb = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("g", "rights-t", "rights-ta", "rights-tb"))
    read_group, read_t, read_ta = (
        Acl("User:alice", AclOperation.READ, kind, name)
        for kind, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, t), (ResourceType.TOPIC, ta))
    )
    named = ASKED._replace(group_id=group, topic_count=json.dumps({t: 1}))
    pattern = ASKED._replace(group_id=group, consumer_id="c2", topic_count="*1*rights-t.*")
    address = secured.listeners["SASL"].address
    async with coordinating(tmp_path, address, workers, listener=WITH_LOGIN) as running:
        await running.consumers.set_topics([t, ta, tb])
        reader, writer = await log_in(running)
        writer.write(registration(named))
        assert await code(reader) == 30
        await asyncio.to_thread(secured.allow, read_group)
        writer.write(registration(named))
        assert await code(reader) == 29
        await asyncio.to_thread(secured.allow, read_t, read_ta)
        writer.write(request(METADATA, 1, 9, b"\0\0\0\0") + registration(named))
        assert (await asyncio.wait_for(read_frame(reader), 60))[4:8] == b"\0\0\0\x09"
        assert await code(reader) == 0
        (registered,) = running.of(ConsumerRegistered)
        assert (registered.principal, registered.unreadable) == ("User:alice", frozenset())
        writer.close()
        await running.counted(0, {"client_closed": 1})
        reader, writer = await log_in(running)
        writer.write(registration(pattern))
        assert await code(reader) == 0
        registered = running.of(ConsumerRegistered)[-1]
        assert registered.unreadable == {tb}
        await asyncio.to_thread(secured.revoke, read_ta)  # questions are answered meanwhile
        await until_async(lambda: running.of(RightsChanged))
        assert running.of(RightsChanged)[0] == (registered.connection, True, {ta, tb})
        await asyncio.to_thread(secured.revoke, read_group, read_t)
        await until_async(lambda: not running.of(RightsChanged)[-1].may_read_group)
        running.consumers.close(registered.connection, "consumer_denied")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.counted(0, {"client_closed": 1, "consumer_denied": 1})


@pytest.mark.kafka
@pytest.mark.promise("architecture.md", "A consumer's login ends before the broker ends it.")
async def test_a_login_ends_before_the_broker_ends_it(
    tmp_path: Path, secured: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LOGIN_SHARE", (0.03, 0.04))  # of 60 s
    group, topic = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("g", "t"))
    acls = [
        Acl("User:alice", AclOperation.READ, kind, name)
        for kind, name in ((ResourceType.GROUP, group), (ResourceType.TOPIC, topic))
    ]
    await asyncio.to_thread(secured.allow, *acls)
    async with coordinating(tmp_path, secured.listeners["ENDING"].address, listener=WITH_LOGIN) as running:
        reader, writer = await log_in(running)
        writer.write(registration(ASKED._replace(group_id=group, topic_count=json.dumps({topic: 1}))))
        assert await code(reader) == 0
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("login_expired", False)]
        await running.counted(0, {"login_expired": 1})
    await asyncio.to_thread(secured.revoke, *acls)


class LoggingIn:
    """A broker on which everybody logs in, and that then does as ``rights`` does."""

    def __init__(self, rights: Behaviour) -> None:
        self.rights = rights

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            frame = await read_frame(reader)
            assert int.from_bytes(frame[4:6], "big") == key
            body = b"\0\0" + (b"\0\0\0\1\0\5PLAIN" if key == SASL_HANDSHAKE else b"\xff\xff\0\0\0\0" + bytes(8))
            writer.write(response(int.from_bytes(frame[8:12], "big"), body))
        await self.rights(reader, writer)

    async def register(self, running: Coordinating) -> Reader:
        reader, writer = await log_in(running)
        writer.write(registration())
        assert await code(reader) == 0
        return reader


@pytest.mark.usefixtures("often")
async def test_a_broker_that_ends_the_login_or_does_not_answer_ends_the_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall_after_two(reader: Reader, writer: Writer) -> None:
        for _ in range(2):
            frame = await read_frame(reader)
            writer.write(response(int.from_bytes(frame[8:12], "big"), Rights().answer(frame, [])))
        await reader.read()

    broker = LoggingIn(rights := Rights())
    async with coordinating(tmp_path, broker, listener=WITH_LOGIN) as running:
        reader = await broker.register(running)
        await until_async(lambda: any(names.count("g") > 1 for names in rights.asked))
        assert running.consumers.logins() == [(running.of(ConsumerRegistered)[0].connection, "User:alice")]
        for writer in rights.writers:
            writer.close()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("broker_closed", False)]
        await running.counted(0, {"broker_closed": 1})
        await running.begin_anew()
        broker.rights = stall_after_two
        monkeypatch.setattr(consumer_rights, "QUESTION_SECONDS", 1.0)
        reader = await broker.register(running)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.ends == [("broker_timeout", False)]
        await running.counted(0, {"broker_timeout": 1})


async def test_one_client_s_rights_are_asked_for_one_after_the_other() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)
    broker = asyncio.create_task(Rights("other", "tb")(reader, writer))
    rights = consumer_rights.ClientRights(ours, "c")
    try:
        async with asyncio.timeout(60):
            asked = rights.ask("g", ["ta", "tb"]), rights.ask("other", ["ta"]), rights.ask("g", [])
            found = await asyncio.gather(*asked)
    finally:
        rights.close()
        broker.cancel()
        writer.close()
    assert found == [(True, {"tb"}), (False, set()), (True, set())]


# ---- the consumer's end, with a clock that the tests set -------------------------------------------------------------


class LinkPeer:
    """The other end of a link that is connected at 0, and the link to it. ``now``: of the link's clock."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 0
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(PATIENCE)
        address = Endpoint("127.0.0.1", server.getsockname()[1])
        self.link = CoordinatorLink(address, Security(), "c1", lambda: self.now)
        stack.callback(self.link.close, reset=True)
        events = self.look(0)
        while not events:
            events = self.wait_and_look(0)
        assert events == [LinkConnected()]
        self.theirs = stack.enter_context(server.accept()[0])
        self.theirs.settimeout(PATIENCE)

    def look(self, at: int | None = None) -> list[LinkEvent]:
        self.now = self.now if at is None else at
        return list(self.link.poll())

    def wait_and_look(self, at: int | None = None) -> list[LinkEvent]:
        """Look when there is something."""
        found, events = self.link.interest
        assert any(select.select([found], [found] if events & 2 else [], [], PATIENCE))
        return self.look(at)


@pytest.fixture
def connected() -> Iterator[Callable[[], LinkPeer]]:
    with ExitStack() as stack:
        yield lambda: LinkPeer(stack)


@pytest.mark.promise(
    "consumer.md", "What lay in the buffer of a paused process counts as heard when the process last found it empty."
)
def test_a_frame_is_as_old_as_the_last_look_that_found_nothing(connected: Callable[[], LinkPeer]) -> None:
    peer = connected()
    assert peer.look(100) == []
    peer.theirs.sendall(b"\0\0\0\5hello")
    assert peer.wait_and_look(4000) == [FrameReceived(b"hello", 100)]
    peer.theirs.sendall(b"\0\0\0\5he")
    assert peer.wait_and_look(5000) == [], "in pieces: as old as its last byte"
    peer.theirs.sendall(b"llo\0\0\0\5again")
    assert peer.wait_and_look(6000) == [FrameReceived(b"hello", 5000), FrameReceived(b"again", 5000)]
    for number in range(3):
        peer.theirs.sendall(b"\0\0\0\5ping%d" % number)
    found: list[LinkEvent] = []
    while len(found) < 3:
        found += peer.wait_and_look(60_000) if not found else peer.look()
    assert found[0] == FrameReceived(b"ping0", 6000)


def test_a_link_sends_all_and_ends_with_a_reset_or_with_a_fin(connected: Callable[[], LinkPeer]) -> None:
    """A FIN would say that the consumer has stopped."""
    for ends_itself in (False, True):
        peer = connected()
        if ends_itself:
            peer.link.close(reset=True)
        else:
            peer.theirs.sendall(struct.pack(">i", -1))  # a frame of a wrong size
            (ended,) = peer.wait_and_look()
            assert isinstance(ended, LinkEnded)
        with pytest.raises(ConnectionResetError):
            peer.theirs.recv(1)
    peer = connected()
    frame = bytes(1 << 23)  # more than is taken at once
    peer.link.send(frame)
    assert peer.link.interest[1] == 3
    received = b""
    while len(received) < len(frame):
        received += peer.theirs.recv(1 << 20)
        assert peer.look() == []
    peer.theirs.sendall(b"\0\0\0\5hello")  # which nobody will read
    peer.wait_and_look()
    peer.link.send(b"goodbye")
    peer.link.close(reset=False)
    assert [peer.theirs.recv(100), peer.theirs.recv(100)] == [b"goodbye", b""]
