"""The fleet's registry: which sidecars run, are fit and hold what, as each of them has read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DEAD_AFTER = 9000
"""Milliseconds without a record of a sidecar after which it counts as dead."""

HEARTBEAT = 3000


class Registration(NamedTuple):
    """A sidecar's own record. ``holds``: its claim of each partition of the groups' topic that it holds."""

    boot_id: str
    written_at: int
    is_running: bool
    is_fit: bool
    holds: Mapping[int, int]


class RegistryReader:
    """What one sidecar has read. It is some time behind, and does not change while Kafka is unreachable."""

    def __init__(self) -> None:
        self._read: dict[int, Registration] = {}
        self._read_at = 0
        self._refused: dict[int, int] = {}

    def read(self, registry: Mapping[int, Registration], now: int) -> None:
        self._read = dict(registry)
        self._read_at = now

    def refused(self, broker_id: int) -> None:
        """A sidecar's address has refused a connection: it is dead until there is a later record of it."""
        if broker_id in self._read:
            self._refused[broker_id] = self._read[broker_id].written_at

    def fit(self) -> dict[int, Mapping[int, int]]:
        """The sidecars that run and are fit, with what they hold."""
        return {
            broker_id: one.holds
            for broker_id, one in self._read.items()
            if one.is_running and one.is_fit
            if self._read_at - one.written_at < DEAD_AFTER and self._refused.get(broker_id) != one.written_at
        }

    def has(self, broker_id: int, boot_id: str) -> bool:
        """Whether the record of this run was read."""
        return broker_id in self._read and self._read[broker_id].boot_id == boot_id
