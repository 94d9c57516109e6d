"""The data path over real sockets: order, back-pressure, half-close, drain, running out of descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.local.ports import HOST, free_ports
from proxy.net.descriptors import RESERVED_DESCRIPTORS
from proxy.telemetry.snapshot import open_descriptors
from tests.frames import METADATA, batch, produce, request, response
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.tls_bench import Bench, bench, silent_sidecar

__all__ = ["Bench", "bench", "silent_sidecar"]


async def never(reader: Reader, _: Writer) -> None:
    await reader.read()
    await asyncio.sleep(30)


@contextmanager
def slow_client(running: Bench, asked: bytes) -> Iterator[socket.socket]:
    """One whose kernel takes little; it has sent a request."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((HOST, running.port))
        slow.sendall(asked)
        slow.setblocking(False)
        yield slow


async def receive(sock: socket.socket, size: int) -> bytes:
    """Read until there are ``size`` bytes, or the end."""
    received = bytearray()
    while len(received) < size:
        chunk = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1 << 20), 60)
        if not chunk:
            break
        received += chunk
    return bytes(received)


async def test_100_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order) as running, running.client() as (reader, writer):
        writer.write(b"".join(request(METADATA, 1, n, b"x" * n) for n in range(100)))
        assert [await read_frame(reader) for _ in range(100)] == [response(n) for n in range(100)]
        assert [exchange.correlation_id for exchange in running.exchanges] == list(range(100))


@pytest.mark.promise(
    "architecture.md", "A side of a connection that ends what it sends still gets all that the other side sends."
)
async def test_who_half_closes_gets_all_that_the_other_side_sends(tmp_path: Path) -> None:
    asked = [request(METADATA, 1, n) for n in range(100)]
    got = asyncio.get_running_loop().create_future()

    async def answer_after_eof(reader: Reader, writer: Writer) -> None:
        assert await reader.read() == b"".join(asked)
        for number in range(100):
            writer.write(response(number))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def close_first(reader: Reader, writer: Writer) -> None:
        writer.write_eof()
        got.set_result(await reader.read())

    async with bench(tmp_path, answer_after_eof) as running, running.client() as (reader, writer):
        writer.write(b"".join(asked))
        writer.write_eof()
        assert await reader.read() == b"".join(response(n) for n in range(100))
        await running.ends(client_closed=1)
    async with bench(tmp_path, close_first) as running, running.client() as (reader, writer):
        assert await reader.read() == b""
        writer.write(asked[1])
        writer.write_eof()
        assert await got == asked[1]


