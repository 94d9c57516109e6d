"""Requests that the sidecar answers later, over real sockets: order, calls to the broker, and every way to end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.core.budget import LIMIT, OPEN
from proxy.core.interceptor import BrokerCall, Deferred, Request, Verdict
from proxy.core.session import TURN
from proxy.net import deferred_requests, relay
from proxy.net.deferred_requests import MAX_CALL_RESPONSE
from proxy.telemetry import RateLimitedLogger
from tests.frames import API_VERSIONS, METADATA, request, response, sized
from tests.integration.peer import Behaviour, Reader, Writer, answer_in_order, read_frame
from tests.integration.test_relay import Bench
from tests.integration.test_relay_answers import answering, intercepting
from tests.integration.test_tls import HandMade
from tests.integration.test_tls_upstream import behind, broker_with_tls, originated
from tests.integration.tls_bench import TlsBench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority
from tests.tools.interceptors import HELD, PRIVATE, REPLIED, Chooser, replied

FLEXIBLE = 9
"""The first version of Metadata whose headers have tagged fields."""

Serve = Callable[[BrokerCall], Awaitable[bytes | None]]


class Later(Chooser):
    """``serve`` serves HELD."""

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self.serve = serve

    def on_body(self, request: Request, body: bytes) -> Verdict:
        return Deferred(self.serve) if request.api_key == HELD else super().on_body(request, body)


def serving(
    tmp_path: Path, serve: Serve, behaviour: Behaviour = answer_in_order
) -> contextlib.AbstractAsyncContextManager[Bench]:
    """A sidecar that serves deferred requests so."""
    return answering(tmp_path, behaviour, partial(Later, serve))


def deferred(number: int) -> bytes:
    return request(HELD, 0, number)


async def at_once(call: BrokerCall) -> bytes | None:
    return b"served"


async def ask(call: BrokerCall) -> bytes | None:
    """The broker's answer to Metadata v1."""
    return await call(METADATA, 1, b"asked")


def charged(running: Bench | TlsBench) -> int:
    return running.manager.budget.counts[OPEN]


async def closes(running: Bench | TlsBench, cause: str, reader: Reader) -> None:
    """The client's connection ends for ``cause``, without a byte more."""
    assert await asyncio.wait_for(reader.read(), 10) == b""
    await running.until(lambda: running.counters.closed == {cause: 1})
    assert charged(running) == 0


# ---- answers ----------------------------------------------------------------------------------------------------


async def test_answers_come_in_the_order_of_their_requests_and_the_broker_is_asked_between(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            asked.append(await read_frame(reader))
            writer.write(response(int.from_bytes(asked[-1][8:12], "big"), b"from the broker"))

    async with serving(tmp_path, ask, answer) as running:
        reader, writer = await running.dial()
        expected = []
        for n in range(0, 400, 4):
            writer.write(request(METADATA, 1, n) + deferred(n + 1) + request(REPLIED, 3, n + 2) + deferred(n + 3))
            expected += [response(n, b"from the broker"), response(n + 1, b"from the broker")]
            expected += [response(n + 2, replied(3)), response(n + 3, b"from the broker")]
        assert [await asyncio.wait_for(read_frame(reader), 10) for _ in range(400)] == expected
        question = request(METADATA, 1, 0, b"asked")
        assert asked == [frame for n in range(0, 400, 4) for frame in (request(METADATA, 1, n), question, question)]
        assert running.counters.intercepted == {(HELD, "replied"): 200, (REPLIED, "replied"): 100}
        assert sum(each.synthesized for each in running.exchanges) == 300
        assert charged(running) == 0
        writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})


