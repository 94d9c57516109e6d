"""Host names that quotas are stored under (Kafka takes ``localhost`` for an address), looked up as Kafka does: once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection

import structlog

from proxy.limits.model import canonical

TIMEOUT = 2.0
"""Seconds all look-ups of one look may take together; those left are for the next."""

RETRY = 60.0
"""Seconds until a name that has no address is looked up again."""

log = structlog.get_logger(__name__)


class Names:
    """Addresses by name, kept for as long as the name is asked for."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._unknown: dict[str, float] = {}

    async def resolve(self, names: Collection[str]) -> dict[str, str]:
        """Return the addresses known by now, in their canonical form; what has none is left out and logged once."""
        self._known = {name: address for name, address in self._known.items() if name in names}
        self._unknown = {name: at for name, at in self._unknown.items() if name in names}
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(TIMEOUT):
                for name in names:
                    if name not in self._known and self._unknown.get(name, now) <= now:
                        await self._look_up(name, now)
        except TimeoutError:
            log.warning("quota_names_slow", known=len(self._known), wanted=len(names))
        return self._known

    async def _look_up(self, name: str, now: float) -> None:
        try:
            self._known[name] = await address_of(name)
            self._unknown.pop(name, None)
        except OSError as error:
            if name not in self._unknown:
                log.warning("quota_name_unknown", name=name, error=error.strerror or str(error))
            self._unknown[name] = now + RETRY


async def address_of(host: str) -> str:
    """Return the address of a host, as Java chooses it: IPv4 before IPv6, then the first. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = sorted(found, key=lambda one: one[0] != socket.AF_INET)
    if not host or not addresses:
        raise OSError("has no address")
    return canonical(str(addresses[0][4][0]))
