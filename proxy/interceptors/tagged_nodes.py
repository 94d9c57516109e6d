"""Replaces the addresses in tagged fields, and in the end of a message whose length must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.core.fields import sliced
from proxy.core.schema import Field
from proxy.core.wire import DecodeError, uvarint, uvarint_bytes
from proxy.interceptors.address_walk import AddressWalk, program_of_array
from proxy.interceptors.broker_metadata import HostPort

AddressLookup = Callable[[int], HostPort]
"""Returns what clients dial in place of the node with this id."""

EMPTY_NODES = b"\1"
"""A compact array without elements."""

PADDING_TAGS = (127, 16_383, 2_097_151, 268_435_455)
"""The largest tags that take one, two, three and four bytes. Kafka numbers the tags of fields from 0, so these are far
from the ones in use. Clients skip unknown tags (KIP-482)."""


def rewrite_tagged_nodes(body: bytes, pos: int, nodes: Field, lookup: AddressLookup) -> bytes:
    """Replace the addresses in a tagged array of nodes. The tagged fields of the message begin at ``pos``."""
    fields, end = _read_tagged_fields(body, pos)
    rewritten = [_rewrite_tagged_field(field, nodes, lookup) for field in fields]
    return body if rewritten == fields else body[:pos] + _encode_tag_section(rewritten) + body[end:]


def rewrite_tail(tail: bytes, *, nodes: Field, lookup: AddressLookup) -> bytes:
    """Replace the addresses in the array of nodes at the end of a message: before its tagged fields, or as one of them.

    The result is as long as ``tail``. A tagged field that no client knows pads it. If the result would be too long, or
    one byte too short for padding, the nodes are left out. Clients then request metadata, as for a broker that sends no
    nodes.
    """
    array, start = b"", 0
    if nodes.tag is None:
        array, start = _replace_nodes(tail, nodes, lookup)
    fields, end = _read_tagged_fields(tail, start)
    rewritten = [_rewrite_tagged_field(field, nodes, lookup) for field in fields]
    if array == tail[:start] and rewritten == fields:
        return tail
    left_out = [field for field in fields if field.tag != nodes.tag]
    for before, kept in ((array, rewritten), (array and EMPTY_NODES, left_out)):
        section = _pad_tag_section(kept, end - len(before))
        if section is not None:
            return before + section + tail[end:]
    raise DecodeError("tagged fields without room for another")


class TaggedField(NamedTuple):
    """One tagged field. ``whole``: its bytes with tag and size."""

    tag: int
    value: bytes
    whole: bytes


def _read_tagged_fields(body: bytes, pos: int) -> tuple[list[TaggedField], int]:
    """Return the tagged fields at ``pos``, and the offset after them."""
    count, pos = uvarint(body, pos)
    fields = []
    for _ in range(count):
        tag, start = uvarint(body, pos)
        size, start = uvarint(body, start)
        value = sliced(body, start, size)
        fields.append(TaggedField(tag, value, body[pos : start + size]))
        pos = start + size
    return fields, pos


def _rewrite_tagged_field(field: TaggedField, nodes: Field, lookup: AddressLookup) -> TaggedField:
    """Return the field; if it holds the nodes, with other addresses."""
    if field.tag != nodes.tag:
        return field
    array, end = _replace_nodes(field.value, nodes, lookup)
    return _encode_tagged_field(field.tag, array + field.value[end:])


def _replace_nodes(body: bytes, nodes: Field, lookup: AddressLookup) -> tuple[bytes, int]:
    """Return what replaces the array of nodes at the beginning of ``body``, and the offset after it."""
    assert nodes.layout is not None
    return AddressWalk(program_of_array(nodes.layout, True)).replace(body, 0, lookup)


def _encode_tagged_field(tag: int, value: bytes) -> TaggedField:
    return TaggedField(tag, value, uvarint_bytes(tag) + uvarint_bytes(len(value)) + value)


def _encode_tag_section(fields: Sequence[TaggedField]) -> bytes:
    return uvarint_bytes(len(fields)) + b"".join(field.whole for field in fields)


def _pad_tag_section(fields: Sequence[TaggedField], length: int) -> bytes | None:
    """Return a section of these fields with exactly ``length`` bytes; None if that is impossible."""
    if len(section := _encode_tag_section(fields)) == length:
        return section
    highest = max((field.tag for field in fields), default=-1)
    for tag in PADDING_TAGS:
        if tag <= highest:
            continue
        gap = length - len(_encode_tag_section([*fields, _encode_tagged_field(tag, b"")]))
        for more in range(5):  # bytes of the size beyond its first one
            if (
                gap >= more
                and len(section := _encode_tag_section([*fields, _encode_tagged_field(tag, bytes(gap - more))]))
                == length
            ):
                return section
    return None
