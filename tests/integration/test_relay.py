"""The data path over real sockets: order, back-pressure, half-close, drain, running out of descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.compiled.exchange import Exchange
from proxy.config import Config, load
from proxy.net.api_versions_probe import ApiVersionsProbe
from proxy.net.connection_manager import ConnectionManager
from proxy.net.descriptors import RESERVED_DESCRIPTORS
from proxy.net.listener_manager import ListenerManager
from proxy.net.ticker import Ticker
from proxy.telemetry.snapshot import open_descriptors
from tests.frames import METADATA, batch, produce, request, response
from tests.integration.conftest import free_port
from tests.integration.peer import Behaviour, Reader, Writer, answer_in_order, read_frame, upstream
from tests.tools.observation_sinks import watching


class Handler(ConnectionManager):
    """A manager as a sidecar wants it."""

    is_available = True
    is_full = False

    def on_capacity(self, call: Callable[[], None]) -> None:
        pass


@pytest.fixture(autouse=True)
def _silent_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiVersionsProbe, "start", lambda self: None)  # a peer is asked by clients alone


class Bench:
    """A sidecar inside the test's own loop, before a peer that behaves as the test says."""

    def __init__(self, config: Config) -> None:
        self.exchanges: list[Exchange] = []
        self.manager = Handler(config, watching(self.exchanges.append))
        self.sidecar = ListenerManager(config, self.manager, Ticker())
        self.port = config.listeners[0].bind.port
        self.counters = self.manager.listener_counters["CLIENT"]

    async def dial(self) -> tuple[Reader, Writer]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def drain(self, patience: float) -> None:
        self.sidecar.close()
        await self.manager.drain(patience)

    async def until(self, condition: object, seconds: float = 60.0) -> None:
        """Wait until ``condition()`` holds."""
        assert callable(condition)
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # a counter has no event to wait for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def bench(tmp_path: Path, behaviour: Behaviour, to: str = "", **settings: object) -> AsyncIterator[Bench]:
    """``to``: the upstream, where it is not to be the peer."""
    async with upstream(behaviour) as peer_port:
        to = to or f"127.0.0.1:{peer_port}"
        lines = [
            "broker.id: 1",
            f"listeners: [{{name: CLIENT, bind: '127.0.0.1:{free_port()}', upstream: '{to}'}}]",
            f"admin: {{bind: '127.0.0.1:{free_port()}'}}",
            *(f"{key}: {value}" for key, value in settings.items()),
        ]
        path = tmp_path / "sidecar.yaml"
        path.write_text("\n".join(lines))
        running = Bench(load(path))
        running.sidecar.start()
        try:
            yield running
        finally:
            if not running.sidecar.draining:
                await running.drain(0.2)
            await running.until(lambda: running.counters.active == 0)


async def test_100_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        writer.write(b"".join(request(METADATA, 1, n, b"x" * n) for n in range(100)))
        interception = [await read_frame(reader) for _ in range(100)]
        assert interception == [response(n) for n in range(100)]
        assert [exchange.correlation_id for exchange in running.exchanges] == list(range(100))
        writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})


async def test_a_client_that_half_closes_gets_all_its_responses_then_the_end(tmp_path: Path) -> None:
    async def answer_after_eof(reader: Reader, writer: Writer) -> None:
        frames = []
        try:
            while True:
                frames.append(await read_frame(reader))
        except asyncio.IncompleteReadError:
            pass
        for frame in frames:
            writer.write((4).to_bytes(4, "big") + frame[8:12])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with bench(tmp_path, answer_after_eof) as running:
        reader, writer = await running.dial()
        writer.write(b"".join(request(METADATA, 1, n) for n in range(100)))
        writer.write_eof()
        assert await reader.read() == b"".join(response(n) for n in range(100))
        await running.until(lambda: running.counters.closed == {"client_closed": 1})
        writer.close()


async def test_a_broker_that_half_closes_still_gets_what_the_client_sends(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def close_first(reader: Reader, writer: Writer) -> None:
        writer.write_eof()
        got.set_result(await reader.read())

    async with bench(tmp_path, close_first) as running:
        reader, writer = await running.dial()
        assert await reader.read() == b""
        writer.write(request(METADATA, 1, 1))
        writer.write_eof()
        assert await got == request(METADATA, 1, 1)
        writer.close()


async def test_a_client_that_does_not_read_pauses_the_broker_and_nobody_else(tmp_path: Path) -> None:
    flood = b"z" * 1_000_000
    sent = 0

    async def stream(reader: Reader, writer: Writer) -> None:
        nonlocal sent
        while True:
            frame = await read_frame(reader)
            if frame[8:12] == b"\0\0\0\x07":
                writer.write(response(7, flood * 40))
                while writer.transport.get_write_buffer_size():
                    sent = len(flood) * 40 - writer.transport.get_write_buffer_size()
                    await asyncio.sleep(0.01)
            else:
                writer.write((4).to_bytes(4, "big") + frame[8:12])

    async with bench(tmp_path, stream) as running:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", running.port))
        slow.sendall(request(METADATA, 1, 7))
        await running.until(lambda: running.counters.pauses["broker"] >= 1)
        (relay,) = running.manager.relays
        assert relay.unsent("client") < 320 * 1024
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
        writer.close()
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        received = 0
        while received < len(flood) * 40 + 8:
            received += len(await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 60))
        assert received == len(flood) * 40 + 8
        slow.close()
        await running.until(lambda: running.exchanges[-1].response_bytes == received)