async def test_headers_are_as_the_api_has_them(tmp_path: Path) -> None:
    answered: list[bytes] = []
    asked: list[bytes] = []

    async def serve(call: BrokerCall) -> bytes:
        answered.append(await call(METADATA, FLEXIBLE, b"flexible"))
        answered.append(await call(API_VERSIONS, 3, b"not in the response"))
        return b"served"

    async def answer(reader: Reader, writer: Writer) -> None:
        asked.append(await read_frame(reader))
        writer.write(response(0, b"\1\7\2xy" + b"body"))  # with a tagged field
        asked.append(await read_frame(reader))
        writer.write(response(0, b"\0\0body"))
        await reader.read()

    async with serving(tmp_path, serve, answer) as running:
        reader, writer = await running.dial()
        writer.write(request(HELD, 0, 1, client_id=None))
        assert await asyncio.wait_for(read_frame(reader), 10) == response(1, b"served")
        assert answered == [b"body", b"\0\0body"]
        assert asked == [
            request(METADATA, FLEXIBLE, 0, b"\0flexible", client_id=None),
            request(API_VERSIONS, 3, 0, b"\0not in the response", client_id=None),
        ]
        writer.close()


async def test_a_response_may_come_byte_by_byte_or_be_long(tmp_path: Path) -> None:
    long = bytes(range(256)) * (MAX_CALL_RESPONSE // 256 - 1)
    most = 0

    async def serve(call: BrokerCall) -> bytes:
        assert await call(METADATA, 1, b"") == b"in pieces"
        assert await call(METADATA, 1, b"") == long
        return b"served"

    async def answer(reader: Reader, writer: Writer) -> None:
        nonlocal most
        await read_frame(reader)
        for byte in response(0, b"in pieces"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        await read_frame(reader)
        writer.write(response(0, long)[:-1])
        await running.until(lambda: running.counters.received["broker"] >= len(long))
        most = charged(running)
        writer.write(long[-1:])
        await reader.read()

    async with serving(tmp_path, serve, answer) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        assert await asyncio.wait_for(read_frame(reader), 10) == response(1, b"served")
        assert most > len(long)
        assert charged(running) == 0
        writer.close()


async def test_what_comes_behind_it_waits_and_then_comes_in_turns(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def serve(call: BrokerCall) -> bytes:
        await release.wait()
        return b"served"

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        many = 5 * TURN
        writer.write(deferred(0) + b"".join(request(METADATA, 1, n) for n in range(1, many)))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        await asyncio.sleep(0.05)
        assert running.counters.requests[METADATA] == 0
        other, closing = await running.dial()  # others continue
        closing.write(request(METADATA, 1, 1))
        assert await asyncio.wait_for(read_frame(other), 10) == response(1)
        closing.close()
        release.set()
        got = [await asyncio.wait_for(read_frame(reader), 10) for _ in range(many)]
        assert got == [response(0, b"served"), *(response(n) for n in range(1, many))]
        writer.close()


async def test_it_is_served_when_all_before_it_is_sent(tmp_path: Path) -> None:
    unsent: list[int] = []

    async def serve(call: BrokerCall) -> bytes:
        unsent.append(relay.unsent("client"))
        return b"served"

    async with serving(tmp_path, serve) as running:
        loop = asyncio.get_running_loop()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, ("127.0.0.1", running.port))
        await running.until(lambda: running.manager.relays)
        (relay,) = running.manager.relays
        stalled, sent, size = 0, 0, 60_000
        while stalled < 2:
            size, expected = size - 1000, b""
            while not relay.unsent("client"):  # until the kernel takes no more
                await loop.sock_sendall(slow, request(PRIVATE, 0, 1, b"a" * size) + deferred(2))
                expected += response(1, b"a" * size) + response(2, b"served")
                sent += 1
                await running.until(lambda n=sent: running.counters.intercepted[PRIVATE, "replied"] == n)
                await running.until(lambda n=sent: relay.unsent("client") or len(unsent) == n)
            await asyncio.sleep(0.02)
            stalled += len(unsent) < sent
            got = bytearray()
            while len(got) < len(expected):
                got += await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 10)
            assert got == expected
            assert unsent == [0] * sent
        slow.close()


async def test_a_long_answer_to_a_client_that_reads_late(tmp_path: Path) -> None:
    body = bytes(8_000_000)

    async def serve(call: BrokerCall) -> bytes:
        return body

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1) + deferred(2) + request(METADATA, 1, 3))
        await running.until(lambda: running.counters.intercepted[HELD, "replied"] == 1)
        await asyncio.sleep(0.05)
        assert running.counters.intercepted[HELD, "replied"] == 1, "the second one starts when the first is sent"
        for n in (1, 2):
            assert await asyncio.wait_for(read_frame(reader), 10) == response(n, body)
        assert await asyncio.wait_for(read_frame(reader), 10) == response(3)
        writer.close()


