"""What a sidecar writes about itself to the fleet's registry, as bytes (pure).

The key is ``sidecar/<node id>``. The value is JSON in the shape of a broker's registration in ZooKeeper (version 5,
KIP-584), with further fields of a sidecar. Unknown fields are ignored; fields that version 4 does not have are empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from proxy.config.types import MAX_TAG_VALUE
from proxy.config.values import INT32_MAX, MAX_PORT
from proxy.features.records import SupportedRange

SIDECAR_RECORD_VERSION = 5

MAX_RECORD = 700_000
"""Bytes of the longest record that is read: 100 tags of an operator, each character escaped, are 640,000."""

MAX_ENDPOINTS = 64
"""Listeners of one sidecar that are written and read."""

MAX_TAGS = 200
"""Tags of one broker that are read: those that an operator may have, and as many that are built in."""

MAX_HOLDS = 10_000
"""Partitions in ``holds`` of one sidecar."""

RUNNING, STOPPED = "running", "stopped"
"""States of a member. A record with the second one is the last of its run."""

MAX_TEXT = 4 * MAX_TAG_VALUE
"""Characters of any text that is written and read; in UTF-8 it fits into a string of Kafka's."""

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Host = Annotated[str, Meta(pattern=r"^[!-~]{1,255}\Z")]
Number = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Port = Annotated[int, Meta(ge=-1, le=MAX_PORT)]

Epoch = Annotated[int, Meta(ge=-1, le=2**63 - 1)]

_KEY = re.compile(r"sidecar/(0|[1-9][0-9]{0,9})")
_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Za-z:.%_-]{1,255})\]|([A-Za-z0-9_.-]{1,255})):([0-9]{1,5})")


class SidecarRecord(Struct, frozen=True):
    """One sidecar that runs. ``timestamp``: when it started, in milliseconds since 1970. ``jmx_port``: none."""

    listener_security_protocol_map: Annotated[Mapping[Text, Text], Meta(max_length=MAX_ENDPOINTS)]
    endpoints: Annotated[tuple[Text, ...], Meta(max_length=MAX_ENDPOINTS)]
    """``NAME://host:port`` of each listener, as it is advertised."""
    host: Host | None
    port: Port
    timestamp: Text
    rack: Text | None = None
    jmx_port: Port = -1
    version: Number = SIDECAR_RECORD_VERSION
    features: Annotated[Mapping[Text, SupportedRange], Meta(max_length=MAX_TAGS)] = {}
    sidecar_version: Text = ""
    boot_id: Text = ""
    metrics_port: Port = -1
    protocol_version_min: Number = -1
    protocol_version_max: Number = -1
    tags: Annotated[Mapping[Text, Text], Meta(max_length=MAX_TAGS)] = {}
    state: Literal["running", "stopped"] = "running"
    applied_epoch: Epoch = -1
    """The last epoch of finalized levels that all processes of this sidecar follow."""
    effective: Annotated[Mapping[Text, Number], Meta(max_length=MAX_TAGS)] = {}
    """The level in use of each feature; 0: none."""
    undelivered_above: Epoch = 0
    """Audit events above the finalized level that are not on the topic yet."""
    groups_above: Epoch = 0
    """Groups that it coordinates, and that still work above the finalized level."""
    holds: Annotated[Mapping[Text, Epoch], Meta(max_length=MAX_HOLDS)] = {}
    """Partitions that it alone writes to (``proxy.fleet.election``): its claim of each, by ``<log>/<partition>``."""
    coordinates: bool | UnsetType = UNSET
    """Whether it may hold partitions of the topic of groups. Not written if it may not, as before there was such a
    topic."""

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """What clients dial, by listener name in lower case; endpoints that are none are left out."""
        found = (_ENDPOINT.fullmatch(endpoint) for endpoint in self.endpoints)
        addresses = {one[1].lower(): (one[2] or one[3], int(one[4])) for one in found if one is not None}
        return {name: (host, port) for name, (host, port) in addresses.items() if 1 <= port <= MAX_PORT}


_decoder = msgspec.json.Decoder(SidecarRecord)


def record_key(node_id: int) -> bytes:
    """Return the key of the record of the sidecar in front of the broker ``node_id``."""
    return f"sidecar/{node_id}".encode()


def node_id_of_key(key: bytes) -> int | None:
    """Return the node id in the key of a sidecar's record; None for any other key."""
    found = _KEY.fullmatch(key.decode("utf-8", "replace"))
    return int(found[1]) if found and int(found[1]) <= INT32_MAX else None


def encode(record: SidecarRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode(value: bytes) -> SidecarRecord | None:
    """Decode the value of a record; None if no sidecar can have written it."""
    if len(value) > MAX_RECORD:
        return None
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
