"""How the fields of a struct are read, or passed over, in the bytes of a message: made from its layout, once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from proxy.core.accessors import Accessors, Records, printed_id
from proxy.core.schema import SIZES, Field, Layout
from proxy.core.wire import MAX_STRING, DecodeError, compact_length, int16_length, int32_length, skip_tags
from proxy.errors import Side

NameOf = Callable[[bytes], str | None]
"""Topic name of a topic id (16 raw bytes), or None where unknown."""

FORMATS: Mapping[str, str] = MappingProxyType(
    {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}
)
"""Numbers, as the ``struct`` module has them."""


class Message:
    """What all structs of a message share. ``struct`` makes one of them, at a position."""

    __slots__ = ("body", "name_of", "side", "struct")

    def __init__(
        self, body: bytes, side: Side, name_of: NameOf, struct: Callable[[Plan, Message, int], Accessors]
    ) -> None:
        self.body = body
        self.struct = struct
        self.side = side
        self.name_of = name_of


class Reader(Struct, frozen=True):
    """How one field is read, or passed over, at a position.

    ``skip`` may return a position beyond the end; whoever reads there finds out. ``least``: bytes it takes at least.
    ``fixed``: bytes it always takes, if so.
    """

    skip: Callable[[bytes, int], int]
    read: Callable[[Message, int], Any]
    least: int
    fixed: int | None = None


class Plan(Struct, frozen=True, eq=False):
    """How a struct is read: by index, by tag, and as a whole."""

    layout: Layout
    ordered: tuple[Reader, ...]
    tagged: Mapping[int, Reader]
    whole: Reader


@cache
def plan_of(made: Layout) -> Plan:
    """Return how structs of this layout are read, always the same object."""
    ordered = tuple(_reader(field, made.flexible) for field in made.ordered)
    tagged = {tag: _reader(field, made.flexible) for tag, field in made.tagged.items()}
    least = sum(reader.least for reader in ordered) + made.flexible
    sizes = [reader.fixed for reader in ordered]
    fixed = None if made.flexible or None in sizes else least
    whole = Reader(_skip_all(ordered, made.flexible), lambda message, pos: None, least, fixed)
    return Plan(made, ordered, MappingProxyType(tagged), whole)


def _skip_all(readers: tuple[Reader, ...], flexible: bool) -> Callable[[bytes, int], int]:
    """Return what passes over all of ``readers``; runs of fixed sizes are passed over at once."""
    steps: list[tuple[int, Callable[[bytes, int], int]]] = []
    ahead = 0
    for reader in readers:
        if reader.fixed is None:
            steps.append((ahead, reader.skip))
            ahead = 0
        else:
            ahead += reader.fixed

    def skip(body: bytes, pos: int) -> int:
        for gap, step in steps:
            pos = step(body, pos + gap)
        return skip_tags(body, pos + ahead) if flexible else pos + ahead

    return skip


def _reader(field: Field, flexible: bool) -> Reader:
    if not field.array:
        return _of_one(field, flexible, field.nullable)
    return _of_array(field, _of_one(field, flexible, False), flexible)


def _of_one(field: Field, flexible: bool, nullable: bool) -> Reader:
    match field.type:
        case "string":
            return _of_bytes(partial(_string_length, flexible), nullable, 1 if flexible else 2, _text)
        case "bytes":
            return _of_bytes(compact_length if flexible else int32_length, nullable, 1 if flexible else 4, _raw)
        case "records":
            return _of_bytes(
                compact_length if flexible else int32_length, nullable, 1 if flexible else 4, _records, _no_records
            )
        case "struct":
            assert field.layout is not None
            return _of_struct(plan_of(field.layout), nullable)
        case "uuid":
            return Reader(
                lambda body, pos: pos + 16, lambda message, pos: printed_id(sliced(message.body, pos, 16)), 16, 16
            )
        case scalar:
            size, unpack = SIZES[scalar], struct.Struct(f">{FORMATS[scalar]}").unpack_from
            return Reader(lambda body, pos: pos + size, lambda message, pos: unpack(message.body, pos)[0], size, size)


def _of_bytes(
    length_at: Callable[[bytes, int], tuple[int, int]],
    nullable: bool,
    least: int,
    made_of: Callable[[Message, int, int], Any],
    empty: Callable[[Message], Any] = lambda message: None,
) -> Reader:
    """What has a length before it; ``empty`` makes what null is read as."""

    def skip(body: bytes, pos: int) -> int:
        length, pos = length_at(body, pos)
        return pos + length if length >= 0 else _null(nullable, pos)

    def read(message: Message, pos: int) -> Any:
        length, pos = length_at(message.body, pos)
        if length < 0:
            _null(nullable, pos)
            return empty(message)
        if pos + length > len(message.body):
            raise IndexError
        return made_of(message, pos, pos + length)

    return Reader(skip, read, least)


def _string_length(flexible: bool, body: bytes, pos: int) -> tuple[int, int]:
    length, pos = compact_length(body, pos) if flexible else int16_length(body, pos)
    if length > MAX_STRING:
        raise DecodeError(f"a string of {length} bytes")
    return length, pos


def _text(message: Message, start: int, end: int) -> str:
    return message.body[start:end].decode("utf-8", "replace")


def _raw(message: Message, start: int, end: int) -> bytes:
    return message.body[start:end]


def _records(message: Message, start: int, end: int) -> Records:
    return Records(memoryview(message.body)[start:end], None, message.side)


def _no_records(message: Message) -> Records:
    return _records(message, 0, 0)


def _of_struct(plan: Plan, nullable: bool) -> Reader:
    if not nullable:
        return Reader(
            plan.whole.skip,
            lambda message, pos: message.struct(plan, message, pos),
            plan.whole.least,
            plan.whole.fixed,
        )

    def skip(body: bytes, pos: int) -> int:
        return pos + 1 if body[pos] > 127 else plan.whole.skip(body, pos + 1)

    def read(message: Message, pos: int) -> Accessors | None:
        return None if message.body[pos] > 127 else message.struct(plan, message, pos + 1)

    return Reader(skip, read, 1)


def _of_array(field: Field, one: Reader, flexible: bool) -> Reader:
    length_at = compact_length if flexible else int16_length if field.short_count else int32_length

    def count_at(body: bytes, pos: int) -> tuple[int, int]:
        count, pos = length_at(body, pos)
        if count < 0:
            return -1, _null(field.nullable, pos)
        if count * one.least > len(body) - pos:
            raise IndexError
        return count, pos

    def skip(body: bytes, pos: int) -> int:
        count, pos = count_at(body, pos)
        if one.fixed is not None:
            return pos + max(count, 0) * one.fixed
        for _ in range(count):
            pos = one.skip(body, pos)
        return pos

    def read(message: Message, pos: int) -> tuple[Any, ...] | None:
        body = message.body
        count, pos = count_at(body, pos)
        if count < 0:
            return None
        if field.type in FORMATS:
            return struct.unpack_from(f">{count}{FORMATS[field.type]}", body, pos)
        found = []
        for _ in range(count):
            found.append(one.read(message, pos))
            pos = one.skip(body, pos)
        if pos > len(body):
            raise IndexError
        return tuple(found)

    return Reader(skip, read, 1 if flexible else 2 if field.short_count else 4)


def _null(allowed: bool, pos: int) -> int:
    if not allowed:
        raise DecodeError("a null where there is none")
    return pos


def sliced(body: bytes, pos: int, length: int) -> bytes:
    """Return ``length`` bytes at ``pos``. Raises IndexError where there are fewer."""
    if pos + length > len(body):
        raise IndexError
    return body[pos : pos + length]
