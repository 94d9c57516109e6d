"""Resolves the names that quotas of addresses are stored under, as brokers do: host names are looked up once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection
from itertools import islice

import structlog

from proxy.limits.java_addresses import choose_address
from proxy.limits.model import canonical

RESOLVE_TIMEOUT = 2.0
"""Seconds that ``resolve`` waits for new names; slower ones, and retries, are in the result of a later call."""

CONCURRENT_LOOKUPS = 2
"""Look-ups at a time, of the four threads that uvloop has for blocking work."""

RESOLVE_RETRY = 60.0
"""Seconds until a name that has no address is looked up again."""

MAX_LOGGED_NAMES = 5
"""Names that one log line shows."""

log = structlog.get_logger(__name__)


class HostResolver:
    """Keeps the address of a name for as long as the name is asked for. A slow name does not delay others."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._started: set[str] = set()  # of those asked for, whose turn it is
        self._unlogged_failures: dict[str, str] = {}  # why a name has no address
        self._turn = asyncio.Semaphore(CONCURRENT_LOOKUPS)

    async def resolve(self, names: Collection[str]) -> dict[str, str]:
        """Return the known addresses by name, in their canonical form.

        Names without an address are left out, and logged once, all new ones in one line.
        """
        self._known = {name: address for name, address in self._known.items() if name in names}
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in names}
        self._unlogged_failures = {name: error for name, error in self._unlogged_failures.items() if name in names}
        now, new = asyncio.get_running_loop().time(), {}
        for name in names:
            if name not in self._known and name not in self._lookups and self._retry_at.get(name, now) <= now:
                self._lookups[name] = asyncio.create_task(self._look_up(name))
                if name not in self._retry_at:
                    new[name] = self._lookups[name]
        if new:
            await asyncio.wait(new.values(), timeout=RESOLVE_TIMEOUT)
        for name in new:
            if name in self._started:
                self._failed(name, "no answer yet")
        if self._unlogged_failures:
            first = dict(islice(self._unlogged_failures.items(), MAX_LOGGED_NAMES))
            log.warning("quota_names_unknown", names=len(self._unlogged_failures), first=first)
            self._unlogged_failures.clear()
        return dict(self._known)

    def close(self) -> None:
        """Cancel all look-ups."""
        for task in self._lookups.values():
            task.cancel()

    async def _look_up(self, name: str) -> None:
        try:
            async with self._turn:
                self._started.add(name)
                self._known[name] = await _choose_address(name)
            self._retry_at.pop(name, None)
        except (OSError, ValueError) as error:  # ValueError: it cannot even be asked for
            self._failed(name, getattr(error, "strerror", None) or str(error))
        finally:
            del self._lookups[name]
            self._started.discard(name)

    def _failed(self, name: str, error: str) -> None:
        if name not in self._retry_at:
            self._unlogged_failures[name] = error
        self._retry_at[name] = asyncio.get_running_loop().time() + RESOLVE_RETRY


async def resolve_host(host: str) -> list[str]:
    """Return the addresses of a host in the order in which they are tried. Raises OSError or ValueError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(canonical(str(address[0])) for _, _, _, _, address in found))


async def _choose_address(name: str) -> str:
    """Return the address of a host that Java takes. Raises OSError or ValueError."""
    with contextlib.suppress(OSError):
        socket.inet_aton(name)
        raise ValueError("is a number to some, and no address to brokers")  # 0x7f.1
    addresses = await resolve_host(name)
    if not name or not addresses:
        raise OSError("has no address")
    return choose_address(addresses)
