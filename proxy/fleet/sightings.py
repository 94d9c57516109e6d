"""Which sidecars run, from the records of the registry: pure, without a clock.

Times are those at which the brokers took a record in, so sidecars' own clocks do not matter. Every sidecar writes every
3 s, this one too, so the newest record of all tells what time it is. Where nothing can be written or read any more,
time stands still, and what was known stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.fleet.record import SidecarRecord, decode, node_of

HEARTBEAT = 3.0
"""Seconds between two records of a sidecar."""

DEAD_AFTER_MS = 9000
"""How much older than the newest record of all a sidecar's last one may be; then it does not run."""


MAX_KNOWN = 1000
"""Sidecars that are kept; a record of one more is dropped. Kafka's clusters have fewer brokers."""

MAX_BYTES = 4_194_304
"""Bytes of the records that are kept; one that does not fit is dropped. A usual one has 2,000."""


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
    """All records so far, the last of each sidecar. ``dropped``: records that were not taken, by reason.

    ``brokers``: ids that the cluster has, or had; those of others are dropped. None: it is not known yet. ``signed``:
    only sidecars can have written them; then a record of an earlier run of a living sidecar is somebody's repetition.
    """

    def __init__(self, *, signed: bool = False) -> None:
        self._signed = signed
        self.brokers: Collection[int] | None = None
        self.dropped: Counter[str] = Counter()
        self._last: dict[int, tuple[bytes, SidecarRecord, int]] = {}
        self._bytes = 0
        self._newest = 0

    def add(self, records: Iterable[Written]) -> None:
        """Take records in the order of the topic. Those that no sidecar wrote are passed over."""
        brokers = self.brokers
        if brokers is not None:
            for gone in [node_id for node_id in self._last if node_id not in brokers]:
                self._forget(gone)
        for key, value, written in records:
            found = node_of(key)
            if found is None:
                self.dropped["key"] += 1
                continue
            node_id, at = found, written or 0
            self._newest = max(self._newest, at)
            if brokers is not None and node_id not in brokers:
                self.dropped["unknown_broker"] += 1
                continue
            if value is None:
                self._forget(node_id)
                continue
            known = self._last.get(node_id)
            if known is not None and known[0] == value:
                self._last[node_id] = value, known[1], at
                continue
            if self._bytes + len(value) - (len(known[0]) if known else 0) > MAX_BYTES or (
                known is None and len(self._last) >= MAX_KNOWN
            ):
                self.dropped["too_much"] += 1
                continue
            record = decode(value)
            if record is None:
                self.dropped["malformed"] += 1
                continue
            if (
                self._signed
                and known is not None
                and self._is_alive(known[2])
                and _started(record) < _started(known[1])
            ):
                self.dropped["repeated"] += 1
                continue
            self._forget(node_id)
            self._last[node_id] = value, record, at
            self._bytes += len(value)

    def now(self) -> Mapping[int, Sighting]:
        """By node id."""
        return {node_id: Sighting(record, self._is_alive(at)) for node_id, (_, record, at) in self._last.items()}

    def _is_alive(self, at: int) -> bool:
        return at >= self._newest - DEAD_AFTER_MS

    def _forget(self, node_id: int) -> None:
        known = self._last.pop(node_id, None)
        if known is not None:
            self._bytes -= len(known[0])


def _started(record: SidecarRecord) -> int:
    """When the sidecar started, in milliseconds since 1970; 0 where it does not say."""
    return int(record.timestamp) if record.timestamp.isascii() and record.timestamp.isdigit() else 0