async def test_a_broker_that_does_not_read_pauses_the_client(tmp_path: Path) -> None:
    release = asyncio.Event()
    got = 0

    async def stall(reader: Reader, writer: Writer) -> None:
        nonlocal got
        await release.wait()
        while chunk := await reader.read(1 << 20):
            got += len(chunk)

    frame = request(METADATA, 1, 1, b"y" * 30_000_000)
    async with bench(tmp_path, stall) as running:
        _, writer = await running.dial()
        writer.write(frame)
        await running.until(lambda: running.counters.pauses["client"] >= 1)
        release.set()
        await asyncio.wait_for(writer.drain(), 60)
        await running.until(lambda: got == len(frame))
        writer.close()


async def test_an_unreachable_broker_closes_the_client_and_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order, to=f"127.0.0.1:{free_port()}") as running:
        for _ in range(50):
            reader, writer = await running.dial()
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        assert running.counters.closed == {"upstream_unreachable": 50}
        assert running.counters.upstream_failures == 50
        assert running.counters.active == 0


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "client_invalid_size"),
        ((-1).to_bytes(4, "big", signed=True) + bytes(20), "client_invalid_size"),
        (request(METADATA, 1, 1)[:12] + b"\x7f\xff" + b"c", "client_invalid_header"),
    ],
)
async def test_hostile_bytes_close_the_connection_and_never_reach_the_broker(
    tmp_path: Path, sent: bytes, cause: str
) -> None:
    reached = bytearray()

    async def note(reader: Reader, _: Writer) -> None:
        while chunk := await reader.read(1024):
            reached.extend(chunk)

    async with bench(tmp_path, note) as running:
        reader, writer = await running.dial()
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.counters.closed == {cause: 1}
        assert reached == b""
        writer.close()


async def test_tls_on_a_listener_without_it_is_named(tmp_path: Path) -> None:
    async def silent(reader: Reader, _: Writer) -> None:
        await reader.read()

    with capture_logs() as logged:
        async with bench(tmp_path, silent) as running:
            reader, writer = await running.dial()
            writer.write(bytes.fromhex("16030100f8010000f40303") + bytes(32))
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
    (line,) = [line for line in logged if line["event"] == "connection_refused"]
    assert line["cause"] == "client_invalid_size"
    assert "(these bytes begin a TLS record: the client uses TLS, and this listener does not)" in line["detail"]


async def test_an_unsolicited_response_closes_both_sides_and_invents_nothing(tmp_path: Path) -> None:
    async def chatter(reader: Reader, writer: Writer) -> None:
        frame = await read_frame(reader)
        writer.write((4).to_bytes(4, "big") + frame[8:12])
        writer.write(response(99))
        await reader.read()

    async with bench(tmp_path, chatter) as running:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await asyncio.wait_for(reader.read(), 60) == response(1)
        await running.until(lambda: running.counters.closed == {"broker_out_of_sync": 1})
        writer.close()