# ---- ways to end ------------------------------------------------------------------------------------------------


async def test_none_closes_the_connection(tmp_path: Path) -> None:
    async def serve(call: BrokerCall) -> None:
        return None

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(request(REPLIED, 3, 1) + deferred(2) + request(METADATA, 1, 3))
        assert await asyncio.wait_for(read_frame(reader), 10) == response(1, replied(3))
        await closes(running, "unsupported_request", reader)
        assert running.counters.intercepted[HELD, "closed"] == 1
        assert running.counters.requests[METADATA] == 0
        writer.close()


async def fail(call: BrokerCall) -> bytes | None:
    raise ValueError("a mistake")


async def be_cancelled(call: BrokerCall) -> bytes | None:
    raise asyncio.CancelledError


async def never(call: BrokerCall) -> bytes | None:
    await asyncio.sleep(60)
    return b"late"


async def two_at_once(call: BrokerCall) -> bytes | None:
    await asyncio.gather(call(METADATA, 1, b""), call(METADATA, 1, b""))
    return b"both"


@pytest.mark.parametrize(
    ("serve", "error"),
    [
        (fail, "ValueError: a mistake"),
        (be_cancelled, "RuntimeError: the deferred request was cancelled"),
        (never, "TimeoutError: not served within 0.2 s"),
        (two_at_once, "RuntimeError: a deferred request makes one call at a time"),
    ],
)
async def test_what_cannot_be_served_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, error: str
) -> None:
    monkeypatch.setattr(deferred_requests, "MAX_DEFERRED_SECONDS", 0.2)
    monkeypatch.setattr(relay, "rate_limited", RateLimitedLogger(structlog.get_logger()))

    async def silent(reader: Reader, writer: Writer) -> None:
        await reader.read()

    with capture_logs() as lines:
        async with serving(tmp_path, serve, silent) as running:
            reader, writer = await running.dial()
            writer.write(deferred(1))
            await closes(running, "session_failed", reader)
            assert running.counters.intercept_errors == 1
            assert [each.outcome for each in running.exchanges] == ["connection_lost"]
            writer.close()
    assert [line["error"] for line in lines if line["event"] == "intercept_failed"] == [error]


async def close(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)


async def half_close(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)
    writer.write_eof()
    await reader.read()


def reset(writer: Writer) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def abort(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)
    reset(writer)


async def stall(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)
    writer.write(response(0, b"all but")[:-1])
    await reader.read()


