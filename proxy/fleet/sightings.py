"""Which sidecars run, from the records of the registry: pure, without a clock.

Times are those at which the brokers took a record in, so sidecars' own clocks do not matter. Every sidecar writes every
3 s, this one too, so the newest record of all tells what time it is. Where nothing can be written or read any more,
time stands still, and what was known stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxy.fleet.record import SidecarRecord, decode, node_of

HEARTBEAT = 3.0
"""Seconds between two records of a sidecar."""

DEAD_AFTER_MS = 9000
"""How much older than the newest record of all a sidecar's last one may be; then it does not run."""


MAX_KNOWN = 10_000
"""Sidecars that are kept; beyond it whoever wrote longest ago is forgotten."""


class Written(NamedTuple):
    """One record of the topic. ``value``: None deletes it.

    ``at``: milliseconds since 1970, of the broker's clock; None where the topic has the writers' clocks.
    """

    key: bytes
    value: bytes | None
    at: int | None


class Sighting(NamedTuple):
    """The last record of a sidecar. ``alive``: whether it still runs."""

    record: SidecarRecord
    alive: bool


class Sightings:
    """All records so far, the last of each sidecar."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[bytes, SidecarRecord, int]] = {}
        self._newest = 0

    def add(self, records: Iterable[Written]) -> None:
        """Take records in the order of the topic. Those that no sidecar wrote are passed over."""
        for key, value, written in records:
            node_id = node_of(key)
            if node_id is None:
                continue
            at = written or 0
            self._newest = max(self._newest, at)
            if value is None:
                self._last.pop(node_id, None)
                continue
            known = self._last.get(node_id)
            record = known[1] if known is not None and known[0] == value else decode(value)
            if record is None:
                continue
            self._last.pop(node_id, None)  # to its end: who wrote longest ago is its first
            self._last[node_id] = value, record, at
            if len(self._last) > MAX_KNOWN:
                del self._last[next(iter(self._last))]

    def now(self) -> Mapping[int, Sighting]:
        """By node id."""
        oldest = self._newest - DEAD_AFTER_MS
        return {node_id: Sighting(record, at >= oldest) for node_id, (_, record, at) in self._last.items()}
