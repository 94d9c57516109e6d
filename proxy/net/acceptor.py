# cython: language_level=3, annotation_typing=False
"""One listening socket with its own accept loop.

``loop.create_server`` cannot be used. It cannot pause accepting, which connection limits need. It also does not report
that the process is out of descriptors: it accepts and closes such connections silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from collections.abc import Callable

import cython

from proxy.core.counters import ListenerCounters
from proxy.net.sockets import AcceptedSocket, accept

ACCEPT_BATCH = 8
"""Connections accepted in one callback of the event loop. More would delay the traffic of open connections."""

CAPACITY_RETRY_DELAY = 0.1
"""Seconds between two attempts to accept while the process is out of capacity. trio uses the same value."""

CAPACITY_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors that mean that this process has no capacity now. The connection stays in the kernel's backlog."""


KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 120, 15, 4
"""Seconds without a byte before the first TCP keepalive probe, seconds between two probes, and how many of them may
stay unanswered. ``dead_peers`` detects dead peers while data is outstanding."""

TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else None
"""The socket option; None on other systems, where its fields differ."""

UNACKED_FIELD = slice(24, 28)
"""The bytes of ``tcpi_unacked`` in ``struct tcp_info``. For a listening socket it is the length of the accept queue."""


@cython.cclass
class Acceptor:
    """Passes each accepted socket to ``on_accept(sock, address)``, once ``start_accepting`` is called.

    ``sock`` listens, does not block, and belongs to the acceptor from now on.

    ``on_accept`` returns whether to accept more. If it returns False, connections wait in the kernel's backlog until
    the next ``start_accepting``. They also wait while the process is out of descriptors; then
    ``on_out_of_capacity(errno name)`` is called.

    ``free_connections()`` returns for how many more connections there are descriptors, without those that are reserved;
    None means no such check.
    """

    def __init__(
        self,
        sock: socket.socket,
        counters: ListenerCounters,
        on_accept: Callable[[AcceptedSocket, tuple[str, int]], bool],
        on_out_of_capacity: Callable[[str], None],
        *,
        free_connections: Callable[[], int] | None = None,
    ) -> None:
        self.socket = sock
        self._counters = counters
        self._on_accept = on_accept
        self._on_out_of_capacity = on_out_of_capacity
        self._free_connections = free_connections
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self.accepting = False
        """Whether it watches the socket."""

    @property
    def backlog_length(self) -> int:
        """Connections in the kernel's accept queue; 0 if the kernel does not report them."""
        if TCP_INFO is None:
            return 0
        return int.from_bytes(
            self.socket.getsockopt(socket.IPPROTO_TCP, TCP_INFO, UNACKED_FIELD.stop)[UNACKED_FIELD], sys.byteorder
        )

    def start_accepting(self) -> None:
        """Start or resume accepting. While the process is out of descriptors, accepting resumes once some are free."""
        if not self.accepting and self._retry is None:
            self.accepting = True
            self._loop.add_reader(self.socket, self._on_readable)

    def stop_accepting(self) -> None:
        """Leave connections in the kernel's backlog until the next ``start_accepting``."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._pause()

    def close(self) -> None:
        """Stop listening. Connections in the kernel's backlog are reset, unless another process has the socket too."""
        self.stop_accepting()
        self.socket.close()

    def _on_readable(self) -> None:
        room = ACCEPT_BATCH if self._free_connections is None else self._free_connections()
        if room <= 0:
            self._wait_for_capacity("EMFILE")
            return
        listening = self.socket.fileno()
        for _ in range(min(room, ACCEPT_BATCH)):
            try:
                accepted = accept(listening)
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, "UNKNOWN")
                if error.errno in CAPACITY_ERRORS:
                    self._wait_for_capacity(name)
                    return
                self._counters.accept_errors[name] += 1
                continue  # the client has closed the connection in the backlog
            if accepted is None:
                return
            sock, address = accepted
            self._counters.accepted += 1
            if not self._on_accept(sock, address):
                self._pause()
                return

    def _wait_for_capacity(self, error: str) -> None:
        self._counters.accept_errors[error] += 1
        self._pause()
        self._retry = self._loop.call_later(CAPACITY_RETRY_DELAY, self._retry_accepting)
        self._on_out_of_capacity(error)

    def _retry_accepting(self) -> None:
        self._retry = None
        self.start_accepting()

    def _pause(self) -> None:
        self.accepting = False
        self._loop.remove_reader(self.socket)


def set_socket_options(sock: socket.socket) -> None:
    """Set TCP_NODELAY, for small frames, and TCP keepalive, which detects peers that are gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(OSError, AttributeError):  # some platforms lack these options
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