def says(data: bytes) -> Behaviour:
    async def say(reader: Reader, writer: Writer) -> None:
        await read_frame(reader)
        writer.write(data)
        await reader.read()

    return say


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        pytest.param(close, "broker_closed", id="closes"),
        pytest.param(half_close, "broker_closed", id="half-closes"),
        pytest.param(abort, "broker_reset", id="resets"),
        pytest.param(stall, "broker_timeout", id="stalls"),
        pytest.param(says(response(7)), "broker_out_of_sync", id="another correlation id"),
        pytest.param(says(response(0) + b"\0"), "broker_out_of_sync", id="more"),
        pytest.param(says(sized(b"abc")), "broker_invalid_size", id="too short"),
        pytest.param(says(struct.pack(">ii", MAX_CALL_RESPONSE + 1, 0)), "broker_invalid_size", id="too long"),
        pytest.param(says(struct.pack(">ii", -1, 0)), "broker_invalid_size", id="negative"),
        pytest.param(says(response(0)), "broker_invalid_header", id="no header"),
        pytest.param(says(response(0, b"\1\1\5abc")), "broker_invalid_header", id="half of a header"),
    ],
)
async def test_a_broker_that_does_not_answer_a_call_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, cause: str
) -> None:
    monkeypatch.setattr(deferred_requests, "CALL_SECONDS", 0.2)
    ended: list[type[BaseException]] = []

    async def serve(call: BrokerCall) -> bytes | None:
        try:
            return await call(METADATA, FLEXIBLE, b"")
        except BaseException as error:
            ended.append(type(error))
            raise

    async with serving(tmp_path, serve, behaviour) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1) + request(METADATA, 1, 2))
        await closes(running, cause, reader)
        await running.until(lambda: ended == [TimeoutError if cause == "broker_timeout" else asyncio.CancelledError])
        assert running.counters.requests[METADATA] == 0
        writer.close()


async def test_a_call_that_is_given_up_ends_the_connection(tmp_path: Path) -> None:
    """Else its response would be taken for that to another request."""

    async def serve(call: BrokerCall) -> bytes:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call(METADATA, 1, b""), 0.1)
        return b"without it"

    async def silent(reader: Reader, writer: Writer) -> None:
        await reader.read()

    async with serving(tmp_path, serve, silent) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await closes(running, "broker_timeout", reader)
        writer.close()


@pytest.mark.parametrize("after", ["the request", "the answer to a call"])
async def test_bytes_of_the_broker_that_nothing_asked_for_end_the_connection(tmp_path: Path, after: str) -> None:
    began = asyncio.Event()

    async def serve(call: BrokerCall) -> bytes | None:
        if after == "the answer to a call":
            await call(METADATA, 1, b"")
        began.set()
        return await never(call)

    async def say_more(reader: Reader, writer: Writer) -> None:
        if after == "the answer to a call":
            await read_frame(reader)
            writer.write(response(0))
        await began.wait()
        writer.write(b"\0")
        await reader.read()

    async with serving(tmp_path, serve, say_more) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await closes(running, "broker_out_of_sync", reader)
        assert running.counters.invalid_frames == {("broker", "out_of_sync"): 1}
        writer.close()


async def test_closing_the_connection_cancels_it(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def serve(call: BrokerCall) -> bytes | None:
        try:
            return await never(call)
        finally:
            cancelled.set()

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        (number,) = running.manager.by_number
        await asyncio.sleep(0.02)
        running.manager.close_connection(number, "closed_by_operator")
        await closes(running, "closed_by_operator", reader)
        await asyncio.wait_for(cancelled.wait(), 10)
        writer.close()


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_client_that_is_gone_ends_the_connection_when_it_is_answered(tmp_path: Path, how: str) -> None:
    release = asyncio.Event()

    async def serve(call: BrokerCall) -> bytes:
        await release.wait()
        return bytes(1000)

    async with serving(tmp_path, serve) as running:
        _, writer = await running.dial()
        writer.write(deferred(1))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        if how == "resets":
            reset(writer)
        else:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.05)
        release.set()
        await running.until(lambda: running.counters.active == 0)
        assert sum(running.counters.closed[cause] for cause in ("client_closed", "client_reset")) == 1
        assert charged(running) == 0


async def test_a_client_that_half_closes_gets_its_answer_then_the_end(tmp_path: Path) -> None:
    async def serve(call: BrokerCall) -> bytes | None:
        await asyncio.sleep(0.05)
        return await ask(call)

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1) + deferred(2) + request(METADATA, 1, 3))
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == response(1) + response(2) + response(3)
        await running.until(lambda: running.counters.closed == {"client_closed": 1})
        writer.close()


