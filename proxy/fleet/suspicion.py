"""Which sidecars have ended without a last record, found out by a connection before their silence shows it.

Silence counts after 9 s (``membership``), since a sidecar that is slow or paused is silent, too. Where nobody listens
at the address of a sidecar whose record is late, its process is gone: it counts as one that does not run, until a newer
record of it is read. Only a sidecar that holds a partition is dialled: others wait for this one alone.

A suspicion can be wrong, where something between the two sidecars refuses connections. The suspected one is then fenced
if it held the partition, reads so, writes a record, and counts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from proxy.fleet.host_resolver import resolve_host
from proxy.fleet.membership import HEARTBEAT_INTERVAL, Member, RegistryContent

RECORD_LATE_AFTER_MS = int(1000 * HEARTBEAT_INTERVAL) + 500
"""Milliseconds without a new record of a sidecar, after which it is dialled. One that runs but is late costs a
connection, no more."""

DIAL_TIMEOUT = 1.0
"""Seconds that an attempt may take for each address of its host. What does not answer is not suspected."""

log = structlog.get_logger(__name__)


class LateSidecar(NamedTuple):
    """A sidecar to be dialled at its first advertised address. ``seen``: the time of its last record."""

    node_id: int
    host: str
    port: int
    seen: int


class Suspicion:
    """Pure: which holders of partitions of ``log`` the sidecar ``own`` (its broker id) dials, and what follows from
    their refusals.

    ``now``: milliseconds, monotonic.
    """

    def __init__(self, own: int, log: str) -> None:
        self._own = own
        self._prefix = f"{log}/"
        self._newest = 0, 0  # the time of the newest record of all, and when it was read
        self._read: dict[int, tuple[int, int]] = {}  # the same of each sidecar
        self._refused: dict[int, int] = {}  # the time of the last record of each sidecar that has refused

    def read(self, content: RegistryContent, now: int) -> None:
        """Report that some of the registry was read."""
        newest = max(content.seen.values(), default=0)
        if newest != self._newest[0]:
            self._newest = newest, now
        for node_id in content.sidecars:
            if (seen := _seen(content, node_id)) != self._read.get(node_id, (-1, 0))[0]:
                self._read[node_id] = seen, now

    def late(self, content: RegistryContent, now: int, late_after_ms: int = RECORD_LATE_AFTER_MS) -> list[LateSidecar]:
        """Return the sidecars to be dialled now: those without a new record for ``late_after_ms``. None while no record
        at all is read. ``read`` had this content."""
        if now - self._newest[1] >= RECORD_LATE_AFTER_MS:
            return []
        return [
            LateSidecar(node_id, one.record.host, one.record.port, seen)
            for node_id, one in content.sidecars.items()
            if node_id != self._own and one.alive and one.record.host and one.record.port > 0
            if one.record.features and any(held.startswith(self._prefix) for held in one.record.holds)
            if now - self._read[node_id][1] >= late_after_ms
            if self._refused.get(node_id) != (seen := _seen(content, node_id))
        ]

    def refused(self, sidecar: LateSidecar) -> None:
        """Report that a sidecar has refused the connection."""
        self._refused[sidecar.node_id] = sidecar.seen

    def judge(self, content: RegistryContent) -> RegistryContent:
        """Return ``content`` with the suspected sidecars as ones that do not run."""
        ended = {
            node_id: Member(one.record, alive=False)
            for node_id, one in content.sidecars.items()
            if self._refused.get(node_id) == _seen(content, node_id)
        }
        return content._replace(sidecars={**content.sidecars, **ended}) if ended else content


class Dialler:
    """Dials sidecars on the running loop, each in a task of its own: a name that is slow to resolve delays no other."""

    def __init__(self, on_refused: Callable[[LateSidecar], None]) -> None:
        self._on_refused = on_refused
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def dial(self, sidecar: LateSidecar) -> None:
        """Call ``on_refused`` if the sidecar refuses. Nothing is done while it is dialled already."""
        if sidecar.node_id not in self._tasks:
            self._tasks[sidecar.node_id] = asyncio.create_task(self._dial(sidecar))

    async def close(self) -> None:
        """End all attempts."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self, sidecar: LateSidecar) -> None:
        try:
            if await refuses_connections(sidecar.host, sidecar.port):
                self._on_refused(sidecar)
        except Exception:
            log.exception("features_poller_failed")  # a mistake of ours
        finally:
            del self._tasks[sidecar.node_id]


def _seen(content: RegistryContent, node_id: int) -> int:
    return content.seen[f"sidecar/{node_id}"]


async def refuses_connections(host: str, port: int) -> bool:
    """Return whether all addresses of a host refuse a connection. Anything else, a timeout too, is no refusal."""
    try:
        addresses = await resolve_host(host)
    except (OSError, ValueError):
        return False
    for address in addresses:
        if not await _refuses(address, port):
            return False
    return bool(addresses)


async def _refuses(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(DIAL_TIMEOUT):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.transport.abort()
    return False
