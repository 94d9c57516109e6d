"""Replaces hosts and ports in the bytes of a message: all else stays as it is.

In every message they stand together: node id (int32), host (string), port (int32).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.core.fields import plan_of, sliced
from proxy.core.schema import Field
from proxy.core.wire import Nonsense, compact_length, compact_string, int32_length, string, uvarint, uvarint_bytes

Address = tuple[str, int]
"""Host and port."""

Dial = Callable[[int], Address]
"""What clients dial in place of the node of this id."""

NO_NODES = b"\1"
"""A compact array of none."""

PADDING_TAGS = (127, 16_383, 2_097_151, 268_435_455)
"""The largest tag that takes one byte, two, three, four. Tags are given to fields in turn, from 0: so these are far
from any that Kafka knows, and it passes over those that it does not know (KIP-482)."""

_int32 = struct.Struct(">i")
_uint16 = struct.Struct(">H")


class Splice:
    """One body whose addresses are replaced, from its first to its last."""

    def __init__(self, body: bytes, dial: Dial, *, flexible: bool) -> None:
        self._body = body
        self._dial = dial
        self._flexible = flexible
        self._parts: list[bytes] = []
        self._copied = 0  # bytes of the body that are in the parts, or replaced by them

    def nodes(self, pos: int, field: Field) -> int:
        """Replace those of an array of nodes; return the offset after it."""
        assert field.layout is not None
        element = plan_of(field.layout)
        before = element.ordered[: field.layout.named["host"].index - 1]
        count, pos = (compact_length if self._flexible else int32_length)(self._body, pos)
        for _ in range(count):
            node_id = pos
            for reader in before:
                node_id = reader.skip(self._body, node_id)
            self.node(node_id)
            pos = element.whole.skip(self._body, pos)
        return pos

    def node(self, pos: int) -> None:
        """Replace the address after the node id at ``pos``. No host is no address: an error stands beside it."""
        (node_id,) = _int32.unpack_from(self._body, pos)
        start = pos + 4
        host, end = (compact_string if self._flexible else string)(self._body, start)
        _int32.unpack_from(self._body, end)
        if not host:
            return
        name, port = self._dial(node_id)
        self._parts += self._body[self._copied : start], self._text(name.encode()), _int32.pack(port)
        self._copied = end + 4

    def done(self, end: int | None = None) -> bytes:
        """The body as it is now, up to what was at ``end``."""
        return b"".join([*self._parts, memoryview(self._body)[self._copied : end]])

    def _text(self, text: bytes) -> bytes:
        return (uvarint_bytes(len(text) + 1) if self._flexible else _uint16.pack(len(text))) + text


def tagged(body: bytes, pos: int, nodes: Field, dial: Dial) -> bytes:
    """Replace the addresses in a tagged array of nodes; the tagged fields of the message begin at ``pos``."""
    fields, end = _fields(body, pos)
    there = [_replaced(field, nodes, dial) for field in fields]
    return body if there == fields else body[:pos] + _section(there) + body[end:]


def sealed(tail: bytes, *, nodes: Field, dial: Dial) -> bytes:
    """Replace the addresses in the array of nodes that ends a message: before its tagged fields, or as one of them.

    What comes out is as long as ``tail``: a tagged field that nobody knows fills it up. Where it is too long for that,
    or by one byte too short, the nodes are left out: clients then ask for metadata, as of a broker that names none.
    """
    array, start = b"", 0
    if nodes.tag is None:
        splice = Splice(tail, dial, flexible=True)
        start = splice.nodes(0, nodes)
        array = splice.done(start)
    fields, end = _fields(tail, start)
    there = [_replaced(field, nodes, dial) for field in fields]
    if array == tail[:start] and there == fields:
        return tail
    left_out = [field for field in fields if field.tag != nodes.tag]
    for before, kept in ((array, there), (array and NO_NODES, left_out)):
        section = _filled(kept, end - len(before))
        if section is not None:
            return before + section + tail[end:]
    raise Nonsense("tagged fields without room for another")


class _Tagged(NamedTuple):
    """One tagged field; ``whole``: with its tag and its size."""

    tag: int
    value: bytes
    whole: bytes


def _fields(body: bytes, pos: int) -> tuple[list[_Tagged], int]:
    """The tagged fields at ``pos``, and the offset after them."""
    count, pos = uvarint(body, pos)
    fields = []
    for _ in range(count):
        tag, start = uvarint(body, pos)
        size, start = uvarint(body, start)
        value = sliced(body, start, size)
        fields.append(_Tagged(tag, value, body[pos : start + size]))
        pos = start + size
    return fields, pos


def _replaced(field: _Tagged, nodes: Field, dial: Dial) -> _Tagged:
    """The same field, or if it is that of the nodes, with other addresses."""
    if field.tag != nodes.tag:
        return field
    splice = Splice(field.value, dial, flexible=True)
    splice.nodes(0, nodes)
    return _made(field.tag, splice.done())


def _made(tag: int, value: bytes) -> _Tagged:
    return _Tagged(tag, value, uvarint_bytes(tag) + uvarint_bytes(len(value)) + value)


def _section(fields: Sequence[_Tagged]) -> bytes:
    return uvarint_bytes(len(fields)) + b"".join(field.whole for field in fields)


def _filled(fields: Sequence[_Tagged], length: int) -> bytes | None:
    """A section of these fields that takes ``length`` bytes; None where there is none."""
    if len(section := _section(fields)) == length:
        return section
    highest = max((field.tag for field in fields), default=-1)
    for tag in PADDING_TAGS:
        if tag <= highest:
            continue
        gap = length - len(_section([*fields, _made(tag, b"")]))
        for more in range(5):  # bytes that the size takes beyond its first
            if gap >= more and len(section := _section([*fields, _made(tag, bytes(gap - more))])) == length:
                return section
    return None
