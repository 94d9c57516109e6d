"""Produce, Fetch and ShareFetch as values, and a plain encoder for every version: what the walkers are held to.

The walkers are written by hand. The layouts here are Kafka's own definitions (``proxy.core.schema_table``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.core import schema
from proxy.core.exchange import RecordSet


class Field(NamedTuple):
    """One field: ``type`` names a scalar or, with ``fields``, a struct; ``array`` of them; ``tag`` if it is tagged."""

    name: str
    type: str
    since: int
    until: int
    array: bool
    fields: tuple[Field, ...]
    tag: int | None

    def lives_in(self, version: int) -> bool:
        return self.since <= version <= self.until


class Message(NamedTuple):
    """One message: its fields, the first flexible version, the newest version."""

    fields: tuple[Field, ...]
    flexible_since: int
    max_version: int


class Made(NamedTuple):
    """The value of a ``records`` field, and what a walker has to find in it."""

    data: bytes | None
    sums: RecordSet


Values = Mapping[str, Any]

UNKNOWN_TAGS = "unknown_tags"
"""Key of a struct's values for tagged fields that no definition knows: pairs of tag and bytes."""

SCALARS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}


def _message(key: int, *, response: bool) -> Message:
    parts = schema._definition(key, response)
    (_, newest), flexible_since, _ = parts[0]
    assert flexible_since is not None
    fields = (field for versions, _, defined in parts for field in _fields(defined, versions))
    return Message(tuple(fields), flexible_since, newest)


def _fields(defined: tuple[schema._Defined, ...], versions: schema.Version) -> tuple[Field, ...]:
    """``versions``: that the struct is in. Names are those of Python."""
    return tuple(
        Field(
            re.sub("(?<!^)(?=[A-Z])", "_", one.name).lower(),
            one.type,
            *(one.versions or versions),
            one.array,
            _fields(one.fields, one.versions or versions),
            one.tag,
        )
        for one in defined
    )


PRODUCE_REQUEST, PRODUCE_RESPONSE = _message(0, response=False), _message(0, response=True)
FETCH_REQUEST, FETCH_RESPONSE = _message(1, response=False), _message(1, response=True)
SHARE_FETCH_REQUEST, SHARE_FETCH_RESPONSE = _message(78, response=False), _message(78, response=True)


def encode(message: Message, version: int, values: Values) -> bytes:
    """Return the body. Tagged fields missing from ``values`` are left out; every other field must be there."""
    return _struct(message.fields, version, values, version >= message.flexible_since)


def uvarint(value: int) -> bytes:
    """Unsigned varint; not the one of ``proxy.core.wire``, which is tested with it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _struct(fields: tuple[Field, ...], version: int, values: Values, flexible: bool) -> bytes:
    live = [field for field in fields if field.lives_in(version)]
    out = b"".join(_value(field, version, values[field.name], flexible) for field in live if field.tag is None)
    if not flexible:
        return out
    tags: dict[int, bytes] = dict(values.get(UNKNOWN_TAGS, ()))
    tags |= {
        field.tag: _value(field, version, values[field.name], flexible)
        for field in live
        if field.tag is not None and field.name in values
    }
    section = b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tags.items()))
    return out + uvarint(len(tags)) + section


def _value(field: Field, version: int, value: Any, flexible: bool) -> bytes:
    if field.array:
        if value is None:
            return length(None, flexible, 4)
        element = field._replace(array=False)
        return length(len(value), flexible, 4) + b"".join(_value(element, version, one, flexible) for one in value)
    if field.fields:
        return _struct(field.fields, version, value, flexible)
    if field.type in SCALARS:
        return struct.pack(">" + SCALARS[field.type], value)
    if field.type == "uuid":
        return bytes(value)
    data = value.data if isinstance(value, Made) else value
    size = 2 if field.type == "string" else 4
    return length(None if data is None else len(data), flexible, size) + (data or b"")


def length(count: int | None, flexible: bool, size: int) -> bytes:
    """A length; None is null."""
    if flexible:
        return uvarint(0 if count is None else count + 1)
    return (-1 if count is None else count).to_bytes(size, "big", signed=True)
