"""A bare relay between clients and one broker that writes the Produce, Fetch and ShareFetch frames as golden text.

Run ``python -m tests.tools.capture LISTEN_PORT BROKER_PORT FILE "who did what"``, let a client connect to the port, and
stop it with Ctrl-C. The broker has to advertise LISTEN_PORT. Exchanges that moved no records are kept twice each at
most; frames of more than ``LARGEST`` bytes are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from tests.golden.frames import Frame, dump

LARGEST = 4096
WANTED = (0, 1, 78)
Sink = Callable[[bytes], None]


class Conversation:
    """Pairs the frames of one connection by their order and hands over complete exchanges."""

    def __init__(self, take: Callable[[Frame, Frame | None], None]) -> None:
        self._take = take
        self._open: deque[Frame] = deque()

    def request(self, frame: bytes) -> None:
        key, version = struct.unpack_from(">hh", frame, 4)
        sent = Frame("request", key, version, frame)
        if key == 0 and getattr(sent.facts(), "acks", 1) == 0:
            self._take(sent, None)
        else:
            self._open.append(sent)

    def response(self, frame: bytes) -> None:
        sent = self._open.popleft()
        self._take(sent, Frame("response", sent.key, sent.version, frame))


class Golden:
    """Writes what is worth keeping to one file."""

    def __init__(self, path: Path, provenance: str) -> None:
        self._path = path
        self._path.write_text(f"# {provenance}\n")
        self._idle: Counter[int] = Counter()

    def take(self, request: Frame, response: Frame | None) -> None:
        frames = [frame for frame in (request, response) if frame is not None]
        if request.key not in WANTED or any(len(frame.data) > LARGEST for frame in frames):
            return
        if not any(frame.moves_records() for frame in frames):
            self._idle[request.key] += 1
            if self._idle[request.key] > 2:
                return
        with self._path.open("a") as file:
            file.writelines("\n" + dump(frame) for frame in frames)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Sink) -> None:
    """Pass bytes on and call ``take`` with each whole frame."""
    held = bytearray()
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
        held += chunk
        while len(held) >= 4 and len(held) >= (end := 4 + struct.unpack_from(">i", held)[0]):
            take(bytes(held[:end]))
            del held[:end]
    writer.close()


async def relay(listen: int, broker: int, golden: Golden) -> None:
    """Serve clients until cancelled."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(golden.take)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", broker)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                pump(reader, up_writer, conversation.request), pump(up_reader, writer, conversation.response)
            )

    server = await asyncio.start_server(serve, "127.0.0.1", listen)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    listen_port, broker_port, file, who = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(relay(int(listen_port), int(broker_port), Golden(Path(file), who)))
