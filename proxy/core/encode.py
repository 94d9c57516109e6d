"""Writes messages from values, by the same layouts that ``proxy.core.struct`` reads them by."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from proxy.core.fields import FORMATS
from proxy.core.schema import Field, Layout
from proxy.core.wire import MAX_STRING, uvarint_bytes

NO_TAGGED_FIELDS = b"\0"
NULL_STRUCT, PRESENT_STRUCT = b"\xff", b"\1"
"""What a struct that may be null begins with."""


def encode(made: Layout, values: Mapping[str, Any]) -> bytes:
    """Return a struct of these values, by the names of its fields; without tagged fields.

    Fields that are not among them are null where they can be, else empty or zero. Texts are str or bytes, topic ids 16
    bytes. Raises ValueError for a text longer than Kafka's may be, struct.error for a number out of range.
    """
    parts = [_field(field, made.flexible, values.get(field.name)) for field in made.ordered]
    return b"".join(parts) + (NO_TAGGED_FIELDS if made.flexible else b"")


def _field(field: Field, flexible: bool, value: Any) -> bytes:
    if field.array:
        if value is None and field.nullable:
            return _length(None, ">i", flexible)
        items = value or ()
        return _length(len(items), ">i", flexible) + b"".join(_one(field, flexible, item) for item in items)
    if field.type == "string" and value is None and field.nullable:
        return _length(None, ">h", flexible)
    if field.type == "struct" and field.nullable:
        return NULL_STRUCT if value is None else PRESENT_STRUCT + _one(field, flexible, value)
    return _one(field, flexible, value)


def _one(field: Field, flexible: bool, value: Any) -> bytes:
    match field.type:
        case "struct":
            assert field.layout is not None
            return encode(field.layout, value or {})
        case "string":
            raw = value.encode() if isinstance(value, str) else value or b""
            if len(raw) > MAX_STRING:
                raise ValueError(f"a text of {len(raw)} bytes (allowed: {MAX_STRING})")
            return _length(len(raw), ">h", flexible) + raw
        case "bytes" | "records":
            return _length(len(value or b""), ">i", flexible) + (value or b"")
        case "uuid":
            return value or bytes(16)
        case kind:
            return struct.pack(f">{FORMATS[kind]}", value or 0)


def _length(length: int | None, width: str, flexible: bool) -> bytes:
    if flexible:
        return uvarint_bytes(0 if length is None else length + 1)
    return struct.pack(width, -1 if length is None else length)
