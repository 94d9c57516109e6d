"""The emptiest valid request of any api: arrays of nothing, numbers of zero."""

from __future__ import annotations

import struct

from proxy.core.apis import request_is_flexible
from proxy.core.fields import FORMATS
from proxy.core.schema import Field, Layout, layout
from tests.tools.random_messages import length

ASKS_FOR_AN_ANSWER = {"Acks": 1}


def blank(key: int, version: int) -> bytes:
    """The request after its client id; that of a Produce asks for an answer."""
    tags = b"\0" if request_is_flexible(key, version) else b""
    return tags + _struct(layout(key, version, response=False))


def _struct(made: Layout) -> bytes:
    return b"".join(_field(field, made.flexible) for field in made.ordered) + (b"\0" if made.flexible else b"")


def _field(field: Field, flexible: bool) -> bytes:
    if field.array:
        return length(0, flexible, 4)
    match field.type:
        case "struct":
            assert field.layout is not None
            return (b"\x01" if field.nullable else b"") + _struct(field.layout)
        case "string":
            return length(0, flexible, 2)
        case "bytes" | "records":
            return length(0, flexible, 4)
        case "uuid":
            return bytes(16)
        case _:
            return struct.pack(f">{FORMATS[field.type]}", ASKS_FOR_AN_ANSWER.get(field.name, 0))