async def test_a_drain_answers_what_was_asked_and_accepts_no_more(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answer_later(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            await release.wait()
            writer.write((4).to_bytes(4, "big") + frame[8:12])

    async with bench(tmp_path, answer_later) as running:
        reader, writer = await running.dial()
        _, idle = await running.dial()
        writer.write(request(METADATA, 1, 1))
        await running.until(lambda: running.counters.requests[METADATA] == 1 and running.counters.active == 2)
        drain = asyncio.ensure_future(running.drain(10))
        await running.until(lambda: running.counters.closed == {"drain_completed": 1})
        with pytest.raises(ConnectionRefusedError):
            await running.dial()
        release.set()
        assert await asyncio.wait_for(reader.read(), 60) == response(1)
        await drain
        assert running.counters.closed == {"drain_completed": 2}
        assert [exchange.outcome for exchange in running.exchanges] == ["answered"]
        writer.close()
        idle.close()


async def test_a_drain_ends_with_the_last_client(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order) as running:
        clients = [await running.dial() for _ in range(3)]
        await running.until(lambda: running.counters.active == 3)
        running.sidecar.close()
        drain = asyncio.ensure_future(running.manager.drain(3600, spread=True))
        await asyncio.sleep(0)
        for _, writer in clients:
            writer.close()
        await asyncio.wait_for(drain, 60)
        assert sum(running.counters.closed.values()) == 3
        assert "drain_timeout" not in running.counters.closed


async def test_a_drain_cuts_what_stays_open_and_says_so(tmp_path: Path) -> None:
    async def never(reader: Reader, _: Writer) -> None:
        await reader.read()
        await asyncio.sleep(30)

    async with bench(tmp_path, never) as running:
        _, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        await running.until(lambda: running.counters.requests[METADATA] == 1)
        await running.drain(0.1)
        assert running.counters.closed == {"drain_timeout": 1}
        assert [exchange.outcome for exchange in running.exchanges] == ["connection_lost"]
        writer.close()


async def test_out_of_descriptors_no_connection_is_lost(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with bench(tmp_path, answer_in_order) as running:
        loop = asyncio.get_running_loop()
        clients = [socket.socket() for _ in range(60)]
        used = max(client.fileno() for client in clients) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 30, hard))
        try:
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", running.port))
            await running.until(lambda: sum(running.counters.accept_errors.values()) >= 2)
            assert set(running.counters.accept_errors) == {"EMFILE"}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for n, client in enumerate(clients):
            await loop.sock_sendall(client, request(METADATA, 1, n))
        answered = 0
        for n, client in enumerate(clients):
            if await asyncio.wait_for(loop.sock_recv(client, 100), 60) == response(n):
                answered += 1
            client.close()
        assert answered == len(clients)
        assert running.counters.accepted == len(clients)


@pytest.mark.parametrize("reports", [True, False], ids=["the kernel reports them", "before Linux 6.2"])
async def test_descriptors_that_are_opened_after_the_start_are_not_taken_from_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    if not reports:
        monkeypatch.setattr("proxy.net.descriptors.reported_descriptors", lambda: 0)
    gc.collect()  # so that nothing that earlier tests have left is closed meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as broker:
        async with bench(tmp_path, answer_in_order, f"127.0.0.1:{broker.getsockname()[1]}") as running:
            clients = [socket.socket() for _ in range(60)]
            opened = [os.dup(broker.fileno()) for _ in range(200)]
            limit = open_descriptors() + RESERVED_DESCRIPTORS + 20
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                for client in clients:
                    client.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", running.port))
                await running.until(lambda: running.counters.accept_errors["EMFILE"] >= 5)
                assert open_descriptors() == limit - RESERVED_DESCRIPTORS
                assert running.counters.accepted == 10
                os.close(opened.pop())
                os.close(opened.pop())
                await running.until(lambda: running.counters.accepted == 11)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in opened:
                os.close(descriptor)
            for client in clients:
                client.close()


async def test_an_error_of_ours_costs_the_record_of_a_connection_and_not_the_connection(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order) as running:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        running.counters.requests[METADATA] = None  # type: ignore[assignment]  # the session fails where it counts
        writer.write(request(METADATA, 1, 2) + request(METADATA, 1, 3))
        assert [await read_frame(reader) for _ in range(2)] == [response(2), response(3)]
        assert running.counters.abandoned == 1
        writer.close()


async def test_a_drain_waits_for_a_client_that_still_reads_what_was_answered(tmp_path: Path) -> None:
    body = b"z" * 400_000

    async def answer(reader: Reader, writer: Writer) -> None:
        await read_frame(reader)
        writer.write(response(1, body))
        await reader.read()

    async with bench(tmp_path, answer) as running:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", running.port))
        slow.sendall(request(METADATA, 1, 1))
        await running.until(lambda: len(running.exchanges) == 1)
        drain = asyncio.ensure_future(running.drain(10))
        slow.setblocking(False)
        received = 0
        while chunk := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(slow, 1 << 16), 60):
            received += len(chunk)
        assert received == len(body) + 8
        await drain
        assert running.counters.closed == {"drain_completed": 1}
        slow.close()


async def test_an_upstream_whose_name_is_not_known_leaks_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order, to="no-such-host.invalid:9092") as running:
        reader, writer = await running.dial()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert running.counters.closed == {"upstream_unreachable": 1}
        writer.close()


def reset(sock: socket.socket) -> None:
    """End a connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_what_a_client_sent_right_before_its_reset_arrives_and_the_connection_ends(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def take(reader: Reader, writer: Writer) -> None:
        got.set_result(await reader.read())

    frame = produce(1, 0, batch(3))
    async with bench(tmp_path, take) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            await running.until(lambda: running.counters.active == 1)
            client.sendall(frame)  # both before the loop turns: data and reset come as one event
            reset(client)
        assert await asyncio.wait_for(got, 60) == frame
        await running.until(lambda: running.counters.closed == {"client_reset": 1})


async def test_what_a_broker_sent_right_before_its_reset_arrives_and_the_connection_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with bench(tmp_path, answer_in_order, to=address) as running:
            reader, writer = await running.dial()
            await running.until(lambda: running.counters.active == 1)
            broker, _ = listener.accept()
            writer.write(request(METADATA, 1, 1) + request(METADATA, 1, 2))
            await running.until(lambda: running.counters.requests[METADATA] == 2)
            broker.sendall(response(1, b"whole"))
            reset(broker)
            assert await asyncio.wait_for(reader.read(), 60) == response(1, b"whole")
            await running.until(lambda: running.counters.closed == {"broker_reset": 1})
            writer.close()
