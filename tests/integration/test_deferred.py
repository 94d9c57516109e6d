"""Requests that the sidecar answers later, over real sockets: order, calls to the broker, bounds, and every way in
which their connection can end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.core.budget import OPEN
from proxy.core.interceptor import BrokerCall, Deferred, GivenUp, Request, Served, Verdict
from proxy.core.session import TURN
from proxy.net import connection_manager, deferred_requests, relay
from proxy.net.deferred_requests import MAX_CALL_RESPONSE
from proxy.telemetry import RateLimitedLogger
from tests.cases import each
from tests.frames import METADATA, request, response, sized
from tests.integration.peer import Behaviour, Reader, Writer, answer_in_order, read_frame, silent
from tests.integration.test_relay import answering, intercepting
from tests.integration.tls_bench import Bench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.interceptors import HELD, REPLIED, Chooser, replied

FLEXIBLE = 9
"""The first version of Metadata whose headers have tagged fields."""

Serve = Callable[[BrokerCall], Awaitable[Served]]


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
    return answering(tmp_path, behaviour, partial(Later, serve))


def deferred(number: int) -> bytes:
    return request(HELD, 0, number)


async def ask(call: BrokerCall) -> bytes | None:
    """The broker's answer to Metadata v1."""
    return await call(METADATA, 1, b"asked")


def charged(running: Bench) -> int:
    return running.manager.budget.counts[OPEN]


async def closes(running: Bench, cause: str, reader: Reader) -> None:
    """The client's connection ends for ``cause``, without a byte more."""
    assert await reader.read() == b""
    await running.until(lambda: running.counters.closed == {cause: 1})
    assert charged(running) == 0


async def never(call: BrokerCall) -> bytes | None:
    await asyncio.sleep(60)
    return b"late"


# ---- answers ----------------------------------------------------------------------------------------------------


@pytest.mark.promise(
    "architecture.md",
    "Deferred requests are answered in their order, and may ask the broker on the client's own connection.",
)
async def test_answers_come_in_the_order_of_their_requests_and_the_broker_is_asked_between(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            asked.append(await read_frame(reader))
            answer = response(int.from_bytes(asked[-1][8:12], "big"), b"from the broker")
            writer.write(answer[:3])
            await asyncio.sleep(0)
            writer.write(answer[3:])

    async with serving(tmp_path, ask, answer) as running:
        reader, writer = await running.dial()
        expected = []
        for n in range(0, 400, 4):
            writer.write(request(METADATA, 1, n) + deferred(n + 1) + request(REPLIED, 3, n + 2) + deferred(n + 3))
            expected += [response(n, b"from the broker"), response(n + 1, b"from the broker")]
            expected += [response(n + 2, replied(3)), response(n + 3, b"from the broker")]
        assert [await read_frame(reader) for _ in range(400)] == expected
        question = request(METADATA, 1, 0, b"asked")
        assert asked == [frame for n in range(0, 400, 4) for frame in (request(METADATA, 1, n), question, question)]
        assert running.counters.intercepted == {(HELD, "replied"): 200, (REPLIED, "replied"): 100}
        assert sum(each.synthesized for each in running.exchanges) == 300
        assert charged(running) == 0
        writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})


@pytest.mark.promise(
    "architecture.md", "Nothing more of a client is read while its deferred request waits; other connections go on."
)
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
        assert await read_frame(other) == response(1)
        closing.close()
        release.set()
        got = [await read_frame(reader) for _ in range(many)]
        assert got == [response(0, b"served"), *(response(n) for n in range(1, many))]


@pytest.mark.promise(
    "architecture.md", "A process serves a bounded number of deferred requests at a time; others wait."
)
async def test_more_than_a_process_serves_at_a_time_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_requests, "MAX_SERVED", 2)
    release = asyncio.Event()
    begun: list[BrokerCall] = []

    async def serve(call: BrokerCall) -> bytes:
        begun.append(call)
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
            assert await read_frame(reader) == response(1, b"served")
            writer.close()
        await running.until(lambda: running.counters.active == 0)
        assert charged(running) == 0


# ---- ends ----


async def fail(call: BrokerCall) -> bytes | None:
    raise ValueError("a mistake")


async def be_cancelled(call: BrokerCall) -> bytes | None:
    raise asyncio.CancelledError


