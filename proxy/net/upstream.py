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
from collections.abc import Iterable, Sequence
from typing import ClassVar

from proxy.config import Endpoint
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY_DELAY, set_socket_options
from proxy.net.upstream_resolver import SocketAddress, UpstreamResolver, order_addresses

ATTEMPT_DELAY = 0.25
"""Seconds an address has for its answer until the next one is tried beside it (RFC 8305, section 5); less where all of
them would not have their turn."""

MAX_EXTRA_ATTEMPTS = 16
"""Attempts beside a client's first one, of all clients of a process: each has a descriptor of the reserve. Beyond it an
attempt is given up after its share of the time, before the next one begins."""


Attempt = asyncio.Task[socket.socket]


class Upstream:
    """Where the connections of one listener go. ``timeout``: seconds until a connect is given up.

    ``source``: the local IP address they come from; None leaves it to the kernel.
    """

    extra_attempts: ClassVar[int] = 0
    """Attempts beside a client's first one."""

    def __init__(self, endpoint: Endpoint, timeout: float, source: str | None = None) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._source = source
        self._family = 0 if source is None else socket.AF_INET6 if ":" in source else socket.AF_INET
        self._literal_addresses: list[SocketAddress] = []
        """Of an IP address; a name is looked up when it is needed, and again, since it may move."""
        self._resolver = UpstreamResolver(endpoint)
        self._last_connected: SocketAddress | None = None
        """The last that one could connect to of several."""
        with contextlib.suppress(socket.gaierror):
            self._literal_addresses = order_addresses(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )

    def __str__(self) -> str:
        return str(self._endpoint)

    async def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket. Raises OSError, of what each address said, or TimeoutError.

        While this process has no room for another socket, it waits for some.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            try:
                return await self._connect_before(deadline)
            except OSError as error:
                if error.errno not in CAPACITY_ERRORS:
                    raise
            async with asyncio.timeout_at(deadline):
                await asyncio.sleep(CAPACITY_RETRY_DELAY)

    async def _connect_before(self, deadline: float) -> socket.socket:
        found = self._literal_addresses or await self._resolver.resolve(deadline)
        if self._family:
            found = [address for address in found if address[0] == self._family]
        if not found:
            where = "" if self._source is None else f" of the kind of upstream.source {self._source}"
            raise OSError(f"{self._endpoint} has no address{where}")
        if len(found) == 1:
            return await _connect_address(found[0], self._source, deadline)
        return await self._race(found, deadline)

    async def _race(self, found: Sequence[SocketAddress], deadline: float) -> socket.socket:
        """Try all of ``found``, that first which worked last; return the first connection there is."""
        waiting = deque(sorted(found, key=lambda address: address != self._last_connected))
        share = self._timeout / len(waiting)
        delay = min(ATTEMPT_DELAY, share)
        attempts: dict[Attempt, SocketAddress] = {}
        failures: list[OSError] = []
        try:
            while waiting or attempts:
                if waiting and (not attempts or Upstream.extra_attempts < MAX_EXTRA_ATTEMPTS):
                    self._start_attempt(attempts, waiting.popleft(), deadline)
                done, _ = await asyncio.wait(
                    attempts, timeout=delay if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and waiting and Upstream.extra_attempts >= MAX_EXTRA_ATTEMPTS:
                    done = await _wait_or_cancel(attempts, share - delay)
                for attempt in done:
                    address = attempts.pop(attempt)
                    if attempt.cancelled():
                        failures.append(TimeoutError(_describe(address, f"no answer within {share * 1000:.0f} ms")))
                    elif isinstance(error := attempt.exception(), OSError):
                        failures.append(OSError(error.errno, _describe(address, error.strerror or "no answer")))
                    else:
                        self._last_connected = address
                        return attempt.result()
        finally:
            for attempt in attempts:
                attempt.cancel()
                attempt.add_done_callback(_close_unused)
        raise _combined_error(failures)

    def _start_attempt(self, attempts: dict[Attempt, SocketAddress], address: SocketAddress, deadline: float) -> None:
        attempt = asyncio.get_running_loop().create_task(_connect_address(address, self._source, deadline))
        if attempts:
            Upstream.extra_attempts += 1
            attempt.add_done_callback(_on_extra_attempt_done)
        attempts[attempt] = address


async def _wait_or_cancel(attempts: Iterable[Attempt], seconds: float) -> set[Attempt]:
    """Return those that end within so much time; if none does, give up all of them and return these."""
    done, pending = await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if done:
        return done
    for attempt in pending:
        attempt.cancel()
    return (await asyncio.wait(pending))[0]


async def _connect_address(address: SocketAddress, source: str | None, deadline: float) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        set_socket_options(sock)
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


def _on_extra_attempt_done(_: Attempt) -> None:
    Upstream.extra_attempts -= 1


def _close_unused(attempt: Attempt) -> None:
    """It came too late, if at all."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _describe(address: SocketAddress, what: str) -> str:
    return f"{Endpoint(*address[1][:2])}: {what}"


def _combined_error(failures: Sequence[OSError]) -> OSError:
    """Return one error for all of them: that there is no room for a socket, if that was one of them."""
    reasons = "; ".join(error.strerror or str(error) for error in failures)
    errors = sorted((error.errno for error in failures if error.errno), key=lambda error: error not in CAPACITY_ERRORS)
    return OSError(errors[0], reasons) if errors else TimeoutError(reasons)
