"""Listening sockets: those that another process has opened for this one, and those that it opens itself.

systemd passes open sockets as descriptors from 3 on, and a running sidecar passes its own to a successor. Such a socket
has never been closed, so no connection in the kernel's backlog is lost.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, MutableMapping
from typing import NamedTuple

from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.limits.model import canonical
from proxy.net.acceptor import set_socket_options

FIRST_PASSED_DESCRIPTOR = 3
"""The first descriptor that systemd passes (``SD_LISTEN_FDS_START``)."""

SYSTEMD_VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
"""The variables of systemd's protocol, see sd_listen_fds(3)."""


class PassedSocket(NamedTuple):
    """A listening socket from another process. ``name``: that of a listener, or ``admin``."""

    name: str
    sock: socket.socket

    @property
    def address(self) -> Endpoint:
        """The address that it listens on."""
        host, port = self.sock.getsockname()[:2]
        return Endpoint(host, port)


class ListeningSockets:
    """Finds the listening socket of an address: one that was passed, or a new one."""

    def __init__(self, passed: list[PassedSocket]) -> None:
        self._passed = list(passed)

    def open(self, name: str, address: Endpoint, backlog: int, config_key: str = "") -> socket.socket:
        """Return a non-blocking socket that listens on ``address``. Raises LocalError if it cannot be bound.

        ``name``: of the listener, or ``admin``. ``config_key``: the key of the address, for the error message.
        """
        passed = self._take(name, address)
        if passed is None:
            return bind_listening_socket(address, backlog, config_key)
        set_socket_options(passed)
        passed.setblocking(False)
        passed.listen(backlog)  # only changes the length of the backlog
        return passed

    def close_unused(self) -> list[PassedSocket]:
        """Close the passed sockets that nobody has opened, and return them, closed."""
        unused, self._passed = self._passed, []
        for passed in unused:
            passed.sock.close()
        return unused

    def check_all_used(self) -> None:
        """Raise LocalError if a passed socket is none of the configuration: its clients would wait forever."""
        if self._passed:
            unused = ", ".join(f"{passed.name} {passed.address}" for passed in self._passed)
            self.close_unused()
            raise LocalError(f"LISTEN_FDS: no listener's bind, nor admin.bind, is the address of the socket {unused}")

    def _take(self, name: str, address: Endpoint) -> socket.socket | None:
        """Return the passed socket of this address. Of a host name, only the port and the name are compared."""
        for passed in self._passed:
            if passed.address.port != address.port:
                continue
            host = _ip_address(address.host)
            if _ip_address(passed.address.host) == host if host is not None else passed.name == name:
                self._passed.remove(passed)
                return passed.sock
        return None


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close all of ``sockets``."""
    for sock in sockets:
        sock.close()


def sockets_of_systemd(environ: MutableMapping[str, str] = os.environ) -> ListeningSockets:
    """Take the sockets that systemd has passed to this process, if any, by ``LISTEN_FDS``, ``LISTEN_PID`` and
    ``LISTEN_FDNAMES``.

    Removes these variables, since they are for this process only. Raises LocalError for a descriptor that is no
    listening TCP socket.
    """
    count, pid, names = (environ.pop(name, "") for name in SYSTEMD_VARIABLES)
    if pid != str(os.getpid()) or not count.isdecimal():
        return ListeningSockets([])
    given = names.split(":") if names else []
    passed = []
    for number in range(int(count)):
        name = given[number] if number < len(given) else "unknown"
        passed.append(PassedSocket(name, _passed_socket(FIRST_PASSED_DESCRIPTOR + number, f"LISTEN_FDS: {name}")))
    return ListeningSockets(passed)


def _passed_socket(descriptor: int, what: str) -> socket.socket:
    """Return the listening TCP socket with this descriptor. Raises LocalError if it is none."""
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise LocalError(f"{what}: descriptor {descriptor} is no socket: {os.strerror(error.errno or 0)}") from None
    listens = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
    if not (listens and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
        sock.detach()
        raise LocalError(f"{what}: descriptor {descriptor} is no TCP socket that listens")
    return sock


def bind_listening_socket(address: Endpoint, backlog: int, config_key: str = "") -> socket.socket:
    """Return a new non-blocking socket that listens on ``address``. Raises LocalError if it cannot be bound."""
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        set_socket_options(sock)  # accepted sockets inherit the options on Linux
        sock.setblocking(False)
        sock.bind((address.host, address.port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise LocalError(f"cannot listen on {address}{config_key and f' ({config_key})'}: {reason}") from None
    return sock


def _ip_address(host: str) -> str | None:
    """Return ``host`` in canonical form, or None if it is a name."""
    try:
        return canonical(host)
    except ValueError:
        return None
