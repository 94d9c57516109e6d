"""The topics in which sidecars keep their common state: their names and settings, and what a record of one is (pure).

All are compacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxy.config import hmac_keys
from proxy.core.protected_topics import FEATURES, GROUPS, REGISTRY

BOUNDED_BY: Mapping[str, str] = {
    # The broker decompresses the batches of writers, and holds them to its limit. A reader has no such limit:
    # librdkafka would decompress a batch of some kilobytes to any number of megabytes.
    "compression.type": "uncompressed",
    "max.message.bytes": "1048576",
}
"""Configurations that are also set on a topic that exists."""

CREATED_WITH: Mapping[str, str] = {
    **BOUNDED_BY,
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    # Each sidecar writes often, and reads all there is when it starts: what is old has to go soon.
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Configurations of a topic that a sidecar creates."""

MAX_REPLICATION = 3
"""Replicas of a topic, if there are as many brokers; two of them must be in sync."""


class TopicSpec(NamedTuple):
    """One of these topics. ``label``: is signed with its records, see ``proxy.core.authentication``.

    ``partitions``: with which it is created.
    """

    name: str
    label: str
    partitions: int = 1


REGISTRY_TOPIC = TopicSpec(REGISTRY, hmac_keys.REGISTRY)
"""Each sidecar, and each job that reads what sidecars write, says there what it is."""

FEATURES_TOPIC = TopicSpec(FEATURES, hmac_keys.FEATURES)
"""The finalized levels of the fleet's features (``proxy.features.records``)."""

GROUPS_TOPIC = TopicSpec(GROUPS, hmac_keys.GROUPS, partitions=12)
"""The consumer groups that sidecars coordinate (``proxy.coordinator.records``)."""


class TopicRecord(NamedTuple):
    """One record. ``value``: None for a tombstone.

    ``at``: milliseconds since 1970, by the broker's clock; None where the topic has the writers' timestamps.
    """

    key: bytes
    value: bytes | None
    at: int | None
