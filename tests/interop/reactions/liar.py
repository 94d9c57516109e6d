"""A forwarder that makes requests unsupported: it gives those of one api a version that no broker has, on their way.

What the client has sent, and what it takes the answer for, is right; only the sidecar sees a request of a version that
its broker does not support. So every client can be shown one, whatever it negotiates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

VERSION = (99).to_bytes(2, "big")

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


@dataclass
class Seen:
    """What passed of one client, by its client id."""

    connections: int = 0
    lies: int = 0
    ended: list[str] = field(default_factory=list)
    """Of connections with a lie: who ended each, ``client`` or ``sidecar``."""


class Liar:
    """``onward``: from a client id to the port of the listener its connections go to."""

    def __init__(self, onward: Callable[[str], int]) -> None:
        self.armed: dict[str, int] = {}
        """The api key to lie about, by client id."""
        self.seen: dict[str, Seen] = {}
        self._onward = onward

    async def serve(self, client: Reader, to_client: Writer) -> None:
        """Carry one connection to its end. The first request's client id is that of all."""
        writers = [to_client]
        try:
            first = await _frame(client)
            client_id = _client_id(first)
            seen = self.seen.setdefault(client_id, Seen())
            seen.connections += 1
            broker, to_broker = await asyncio.open_connection("127.0.0.1", self._onward(client_id))
            writers.append(to_broker)
            lied = [False]
            up = asyncio.create_task(self._up(client, to_broker, first, client_id, lied))
            down = asyncio.create_task(_down(broker, to_client))
            done, pending = await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if lied[0]:
                seen.ended.append("client" if up in done and down not in done else "sidecar")
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for writer in writers:
                writer.close()

    async def _up(self, client: Reader, to_broker: Writer, frame: bytes, client_id: str, lied: list[bool]) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                if int.from_bytes(frame[4:6], "big") == self.armed.get(client_id):
                    frame = frame[:6] + VERSION + frame[8:]
                    self.seen[client_id].lies += 1
                    lied[0] = True
                to_broker.write(frame)
                await to_broker.drain()
                frame = await _frame(client)


async def _down(broker: Reader, to_client: Writer) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await broker.read(1 << 16):
            to_client.write(data)
            await to_client.drain()


async def _frame(reader: Reader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


def _client_id(frame: bytes) -> str:
    length = int.from_bytes(frame[12:14], "big", signed=True)
    return frame[14 : 14 + length].decode() if length > 0 else ""
