"""Adds the features of the fleet to the tagged fields of an ApiVersions response (KIP-584).

Source: ApiVersionsResponse.json, versions 3 to 5.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from proxy.core.wire import DecodeError, compact_length, compact_string, skip_tags, uvarint, uvarint_bytes
from proxy.features.view import FeaturesView

SUPPORTED_FEATURES, FINALIZED_FEATURES_EPOCH, FINALIZED_FEATURES = 0, 1, 2
"""The tags. An entry of the first has the minimum first, one of the last has the maximum first."""

THROTTLE_TIME = 4
"""Bytes before the tagged fields."""

UNKNOWN_EPOCH = -1

_int64 = struct.Struct(">q")
_levels = struct.Struct(">hh")


def add_features(end: bytes, view: FeaturesView) -> bytes:
    """Return the end of a response, from its ``ThrottleTimeMs`` on, with the features of ``view``.

    The broker's entries come first. They, its epoch and all other fields stay as they are. A feature that the broker
    has an entry for is not added. Raises one of ``TRUNCATED`` or DecodeError for malformed bytes.
    """
    fields, pos = _read_fields(end)
    supported = {name: (levels.min, levels.max) for name, levels in view.supported.items()}
    _add_entries(fields, SUPPORTED_FEATURES, supported)
    if view.epoch != UNKNOWN_EPOCH:
        epoch = fields.get(FINALIZED_FEATURES_EPOCH, _field(FINALIZED_FEATURES_EPOCH, _int64.pack(UNKNOWN_EPOCH)))
        if _int64.unpack(epoch[-_int64.size :])[0] < 0:
            fields[FINALIZED_FEATURES_EPOCH] = _field(FINALIZED_FEATURES_EPOCH, _int64.pack(view.epoch))
        finalized = {name: (levels.max, levels.min) for name, levels in view.finalized.items()}
        _add_entries(fields, FINALIZED_FEATURES, finalized)
    return b"".join(
        [end[:THROTTLE_TIME], uvarint_bytes(len(fields)), *dict(sorted(fields.items())).values(), end[pos:]]
    )


def _read_fields(end: bytes) -> tuple[dict[int, bytes], int]:
    """Return the tagged fields, each as it is with its tag and its size, and the offset after them."""
    count, pos = uvarint(end, THROTTLE_TIME)
    fields: dict[int, bytes] = {}
    last = -1
    for _ in range(count):
        start = pos
        tag, pos = uvarint(end, pos)
        size, pos = uvarint(end, pos)
        pos += size
        if pos > len(end):
            raise IndexError
        if tag <= last:
            raise DecodeError(f"tag {tag} after {last}")
        if tag == FINALIZED_FEATURES_EPOCH and size != _int64.size:
            raise DecodeError(f"an epoch of {size} bytes")
        fields[tag] = end[start:pos]
        last = tag
    return fields, pos


def _add_entries(fields: dict[int, bytes], tag: int, added: Mapping[str, tuple[int, int]]) -> None:
    """Add entries to the array in this tagged field, which may be missing."""
    count, entries, names = _read_features(fields.get(tag))
    more = [_encode_entry(name, *levels) for name, levels in added.items() if name.encode() not in names]
    if more:
        fields[tag] = _field(tag, uvarint_bytes(count + len(more) + 1) + entries + b"".join(more))


def _read_features(field: bytes | None) -> tuple[int, bytes, set[bytes | None]]:
    """Return the number of entries in a tagged field, their bytes and their names."""
    if field is None:
        return 0, b"", set()
    _, pos = uvarint(field, 0)
    _, pos = uvarint(field, pos)
    count, pos = compact_length(field, pos)
    start = pos
    names = set()
    for _ in range(count):
        name, pos = compact_string(field, pos)
        names.add(name)
        pos = skip_tags(field, pos + _levels.size)
    if count < 0 or pos != len(field):
        raise DecodeError(f"{count} features in {len(field)} bytes")
    return count, field[start:], names


def _encode_entry(name: str, first: int, second: int) -> bytes:
    raw = name.encode()
    return uvarint_bytes(len(raw) + 1) + raw + _levels.pack(first, second) + b"\0"


def _field(tag: int, value: bytes) -> bytes:
    return uvarint_bytes(tag) + uvarint_bytes(len(value)) + value
