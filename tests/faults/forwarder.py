"""A TCP forwarder on a thread of its own that can be cut and mended: the network between a sidecar and its cluster."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from proxy.local.ports import HOST


class Forwarder:
    """Listens on ``port`` and forwards to ``to`` (host:port), but while it is cut."""

    def __init__(self, port: int, to: str) -> None:
        self.port = port
        self._host, _, target = to.rpartition(":")
        self._target = int(target)
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, HOST, self.port), self._loop)
        self._server = serving.result(10)
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            self._cut()
            await asyncio.sleep(0)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """End every connection, and refuse new ones until ``mend``."""
        self._loop.call_soon_threadsafe(self._cut)

    def mend(self) -> None:
        """Forward again."""
        self._open = True

    def _cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            if not self._open:
                return
            back, onward = await asyncio.open_connection(self._host, self._target)
            self._writers.add(onward)
            await asyncio.gather(_pump(reader, onward), _pump(back, writer))
        except OSError:
            return
        finally:
            for each in (writer, onward):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side has ended: so does the other