async def test_a_drain_waits_for_it(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def serve(call: BrokerCall) -> bytes | None:
        await release.wait()
        return await ask(call)

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1) + request(METADATA, 1, 2))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        drain = asyncio.ensure_future(running.drain(10))
        await asyncio.sleep(0.1)
        assert running.counters.active == 1
        release.set()
        assert await asyncio.wait_for(reader.read(), 10) == response(1) + response(2)
        await drain
        assert running.counters.closed == {"drain_completed": 1}
        writer.close()


async def test_the_end_of_a_drain_cuts_it(tmp_path: Path) -> None:
    async with serving(tmp_path, never) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        await running.drain(0.1)
        assert running.counters.closed == {"drain_timeout": 1}
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_more_than_a_process_serves_at_a_time_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_requests, "MAX_SERVED", 2)
    monkeypatch.setattr(deferred_requests, "_latest", None)
    release = asyncio.Event()
    numbers = count()
    begun: list[int] = []

    async def serve(call: BrokerCall) -> bytes:
        begun.append(next(numbers))
        await release.wait()
        return b"served"

    async with serving(tmp_path, serve) as running:
        clients = [await running.dial() for _ in range(5)]
        for _, writer in clients:
            writer.write(deferred(1))
        await running.until(lambda: running.counters.requests[HELD] == 5)
        await asyncio.sleep(0.05)
        assert len(begun) == 2
        clients[4][1].close()  # one that waits may go
        release.set()
        for reader, writer in clients[:4]:
            assert await asyncio.wait_for(read_frame(reader), 10) == response(1, b"served")
            writer.close()
        await running.until(lambda: running.counters.active == 0)
        assert charged(running) == 0


async def test_while_memory_is_scarce_the_response_to_a_call_waits(tmp_path: Path) -> None:
    body = bytes(1 << 20)
    began = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await read_frame(reader)
        writer.write(response(0, body))
        began.set()
        await reader.read()

    async with serving(tmp_path, ask, answer) as running:
        counts = running.manager.budget.counts
        reader, writer = await running.dial()
        counts[LIMIT] = 0
        writer.write(deferred(1))
        await began.wait()
        await running.until(lambda: running.counters.pauses["broker"] == 1)
        await asyncio.sleep(0.05)
        assert running.counters.received["broker"] < len(body) / 4
        counts[LIMIT] = 1 << 26
        running.manager.budget.resume_waiters()
        assert await asyncio.wait_for(read_frame(reader), 10) == response(1, body)
        writer.close()


# ---- TLS --------------------------------------------------------------------------------------------------------


async def test_with_tls_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    async with (
        broker_with_tls(authority, tmp_path / "brokers", client="required") as (port, _),
        behind(tmp_path, port, "SSL", originated(authority)) as running,
    ):
        with intercepting(Later(ask)):
            reader, writer = await running.dial()
            for _ in range(3):
                writer.write(request(METADATA, 1, 1) + deferred(2) + deferred(3) + request(METADATA, 1, 4))
                assert [await asyncio.wait_for(read_frame(reader), 10) for _ in range(4)] == [
                    response(n) for n in range(1, 5)
                ]
            writer.close()
            await running.until(lambda: running.counters.closed == {"client_closed": 1})


async def test_the_end_of_a_tls_stream_behind_it_waits(tmp_path: Path) -> None:
    """Else the broker's side were shut down before the call."""

    async def serve(call: BrokerCall) -> bytes | None:
        await asyncio.sleep(0.05)
        return await ask(call)

    async with tls_bench(tmp_path, answer_in_order) as running:
        with intercepting(Later(serve)):
            client = await HandMade.dial(running)
            await client.shake_hands()
            client.tls.write(deferred(1))
            client.close_notify()
            assert await asyncio.wait_for(client.read(8), 10) == response(1)
            await running.until(lambda: running.counters.closed == {"client_closed": 1})
            client.writer.close()
