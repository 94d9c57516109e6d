"""One listening socket with its own accept loop.

The loop's ``create_server`` cannot be used: it can neither pause accepting, which connection limits need, nor say that
the process is out of descriptors (it accepts and closes such connections silently).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import sys
from collections.abc import Callable

from proxy.core.tally import Tally
from proxy.errors import LocalError

ACCEPT_BATCH = 8
"""Connections accepted in one turn of the loop; more would delay the traffic of those that exist."""

CAPACITY_RETRY_DELAY = 0.1
"""Seconds until accepting is tried again after running out of capacity (trio: the same)."""

RESERVED_DESCRIPTORS = 64
"""Descriptors that are left when listeners stop accepting, or a quarter of a limit below 256. They are for the admin
endpoint, for files, for the sidecar's own connections, and for attempts to connect beside the first of a client."""

DESCRIPTORS_PER_CONNECTION = 2
"""One to the client, one to the broker."""

CAPACITY_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Nothing is wrong with the connection, which stays in the kernel's backlog; we have no room for it just now."""


KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 120, 15, 4
"""Seconds without a byte until an idle peer is asked whether it is there, seconds between two such questions, and how
many of them it may leave unanswered. For peers that have something to confirm see ``lost_peers``."""

TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
"""Elsewhere it says other things."""

UNACKED_FIELD = slice(24, 28)
"""Where ``struct tcp_info`` has ``tcpi_unacked``: of a listening socket, how many wait to be accepted."""

TCP_ESTABLISHED = 1
"""``tcpi_state``, the first byte, of a connection that neither side has ended."""


class Acceptor:
    """Listens on ``host:port`` and hands each accepted socket (non-blocking) to ``on_accept(sock, address)``.

    ``on_accept`` returns whether to go on; if not, connections wait in the kernel's backlog until the next ``start``. They
    also wait while the process is out of descriptors: ``on_out_of_capacity(errno name)`` is called then. ``free_connections()``: how many
    more connections there are descriptors for, without those ``RESERVED_DESCRIPTORS``; None: any. ``config_key``: the configuration's config_key
    of the address, for the error.
    """

    def __init__(
        self,
        host: str,
        port: int,
        backlog: int,
        tally: Tally,
        on_accept: Callable[[socket.socket, tuple[str, int]], bool],
        on_out_of_capacity: Callable[[str], None],
        *,
        free_connections: Callable[[], int] | None = None,
        config_key: str = "",
    ) -> None:
        """Raises LocalError where the address cannot be had."""
        self._tally = tally
        self._on_accept = on_accept
        self._on_out_of_capacity = on_out_of_capacity
        self._free_connections = free_connections
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._accepting = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            set_socket_options(self._socket)  # on Linux accepted sockets inherit it, which saves three calls for each
            self._socket.setblocking(False)
            self._socket.bind((host, port))
            self._socket.listen(backlog)
        except OSError as error:
            self._socket.close()
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            where = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
            raise LocalError(f"cannot listen on {where}{config_key and f' ({config_key})'}: {reason}") from None

    @property
    def backlog_length(self) -> int:
        """Connections in the kernel's queue, where the kernel tells it."""
        if TCP_INFO is None:
            return 0
        return int.from_bytes(
            self._socket.getsockopt(socket.IPPROTO_TCP, TCP_INFO, UNACKED_FIELD.stop)[UNACKED_FIELD], sys.byteorder
        )

    def start_accepting(self) -> None:
        """Begin, or go on, accepting; while the process is out of descriptors, as soon as it has some."""
        if not self._accepting and self._retry is None:
            self._accepting = True
            self._loop.add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        """Stop listening; connections waiting in the kernel's backlog are reset."""
        if self._retry is not None:
            self._retry.cancel()
        self._pause()
        self._socket.close()

    def _on_readable(self) -> None:
        room = ACCEPT_BATCH if self._free_connections is None else self._free_connections()
        if room <= 0:
            self._wait_for_capacity("EMFILE")
            return
        for _ in range(min(room, ACCEPT_BATCH)):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "UNKNOWN")
                if error.errno in CAPACITY_ERRORS:
                    self._wait_for_capacity(name)
                    return
                self._tally.accept_errors[name] += 1
                continue  # the connection died in the backlog
            # The kernel gives the lowest number that is free: so many descriptors are in use, or more.
            full = self._free_connections is not None and sock.fileno() >= usable_descriptors()
            sock.setblocking(False)
            self._tally.accepted += 1
            accepts_more = self._on_accept(sock, address[:2])
            if full:
                self._wait_for_capacity("EMFILE")
            elif not accepts_more:
                self._pause()
            if full or not accepts_more:
                return

    def _wait_for_capacity(self, error: str) -> None:
        self._tally.accept_errors[error] += 1
        self._pause()
        self._retry = self._loop.call_later(CAPACITY_RETRY_DELAY, self._retry_accepting)
        self._on_out_of_capacity(error)

    def _retry_accepting(self) -> None:
        self._retry = None
        self.start_accepting()

    def _pause(self) -> None:
        self._accepting = False
        self._loop.remove_reader(self._socket)


def usable_descriptors() -> int:
    """How many descriptors this process may have without those that are ``RESERVED_DESCRIPTORS``."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - min(RESERVED_DESCRIPTORS, limit // 4)


def set_socket_options(sock: socket.socket) -> None:
    """No delay for small frames; a peer that is gone is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError, AttributeError):  # not on every platform
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


def is_closed_by_peer(sock: socket.socket) -> bool:
    """Whether the other side has ended an accepted connection, whatever it has sent before; False if unknown."""
    return TCP_INFO is not None and sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] != TCP_ESTABLISHED
