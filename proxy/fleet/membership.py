"""Which sidecars run, from the records of the registry. Pure, without a clock.

A record's time is when the broker appended it, so the clocks of sidecars do not matter. Every sidecar writes every 3 s,
this one too, so the time of the newest record is the current time. While nothing can be written or read, the membership
stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.fleet.sidecar_record import SidecarRecord, decode, node_id_of_key

HEARTBEAT_INTERVAL = 3.0
"""Seconds between two records of a sidecar."""

MEMBER_DEAD_AFTER_MS = 9000
"""Milliseconds. A sidecar runs as long as its last record is not that much older than the newest record of all."""


MAX_MEMBERS = 1000
"""Most sidecars; records of further ones are dropped. Kafka's clusters have fewer brokers."""

MAX_MEMBER_BYTES = 4_194_304
"""Most bytes of all records that are kept; a record beyond it is dropped. A usual record has 2,000."""


class RegistryRecord(NamedTuple):
    """One record of the registry's topic. ``value``: None for a tombstone.

    ``at``: milliseconds since 1970, by the broker's clock; None where the topic has the writers' timestamps.
    """

    key: bytes
    value: bytes | None
    at: int | None


class Member(NamedTuple):
    """A sidecar's last record. ``alive``: whether the sidecar still runs."""

    record: SidecarRecord
    alive: bool


class Membership:
    """The last record of each sidecar. ``dropped``: numbers of records that were dropped, by reason.

    ``brokers``: ids of brokers that the cluster has, or had; records of other brokers are dropped. None: not known yet.
    ``signed``: records are signed. A record of an earlier run of a sidecar that still runs is then dropped as a replay.
    """

    def __init__(self, *, signed: bool = False) -> None:
        self._signed = signed
        self.brokers: Collection[int] | None = None
        self.dropped: Counter[str] = Counter()
        self._last: dict[int, tuple[bytes, SidecarRecord, int]] = {}
        self._bytes = 0
        self._newest = 0

    def apply(self, records: Iterable[RegistryRecord]) -> None:
        """Apply records in the order of the topic. Records that no sidecar can have written are dropped."""
        brokers = self.brokers
        if brokers is not None:
            for gone in [node_id for node_id in self._last if node_id not in brokers]:
                self._forget(gone)
        for key, value, written in records:
            found = node_id_of_key(key)
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
            if self._bytes + len(value) - (len(known[0]) if known else 0) > MAX_MEMBER_BYTES or (
                known is None and len(self._last) >= MAX_MEMBERS
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

    def members(self) -> Mapping[int, Member]:
        """Return all sidecars by node id."""
        return {node_id: Member(record, self._is_alive(at)) for node_id, (_, record, at) in self._last.items()}

    def _is_alive(self, at: int) -> bool:
        return at >= self._newest - MEMBER_DEAD_AFTER_MS

    def _forget(self, node_id: int) -> None:
        known = self._last.pop(node_id, None)
        if known is not None:
            self._bytes -= len(known[0])


def _started(record: SidecarRecord) -> int:
    """Return when the sidecar started, in milliseconds since 1970; 0 if its record does not say."""
    return int(record.timestamp) if record.timestamp.isascii() and record.timestamp.isdigit() else 0
