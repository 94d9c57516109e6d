"""Hypothesis strategies: record sets, and values for every version of the messages of tests.tools.messages."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from hypothesis import strategies as st

from proxy.core.exchange import EMPTY_RECORD_SET, RecordSet
from tests.tools.messages import UNKNOWN_TAGS, Field, Made, Message, Values

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": INT16,
    "int32": INT32,
    "int64": st.one_of(st.integers(0, 3), INT64),
}
STRINGS = st.one_of(st.text(max_size=12), st.text("ab", min_size=100, max_size=300)).map(str.encode)
TAGS = st.lists(st.tuples(st.integers(20, 2**28), st.binary(max_size=150)), max_size=3, unique_by=lambda tag: tag[0])
PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(0, 5000).map(bytes))

OFFSET_AND_LENGTH = 12
CONTROL = 0x20

Batch = tuple[bytes, RecordSet]
"""A batch and what it would count for as the only one of its set."""


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A magic 2 batch, of data or control, compressed or not; its records are noise."""
    base_offset, producer_id = draw(SCALARS["int64"]), draw(SCALARS["int64"])
    epoch, sequence, count = draw(INT16), draw(INT32), draw(st.integers(0, 2**31 - 1))
    attributes = draw(st.integers(0, 0x7F))
    tail = struct.pack(
        ">hiqqqhii", attributes, draw(INT32), draw(INT64), draw(INT64), producer_id, epoch, sequence, count
    )
    tail = (
        draw(st.binary(min_size=4, max_size=4))
        + b"\2"
        + draw(st.binary(min_size=4, max_size=4))
        + tail
        + draw(PAYLOADS)
    )
    data = struct.pack(">qi", base_offset, len(tail)) + tail
    records = 0 if attributes & CONTROL else count
    return data, RecordSet(len(data), 1, records, 2, producer_id, epoch, sequence, base_offset)


@st.composite
def old_entries(draw: st.DrawFn) -> Batch:
    """An entry of a message set of magic 0 or 1; a compressed one is a wrapper."""
    magic = draw(st.integers(0, 1))
    offset, codec = draw(INT64), draw(st.sampled_from([0, 0, 1, 2, 3]))
    timestamp = struct.pack(">q", draw(INT64)) if magic else b""
    value = draw(PAYLOADS)
    body = struct.pack(">Ibb", 0, magic, codec) + timestamp + struct.pack(">ii", -1, len(value)) + value
    data = struct.pack(">qi", offset, len(body)) + body
    return data, RecordSet(len(data), 1, 1, magic, base_offset=offset, claimed=codec != 0)


@st.composite
def record_sets(draw: st.DrawFn) -> Made:
    """Null, empty, one batch, or several of any magic, the last one cut at times."""
    if draw(st.integers(0, 9)) == 0:
        return Made(draw(st.sampled_from([None, b""])), EMPTY_RECORD_SET)
    any_batch = st.one_of(batches(), old_entries())
    whole = draw(st.lists(any_batch, min_size=1, max_size=4))
    tail, _ = draw(any_batch)
    tail = tail[: draw(st.integers(0, len(tail) - 1))] if draw(st.booleans()) else b""
    if tail and draw(st.integers(0, 4)) == 0:
        whole = []
    data = b"".join(batch for batch, _ in whole) + tail
    if not whole:
        return Made(data, RecordSet(len(data), 0, 0))
    first = whole[0][1]
    sums = RecordSet(
        len(data),
        len(whole),
        sum(counted.records for _, counted in whole),
        first.magic,
        first.producer_id,
        first.producer_epoch,
        first.base_sequence,
        first.base_offset,
        any(counted.claimed for _, counted in whole),
    )
    return Made(data, sums)


@cache
def values(message: Message, version: int, *, unknown_tags: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Values for every field of one version; tagged fields are there or not."""
    return _struct(message.fields, version, unknown_tags and version >= message.flexible_since)


def _struct(fields: tuple[Field, ...], version: int, tags: bool) -> st.SearchStrategy[dict[str, Any]]:
    live = [field for field in fields if field.lives_in(version)]
    must = {field.name: _value(field, version, tags) for field in live if field.tag is None}
    may = {field.name: _value(field, version, tags) for field in live if field.tag is not None}
    if tags:
        may[UNKNOWN_TAGS] = TAGS
    return st.fixed_dictionaries(must, optional=may)


def _value(field: Field, version: int, tags: bool) -> st.SearchStrategy[Any]:
    if field.array:
        found: st.SearchStrategy[Any] = st.lists(
            _value(field._replace(array=False, nullable=False), version, tags), max_size=2
        )
    elif field.fields:
        found = _struct(field.fields, version, tags)
    elif field.type == "records":
        return record_sets()
    elif field.type == "uuid":
        found = st.binary(min_size=16, max_size=16)
    elif field.type == "string":
        found = STRINGS
    else:
        found = SCALARS[field.type]
    return st.none() | found if field.nullable else found


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """``data`` in pieces of one byte, or cut at random places."""
    if draw(st.integers(0, 3)) == 0:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with bytes changed, taken out or put in, or its end cut off."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        what = draw(st.integers(0, 4))
        if what == 0:
            out[at : at + 1] = draw(st.sampled_from([b"\0", b"\1", b"\x7f", b"\x80", b"\xff"]))
        elif what == 1:
            out[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0"]))
        elif what == 2:
            out[at:at] = draw(st.binary(max_size=8))
        elif what == 3:
            del out[at : at + draw(st.integers(1, 8))]
        else:
            del out[at:]
    return bytes(out)


__all__ = ["Values", "batches", "cuts", "damaged", "old_entries", "record_sets", "values"]
