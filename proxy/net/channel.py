"""Messages between the main process and a worker, some with an open socket, over a Unix socket pair.

The pair keeps messages whole (SOCK_SEQPACKET), so a message and its descriptor (SCM_RIGHTS) arrive together or not at
all. Nothing here waits: what the other end has no room for stays here until it has.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from proxy.telemetry.snapshot import Snapshot

MAX_PACKET = 32_768
"""Bytes of a message that travels as it is; a larger one (a configuration with keys, say) is put into a file in memory,
and that file's descriptor travels."""

IN_FILE = b"\xc1"
"""Stands for a message that is in a file: a byte with which no msgpack begins."""

BATCH = 64
"""Messages taken in one turn of the loop."""

RETRY = 0.05
"""Seconds until sending is tried again where no event will tell that it is possible."""

LAST_WORD = 1.0
"""Seconds that a process waits at its end for the other one to take what it has to say."""

Received = TypeVar("Received")


class Start(Struct, tag=True, array_like=True):
    """To a worker, first of all: who it is. ``config``: see ``proxy.config.transfer``."""

    number: int
    config: bytes


class Carry(Struct, tag=True, array_like=True):
    """To a worker, with an accepted socket: it is yours. ``listener``: its name; ``index``: of the connection."""

    listener: str
    host: str
    port: int
    index: int


class Ask(Struct, tag=True, array_like=True):
    """To a worker: what have you counted? ``number`` comes back with the answer."""

    number: int


class Drain(Struct, tag=True, array_like=True):
    """To a worker: let open requests be answered, then end; no ``Carry`` follows."""


class Cut(Struct, tag=True, array_like=True):
    """To a worker: end at once."""


class Ready(Struct, tag=True, array_like=True):
    """From a worker: it carries what it is given. ``snapshot``: with nothing carried yet."""

    snapshot: Snapshot


class Failed(Struct, tag=True, array_like=True):
    """From a worker that cannot start: why, for a person."""

    error: str


class Closed(Struct, tag=True, array_like=True):
    """From a worker: how many of the connections it was ever given are closed."""

    count: int


class Report(Struct, tag=True, array_like=True):
    """From a worker: the answer to ``Ask``; with number 0 its last word, when nothing is carried any more."""

    number: int
    snapshot: Snapshot


ToWorker = Start | Carry | Ask | Drain | Cut
ToMain = Ready | Failed | Closed | Report


class Channel(Generic[Received]):
    """One end of a pair; ``kind``: the union of messages that come in. Belongs to the loop's thread.

    ``received(message, descriptor)`` is called for each: ``descriptor``, of the socket that came with it, is the
    callee's to close; None where none came, be it that this process has no room for one. ``ended()`` is called when the
    other end is gone, ``has_room()`` when nothing is unsent any more.
    """

    def __init__(
        self,
        sock: socket.socket,
        kind: Any,
        received: Callable[[Received, int | None], None],
        *,
        ended: Callable[[], None] = lambda: None,
        has_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = sock
        self._received = received
        self._ended = ended
        self._has_room = has_room
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(MAX_PACKET)
        self._unsent: deque[tuple[Struct, socket.socket | None]] = deque()
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._receive)

    @property
    def full(self) -> bool:
        """Whether the other end has no room just now: better send nothing that can wait, or go elsewhere."""
        return bool(self._unsent)

    def send(self, message: Struct, sock: socket.socket | None = None) -> None:
        """Send ``message`` with ``sock``, which is closed here once it is on its way; later if there is no room now."""
        self._unsent.append((message, sock))
        if len(self._unsent) == 1:
            self._flush()

    def close(self) -> list[tuple[Struct, socket.socket | None]]:
        """Take in what the other end has sent, close this end, and return what could not be sent."""
        while self._receive():
            pass
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        return list(self._unsent)

    def finish(self) -> None:
        """Wait up to ``LAST_WORD`` seconds until everything is sent, then close: for a process that ends."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.settimeout(LAST_WORD)
        self._flush()
        self._socket.close()

    def _flush(self) -> None:
        while self._unsent:
            message, sock = self._unsent[0]
            try:
                self._put(self._encoder.encode(message), sock)
            except OSError as error:
                # A peer that is gone is told of by the reader; what is unsent then stays, for others to be given.
                if error.errno == errno.EAGAIN:
                    self._loop.add_writer(self._socket, self._flush_later)
                elif error.errno == errno.ETOOMANYREFS:  # of all sockets of this user that are on their way somewhere
                    self._loop.call_later(RETRY, self._flush_later)
                return
            if sock is not None:
                sock.close()
            self._unsent.popleft()

    def _flush_later(self) -> None:
        if self._socket.fileno() == -1:
            return
        self._loop.remove_writer(self._socket)
        self._flush()
        if not self._unsent:
            self._has_room()

    def _put(self, data: bytes, sock: socket.socket | None) -> None:
        if len(data) <= MAX_PACKET:
            self._send(data, None if sock is None else sock.fileno())
            return
        file = os.memfd_create("message")
        try:
            with open(file, "wb", closefd=False) as whole:
                whole.write(data)
            self._send(IN_FILE, file)
        finally:
            os.close(file)

    def _send(self, data: bytes, descriptor: int | None) -> None:
        rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        self._socket.sendmsg([data], rights)

    def _receive(self) -> bool:
        """Take in some messages; returns whether there may be more."""
        for _ in range(BATCH):
            try:
                size, rights, _, _ = self._socket.recvmsg_into(
                    [self._buffer], socket.CMSG_SPACE(array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return False
            except ConnectionResetError:
                continue  # told once where the other end left something unread; what it sent is still there
            if not size:
                self._loop.remove_reader(self._socket)
                self._ended()
                return False
            descriptor = array("i", rights[0][2])[0] if rights else None
            data: Any = memoryview(self._buffer)[:size]
            if data == IN_FILE and descriptor is not None:
                with open(descriptor, "rb") as whole:
                    whole.seek(0)
                    data = whole.read()
                descriptor = None
            self._received(self._decoder.decode(data), descriptor)
        return True
