"""The addresses that brokers see the sidecar connect from."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection

import structlog

from proxy.config import Listener
from proxy.fleet.host_resolver import resolve_host
from proxy.limits.model import canonical

UPSTREAM_TIMEOUT = 2.0
"""Seconds to resolve the host name of an upstream."""

DISCARD_PORT = 9
"""Any port will do: nothing is sent."""

log = structlog.get_logger(__name__)


class LocalAddresses:
    """Keeps the last known local addresses of each upstream while its name cannot be resolved."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] = {}
        self._failed: set[str] = set()

    async def resolve(self, listeners: Collection[Listener]) -> frozenset[str]:
        """Return every address that ``listeners`` may connect from. An upstream without one is logged, once."""
        hosts = {listener.upstream.host for listener in listeners if listener.upstream_source is None}
        await asyncio.gather(*map(self._look_up, hosts))
        own = (canonical(one.upstream_source) for one in listeners if one.upstream_source is not None)
        return frozenset(own).union(*(self._known.get(host, ()) for host in hosts))

    async def _look_up(self, host: str) -> None:
        try:
            async with asyncio.timeout(UPSTREAM_TIMEOUT):
                self._known[host] = _find_local_addresses(await resolve_host(host))
            self._failed.discard(host)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            if host not in self._failed:
                reason = getattr(error, "strerror", None) or str(error) or f"no answer within {UPSTREAM_TIMEOUT:.0f} s"
                log.warning("upstream_address_unknown", upstream=host, error=reason)
            self._failed.add(host)


def _find_local_addresses(addresses: list[str]) -> frozenset[str]:
    """Return the local addresses that the kernel chooses for ``addresses``. Raises OSError if it chooses none."""
    found, failure = set(), OSError("has no address")
    for address in addresses:
        try:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect((address, DISCARD_PORT))
                found.add(canonical(sock.getsockname()[0]))
        except OSError as error:  # no way to an address of this kind, so nothing is dialled there either
            failure = error
    if not found:
        raise failure
    return frozenset(found)
