"""Resolves the host name of a broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import zip_longest
from math import inf
from typing import Any

import structlog

from proxy.config import Endpoint
from proxy.daemon_executor import DaemonExecutor

SocketAddress = tuple[socket.AddressFamily, Any]
"""The family and the address, as ``socket.socket`` and ``connect`` expect them."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried. The rest is ignored."""

CACHE_TTL = 1.0
"""Seconds for which an answer is used without another lookup. The same holds for a failure if an older answer is
known."""

SERVE_STALE_AFTER = 1.0
"""Seconds of a running lookup after which the last answer is used instead (RFC 8767, section 5, has 1.8 seconds)."""

MAX_STALE_AGE = 3600.0
"""Seconds for which an answer is used if there is no newer one. After that connections fail."""

LOOKUP_TIMEOUT = 30.0
"""Seconds after which a lookup has failed. Its thread may end later, and no other lookup of the name begins before."""

NO_ADDRESS_ERRORS = {socket.EAI_NONAME, socket.EAI_NODATA}
"""Errors that mean that the name has no address. No older answer is used then."""

GetAddrInfo = Callable[..., list[Any]]

log = structlog.get_logger(__name__)


def order_addresses(found: list[Any]) -> list[SocketAddress]:
    """Return the addresses of a ``socket.getaddrinfo`` result, alternating between families (RFC 8305, section 4)."""
    first = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [address for pair in zip_longest(first, others) for address in pair if address is not None][:MAX_ADDRESSES]


class UpstreamResolver:
    """Resolves one host name, with one lookup at a time in its own thread. Belongs to the event loop's thread."""

    def __init__(self, endpoint: Endpoint, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._endpoint = endpoint
        self._getaddrinfo = getaddrinfo
        self._executor = DaemonExecutor(f"lookup {endpoint.host}")
        self._addresses: list[SocketAddress] = []
        self._resolved_at = -inf
        self._fresh_until = -inf
        self._failure: tuple[type[Exception], str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._started_at = 0.0
        self._warned = False

    async def resolve(self, deadline: float) -> list[SocketAddress]:
        """Return the addresses of the name.

        Raises OSError or ValueError if it has none, and TimeoutError at ``deadline`` (the event loop's time).
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._fresh_until:
            return self._addresses
        if self._task is None:
            self._done, self._started_at = asyncio.Event(), loop.time()
            self._task = loop.create_task(self._run_lookup(self._done))
        done = self._done
        stale = bool(self._addresses) and loop.time() - self._resolved_at < MAX_STALE_AGE
        try:
            give_up_at = min(
                self._started_at + SERVE_STALE_AFTER, (loop.time() + deadline) / 2
            )  # leave time for connecting
            async with asyncio.timeout_at(give_up_at if stale else deadline):
                await done.wait()
        except TimeoutError:
            if not stale:
                raise TimeoutError(f"no address of {self._endpoint.host} in time") from None
            self._warn_once("no answer yet")
            return self._addresses
        if self._failure is None or (self._addresses and loop.time() - self._resolved_at < MAX_STALE_AGE):
            return self._addresses
        kind, reason = self._failure
        raise kind(reason)

    async def _run_lookup(self, done: asyncio.Event) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        loop = asyncio.get_running_loop()
        try:
            found = await self._executor.run(
                lambda: self._getaddrinfo(host, port, type=socket.SOCK_STREAM), LOOKUP_TIMEOUT
            )
            self._addresses, self._failure, self._warned = order_addresses(found), None, False
            self._resolved_at = loop.time()
            self._fresh_until = self._resolved_at + CACHE_TTL
        except (OSError, ValueError) as error:  # ValueError: the name is invalid
            reason = getattr(error, "strerror", None) or str(error) or "the name server does not answer"
            self._failure = OSError if isinstance(error, OSError) else ValueError, f"{host}: {reason}"
            if isinstance(error, socket.gaierror) and error.errno in NO_ADDRESS_ERRORS:
                self._addresses = []
            if self._addresses:
                self._fresh_until = min(loop.time() + CACHE_TTL, self._resolved_at + MAX_STALE_AGE)
                self._warn_once(reason)
        finally:
            self._task = None
            done.set()

    def _warn_once(self, error: str) -> None:
        """Log a warning, once until a lookup succeeds again."""
        if not self._warned:
            self._warned = True
            log.warning("upstream_addresses_stale", upstream=str(self._endpoint), error=error)
