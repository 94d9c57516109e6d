"""Connections to the broker behind a listener."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Any

from proxy.config import Endpoint
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY, tune

Address = tuple[socket.AddressFamily, Any]


class Upstream:
    """Where the connections of one listener go. ``timeout``: seconds until a connect is given up."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._fixed: list[Address] = []
        with contextlib.suppress(socket.gaierror):  # a name: looked up for each connection, since it may move
            self._fixed = _addresses(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )

    def __str__(self) -> str:
        return str(self._endpoint)

    async def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket. Raises OSError (of the last address tried) or TimeoutError.

        While this process has no room for another socket, it waits for some.
        """
        if self._fixed and (sock := self._connect_at_once(*self._fixed[0])) is not None:
            return sock
        async with asyncio.timeout(self._timeout):
            while True:
                try:
                    return await self._connect()
                except OSError as error:
                    if error.errno not in CAPACITY_ERRORS:
                        raise
                await asyncio.sleep(CAPACITY_RETRY)

    def _connect_at_once(self, family: socket.AddressFamily, address: Any) -> socket.socket | None:
        """On the loopback interface, where brokers mostly are, the second call finds the connection established."""
        try:
            sock = _socket(family)
        except OSError:
            return None
        if sock.connect_ex(address) == 0 or sock.connect_ex(address) in (0, errno.EISCONN):
            return sock
        sock.close()
        return None

    async def _connect(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        addresses = self._fixed or _addresses(
            await loop.getaddrinfo(self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM)
        )
        failure: OSError | None = None
        for family, address in addresses:
            sock = _socket(family)
            try:
                await loop.sock_connect(sock, address)
                return sock
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure or OSError(f"{self._endpoint} has no address")


def _socket(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    tune(sock)
    return sock


def _addresses(found: list[Any]) -> list[Address]:
    return [(family, address) for family, _, _, _, address in found]
