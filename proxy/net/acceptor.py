"""One listening socket with its own accept loop.

The loop's ``create_server`` cannot be used: it can neither pause accepting, which connection limits need, nor say that
the process is out of descriptors (it accepts and closes such connections silently).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from collections.abc import Callable

from proxy.core.tally import Tally
from proxy.errors import LocalError

ACCEPT_BATCH = 8
"""Connections accepted in one turn of the loop; more would delay the traffic of those that exist."""

CAPACITY_RETRY = 0.1
"""Seconds until accepting is tried again after running out of capacity (trio: the same)."""

CAPACITY_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Nothing is wrong with the connection, which stays in the kernel's backlog; we have no room for it just now."""


USER_TIMEOUT_MS = 30_000
"""Milliseconds for which sent bytes may stay unacknowledged before a peer counts as gone (TCP_USER_TIMEOUT)."""

TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
"""Elsewhere it says other things."""

QUEUED = slice(24, 28)
"""Where ``struct tcp_info`` has ``tcpi_unacked``: of a listening socket, how many wait to be accepted."""

ESTABLISHED = 1
"""``tcpi_state``, the first byte, of a connection that neither side has ended."""


class Acceptor:
    """Listens on ``host:port`` and hands each accepted socket (non-blocking) to ``admit(sock, address)``.

    ``admit`` returns whether to go on; if not, connections wait in the kernel's backlog until the next ``start``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        backlog: int,
        tally: Tally,
        admit: Callable[[socket.socket, tuple[str, int]], bool],
        on_capacity: Callable[[str], None],
    ) -> None:
        self._tally = tally
        self._admit = admit
        self._on_capacity = on_capacity
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._accepting = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tune(self._socket)  # on Linux accepted sockets inherit it, which saves three calls for each
            self._socket.setblocking(False)
            self._socket.bind((host, port))
            self._socket.listen(backlog)
        except OSError as error:
            self._socket.close()
            raise LocalError(f"cannot listen on {host}:{port}: {error.strerror}") from None

    @property
    def queued(self) -> int:
        """Connections in the kernel's queue, where the kernel tells it."""
        if TCP_INFO is None:
            return 0
        return int.from_bytes(self._socket.getsockopt(socket.IPPROTO_TCP, TCP_INFO, QUEUED.stop)[QUEUED], sys.byteorder)

    def start(self) -> None:
        """Begin, or go on, accepting."""
        if not self._accepting:
            self._accepting = True
            self._stop_retrying()
            self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop listening; connections waiting in the kernel's backlog are reset."""
        self._stop_retrying()
        self._pause()
        self._socket.close()

    def _accept(self) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "UNKNOWN")
                self._tally.accept_errors[name] += 1
                if error.errno in CAPACITY_ERRORS:
                    self._pause()
                    self._retry = self._loop.call_later(CAPACITY_RETRY, self.start)
                    self._on_capacity(name)
                    return
                continue  # the connection died in the backlog
            sock.setblocking(False)
            self._tally.accepted += 1
            if not self._admit(sock, address[:2]):
                self._pause()
                return

    def _stop_retrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _pause(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self._socket)


def tune(sock: socket.socket) -> None:
    """No delay for small frames; a peer that is gone is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError):  # not on every platform
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def is_ended(sock: socket.socket) -> bool:
    """Whether the other side has ended an accepted connection, whatever it has sent before; False if unknown."""
    return TCP_INFO is not None and sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] != ESTABLISHED
