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

Address = tuple[socket.AddressFamily, Any]
"""What ``socket.socket`` and ``connect`` take."""

MAX_ADDRESSES = 8
"""Addresses of a name that are tried; further ones are left out."""

FRESH = 1.0
"""Seconds in which an answer, or a failure where an older answer is known, is used without another lookup."""

STALE_AFTER = 1.0
"""Seconds of a lookup from which the last answer is used in its place (RFC 8767, section 5, has 1.8)."""

MAX_STALE = 3600.0
"""Seconds that an answer is used while no newer one can be had; after that connections fail."""

LOOKUP_TIMEOUT = 30.0
"""Seconds until a lookup has failed; its thread ends later, and no other lookup of the name begins before."""

GONE = {socket.EAI_NONAME, socket.EAI_NODATA}
"""The answer that a name has no address: no older answer is used then."""

Resolve = Callable[..., list[Any]]

log = structlog.get_logger(__name__)


def addresses(found: list[Any]) -> list[Address]:
    """What ``socket.getaddrinfo`` found, one family after the other in turn (RFC 8305, section 4)."""
    first = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
    others = [(family, address) for family, _, _, _, address in found if family != found[0][0]]
    return [address for pair in zip_longest(first, others) for address in pair if address is not None][:MAX_ADDRESSES]


class Lookup:
    """Of one name: one lookup at a time, in a thread of its own, for all who wait. Belongs to the loop's thread."""

    def __init__(self, endpoint: Endpoint, resolve: Resolve = socket.getaddrinfo) -> None:
        self._endpoint = endpoint
        self._resolve = resolve
        self._aside = Aside(f"lookup {endpoint.host}")
        self._last: list[Address] = []
        self._last_at = -inf
        self._fresh_until = -inf
        self._failure: tuple[type[Exception], str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._began = 0.0
        self._warned = False

    async def get(self, deadline: float) -> list[Address]:
        """Raises OSError or ValueError where the name has no address, TimeoutError at ``deadline`` (loop's clock)."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._fresh_until:
            return self._last
        if self._task is None:
            self._answered, self._began = asyncio.Event(), loop.time()
            self._task = loop.create_task(self._look_up(self._answered))
        answered = self._answered
        stale = bool(self._last) and loop.time() - self._last_at < MAX_STALE
        try:
            patience = min(self._began + STALE_AFTER, (loop.time() + deadline) / 2)  # the rest is for the connection
            async with asyncio.timeout_at(patience if stale else deadline):
                await answered.wait()
        except TimeoutError:
            if not stale:
                raise TimeoutError(f"no address of {self._endpoint.host} in time") from None
            self._warn("no answer yet")
            return self._last
        if self._failure is None or (self._last and loop.time() - self._last_at < MAX_STALE):
            return self._last
        kind, reason = self._failure
        raise kind(reason)

    async def _look_up(self, answered: asyncio.Event) -> None:
        host, port = self._endpoint.host, self._endpoint.port
        loop = asyncio.get_running_loop()
        try:
            found = await self._aside.call(lambda: self._resolve(host, port, type=socket.SOCK_STREAM), LOOKUP_TIMEOUT)
            self._last, self._failure, self._warned = addresses(found), None, False
            self._last_at = loop.time()
            self._fresh_until = self._last_at + FRESH
        except (OSError, ValueError) as error:  # ValueError: it cannot even be asked for
            reason = getattr(error, "strerror", None) or str(error) or "the name server does not answer"
            self._failure = OSError if isinstance(error, OSError) else ValueError, f"{host}: {reason}"
            if isinstance(error, socket.gaierror) and error.errno in GONE:
                self._last = []
            if self._last:
                self._fresh_until = min(loop.time() + FRESH, self._last_at + MAX_STALE)
                self._warn(reason)
        finally:
            self._task = None
            answered.set()

    def _warn(self, error: str) -> None:
        """Log it once until there is an answer again."""
        if not self._warned:
            self._warned = True
            log.warning("upstream_addresses_stale", upstream=str(self._endpoint), error=error)
