"""The addresses of a broker's name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import zip_longest
from math import inf
from typing import Any

import structlog

from proxy.aside import Aside
from proxy.config import Endpoint

SocketAddress = tuple[socket.AddressFamily, Any]
"""What ``socket.socket`` and ``connect`` take."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried; further ones are left out."""

CACHE_TTL = 1.0
"""Seconds in which an answer, or a failure where an older answer is known, is used without another lookup."""

SERVE_STALE_AFTER = 1.0
"""Seconds of a lookup from which the last answer is used in its place (RFC 8767, section 5, has 1.8)."""

MAX_STALE_AGE = 3600.0
"""Seconds that an answer is used while no newer one can be had; after that connections fail."""

LOOKUP_TIMEOUT = 30.0
"""Seconds until a lookup has failed; its thread ends later, and no other lookup of the name begins before."""

NO_ADDRESS_ERRORS = {socket.EAI_NONAME, socket.EAI_NODATA}
"""The answer that a name has no address: no older answer is used then."""

GetAddrInfo = Callable[..., list[Any]]

log = structlog.get_logger(__name__)


def order_addresses(found: list[Any]) -> list[SocketAddress]:
    """What ``socket.getaddrinfo`` found, one family after the other in turn (RFC 8305, section 4)."""
    first = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [address for pair in zip_longest(first, others) for address in pair if address is not None][:MAX_ADDRESSES]


class UpstreamResolver:
    """Of one name: one lookup at a time, in a thread of its own, for all who wait. Belongs to the loop's thread."""

    def __init__(self, endpoint: Endpoint, getaddrinfo: GetAddrInfo = socket.getaddrinfo) -> None:
        self._endpoint = endpoint
        self._getaddrinfo = getaddrinfo
        self._aside = Aside(f"lookup {endpoint.host}")
        self._addresses: list[SocketAddress] = []
        self._resolved_at = -inf
        self._fresh_until = -inf
        self._failure: tuple[type[Exception], str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._started_at = 0.0
        self._warned = False

    async def resolve(self, deadline: float) -> list[SocketAddress]:
        """Raises OSError or ValueError where the name has no address, TimeoutError at ``deadline`` (loop's clock)."""
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
            )  # the rest is for the connection
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
            found = await self._aside.call(
                lambda: self._getaddrinfo(host, port, type=socket.SOCK_STREAM), LOOKUP_TIMEOUT
            )
            self._addresses, self._failure, self._warned = order_addresses(found), None, False
            self._resolved_at = loop.time()
            self._fresh_until = self._resolved_at + CACHE_TTL
        except (OSError, ValueError) as error:  # ValueError: it cannot even be asked for
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
        """Log it once until there is an answer again."""
        if not self._warned:
            self._warned = True
            log.warning("upstream_addresses_stale", upstream=str(self._endpoint), error=error)
