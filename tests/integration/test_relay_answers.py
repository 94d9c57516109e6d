"""What the sidecar answers and changes itself, over real sockets: order, closing, half-close, bounded memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.core.interception import MAX_PENDING_RESPONSES
from proxy.core.interceptor import Interceptor, InterceptorChain, Request, Verdict
from proxy.core.session import MAX_IN_FLIGHT, TURN, Session
from proxy.net import connection_manager
from tests.frames import METADATA, produce, request, response
from tests.integration.peer import Behaviour, Reader, Writer, answer_in_order, read_frame
from tests.integration.tls_bench import Bench, bench, silent_sidecar  # noqa: F401
from tests.tools.interceptors import (
    EDITING,
    HELD,
    RAISING,
    REPLIED,
    SHUT,
    STREAMING,
    Chooser,
    edited,
    replied,
    streamed,
)

UNSENT = 65_536
"""Bytes that may wait to be written besides answers."""


@contextmanager
def intercepting(interceptor: Interceptor) -> Iterator[None]:
    """New sessions go by the rules of ``interceptor`` and no others."""
    chain = InterceptorChain([interceptor])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_manager, "Session", lambda *given: Session(*given[:5], chain, given[6]))
        yield


@asynccontextmanager
async def answering(
    tmp_path: Path, behaviour: Behaviour, chooser: Callable[[], Interceptor] = Chooser
) -> AsyncIterator[Bench]:
    """A sidecar whose sessions go by the rules of ``Chooser`` and no others."""
    async with bench(tmp_path, behaviour) as running:
        with intercepting(chooser()):
            yield running


@pytest.mark.promise(
    "architecture.md",
    "What the sidecar answers itself comes in the order of the requests, between the broker's responses.",
)
async def test_answers_and_responses_come_in_the_order_of_their_requests(tmp_path: Path) -> None:
    async with answering(tmp_path, answer_in_order) as running, running.client() as (reader, writer):
        for n in range(100):
            writer.write(request(METADATA, 1, n, b"x" * n) + request(REPLIED, 3, n, b"y" * n))
            writer.write(request(HELD, 0, n, b"held") + request(HELD, 0, n, b"forward"))
        for n in range(100):
            interception = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(4)]
            assert interception == [response(n), response(n, replied(3)), response(n, b"held"), response(n)]
        assert running.counters.intercepted == {(REPLIED, "replied"): 100, (HELD, "replied"): 100}
        assert sum(each.synthesized for each in running.exchanges) == 200


async def test_responses_are_edited_and_streamed(tmp_path: Path) -> None:
    body = bytes(range(256)) * 2000

    async def answer(reader: Reader, writer: Writer) -> None:
        while True:
            frame = await read_frame(reader)
            writer.write(response(int.from_bytes(frame[8:12], "big"), b"\0" + body))

    async with answering(tmp_path, answer) as running, running.client() as (reader, writer):
        writer.write(request(EDITING, 0, 1, b"\0") + request(STREAMING, 0, 2, b"\0") + request(METADATA, 1, 3))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1, b"\0" + edited(body))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(2, b"\0" + streamed(body))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(3, b"\0" + body)


async def test_closing_comes_after_the_answers_before_it(tmp_path: Path) -> None:
    release = asyncio.Event()
    got = bytearray()

    async def answer_later(reader: Reader, writer: Writer) -> None:
        got.extend(await read_frame(reader))
        await release.wait()
        writer.write(response(1, b"late"))
        while more := await reader.read(1000):
            got.extend(more)

    async with answering(tmp_path, answer_later) as running:
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1) + request(REPLIED, 1, 2) + request(SHUT, 0, 3) + request(METADATA, 1, 4))
        await running.until(lambda: running.counters.intercepted[SHUT, "closed"] == 1)
        assert running.counters.active == 1
        release.set()
        assert await asyncio.wait_for(reader.read(), 60) == response(1, b"late") + response(2, replied(1))
        await running.ends(unsupported_request=1)
        assert got == request(METADATA, 1, 1)
        assert [(each.correlation_id, each.outcome) for each in running.exchanges] == [
            (1, "answered"), (2, "answered"), (3, "connection_lost"),
        ]  # fmt: skip
        writer.close()
        reader, writer = await running.dial()
        writer.write(request(SHUT, 0, 1))
        assert await asyncio.wait_for(reader.read(), 60) == b"", "at once where nothing is open"
        await running.ends(unsupported_request=2)
        writer.close()


async def test_a_client_that_half_closes_gets_all_answers_then_the_end(tmp_path: Path) -> None:
    async def answer_after_eof(reader: Reader, writer: Writer) -> None:
        assert await reader.read() == request(METADATA, 1, 1) + request(METADATA, 1, 3)
        for n in (1, 3):
            writer.write(response(n))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def until_eof(reader: Reader, writer: Writer) -> None:
        assert await reader.read() == b""

    async with answering(tmp_path, until_eof) as running:  # it asks only the sidecar
        reader, writer = await running.dial()
        writer.write(request(REPLIED, 1, 2))
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60) == response(2, replied(1))
        await running.ends(client_closed=1)
        writer.close()
    async with answering(tmp_path, answer_after_eof) as running, running.client() as (reader, writer):
        for key, n in ((METADATA, 1), (REPLIED, 2), (METADATA, 3), (REPLIED, 4)):
            writer.write(request(key, 1, n))
        writer.write_eof()
        expected = response(1) + response(2, replied(1)) + response(3) + response(4, replied(1))
        assert await asyncio.wait_for(reader.read(), 60) == expected
        await running.ends(client_closed=1)


async def test_after_the_brokers_end_nothing_is_answered(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def close_first(reader: Reader, writer: Writer) -> None:
        writer.write_eof()
        got.set_result(await reader.read())

    async def never(reader: Reader, writer: Writer) -> None:
        await read_frame(reader)
        writer.write_eof()
        await reader.read()

    async with answering(tmp_path, never) as running:  # not even what waits behind the broker's own answer
        reader, writer = await running.dial()
        writer.write(request(METADATA, 1, 1) + request(REPLIED, 1, 2))
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.ends(broker_closed=1)
        writer.close()
    async with answering(tmp_path, close_first) as running, running.client() as (reader, writer):
        assert await reader.read() == b""
        writer.write(request(REPLIED, 1, 1) + request(METADATA, 1, 2))
        writer.write_eof()
        assert await asyncio.wait_for(got, 60) == request(METADATA, 1, 2)
        await running.ends(broker_closed=1)


@pytest.mark.promise(
    "architecture.md",
    "A client that does not read what the sidecar answers is not read either, so little waits for it.",
)
async def test_a_client_that_does_not_read_its_answers_is_not_read_either(tmp_path: Path) -> None:
    body = b"a" * 40
    async with answering(tmp_path, answer_in_order) as running:
        loop = asyncio.get_running_loop()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, ("127.0.0.1", running.port))
        count = 8_000_000 // (len(body) + 8)  # more than the kernel takes
        asked = b"".join(request(HELD, 0, n, body) for n in range(count))

        async def ask() -> None:
            for at in range(0, len(asked), 100_000):
                await loop.sock_sendall(slow, asked[at : at + 100_000])
            await loop.sock_sendall(slow, request(METADATA, 1, count))

        asking = asyncio.ensure_future(ask())
        await running.until(lambda: running.counters.pauses["client"] >= 1, 60)
        (relay,) = running.manager.relays
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert relay.unsent("client") <= UNSENT + MAX_PENDING_RESPONSES + 2 * len(body) + 100
        assert not relay.is_drained
        reader, writer = await running.dial()  # others continue
        writer.write(request(METADATA, 1, 1))
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
        writer.close()
        expected = b"".join(response(n, body) for n in range(count)) + response(count)
        got = bytearray()
        while len(got) < len(expected):
            got += await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 60)
        assert got == expected
        await asking
        slow.close()


@contextmanager
def each_turn(count: Callable[[], int]) -> Iterator[list[int]]:
    """How much a counter grew in each turn of the loop; filled when the block ends."""
    loop, counts, growth = asyncio.get_running_loop(), [count()], list[int]()

    def look() -> None:
        nonlocal looking
        counts.append(count())
        looking = loop.call_soon(look)

    looking = loop.call_soon(look)
    yield growth
    looking.cancel()
    growth += [after - before for before, after in pairwise(counts)]


class Wordy(Chooser):
    """Answers short requests at length."""

    def on_header(self, request: Request) -> Verdict:
        return b"a" * 30_000


async def test_a_chunk_of_many_questions_leaves_turns_to_others(tmp_path: Path) -> None:
    """Each round of answers is one turn of the loop, also for a client that reads them all at once."""
    async with answering(tmp_path, answer_in_order, Wordy) as running, running.client() as (reader, writer):
        with each_turn(lambda: running.counters.intercepted[REPLIED, "replied"]) as growth:
            writer.write(b"".join(request(REPLIED, 0, n) for n in range(40)))
            answers = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(40)]
    assert answers == [response(n, b"a" * 30_000) for n in range(40)]
    assert max(growth) <= MAX_PENDING_RESPONSES // 30_000 + 1


@pytest.mark.promise(
    "security.md",
    "Of a client that sends many requests at once, 25 are read in a turn, or 100 where all are forwarded.",
)
async def test_a_chunk_of_many_requests_is_read_in_turns(tmp_path: Path) -> None:
    """Answered, held, forwarded, and without a response. Twice as many are read where a chunk ends and the next one is
    there already."""
    for one in (request(REPLIED, 0, 1), request(HELD, 0, 1, b"held"), request(METADATA, 1, 1), produce(1, 0, b"")):
        assert await most_in_a_turn(tmp_path, one) <= 2 * TURN, one


async def most_in_a_turn(tmp_path: Path, one: bytes) -> int:
    got = bytearray()

    async def take(reader: Reader, writer: Writer) -> None:
        while data := await reader.read(100_000):
            got.extend(data)
            if one[5] == METADATA:
                writer.write(response(1) * (len(got) // len(one) - (len(got) - len(data)) // len(one)))

    count = 2_000
    async with answering(tmp_path, take) as running, running.client() as (reader, writer):
        with each_turn(lambda: sum(running.counters.requests.values())) as growth:
            writer.write(one * count)
            await running.until(lambda: sum(running.counters.requests.values()) == count)
        answer = {REPLIED: response(1, replied(0)), HELD: response(1, b"held"), METADATA: response(1)}.get(one[5], b"")
        assert await asyncio.wait_for(reader.readexactly(len(answer) * count), 60) == answer * count
        if one[5] not in (REPLIED, HELD):
            await running.until(lambda: got == one * count)
    return max(growth)


async def test_a_broker_that_ends_before_it_answers_ends_a_client_with_many_open_requests(tmp_path: Path) -> None:
    one = request(METADATA, 1, 1)

    async def never(reader: Reader, writer: Writer) -> None:
        got = asked = 0
        while asked < MAX_IN_FLIGHT or got < asked * len(one):  # until there is nothing more to read
            got += len(await reader.read(100_000))
            asked = running.counters.requests[METADATA]

    async with answering(tmp_path, never) as running:
        reader, writer = await running.dial()
        writer.write(one * 5_000)
        await running.until(lambda: running.counters.requests[METADATA] >= MAX_IN_FLIGHT)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await running.ends(broker_closed=1)


async def test_a_quiet_connection_keeps_nothing_of_what_was_edited(tmp_path: Path) -> None:
    async with answering(tmp_path, answer_in_order) as running, running.client() as (reader, writer):
        for key in (EDITING, RAISING, REPLIED):
            writer.write(request(key, 0, 1, b"x" * 1000))
            await asyncio.wait_for(read_frame(reader), 60)
        (relay,) = running.manager.relays
        assert relay.session is not None
        interception = relay.session.interception
        assert interception is not None
        await running.until(
            lambda: (interception.replacement, interception.replies, interception.failure) == (None, b"", None)
        )


async def test_answers_that_wait_for_the_broker_are_bounded_and_come(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answer_later(reader: Reader, writer: Writer) -> None:
        await release.wait()
        await answer_in_order(reader, writer)

    async with answering(tmp_path, answer_later) as running, running.client() as (reader, writer):
        writer.write(request(METADATA, 1, 0))
        for n in range(1, 301):
            writer.write(request(HELD, 0, n, b"a" * 1000))
        writer.write(request(METADATA, 1, 301))
        await running.until(lambda: running.counters.intercepted[HELD, "replied"] >= 60)
        await asyncio.sleep(0.1)
        assert running.counters.intercepted[HELD, "replied"] < 70
        release.set()
        interception = [await asyncio.wait_for(read_frame(reader), 60) for _ in range(302)]
        assert interception == [response(0), *(response(n, b"a" * 1000) for n in range(1, 301)), response(301)]


async def test_a_drain_waits_for_answers_that_wait(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answer_later(reader: Reader, writer: Writer) -> None:
        await release.wait()
        await answer_in_order(reader, writer)

    async with answering(tmp_path, answer_later) as running, running.client() as (reader, writer):
        writer.write(request(METADATA, 1, 1) + request(REPLIED, 1, 2))
        await running.until(lambda: running.counters.intercepted[REPLIED, "replied"] == 1)
        drain = asyncio.ensure_future(running.drain(10))
        await asyncio.sleep(0.1)
        assert running.counters.active == 1
        release.set()
        assert await asyncio.wait_for(reader.read(), 60) == response(1) + response(2, replied(1))
        await drain
        assert running.counters.closed == {"drain_completed": 1}


async def test_what_precedes_a_refused_request_arrives(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def take(reader: Reader, writer: Writer) -> None:
        got.set_result(await reader.read())

    async with answering(tmp_path, take) as running, running.client() as (reader, writer):
        good = request(HELD, 0, 2, b"forward")
        writer.write(request(REPLIED, 1, 1) + good + request(HELD, 0, 3, b"peer's error"))
        assert await asyncio.wait_for(reader.read(), 60) == response(1, replied(1))
        assert await asyncio.wait_for(got, 60) == good
        assert running.counters.closed == {"client_invalid_request": 1}


async def test_an_error_of_ours_ends_a_connection_where_bytes_would_be_missing(tmp_path: Path) -> None:
    held = request(METADATA, 1, 9)[:5]
    async with answering(tmp_path, answer_in_order) as running, running.client() as (reader, writer):
        writer.write(request(METADATA, 1, 1) + held)
        assert await asyncio.wait_for(read_frame(reader), 60) == response(1)
        running.counters.requests[METADATA] = None  # type: ignore[assignment]  # the session fails where it counts
        writer.write(request(METADATA, 1, 9)[len(held) :])
        assert await asyncio.wait_for(reader.read(), 60) == b""
        await running.ends(session_failed=1)
        assert running.counters.abandoned == 1
