"""Connections to the broker behind a listener."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import Any

from proxy.config import Endpoint
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY, tune

Address = tuple[socket.AddressFamily, Any]


class Upstream:
    """Where the connections of one listener go. ``timeout``: seconds until a connect is given up.

    ``source``: the local IP address they come from; None leaves it to the kernel.
    """

    def __init__(self, endpoint: Endpoint, timeout: float, source: str | None = None) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._source = source
        self._family = 0 if source is None else socket.AF_INET6 if ":" in source else socket.AF_INET
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
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            try:
                return await self._connect(deadline)
            except OSError as error:
                if error.errno not in CAPACITY_ERRORS:
                    raise
            async with asyncio.timeout_at(deadline):
                await asyncio.sleep(CAPACITY_RETRY)

    async def _connect(self, deadline: float) -> socket.socket:
        failure: OSError | None = None
        for family, address in self._fixed or await self._look_up(deadline):
            if self._family in (0, family):
                try:
                    return await _connected(family, address, self._source, deadline)
                except OSError as error:
                    failure = error
        where = "" if self._source is None else f" of the kind of upstream.source {self._source}"
        raise failure or OSError(f"{self._endpoint} has no address{where}")

    async def _look_up(self, deadline: float) -> list[Address]:
        host, port = self._endpoint.host, self._endpoint.port
        async with asyncio.timeout_at(deadline):
            return _addresses(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


async def _connected(family: socket.AddressFamily, address: Any, source: str | None, deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        tune(sock)
        if source is not None:
            # The port is chosen with the connect then: it need not be one that goes nowhere else.
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        error = sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            error = sock.connect_ex(address)  # over loopback, where brokers mostly are, it is decided by now
        if error == errno.EALREADY:
            async with asyncio.timeout_at(deadline):
                await asyncio.get_running_loop().sock_connect(sock, address)
        elif error not in (0, errno.EISCONN):
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _addresses(found: list[Any]) -> list[Address]:
    return [(family, address) for family, _, _, _, address in found]
