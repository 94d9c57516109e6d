"""Requests that the sidecar answers later, over real sockets: order, calls to the broker, and bounds."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from proxy.core.budget import LIMIT
from proxy.core.interceptor import BrokerCall, GivenUp
from proxy.core.session import TURN
from proxy.net import deferred_requests
from proxy.net.deferred_requests import MAX_CALL_RESPONSE
from tests.frames import METADATA, request, response
from tests.integration.deferred import Later, ask, charged, closes, deferred, serving
from tests.integration.peer import Reader, Writer, answer_in_order, read_frame
from tests.integration.test_relay_answers import intercepting
from tests.integration.test_tls import HandMade
from tests.integration.test_tls_upstream import behind, broker_with_tls, originated
from tests.integration.tls_bench import TlsBench, silent_sidecar, tls_bench  # noqa: F401
from tests.tools.authority import Authority
from tests.tools.interceptors import HELD, REPLIED, replied

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
            writer.write(response(int.from_bytes(asked[-1][8:12], "big"), b"from the broker"))

    async with serving(tmp_path, ask, answer) as running:
        reader, writer = await running.dial()
        expected = []
        for n in range(0, 400, 4):
            writer.write(request(METADATA, 1, n) + deferred(n + 1) + request(REPLIED, 3, n + 2) + deferred(n + 3))
            expected += [response(n, b"from the broker"), response(n + 1, b"from the broker")]
            expected += [response(n + 2, replied(3)), response(n + 3, b"from the broker")]
        assert [await asyncio.wait_for(read_frame(reader), 60) for _ in range(400)] == expected
        question = request(METADATA, 1, 0, b"asked")
        assert asked == [frame for n in range(0, 400, 4) for frame in (request(METADATA, 1, n), question, question)]
        assert running.counters.intercepted == {(HELD, "replied"): 200, (REPLIED, "replied"): 100}
        assert sum(each.synthesized for each in running.exchanges) == 300
        assert charged(running) == 0
        writer.close()
        await running.until(lambda: running.counters.closed == {"client_closed": 1})


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
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1, b"served")
        assert most > len(long)
        assert charged(running) == 0
        writer.close()


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
        assert await asyncio.wait_for(read_frame(other), 60) == response(1)
        closing.close()
        release.set()
        got = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(many)]
        assert got == [response(0, b"served"), *(response(n) for n in range(1, many))]
        writer.close()


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
            assert await asyncio.wait_for(read_frame(reader), 60) == response(n, body)
        assert await asyncio.wait_for(read_frame(reader), 60) == response(3)
        writer.close()


@pytest.mark.promise(
    "architecture.md", "A process serves a bounded number of deferred requests at a time; others wait."
)
async def test_more_than_a_process_serves_at_a_time_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_requests, "MAX_SERVED", 2)
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
            assert await asyncio.wait_for(read_frame(reader), 60) == response(1, b"served")
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
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1, body)
        writer.close()


# ---- TLS --------------------------------------------------------------------------------------------------------


async def test_with_tls_on_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "brokers")
    async with (
        broker_with_tls(authority, client="required") as (port, _),
        behind(tmp_path, port, originated(authority)) as running,
    ):
        with intercepting(Later(ask)):
            reader, writer = await running.dial()
            for _ in range(3):
                writer.write(request(METADATA, 1, 1) + deferred(2) + deferred(3) + request(METADATA, 1, 4))
                assert [await asyncio.wait_for(read_frame(reader), 60) for _ in range(4)] == [
                    response(n) for n in range(1, 5)
                ]
            writer.close()
            await running.until(lambda: running.counters.closed == {"client_closed": 1})


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
            writer.close()


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
            assert await asyncio.wait_for(client.read(8), 60) == response(1)
            await running.until(lambda: running.counters.closed == {"client_closed": 1})
            client.writer.close()
