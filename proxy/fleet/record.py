"""What a sidecar tells of itself in the fleet's registry, as bytes; pure.

The key is ``sidecar/<node id>``. The value is JSON in the shape of a broker's registration in ZooKeeper (version 5,
KIP-584), with what is a sidecar's own beside it. Unknown keys are passed over; what version 4 does not have is empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from proxy.config.types import MAX_TAG_VALUE

VERSION = 5

MAX_RECORD = 1_000_000
"""Bytes of the longest record that is read: what a topic takes by default."""

MAX_TAGS = 200
"""Tags of one broker that are read: those that an operator may have, and as many that are built in."""

Text = Annotated[str, Meta(max_length=4 * MAX_TAG_VALUE)]

_KEY = re.compile(r"sidecar/(0|[1-9][0-9]{0,9})")
_ENDPOINT = re.compile(r"([^:/]+)://(?:\[([^\[\]]+)\]|([^:/\[\]]+)):([0-9]{1,5})")


class FeatureRange(Struct, frozen=True):
    """Versions of one feature, inclusive."""

    min_version: int
    max_version: int


class SidecarRecord(Struct, frozen=True):
    """One sidecar that runs. ``timestamp``: when it started, in milliseconds since 1970. ``jmx_port``: none."""

    listener_security_protocol_map: Mapping[str, Text]
    endpoints: tuple[Text, ...]
    """``NAME://host:port`` of each listener, as it is advertised."""
    host: Text | None
    port: int
    timestamp: str
    rack: Text | None = None
    jmx_port: int = -1
    version: int = VERSION
    features: Mapping[str, FeatureRange] = {}
    sidecar_version: Text = ""
    boot_id: Text = ""
    metrics_port: int = -1
    protocol_version_min: int = -1
    protocol_version_max: int = -1
    tags: Annotated[Mapping[Text, Text], Meta(max_length=MAX_TAGS)] = {}

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """What clients dial, by listener name in lower case."""
        found = (_ENDPOINT.fullmatch(endpoint) for endpoint in self.endpoints)
        return {one[1].lower(): (one[2] or one[3], int(one[4])) for one in found if one is not None}


_decoder = msgspec.json.Decoder(SidecarRecord)


def key_of(node_id: int) -> bytes:
    """Return the key of the sidecar before this broker."""
    return f"sidecar/{node_id}".encode()


def node_of(key: bytes) -> int | None:
    """Return the node id of a sidecar's key; None for any other key."""
    found = _KEY.fullmatch(key.decode("utf-8", "replace"))
    return int(found[1]) if found else None


def encode(record: SidecarRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode(value: bytes) -> SidecarRecord | None:
    """Read the value of a record; None for one that no sidecar wrote."""
    if len(value) > MAX_RECORD:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
