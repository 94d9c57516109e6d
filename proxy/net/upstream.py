"""Connections to the broker behind a listener.

A name may have several addresses, some of which nobody answers at. They are tried side by side, as "Happy Eyeballs" has
it (RFC 8305): the next one when the one before has failed, or has not answered for a while; the first connection wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, ClassVar

from proxy.config import Endpoint
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY, tune

ATTEMPT_DELAY = 0.25
"""Seconds an address has for its answer until the next one is tried beside it (RFC 8305, section 5); less where all of
them would not have their turn."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried."""

MAX_BESIDE = 16
"""Attempts beside a client's first one, of all clients of a process: each has a descriptor of the reserve. Beyond it an
attempt is given up when the next one begins."""

STALE_AFTER = 1.0
"""Seconds a look-up may take until the addresses of the last one are used, where there was one."""

Address = tuple[socket.AddressFamily, Any]


class Upstream:
    """Where the connections of one listener go. ``timeout``: seconds until a connect is given up.

    ``source``: the local IP address they come from; None leaves it to the kernel.
    """

    beside: ClassVar[int] = 0
    """Attempts beside a client's first one."""

    def __init__(self, endpoint: Endpoint, timeout: float, source: str | None = None) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._source = source
        self._family = 0 if source is None else socket.AF_INET6 if ":" in source else socket.AF_INET
        self._looking_up: asyncio.Future[list[Any]] | None = None
        self._found: list[Address] = []
        """What the last look-up found; of an IP address it is that for ever."""
        self._worked: Address | None = None
        """The last that one could connect to of several."""
        with contextlib.suppress(socket.gaierror):
            self._found = _addresses(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )
        self._is_name = not self._found

    def __str__(self) -> str:
        return str(self._endpoint)

    async def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket. Raises OSError, of what each address said, or TimeoutError.

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
        found = await self._look_up(deadline) if self._is_name else self._found
        if self._family:
            found = [address for address in found if address[0] == self._family]
        if not found:
            where = "" if self._source is None else f" of the kind of upstream.source {self._source}"
            raise OSError(f"{self._endpoint} has no address{where}")
        if len(found) == 1:
            return await _connected(found[0], self._source, deadline)
        return await self._race(found, deadline)

    async def _look_up(self, deadline: float) -> list[Address]:
        """Return the addresses of the name. It is looked up for each connection, since it may move, but once at a time:
        a resolver that hangs has one thread of the loop's few, however many clients wait for it."""
        loop = asyncio.get_running_loop()
        if self._looking_up is None or self._looking_up.done():
            host, port = self._endpoint.host, self._endpoint.port
            self._looking_up = asyncio.ensure_future(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            self._looking_up.add_done_callback(self._looked_up)
        patience = min(deadline, loop.time() + STALE_AFTER) if self._found else deadline
        try:
            async with asyncio.timeout_at(patience):
                return _addresses(await asyncio.shield(self._looking_up))
        except OSError:
            if self._found:
                return self._found
            raise

    def _looked_up(self, done: asyncio.Future[list[Any]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._found = _addresses(done.result())

    async def _race(self, found: Sequence[Address], deadline: float) -> socket.socket:
        """Try all of ``found``, that first which worked last; return the first connection there is."""
        waiting = deque(sorted(found, key=lambda address: address != self._worked))
        delay = min(ATTEMPT_DELAY, self._timeout / len(waiting))
        attempts: dict[asyncio.Task[socket.socket], Address] = {}
        failures: list[OSError] = []
        try:
            while waiting or attempts:
                if waiting and (not attempts or Upstream.beside < MAX_BESIDE):
                    self._begin(attempts, waiting.popleft(), deadline)
                done, _ = await asyncio.wait(
                    attempts, timeout=delay if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and waiting and Upstream.beside >= MAX_BESIDE:
                    for attempt in attempts:
                        attempt.cancel()
                    done, _ = await asyncio.wait(attempts)
                for attempt in done:
                    address = attempts.pop(attempt)
                    if attempt.cancelled():
                        failures.append(TimeoutError(_said(address, f"no answer within {delay * 1000:.0f} ms")))
                    elif isinstance(error := attempt.exception(), OSError):
                        failures.append(OSError(error.errno, _said(address, error.strerror or "no answer")))
                    else:
                        self._worked = address
                        return attempt.result()
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close)
        raise _of_all(failures)

    def _begin(self, attempts: dict[asyncio.Task[socket.socket], Address], address: Address, deadline: float) -> None:
        attempt = asyncio.get_running_loop().create_task(_connected(address, self._source, deadline))
        if attempts:
            Upstream.beside += 1
            attempt.add_done_callback(_ended_beside)
        attempts[attempt] = address


async def _connected(address: Address, source: str | None, deadline: float) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        tune(sock)
        if source is not None:
            # The port is chosen with the connect then: it need not be one that goes nowhere else.
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        error = sock.connect_ex(where)
        if error == errno.EINPROGRESS:
            error = sock.connect_ex(where)  # over loopback, where brokers mostly are, it is decided by now
        if error == errno.EALREADY:
            async with asyncio.timeout_at(deadline):
                await asyncio.get_running_loop().sock_connect(sock, where)
        elif error not in (0, errno.EISCONN):
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _addresses(found: list[Any]) -> list[Address]:
    """Return what a look-up found, one family after the other in turn (RFC 8305, section 4)."""
    first = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [address for pair in zip_longest(first, others) for address in pair if address is not None][:MAX_ADDRESSES]


def _ended_beside(_: asyncio.Task[socket.socket]) -> None:
    Upstream.beside -= 1


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    """It came too late, if at all."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _said(address: Address, what: str) -> str:
    return f"{Endpoint(*address[1][:2])}: {what}"


def _of_all(failures: Sequence[OSError]) -> OSError:
    """Return one error for all of them: that there is no room for a socket, if that was one of them."""
    said = "; ".join(error.strerror or str(error) for error in failures)
    errors = sorted((error.errno for error in failures if error.errno), key=lambda error: error not in CAPACITY_ERRORS)
    return OSError(errors[0], said) if errors else TimeoutError(said)
