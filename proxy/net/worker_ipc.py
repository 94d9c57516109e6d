"""Messages between the main process and a worker, some with an open socket, over a Unix socket pair.

The pair keeps packets whole (SOCK_SEQPACKET). Most messages are one; a longer one (a configuration with keys, say) is
several, and its descriptor (SCM_RIGHTS) comes with the last of them. Nothing here waits: what the other end has no room
for stays here until it has.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from proxy.limits.throttles import ThrottleReport
from proxy.replies.broker_metadata import FleetView
from proxy.telemetry.snapshot import Snapshot

PACKET = 4096
"""Bytes of a message in one packet: what the kernel takes however small it is told to keep its buffers."""

MORE, LAST = b"\x01", b"\x00"
"""Begins each packet: whether the message goes on in the next one."""

GONE = {errno.EPIPE, errno.ECONNRESET}
"""The other end is not there any more."""

RETRY = 0.05
"""Seconds until sending is tried again where no event will tell that it is possible (no memory, say)."""

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


class FindIdlest(Struct, tag=True, array_like=True):
    """To a worker: which connection of these listeners was longest without a byte? ``number`` comes back."""

    number: int
    listeners: list[str]


class Evict(Struct, tag=True, array_like=True):
    """To a worker: close this connection, by the ``index`` of ``Carry``."""

    connection: int


class Throttled(Struct, tag=True, array_like=True):
    """To a worker: tell your observers."""

    reports: list[ThrottleReport]


class Change(Struct, tag=True, array_like=True):
    """To a worker: take from another configuration, packed as in ``Start``, what a running worker can take."""

    config: bytes


class Tell(Struct, tag=True, array_like=True):
    """To a worker: what is known of all brokers."""

    view: FleetView


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
    """From a worker: these of the connections it was given have ended, by the ``index`` of ``Carry``."""

    numbers: list[int]


class Idlest(Struct, tag=True, array_like=True):
    """From a worker: the answer to ``FindIdlest``; None where nothing is open. ``since``: seconds, monotonic."""

    number: int
    connection: int | None
    since: float


class Report(Struct, tag=True, array_like=True):
    """From a worker: the answer to ``Ask``; with number 0 its last word, when nothing is carried any more."""

    number: int
    snapshot: Snapshot


ToWorker = Start | Carry | Ask | FindIdlest | Evict | Throttled | Change | Tell | Drain | Cut
ToMain = Ready | Failed | Closed | Idlest | Report


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
        self._packet = bytearray(len(LAST) + PACKET)
        self._incoming = bytearray()  # of a message that is not complete
        self._unsent: deque[tuple[Struct, bytes, socket.socket | None]] = deque()
        self._outgoing = b""  # what is left of the first of them, once it has begun
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._receive)

    @property
    def full(self) -> bool:
        """Whether the other end has no room just now: better send nothing that can wait, or go elsewhere."""
        return bool(self._unsent)

    def send(self, message: Struct, sock: socket.socket | None = None) -> None:
        """Send ``message`` with ``sock``, which is closed here once it is on its way; later if there is no room now.

        Raises what the encoder does for a message that cannot be written; then nothing of it is kept.
        """
        self._unsent.append((message, self._encoder.encode(message), sock))
        if len(self._unsent) == 1:
            self._flush()

    def close(self) -> list[tuple[Struct, socket.socket | None]]:
        """Take in what the other end has sent, close this end, and return what could not be sent."""
        self._receive()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        return [(message, sock) for message, _, sock in self._unsent]

    def finish(self) -> None:
        """Wait up to ``LAST_WORD`` seconds until everything is sent, then close: for a process that ends."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.settimeout(LAST_WORD)
        self._flush()
        self._socket.close()

    def _flush(self) -> None:
        while self._unsent:
            _, encoded, sock = self._unsent[0]
            self._outgoing = self._outgoing or encoded
            try:
                while len(self._outgoing) > PACKET:
                    self._socket.sendmsg([MORE, self._outgoing[:PACKET]])
                    self._outgoing = self._outgoing[PACKET:]
                rights = [] if sock is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [sock.fileno()]))]
                self._socket.sendmsg([LAST, self._outgoing], rights)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush_later)
                return
            except OSError as error:
                # A peer that is gone is told of by the reader; what is unsent then stays, for others to be given.
                if error.errno not in GONE:
                    self._loop.call_later(RETRY, self._flush_later)
                return
            if sock is not None:
                sock.close()
            self._unsent.popleft()
            self._outgoing = b""

    def _flush_later(self) -> None:
        if self._socket.fileno() == -1:
            return
        self._loop.remove_writer(self._socket)
        self._flush()
        if not self._unsent:
            self._has_room()

    def _receive(self) -> None:
        """Take in all there is: once the other end is gone, uvloop calls this one more time and never again."""
        while True:
            try:
                size, rights, _, _ = self._socket.recvmsg_into(
                    [self._packet], socket.CMSG_SPACE(array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # told once where the other end left something unread; what it sent is still there
            if not size:
                self._loop.remove_reader(self._socket)
                self._ended()
                return
            with memoryview(self._packet) as packet:
                self._incoming += packet[len(LAST) : size]
            if self._packet.startswith(MORE):
                continue
            message = self._decoder.decode(self._incoming)
            self._incoming.clear()
            self._received(message, array("i", rights[0][2])[0] if rights else None)
