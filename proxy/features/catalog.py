"""The features of this release, and the levels that it supports.

Source: KIP-584, "supported features" and "feature version deprecation".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PREFIX = "brokerside."
"""The names of the fleet's features begin with it. All others are the brokers' own."""

AUDIT_EVENT_SCHEMA = "brokerside.audit.event.schema"
COORDINATOR_PROTOCOL = "brokerside.coordinator.protocol"
BROKER_METADATA = "brokerside.broker.metadata"
QUOTA_IP = "brokerside.quota.ip"

MAX_LEVEL = 32_767
"""Levels are int16 in Kafka's protocol."""


class LevelRange(NamedTuple):
    """Levels of a feature, inclusive."""

    min: int
    max: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.min <= level <= self.max

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


SUPPORTED: Mapping[str, LevelRange] = {
    AUDIT_EVENT_SCHEMA: LevelRange(1, 2),
    COORDINATOR_PROTOCOL: LevelRange(1, 2),
    BROKER_METADATA: LevelRange(1, 1),
    QUOTA_IP: LevelRange(1, 1),
}
"""The levels that this release supports, by feature."""

RELEASE_MIN_LEVELS: Mapping[str, int] = dict.fromkeys(SUPPORTED, 1)
"""The lowest finalized level of each feature that this release wants. It is raised as soon as every participant
supports it, never on request."""

READER_FEATURES = frozenset({AUDIT_EVENT_SCHEMA})
"""The features that readers take part in. On all others the sidecars agree alone."""

UNSAFE_TO_LEAVE: Mapping[str, int] = {COORDINATOR_PROTOCOL: 1}
"""By feature, the lowest level that something needs which stops or is lost at lower ones, 0 among them: only an unsafe
downgrade goes below it. Without a level of the coordinator no sidecar coordinates groups."""

MEANINGS: Mapping[str, Mapping[int, str]] = {
    AUDIT_EVENT_SCHEMA: {
        1: "audit events of every kind but `rollup`",
        2: "audit events of the kind `rollup`, too (`audit.mode: rollup`)",
    },
    COORDINATOR_PROTOCOL: {
        1: "private apis 30001, 30002 and 30010 to 30012, and version 1 of the records of groups",
        2: "StopFetcher names partitions: consumers that lose nothing are not stopped",
    },
    BROKER_METADATA: {1: "every sidecar answers BrokerMetadata version 0"},
    QUOTA_IP: {1: "every sidecar takes the quotas of IP addresses from the cluster"},
}
"""What each finalized maximum means; `brokerside features describe` shows it."""


def check(
    supported: Mapping[str, LevelRange], min_levels: Mapping[str, int], meanings: Mapping[str, Mapping[int, str]]
) -> None:
    """Raise ValueError for a catalog that contradicts itself."""
    for name, levels in supported.items():
        if not 1 <= levels.min <= levels.max <= MAX_LEVEL:
            raise ValueError(f"{name}: supports {levels} (allowed: 1 to {MAX_LEVEL}, the minimum first)")
        if not name.startswith(PREFIX):
            raise ValueError(f"{name}: a feature of the fleet begins with {PREFIX}")
        if min_levels.get(name, 0) not in levels:
            raise ValueError(f"{name}: the lowest finalized level {min_levels.get(name)} is not in {levels}")
        if missing := set(range(levels.min, levels.max + 1)) - meanings.get(name, {}).keys():
            raise ValueError(f"{name}: no meaning of level {min(missing)}")


check(SUPPORTED, RELEASE_MIN_LEVELS, MEANINGS)
