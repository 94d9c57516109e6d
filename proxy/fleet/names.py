"""Names that quotas of addresses are stored under, read as brokers do; host names are looked up once, as there."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Collection
from itertools import islice

import structlog

from proxy.limits.model import canonical

TIMEOUT = 2.0
"""Seconds that a look waits for names it has never asked for; slower ones, and retries, are for a later look."""

LOOK_UPS = 2
"""At a time, of the four threads that uvloop has for blocking work."""

RETRY = 60.0
"""Seconds until a name that has no address is looked up again."""

SHOWN = 5
"""Names that a line of the log has, of those that it is about."""

LONGEST_IPV4 = 15
"""Characters that Java reads as numbers; what is longer is a host name."""

log = structlog.get_logger(__name__)


class Names:
    """Addresses by name, kept for as long as the name is asked for. A slow name makes no other one wait for it."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # of those asked for, whose turn it is
        self._untold: dict[str, str] = {}  # why a name has no address
        self._turn = asyncio.Semaphore(LOOK_UPS)

    async def resolve(self, names: Collection[str]) -> dict[str, str]:
        """Return the addresses known by now, in their canonical form.

        What has none is left out and logged once, all that is new in one line.
        """
        self._known = {name: address for name, address in self._known.items() if name in names}
        self._retry_at = {name: at for name, at in self._retry_at.items() if name in names}
        self._untold = {name: error for name, error in self._untold.items() if name in names}
        now, new = asyncio.get_running_loop().time(), {}
        for name in names:
            if name not in self._known and name not in self._asked and self._retry_at.get(name, now) <= now:
                self._asked[name] = asyncio.create_task(self._look_up(name))
                if name not in self._retry_at:
                    new[name] = self._asked[name]
        if new:
            await asyncio.wait(new.values(), timeout=TIMEOUT)
        for name in new:
            if name in self._begun:
                self._failed(name, "no answer yet")
        if self._untold:
            first = dict(islice(self._untold.items(), SHOWN))
            log.warning("quota_names_unknown", names=len(self._untold), first=first)
            self._untold.clear()
        return dict(self._known)

    def close(self) -> None:
        """Look nothing up any more."""
        for task in self._asked.values():
            task.cancel()

    async def _look_up(self, name: str) -> None:
        try:
            async with self._turn:
                self._begun.add(name)
                self._known[name] = await _address_of(name)
            self._retry_at.pop(name, None)
        except (OSError, ValueError) as error:  # ValueError: it cannot even be asked for
            self._failed(name, getattr(error, "strerror", None) or str(error))
        finally:
            del self._asked[name]
            self._begun.discard(name)

    def _failed(self, name: str, error: str) -> None:
        if name not in self._retry_at:
            self._untold[name] = error
        self._retry_at[name] = asyncio.get_running_loop().time() + RETRY


def literal(name: str) -> str | None:
    """Return the address that ``name`` is, as Java reads it, in its canonical form; None where it has to be looked up.

    Other than here, to Java ``[::1]`` is an address, and so is ``010.0.0.7`` or ``10.7``: numbers are decimal, and the
    last one fills what is left. Measured with Java 17 and 25.
    """
    bracketed = name.startswith("[") and name.endswith("]") and ":" in name
    with contextlib.suppress(ValueError):
        return canonical(name[1:-1] if bracketed else name)
    parts = name.split(".")
    if len(name) > LONGEST_IPV4 or len(parts) > 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    *first, last = map(int, parts)
    with contextlib.suppress(ValueError, OverflowError):
        return str(ipaddress.IPv4Address(bytes(first) + last.to_bytes(4 - len(first), "big")))
    return None


async def addresses_of(host: str) -> list[str]:
    """Return the addresses of a host in the order in which they are dialled. Raises OSError or ValueError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(canonical(str(address[0])) for _, _, _, _, address in found))


async def _address_of(name: str) -> str:
    """Return the address that Java chooses: IPv4 before IPv6, then the first."""
    with contextlib.suppress(OSError):
        socket.inet_aton(name)
        raise ValueError("is a number to some, and no address to brokers")  # 0x7f.1
    addresses = await addresses_of(name)
    if not name or not addresses:
        raise OSError("has no address")
    return min(addresses, key=lambda address: ":" in address)
