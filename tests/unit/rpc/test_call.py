"""One request and its response, against a server that writes what a test says."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proxy.errors import PeerError
from proxy.rpc.call import call, call_once, encode_frame
from proxy.rpc.messages import RpcRequest
from tests.cases import each

REQUEST = RpcRequest(48, 0, b"body")
FRAME = b"\0\0\0\x10\0\x30\0\0\0\0\0\x01\0\x02mebody"
"""``REQUEST`` with correlation id 1, of the client ``me``."""

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """Reads ``FRAME``, answers, and waits for the end of the connection."""

    def __init__(self, answer: Answer) -> None:
        self.ended = asyncio.Event()
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(FRAME)) == FRAME
        await self._answer(writer)
        with contextlib.suppress(ConnectionResetError):  # the client has not read all of the answer
            assert await reader.read() == b""
        writer.close()
        self.ended.set()


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[tuple[Server, Streams]]:
    made = Server(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(60):
            yield made, (reader, writer)
    finally:
        writer.transport.abort()
        server.close()
        await server.wait_closed()


def writing(*pieces: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)

    return answer


async def ask(streams: Streams, max_size: int = 100) -> bytes:
    return await call(*streams, REQUEST, correlation_id=1, client_id="me", max_size=max_size)


def test_a_frame_has_its_size_and_a_header() -> None:
    assert encode_frame(REQUEST, 1, "me") == FRAME
    assert encode_frame(REQUEST, 7, None) == b"\0\0\0\x0e\0\x30\0\0\0\0\0\x07\xff\xffbody"


async def test_an_answer_comes_without_its_header_in_pieces_empty_or_as_large_as_allowed() -> None:
    answer = b"\0\0\0\x09\0\0\0\1hello"
    async with connected(writing(*(answer[n : n + 1] for n in range(len(answer))))) as (server, streams):
        assert await call_once(streams, REQUEST, client_id="me", max_size=100) == b"hello"
        await server.ended.wait()
    for body, size in ((b"", b"\x04"), (bytes(96), b"\x64")):
        async with connected(writing(b"\0\0\0" + size + b"\0\0\0\1" + body)) as (_, streams):
            assert await ask(streams) == body


@pytest.mark.promise(
    "architecture.md", "The sidecar's own requests to a broker read no more than the bound of their response."
)
@each("size", [101, 2**31 - 1, 3, 0, -1])
async def test_a_size_that_is_not_allowed_is_an_error_before_anything_more_is_read(size: int) -> None:
    async with connected(writing(struct.pack(">i", size))) as (_, streams):
        with pytest.raises(PeerError, match=f"an answer of {size} bytes"):
            await ask(streams)
    async with connected(writing(b"\0\0\0\x09\0\0\0\2hello")) as (_, streams):
        with pytest.raises(PeerError, match="an answer to another request"):
            await ask(streams)


@each("written", [b"", b"\0\0", b"\0\0\0\x09", b"\0\0\0\x09\0\0", b"\0\0\0\x09\0\0\0\1hell"])
async def test_a_connection_that_ends_early_is_an_error(written: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(written)
        writer.write_eof()

    async with connected(answer) as (_, streams):
        with pytest.raises(EOFError):
            await ask(streams)


async def test_the_deadline_is_the_callers_and_ends_the_connection_of_a_single_call() -> None:
    async with connected(writing(b"\0\0\0\x09\0\0\0\1hell")) as (server, streams):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await call_once(streams, REQUEST, client_id="me", max_size=100)
        await server.ended.wait()
