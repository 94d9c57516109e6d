"""A TCP door before a broker, on a thread of its own: it can be shut, or made narrow."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from proxy.local.ports import HOST

T = TypeVar("T")


class Gate:
    """Listens on ``port`` and carries bytes to ``upstream`` and back, while it is open."""

    def __init__(self, port: int, upstream: int) -> None:
        self.connections = 0
        """Connections it has seen, those included that it refused by hanging up."""
        self.bytes_a_second: float | None = None
        self._port = port
        self._upstream = upstream
        self._open = True
        self._carried: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, HOST, self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def shut(self) -> None:
        """Cut what is open, and hang up on whoever comes."""
        self._open = False
        self._run(self._cut())

    def open(self) -> None:
        """Carry again."""
        self._open = True

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _cut(self) -> None:
        for task in list(self._carried):
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self._open:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection(HOST, self._upstream)
            both = [asyncio.ensure_future(self._copy(reader, there)), asyncio.ensure_future(self._copy(back, writer))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            narrow = self.bytes_a_second
            data = await reader.read(64 if narrow else 65_536)
            if not data:
                return
            writer.write(data)
            await writer.drain()
            if narrow:
                await asyncio.sleep(len(data) / narrow)
