"""Which topics are protected.

Sidecars keep their own state in topics of the cluster; whoever writes these writes what all sidecars believe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PREFIXES = (b"brokerside-", b"__brokerside_")
"""How the names of the sidecars' own topics begin."""

STEM = b"brokerside"
"""Part of each of these prefixes."""

REGISTRY = "__brokerside_registry"
"""The topic in which each sidecar says what it is."""

TOPIC_AUTHORIZATION_FAILED = 29
"""Kafka's error code of what is refused because of its topic."""

MAX_TOPIC_NAME = 249
"""Bytes of the longest name that a topic can have (``Topic.MAX_NAME_LENGTH``). A longer one is passed over."""

MAX_CHECKED_ITEMS = 1000
"""Partitions, or topics and resources, of a refused request that are answered; one with more ends its connection."""

Partitions = Sequence[tuple[bytes, Sequence[int]]]
"""Topics of a Produce, each a name or the 16 bytes of an id, with their partitions."""


class ProtectedTopics:
    """``names``: topics beside those with ``PREFIXES``. ``ids``: the topic ids known so far, 16 bytes each; changed in
    place."""

    __slots__ = ("ids", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(name.encode() for name in names if not name.encode().startswith(PREFIXES))
        self.ids: set[bytes] = set()

    def has(self, name: bytes) -> bool:
        """Whether the topic of this name is one of them."""
        return name.startswith(PREFIXES) or name in self.names

    def mentioned(self, body: bytes) -> bool:
        """Whether ``body`` may name one: cheap, and never wrong where it says no."""
        return STEM in body or any(name in body for name in (*self.names, *self.ids))
