"""Which topics are protected.

Sidecars keep their own state in topics of the cluster; whoever writes these writes what all sidecars believe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

PREFIXES = (b"brokerside-", b"__brokerside_")
"""How the names of the sidecars' own topics begin."""

STEM = b"brokerside"
"""Part of each of these prefixes."""

REGISTRY = "__brokerside_registry"
"""The topic in which each sidecar says what it is."""

FEATURES = "__brokerside_features"
"""The topic of the finalized levels of the fleet's features."""

GROUPS = "__brokerside_groups"
"""The topic of the consumer groups that sidecars coordinate."""

TOPIC_AUTHORIZATION_FAILED = 29
"""Kafka's error code of what is refused because of its topic."""

MAX_TOPIC_NAME = 249
"""Bytes of the longest name that a topic can have (``Topic.MAX_NAME_LENGTH``). A longer one is passed over."""

MAX_VARINT = 5
"""Bytes of the longest varint."""

MAX_OCCURRENCES = 1000
"""Places in a message that are looked at for the name of a protected topic; one with more is taken to name one."""

MAX_CHECKED_ITEMS = 1000
"""Partitions, or topics and resources, of a refused request that are answered; one with more ends its connection."""

_is_topic_name = re.compile(rb"[a-zA-Z0-9._-]+").fullmatch

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

    def named(self, body: bytes, *, flexible: bool) -> bool:
        """Whether ``body`` has a string that is the name of one, or the id of one. Never wrong where it says no.

        The message is not read: a name counts if the bytes before it can be its length. ``flexible``: whether lengths
        are varints. Takes a few milliseconds for each megabyte, whatever the bytes are.
        """
        if any(topic_id in body for topic_id in self.ids):
            return True
        left = MAX_OCCURRENCES
        for name, is_prefix in (*((prefix, True) for prefix in PREFIXES), *((name, False) for name in self.names)):
            at = body.find(name)
            while at >= 0:
                left -= 1
                if not left or _begins_string(body, at, len(name), is_prefix, flexible):
                    return True
                at = body.find(name, at + 1)
        return False


def _begins_string(body: bytes, at: int, size: int, is_prefix: bool, flexible: bool) -> bool:
    """Return whether a topic name of ``size`` bytes, or with ``is_prefix`` a longer one, may begin at ``at``."""
    for length in _lengths_before(body, at, flexible):
        if length == size:
            return True
        if is_prefix and size < length <= MAX_TOPIC_NAME and _is_topic_name(body[at : at + length]):
            return True
    return False


def _lengths_before(body: bytes, at: int, flexible: bool) -> Iterator[int]:
    """Give all lengths that the bytes before ``at`` can be; of a varint where it begins is not known."""
    if not flexible:
        if at >= 2:
            yield body[at - 2] << 8 | body[at - 1]
        return
    value = 0
    for place, byte in enumerate(reversed(body[max(at - MAX_VARINT, 0) : at])):
        if (byte < 128) != (place == 0):  # all bytes but the last have the highest bit
            return
        value = value << 7 | byte & 127
        yield (value & 0xFFFFFFFF) - 1  # Java drops what is above 32 bits
