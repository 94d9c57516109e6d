"""The TLS handshake of one connection, before its relay begins.

Every step of a handshake, up to the half millisecond of an RSA signature, has a turn of its own in ``RoundRobin``. So a
storm of handshakes delays the requests of other connections by one step at most.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios

from proxy.net.round_robin import round_robin_for
from proxy.net.tls_stream import TlsStream

MAX_RECEIVED = 16_384
"""Bytes of one step. A longer certificate chain takes several."""

_Int = struct.Struct("@i")


class TlsHandshake:
    """Shakes hands with the peer of ``sock``, a connected, non-blocking socket. Belongs to the event loop's thread."""

    def __init__(self, stream: TlsStream, sock: socket.socket) -> None:
        self._stream = stream
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._round_robin = round_robin_for(self._loop)
        self._waiting: asyncio.Future[None] | None = None
        self._is_scheduled = False

    @property
    def is_late(self) -> bool:
        """Whether it waits for this process, and not for the peer."""
        if self._is_scheduled:
            return True
        try:
            return fcntl.ioctl(self._sock, termios.FIONREAD, bytes(_Int.size)) != bytes(_Int.size)
        except (OSError, ValueError):  # the socket is closed
            return False

    def abort(self) -> None:
        """Let ``run`` raise CancelledError."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Raises PeerError with the reason ``tls_failed``, and OSError, EOFError where the connection ends before."""
        stream = self._stream
        received = b""
        if stream.side == "client":
            received = await self._receive()
        while True:
            await self._turn()
            output = stream.shake_hands(received)
            if output:
                await self._send(output)
            stream.check()
            if stream.established:
                return
            received = await self._receive()

    async def _turn(self) -> None:
        self._is_scheduled = True
        try:
            self._waiting = waiting = self._loop.create_future()
            self._round_robin.schedule(self._wake)
            await waiting
        finally:
            self._is_scheduled = False

    def _wake(self) -> None:
        assert self._waiting is not None
        if not self._waiting.done():
            self._waiting.set_result(None)

    async def _receive(self) -> bytes:
        while True:
            try:
                received = self._sock.recv(MAX_RECEIVED)
            except BlockingIOError:
                pass
            else:
                if not received:
                    raise EOFError
                return received
            self._waiting = waiting = self._loop.create_future()
            self._loop.add_reader(self._sock, self._wake)
            try:
                await waiting
            finally:
                self._loop.remove_reader(self._sock)

    async def _send(self, output: bytes) -> None:
        while True:
            try:
                sent = self._sock.send(output)
            except BlockingIOError:
                sent = 0
            if sent == len(output):
                return
            output = output[sent:]
            self._waiting = waiting = self._loop.create_future()
            self._loop.add_writer(self._sock, self._wake)
            try:
                await waiting
            finally:
                self._loop.remove_writer(self._sock)