@pytest.mark.promise("security.md", "A client that does not read holds up nobody else, and is not cut.")
async def test_a_client_that_does_not_read_pauses_the_broker_and_nobody_else(tmp_path: Path) -> None:
    size = 40_000_000
    body = random.Random(1).randbytes(size)  # equal bytes would hide those that come twice

    async def stream(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            number = int.from_bytes(frame[8:12], "big")
            writer.write(response(number, body if number == 7 else b""))

    async with bench(tmp_path, stream) as running:
        with slow_client(running, request(METADATA, 1, 7)) as slow:
            await running.until(lambda: running.counters.pauses["broker"] >= 1)
            (relay,) = running.manager.relays
            assert relay.unsent("client") < 320 * 1024
            reader, writer = await running.dial()
            writer.write(request(METADATA, 1, 1))
            assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
            writer.close()
            assert await receive(slow, size + 8) == response(7, body)
        await running.until(lambda: running.exchanges[-1].response_bytes == size + 8)


async def test_a_broker_that_does_not_read_pauses_the_client(tmp_path: Path) -> None:
    release = asyncio.Event()
    got = bytearray()

    async def stall(reader: Reader, writer: Writer) -> None:
        await release.wait()
        while chunk := await reader.read(1 << 20):
            got.extend(chunk)

    frame = request(METADATA, 1, 1, random.Random(2).randbytes(30_000_000))
    async with bench(tmp_path, stall) as running:
        _, writer = await running.dial()
        writer.write(frame)
        await running.until(lambda: running.counters.pauses["client"] >= 1)
        release.set()
        await asyncio.wait_for(writer.drain(), 60)
        await running.until(lambda: len(got) >= len(frame))
        assert got == frame
        writer.close()


async def test_an_unreachable_broker_closes_the_client_and_leaves_nothing(tmp_path: Path) -> None:
    for to, count in ((f"{HOST}:{free_ports(1)[0]}", 50), ("no-such-host.invalid:9092", 1)):
        async with bench(tmp_path, answer_in_order, to) as running:
            for _ in range(count):
                reader, writer = await running.dial()
                assert await asyncio.wait_for(reader.read(), 60) == b""
                writer.close()
            counters = running.counters
            assert (counters.closed, counters.upstream_failures, counters.active) == (
                {"upstream_unreachable": count}, count, 0,
            ), to  # fmt: skip


@pytest.mark.promise(
    "architecture.md",
    "A client that sends what is not Kafka's protocol is closed, and no byte of it reaches the broker.",
)
async def test_hostile_bytes_close_the_connection_and_never_reach_the_broker(tmp_path: Path) -> None:
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(32)
    cases = [
        (b"GET / HTTP/1.1\r\n\r\n", "client_invalid_size", ""),
        ((-1).to_bytes(4, "big", signed=True) + bytes(20), "client_invalid_size", ""),
        (request(METADATA, 1, 1)[:12] + b"\x7f\xff" + b"c", "client_invalid_header", ""),
        (hello, "client_invalid_size", "(these bytes begin a TLS record: the client uses TLS, and this listener does"),
    ]
    reached = bytearray()

    async def note(reader: Reader, _: Writer) -> None:
        while chunk := await reader.read(1024):
            reached.extend(chunk)

    for sent, cause, hint in cases:
        with capture_logs() as logged:
            async with bench(tmp_path, note) as running:
                reader, writer = await running.dial()
                writer.write(sent)
                assert await asyncio.wait_for(reader.read(), 60) == b"", sent
                assert running.counters.closed == {cause: 1}, sent
                assert reached == b"", sent
                writer.close()
        (line,) = [line for line in logged if line["event"] == "connection_refused"]
        assert (line["cause"], hint in line["detail"]) == (cause, True), sent


@pytest.mark.promise(
    "restart.md",
    "A sidecar that is stopped accepts no more, and ends each connection once its open requests are answered.",
)
async def test_a_drain_answers_what_was_asked_and_accepts_no_more(tmp_path: Path) -> None:
    release = asyncio.Event()
    body = random.Random(3).randbytes(400_000)

    async def answer_later(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            if frame[11] == 1:
                await release.wait()
            writer.write(response(frame[11], body if frame[11] == 2 else b""))

    async with bench(tmp_path, answer_later) as running:
        reader, writer = await running.dial()
        _, idle = await running.dial()
        writer.write(request(METADATA, 1, 1))
        with slow_client(running, request(METADATA, 1, 2)) as slow:  # it still reads what was answered
            await running.until(lambda: running.counters.requests[METADATA] == 2 and len(running.exchanges) == 1)
            drain = asyncio.ensure_future(running.drain(10))
            await running.until(lambda: running.counters.closed["drain_completed"])
            with pytest.raises(ConnectionRefusedError):
                await running.dial()
            assert await receive(slow, 1 << 30) == response(2, body)
            await running.ends(drain_completed=2)
        release.set()
        assert await asyncio.wait_for(reader.read(), 60) == response(1)
        await drain
        assert running.counters.closed == {"drain_completed": 3}
        assert [exchange.outcome for exchange in running.exchanges] == ["answered"] * 2
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


@pytest.mark.promise("config/process.md", "`drain.timeout.ms` bounds how long a stop waits for open requests.")
async def test_a_drain_cuts_what_stays_open_and_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, never) as running:
        _, writer = await running.dial()
        writer.write(request(METADATA, 1, 1))
        await running.until(lambda: running.counters.requests[METADATA] == 1)
        await running.drain(0.1)
        assert running.counters.closed == {"drain_timeout": 1}
        assert [exchange.outcome for exchange in running.exchanges] == ["connection_lost"]
        writer.close()


@contextmanager
def limited_descriptors(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.promise("security.md", "64 descriptors stay free of clients, for the admin port and the sidecar itself.")
async def test_descriptors_that_are_opened_after_the_start_are_not_taken_from_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the kernel reports how many there are, or not, as before Linux 6.2."""
    for reports in (True, False):
        if not reports:
            monkeypatch.setattr("proxy.net.descriptors.reported_descriptors", lambda: 0)
        gc.collect()  # so that nothing that earlier tests have left is closed meanwhile
        with socket.create_server((HOST, 0), backlog=100) as broker:
            async with bench(tmp_path, answer_in_order, f"{HOST}:{broker.getsockname()[1]}") as running:
                clients = [socket.socket() for _ in range(60)]
                opened = [os.dup(broker.fileno()) for _ in range(200)]
                limit = open_descriptors() + RESERVED_DESCRIPTORS + 20
                with limited_descriptors(limit):
                    for client in clients:
                        client.setblocking(False)
                        await asyncio.get_running_loop().sock_connect(client, (HOST, running.port))
                    await running.until(lambda: running.counters.accept_errors["EMFILE"] >= 5)
                    assert open_descriptors() == limit - RESERVED_DESCRIPTORS, reports
                    assert running.counters.accepted == 10, reports
                    os.close(opened.pop())
                    os.close(opened.pop())
                    await running.until(lambda: running.counters.accepted == 11)
                for descriptor in opened:
                    os.close(descriptor)
                for client in clients:
                    client.close()


@pytest.mark.promise(
    "operations.md", "An error of the sidecar's own costs the events of a connection, and not a byte of its traffic."
)
async def test_an_error_of_ours_costs_the_record_of_a_connection_and_not_the_connection(tmp_path: Path) -> None:
    async with bench(tmp_path, answer_in_order) as running, running.client() as (reader, writer):
        writer.write(request(METADATA, 1, 1))
        assert await read_frame(reader) == response(1)
        running.counters.requests[METADATA] = None  # type: ignore[assignment]  # the session fails where it counts
        writer.write(request(METADATA, 1, 2) + request(METADATA, 1, 3))
        assert [await read_frame(reader) for _ in range(2)] == [response(2), response(3)]
        assert running.counters.abandoned == 1


def reset(sock: socket.socket) -> None:
    """End a connection with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_what_was_sent_right_before_a_reset_arrives_and_the_connection_ends(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def take(reader: Reader, writer: Writer) -> None:
        got.set_result(await reader.read())

    frame = produce(1, 0, batch(3))
    async with bench(tmp_path, take) as running:
        with socket.create_connection((HOST, running.port)) as client:
            await running.until(lambda: running.counters.active == 1)
            client.sendall(frame)  # both before the loop turns: data and reset come as one event
            reset(client)
        assert await asyncio.wait_for(got, 60) == frame
        await running.ends(client_reset=1)
    with socket.create_server((HOST, 0)) as listener:
        async with bench(tmp_path, take, f"{HOST}:{listener.getsockname()[1]}") as running:
            reader, writer = await running.dial()
            await running.until(lambda: running.counters.active == 1)
            broker, _ = listener.accept()
            writer.write(request(METADATA, 1, 1) + request(METADATA, 1, 2))
            await running.until(lambda: running.counters.requests[METADATA] == 2)
            broker.sendall(response(1, b"whole"))
            reset(broker)
            assert await asyncio.wait_for(reader.read(), 60) == response(1, b"whole")
            await running.ends(broker_reset=1)
            writer.close()