async def two_at_once(call: BrokerCall) -> bytes | None:
    await asyncio.gather(call(METADATA, 1, b""), call(METADATA, 1, b""))
    return b"both"


@pytest.mark.promise(
    "architecture.md",
    "A deferred request that raises or takes too long closes its connection with the cause `session_failed`.",
)
@each(
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
    seconds = 0.2 if serve is never else 60.0
    monkeypatch.setattr(deferred_requests, "MAX_DEFERRED_SECONDS", seconds)
    limited = RateLimitedLogger(structlog.get_logger())
    for module in (relay, connection_manager):
        monkeypatch.setattr(module, "rate_limited", limited)
    with capture_logs() as lines:
        async with serving(tmp_path, serve, silent) as running:
            reader, writer = await running.dial()
            writer.write(deferred(1))
            await closes(running, "session_failed", reader)
            assert running.counters.intercept_errors == 1
            assert [each.outcome for each in running.exchanges] == ["connection_lost"]
    assert [line["error"] for line in lines if line["event"] == "intercept_failed"] == [error]


async def close(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)


async def half_close(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)
    writer.write_eof()
    await reader.read()


async def abort(reader: Reader, writer: Writer) -> None:
    await read_frame(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


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


@pytest.mark.promise(
    "architecture.md",
    "A connection with a deferred request ends, with its cause, where the broker does not answer a call.",
)
@each(
    ("behaviour", "cause"),
    [
        (close, "broker_closed"),
        (half_close, "broker_closed"),
        (abort, "broker_reset"),
        (stall, "broker_timeout"),
        (says(response(7)), "broker_out_of_sync"),
        (says(response(0) + b"\0"), "broker_out_of_sync"),
        (says(sized(b"abc")), "broker_invalid_size"),
        (says(struct.pack(">ii", MAX_CALL_RESPONSE + 1, 0)), "broker_invalid_size"),
        (says(struct.pack(">ii", -1, 0)), "broker_invalid_size"),
        (says(response(0)), "broker_invalid_header"),
        (says(response(0, b"\1\1\5abc")), "broker_invalid_header"),
    ],
)
async def test_a_broker_that_does_not_answer_a_call_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, cause: str
) -> None:
    monkeypatch.setattr(deferred_requests, "CALL_SECONDS", 0.2 if cause == "broker_timeout" else 60.0)
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


@pytest.mark.promise("architecture.md", "The task of a deferred request is cancelled when its connection ends.")
async def test_closing_the_connection_cancels_it_and_giving_up_a_call_closes_it(tmp_path: Path) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(call: BrokerCall) -> bytes | None:
        began.set()
        try:
            return await never(call)
        finally:
            cancelled.set()

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await asyncio.wait_for(began.wait(), 60)
        (number,) = running.manager.by_number
        running.manager.close_connection(number, "closed_by_operator")
        await closes(running, "closed_by_operator", reader)
        await asyncio.wait_for(cancelled.wait(), 60)

    async def give_up(call: BrokerCall) -> bytes:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call(METADATA, 1, b""), 0.1)
        return b"without it"

    async with serving(tmp_path, give_up, silent) as running:  # else the response were taken for another request's
        reader, writer = await running.dial()
        writer.write(deferred(1))
        await closes(running, "broker_timeout", reader)


@pytest.mark.promise("architecture.md", "A drain waits for a deferred request as for any open one.")
async def test_a_drain_waits_for_it_and_cuts_it_at_its_end(tmp_path: Path) -> None:
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
        assert await reader.read() == response(1) + response(2)
        await drain
        assert running.counters.closed == {"drain_completed": 1}
    async with serving(tmp_path, never) as running:
        _, writer = await running.dial()
        writer.write(deferred(1))
        await running.until(lambda: running.counters.requests[HELD] == 1)
        await running.drain(0.1)
        assert running.counters.closed == {"drain_timeout": 1}


@pytest.mark.promise(
    "coordinator.md", "A consumer's connection over TLS is closed in place of being handed to the coordinator."
)
async def test_a_connection_with_tls_is_not_given_up(tmp_path: Path) -> None:
    async def serve(call: BrokerCall) -> GivenUp:
        return GivenUp("nobody can read its bytes")

    async with tls_bench(tmp_path, answer_in_order) as running:
        with intercepting(Later(serve)):
            reader, writer = await running.dial()
            writer.write(deferred(1))
            await closes(running, "session_failed", reader)
            assert running.counters.intercept_errors == 1
