"""A TCP peer that does exactly what a test says, for what a real broker cannot be made to do on demand."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer], Awaitable[None]]


@asynccontextmanager
async def upstream(behaviour: Behaviour, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Listen on loopback and run ``behaviour`` for each connection; yields the port. ``context``: of TLS."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_frame(reader: Reader) -> bytes:
    """The next frame, size prefix included."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


async def silent(reader: Reader, _: Writer) -> None:
    """Answer nothing, and stay after the other side's end."""
    await reader.read()
    await asyncio.sleep(60)


async def answer_after_eof(reader: Reader, writer: Writer) -> None:
    """The same as ``answer_in_order`` once the other side has ended what it sends; then end."""
    answers = b""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            answers += (4).to_bytes(4, "big") + (await read_frame(reader))[8:12]
    writer.write(answers)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def answer_in_order(reader: Reader, writer: Writer) -> None:
    """Answer each request with its correlation id and nothing else, as a broker with empty responses would."""
    while True:
        frame = await read_frame(reader)
        writer.write((4).to_bytes(4, "big") + frame[8:12])
        await writer.drain()
