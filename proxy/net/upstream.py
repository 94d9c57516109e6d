"""Connections to the broker behind a listener.

A host name may have several addresses, and some of them may not answer. They are tried with overlap, as "Happy
Eyeballs" does (RFC 8305): the next attempt begins when the one before has failed or has not succeeded for a while. The
first connection wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import ClassVar

from proxy.config import Endpoint
from proxy.errors import PeerError
from proxy.net.acceptor import CAPACITY_ERRORS, CAPACITY_RETRY_DELAY, set_socket_options
from proxy.net.sockets import NearBroker
from proxy.net.tls_contexts import ListenerTls
from proxy.net.tls_handshake import TlsHandshake
from proxy.net.tls_stream import TlsStream
from proxy.net.upstream_resolver import SocketAddress, UpstreamResolver, order_addresses

ATTEMPT_DELAY = 0.25
"""Seconds until the next address is tried beside the current one (RFC 8305, section 5). Less if otherwise not all
addresses would be tried in time."""

MAX_EXTRA_ATTEMPTS = 16
"""Attempts beyond the first one of each client, of all clients of a process. Each needs a reserved descriptor. At the
maximum, an attempt is cancelled after its share of the time, before the next one begins."""


Attempt = asyncio.Task[socket.socket]


class Upstream:
    """The broker address that the connections of one listener go to. ``timeout``: seconds until connecting has failed.

    ``source``: the local IP address of the connections; None leaves the choice to the kernel.
    """

    extra_attempts: ClassVar[int] = 0
    """Running attempts beyond the first one of each client."""

    def __init__(
        self, endpoint: Endpoint, timeout: float, source: str | None = None, tls: ListenerTls | None = None
    ) -> None:
        """``tls``: the contexts of the listener, of which that towards the broker is used, if there is one."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._source = source
        self._tls = tls
        self._family = 0 if source is None else socket.AF_INET6 if ":" in source else socket.AF_INET
        self._literal_addresses: list[SocketAddress] = []
        """The address, if the host is an IP address. A host name is resolved for each connection, since it may move."""
        self.near: NearBroker | None = None
        """The address, if it is one of loopback, and without TLS: try this before ``open``."""
        self._resolver = UpstreamResolver(endpoint)
        self._last_connected: SocketAddress | None = None
        """Of several addresses, the last one that a connection was established to."""
        self._full: TlsStream | None = None
        """TLS of the last full handshake. Its session comes with its first data, and is resumed while the broker
        agrees."""
        with contextlib.suppress(socket.gaierror):
            self._literal_addresses = order_addresses(
                socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            )
            host, port = self._literal_addresses[0][1][:2]
            if ip_address(host).is_loopback and source is None and (tls is None or tls.client is None):
                self.near = NearBroker(host, port)

    def __str__(self) -> str:
        return str(self._endpoint)

    async def open(self) -> tuple[socket.socket, TlsStream | None]:
        """Return a connected, non-blocking socket and its TLS, None without TLS.

        Raises as ``connect``, and PeerError with the reason ``tls_failed``. A broker may fail where a session is to be
        resumed, such as another one behind the same address. Then it is tried once more without a session.
        """
        sock = await self.connect()
        if self._tls is None or self._tls.client is None:
            return sock, None
        offered = self._full
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return sock, await self._secure(sock, self._tls.client, self._tls.server_name, offered)
                except PeerError:
                    if offered is None:
                        raise
                    if self._full is offered:
                        self._full = None
                sock = await self.connect()
                return sock, await self._secure(sock, self._tls.client, self._tls.server_name, None)
        except TimeoutError:
            raise PeerError("broker", "tls_failed", "no answer during the handshake") from None

    async def _secure(
        self, sock: socket.socket, context: ssl.SSLContext, name: str, earlier: TlsStream | None
    ) -> TlsStream:
        """Shake hands, or close ``sock`` and raise PeerError or OSError. ``earlier``: has the session to resume."""
        try:
            stream = TlsStream(context, name, earlier)
            await _shake_hands(stream, sock)
        except BaseException as error:
            sock.close()
            if isinstance(error, EOFError | ConnectionError):
                text = "it closed the connection during the handshake: upstream may be a port without TLS"
                raise PeerError("broker", "tls_failed", text) from None
            raise
        if not stream.is_resumed:
            self._full = stream
        return stream

    async def connect(self) -> socket.socket:
        """Return a connected, non-blocking socket. Raises OSError with the reason of each address, or TimeoutError.

        If this process has no capacity for another socket, it waits for some.
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
            where = "" if self._source is None else f" of the family of upstream.source {self._source}"
            raise OSError(f"{self._endpoint} has no address{where}")
        if len(found) == 1:
            return await _connect_address(found[0], self._source, deadline)
        return await self._race(found, deadline)

    async def _race(self, found: Sequence[SocketAddress], deadline: float) -> socket.socket:
        """Try all addresses, the last one that worked first. Return the first connection that is established."""
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


async def _shake_hands(stream: TlsStream, sock: socket.socket) -> None:
    """Raises PeerError, EOFError, OSError."""
    ended = asyncio.get_running_loop().create_future()

    def on_end(error: Exception | None) -> None:
        if not ended.done():
            ended.set_result(error)

    handshake = TlsHandshake(stream, sock, on_end)
    try:
        handshake.start()
        error = await ended
    finally:
        handshake.abort()
    if error is not None:
        raise error


async def _wait_or_cancel(attempts: Iterable[Attempt], seconds: float) -> set[Attempt]:
    """Return the attempts that end within ``seconds``. If none does, cancel all of them and return them."""
    done, pending = await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if done:
        return done
    for attempt in pending:
        attempt.cancel()
    return (await asyncio.wait(pending))[0]


async def _connect_address(address: SocketAddress, source: str | None, deadline: float) -> socket.socket:
    sock, error = _begin_connecting(address, source)
    try:
        if error == errno.EALREADY:
            async with asyncio.timeout_at(deadline):
                await asyncio.get_running_loop().sock_connect(sock, address[1])
        elif error not in (0, errno.EISCONN):
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def _begin_connecting(address: SocketAddress, source: str | None) -> tuple[socket.socket, int]:
    """Return a socket and what became of its ``connect``: 0, EISCONN, EALREADY, or the error. Raises OSError."""
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        set_socket_options(sock)
        if source is not None:
            # Choose the port in connect(), so that it may be shared by connections to different addresses.
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        error = sock.connect_ex(where)
        if error == errno.EINPROGRESS:
            error = sock.connect_ex(where)  # loopback connections are mostly established by now
    except BaseException:
        sock.close()
        raise
    return sock, error


def _on_extra_attempt_done(_: Attempt) -> None:
    Upstream.extra_attempts -= 1


def _close_unused(attempt: Attempt) -> None:
    """Close the connection of an attempt that was too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _describe(address: SocketAddress, what: str) -> str:
    return f"{Endpoint(*address[1][:2])}: {what}"


def _combined_error(failures: Sequence[OSError]) -> OSError:
    """Return one error for all attempts. A lack of capacity for sockets takes precedence."""
    reasons = "; ".join(error.strerror or str(error) for error in failures)
    errors = sorted((error.errno for error in failures if error.errno), key=lambda error: error not in CAPACITY_ERRORS)
    return OSError(errors[0], reasons) if errors else TimeoutError(reasons)
