"""Every way in which a connection with a request that is answered later can end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.core.interceptor import BrokerCall
from proxy.net import deferred_requests, relay
from proxy.net.deferred_requests import MAX_CALL_RESPONSE
from proxy.telemetry import RateLimitedLogger
from tests.cases import each
from tests.frames import METADATA, request, response, sized
from tests.integration.deferred import FLEXIBLE, Serve, ask, charged, closes, deferred, never, serving
from tests.integration.peer import Behaviour, Reader, Writer, read_frame
from tests.tools.interceptors import HELD, REPLIED, replied


async def test_none_closes_the_connection(tmp_path: Path) -> None:
    async def serve(call: BrokerCall) -> None:
        return None

    async with serving(tmp_path, serve) as running:
        reader, writer = await running.dial()
        writer.write(request(REPLIED, 3, 1) + deferred(2) + request(METADATA, 1, 3))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1, replied(3))
        await closes(running, "unsupported_request", reader)
        assert running.counters.intercepted[HELD, "closed"] == 1
        assert running.counters.requests[METADATA] == 0
        writer.close()


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


@each("after", ["the request", "the answer to a call"])
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


@pytest.mark.promise("architecture.md", "The task of a deferred request is cancelled when its connection ends.")
async def test_closing_the_connection_cancels_it(tmp_path: Path) -> None:
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
        writer.close()


@each("how", ["closes", "resets"])
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
        assert await asyncio.wait_for(reader.read(), 60) == response(1) + response(2) + response(3)
        await running.until(lambda: running.counters.closed == {"client_closed": 1})
        writer.close()


@pytest.mark.promise("architecture.md", "A drain waits for a deferred request as for any open one.")
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
        assert await asyncio.wait_for(reader.read(), 60) == response(1) + response(2)
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
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
