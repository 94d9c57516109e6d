"""One connection to a sidecar: a socket that never blocks, but for a login; plain TCP."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from proxy.client.consumer.events import FrameReceived, LinkConnected, LinkEnded, LinkFailed
from proxy.client.consumer.login import log_in
from proxy.config.values import Endpoint
from proxy.errors import BrokersideError, describe_os_error
from proxy.fleet.security import Security
from proxy.rpc.messages import RequestRefused

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Of what a coordinator sends; an assignment of 32,767 partitions with the longest names has 9 MiB."""

MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""A coordinator that does not read so much is given up."""

SIZE_BYTES = 4
"""Of a frame's size."""

READ_BYTES = 64 * 1024
MAX_READS = 64
"""Of one poll: a coordinator that sends all the time does not keep the thread."""

CLOSE_SECONDS = 1.0
"""For what is not sent yet when the connection is closed."""

RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER``: closing sends a RST."""

LinkEvent = LinkConnected | LinkFailed | LinkEnded | FrameReceived


class CoordinatorLink:
    """From connecting to the end. For one thread."""

    def __init__(self, address: Endpoint, security: Security, client_id: str, clock: Callable[[], int]) -> None:
        """Connects with the first ``poll``. ``clock``: milliseconds."""
        self._address = address
        self._security = security
        self._client_id = client_id
        self._clock = clock
        self._targets: list[tuple[int, Any]] | None = None
        """Family and address of each that the name stands for, and that was not tried yet."""
        self._target: Any = None
        self._all_refused = True
        self._socket: socket.socket | None = None
        self._is_open = False
        self._received = bytearray()
        self._unsent = bytearray()
        self._empty_at = 0
        """The last moment at which the socket was seen empty."""

    @property
    def interest(self) -> tuple[socket.socket, int] | None:
        """What to wait for: a socket, and events of ``selectors``."""
        if self._socket is None:
            return None
        if not self._is_open:
            return self._socket, selectors.EVENT_WRITE
        return self._socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def poll(self) -> Iterator[LinkEvent]:
        """Give what has happened. To be called when there may be something, and every 100 ms: it is heard no later than
        the last poll that found nothing. After ``LinkFailed`` and ``LinkEnded`` the link is closed."""
        try:
            if not self._is_open:
                yield from self._connect()
            if self._is_open:
                self._flush()
                yield from self._read()
        except OSError as error:
            self.close(reset=True)
            yield LinkEnded(f"{self._address}: {describe_os_error(error) or 'the connection was closed'}")

    def send(self, frame: bytes) -> None:
        """Send a frame, now or with the next polls."""
        self._unsent += frame
        with contextlib.suppress(OSError):  # the next poll finds it, too
            self._flush()

    def close(self, *, reset: bool) -> None:
        """Close with a RST; or with a FIN after what was sent."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            elif self._is_open:
                self._finish(self._socket)
        self._socket.close()
        self._socket = None

    # Connecting

    def _connect(self) -> Iterator[LinkEvent]:
        try:
            if self._targets is None:
                self._targets = _resolve(self._address)
            if not self._is_connected():
                return
            assert self._socket is not None
            if self._security.mechanism is not None:
                log_in(self._socket, self._security, self._client_id)
                self._socket.setblocking(False)
        except (OSError, BrokersideError) as error:
            self.close(reset=True)
            refused = self._all_refused and isinstance(error, ConnectionRefusedError)
            reason = describe_os_error(error) if isinstance(error, OSError) else str(error)
            yield LinkFailed(f"{self._address}: {reason}", refused, fatal=isinstance(error, RequestRefused))
            return
        self._is_open, self._empty_at = True, self._clock()
        yield LinkConnected()

    def _is_connected(self) -> bool:
        """Go on connecting, to one address after the other. Raises the error of the last one."""
        assert self._targets is not None
        while True:
            if self._socket is None:
                family, self._target = self._targets.pop(0)
                self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            error = self._socket.connect_ex(self._target)
            if error in (errno.EINPROGRESS, errno.EALREADY):
                return False
            if error in (0, errno.EISCONN):
                return True
            self._all_refused &= error == errno.ECONNREFUSED
            if not self._targets:
                raise OSError(error, os.strerror(error))
            self.close(reset=True)

    # Reading and writing

    def _read(self) -> Iterator[LinkEvent]:
        for _ in range(MAX_READS):
            if self._socket is None:  # closed because of what it has brought
                return
            now = self._clock()
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                self._empty_at = now
                return
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed by the other side")
            self._received += data
            yield from self._frames()

    def _frames(self) -> Iterator[LinkEvent]:
        while len(self._received) >= SIZE_BYTES:
            size = int.from_bytes(self._received[:SIZE_BYTES], "big", signed=True)
            if not SIZE_BYTES <= size <= MAX_FRAME_BYTES:
                raise OSError(errno.EPROTO, f"a frame of {size} bytes")
            if len(self._received) < SIZE_BYTES + size:
                return
            frame = bytes(self._received[SIZE_BYTES : SIZE_BYTES + size])
            del self._received[: SIZE_BYTES + size]
            yield FrameReceived(frame, self._empty_at)

    def _flush(self) -> None:
        if self._unsent and self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self._socket.send(self._unsent)]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise OSError(errno.ENOBUFS, "the coordinator does not read")

    def _finish(self, open_socket: socket.socket) -> None:
        """Send what is not sent, and a FIN. What is received and not read would make it a RST."""
        open_socket.settimeout(CLOSE_SECONDS)
        open_socket.sendall(self._unsent)
        open_socket.shutdown(socket.SHUT_WR)
        open_socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while open_socket.recv(READ_BYTES):
                pass


def _resolve(address: Endpoint) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, target) for family, _, _, _, target in found]
