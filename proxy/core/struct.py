"""Messages as read-only structs over their bytes: nothing is decoded before it is asked for.

A count or a length is believed only as far as there are bytes; nesting is as deep as the definitions. So whatever the
bytes are, a struct costs time and memory in proportion to them, and raises nothing but SchemaError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from proxy.core.accessors import (
    NO_TAGS,
    Accessors,
    MissingField,
    Records,
    SchemaError,
    SchemaException,
    printed_id,
    put,
)
from proxy.core.schema import SIZES, Field, Layout, UnknownMessage, layout, plain
from proxy.core.wire import (
    MAX_STRING,
    TRUNCATED,
    Nonsense,
    compact_length,
    int16_length,
    int32_length,
    skip_tags,
    uvarint,
)
from proxy.errors import Side

__all__ = ["MissingField", "ObservableStruct", "Records", "SchemaError", "SchemaException", "UnknownMessage", "view"]

NameOf = Callable[[bytes], str | None]
"""Topic name of a topic id (16 raw bytes), or None where unknown."""


def view(
    api_key: int,
    api_version: int,
    body: bytes,
    *,
    response: bool,
    size: int | None = None,
    name_of: NameOf = lambda topic_id: None,
) -> ObservableStruct:
    """Return the message whose bytes after the header are ``body``. Bytes after its end are not looked at.

    ``size``: of the whole frame, for ``size_of``. ``name_of``: asked for the topic's name where only its id travels.
    Raises UnknownMessage for an api key or version without a definition; malformed bytes are found when they are read.
    """
    plan = _plan(layout(api_key, api_version, response=response))
    message = _Message(body, "broker" if response else "client", name_of)
    return ObservableStruct(plan, message, 0, len(body) if size is None else size)


class _Message:
    """What all structs of a message share."""

    __slots__ = ("body", "name_of", "side")

    def __init__(self, body: bytes, side: Side, name_of: NameOf) -> None:
        self.body = body
        self.side = side
        self.name_of = name_of


class ObservableStruct(Accessors):
    """One message, or a struct in it, over the bytes of the message. See ``view``."""

    __slots__ = ("_message", "_plan", "_size", "_start", "_starts", "_tags")

    _plan: _Plan
    _message: _Message
    _size: int | None  # of a message: its frame
    _start: int
    _starts: tuple[int, ...]  # of its fields, as far as known; after the last one the tagged fields begin
    _tags: _Tags | None  # once read

    def __init__(self, plan: _Plan, message: _Message, start: int, size: int | None = None) -> None:
        put(self, "_plan", plan)
        put(self, "_message", message)
        put(self, "_size", size)
        put(self, "_start", start)
        put(self, "_starts", ())
        put(self, "_tags", None)

    def size_of(self) -> int:
        """Bytes: of a message the whole frame, size prefix included; of a part of one, what it takes on the wire."""
        return self._end() - self._start if self._size is None else self._size

    def field_names(self) -> tuple[str, ...]:
        """Names of the fields this version has, as in the message definitions, but for those that are withheld."""
        return self._plan.layout.names

    def unknown_tagged_fields(self) -> Mapping[int, bytes]:
        """Tagged fields (KIP-482) that the definition does not know, by tag."""
        return self._tagged().unknown

    def __repr__(self) -> str:
        return f"<ObservableStruct of {', '.join(self.field_names())}>"

    def _find(self, name: str) -> Field | None:
        return self._plan.layout.named.get(plain(name))

    def _is_withheld(self, field: Field) -> bool:
        hidden = self._plan.layout.hidden
        return bool(hidden) and plain(field.name) in hidden

    def _value(self, field: Field) -> Any:
        if field.index >= 0:
            return self._guarded(self._on_wire, field)
        if field.tag is None:
            return self._guarded(self._topic)
        start = self._tagged().known.get(field.tag)
        if start is not None:
            return self._guarded(self._plan.tagged[field.tag].read, self._message, start)
        return printed_id(field.default) if isinstance(field.default, bytes) and field.type == "uuid" else field.default

    def _on_wire(self, field: Field) -> Any:
        return self._plan.ordered[field.index].read(self._message, self._position(field.index))

    def _topic(self) -> str | None:
        """Name of the topic this struct is about."""
        made = self._plan.layout
        name: str | None = None if made.topic is None else self._on_wire(made.topic)
        if name is not None or made.topic_id is None:
            return name
        start = self._position(made.topic_id.index)
        topic_id = _slice(self._message.body, start, 16)
        return self._message.name_of(topic_id) or f"id:{printed_id(topic_id)}"

    def _position(self, index: int) -> int:
        """Where the field of this index begins; raises what readers raise."""
        starts, body = self._starts, self._message.body
        if index >= len(starts):
            found = list(starts) or [self._start]
            while index >= len(found):
                found.append(self._plan.ordered[len(found) - 1].skip(body, found[-1]))
            for reader in self._plan.ordered[len(found) - 1 :]:  # those that cost nothing to pass over
                if reader.fixed is None:
                    break
                found.append(found[-1] + reader.fixed)
            starts = tuple(found)
            put(self, "_starts", starts)
        if starts[index] > len(body):
            raise IndexError
        return starts[index]

    def _tagged(self) -> _Tags:
        if self._tags is None:
            put(self, "_tags", self._guarded(self._read_tags))
        assert self._tags is not None
        return self._tags

    def _end(self) -> int:
        return self._tagged().end

    def _read_tags(self) -> _Tags:
        pos = self._position(len(self._plan.ordered))
        if not self._plan.layout.flexible:
            return _Tags(MappingProxyType({}), NO_TAGS, pos)
        body = self._message.body
        known, unknown = {}, {}
        count, pos = uvarint(body, pos)
        for _ in range(count):
            tag, pos = uvarint(body, pos)
            size, pos = uvarint(body, pos)
            value = _slice(body, pos, size)
            reader = self._plan.tagged.get(tag)
            if reader is None:
                unknown[tag] = value
            elif reader.skip(body, pos) != pos + size:
                raise Nonsense(f"a tagged field {tag} that is not as long as it says")
            else:
                known[tag] = pos
            pos += size
        return _Tags(MappingProxyType(known), MappingProxyType(unknown), pos)

    def _guarded(self, read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except TRUNCATED:
            raise SchemaError(self._message.side, "a body that ends too early") from None
        except Nonsense as error:
            raise SchemaError(self._message.side, error.detail) from None


class _Tags(Struct, frozen=True):
    """The tagged fields of one struct: where those known begin, the bytes of the others, and where they all end."""

    known: Mapping[int, int]
    unknown: Mapping[int, bytes]
    end: int


class _Reader(Struct, frozen=True):
    """How one field is read, or passed over, at a position.

    ``skip`` may return a position beyond the end; whoever reads there finds out. ``least``: bytes it takes at least.
    ``fixed``: bytes it always takes, if so.
    """

    skip: Callable[[bytes, int], int]
    read: Callable[[_Message, int], Any]
    least: int
    fixed: int | None = None


class _Plan(Struct, frozen=True, eq=False):
    """How a struct is read: by index, by tag, and as a whole."""

    layout: Layout
    ordered: tuple[_Reader, ...]
    tagged: Mapping[int, _Reader]
    whole: _Reader


@cache
def _plan(made: Layout) -> _Plan:
    ordered = tuple(_reader(field, made.flexible) for field in made.ordered)
    tagged = {tag: _reader(field, made.flexible) for tag, field in made.tagged.items()}
    least = sum(reader.least for reader in ordered) + made.flexible
    sizes = [reader.fixed for reader in ordered]
    fixed = None if made.flexible or None in sizes else least
    whole = _Reader(_skip_all(ordered, made.flexible), lambda message, pos: None, least, fixed)
    return _Plan(made, ordered, MappingProxyType(tagged), whole)


def _skip_all(readers: tuple[_Reader, ...], flexible: bool) -> Callable[[bytes, int], int]:
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


def _reader(field: Field, flexible: bool) -> _Reader:
    if not field.array:
        return _of_one(field, flexible, field.nullable)
    return _of_array(field, _of_one(field, flexible, False), flexible)


def _of_one(field: Field, flexible: bool, nullable: bool) -> _Reader:
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
            return _of_struct(_plan(field.layout), nullable)
        case "uuid":
            return _Reader(
                lambda body, pos: pos + 16, lambda message, pos: printed_id(_slice(message.body, pos, 16)), 16, 16
            )
        case scalar:
            size, unpack = SIZES[scalar], struct.Struct(f">{FORMATS[scalar]}").unpack_from
            return _Reader(lambda body, pos: pos + size, lambda message, pos: unpack(message.body, pos)[0], size, size)


FORMATS = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d"}


def _of_bytes(
    length_at: Callable[[bytes, int], tuple[int, int]],
    nullable: bool,
    least: int,
    made_of: Callable[[_Message, int, int], Any],
    empty: Callable[[_Message], Any] = lambda message: None,
) -> _Reader:
    """What has a length before it; ``empty`` makes what null is read as."""

    def skip(body: bytes, pos: int) -> int:
        length, pos = length_at(body, pos)
        return pos + length if length >= 0 else _null(nullable, pos)

    def read(message: _Message, pos: int) -> Any:
        length, pos = length_at(message.body, pos)
        if length < 0:
            _null(nullable, pos)
            return empty(message)
        if pos + length > len(message.body):
            raise IndexError
        return made_of(message, pos, pos + length)

    return _Reader(skip, read, least)


def _string_length(flexible: bool, body: bytes, pos: int) -> tuple[int, int]:
    length, pos = compact_length(body, pos) if flexible else int16_length(body, pos)
    if length > MAX_STRING:
        raise Nonsense(f"a string of {length} bytes")
    return length, pos


def _text(message: _Message, start: int, end: int) -> str:
    return message.body[start:end].decode("utf-8", "replace")


def _raw(message: _Message, start: int, end: int) -> bytes:
    return message.body[start:end]


def _records(message: _Message, start: int, end: int) -> Records:
    return Records(memoryview(message.body)[start:end], None, message.side)


def _no_records(message: _Message) -> Records:
    return _records(message, 0, 0)


def _of_struct(plan: _Plan, nullable: bool) -> _Reader:
    if not nullable:
        return _Reader(
            plan.whole.skip,
            lambda message, pos: ObservableStruct(plan, message, pos),
            plan.whole.least,
            plan.whole.fixed,
        )

    def skip(body: bytes, pos: int) -> int:
        return pos + 1 if body[pos] > 127 else plan.whole.skip(body, pos + 1)

    def read(message: _Message, pos: int) -> ObservableStruct | None:
        return None if message.body[pos] > 127 else ObservableStruct(plan, message, pos + 1)

    return _Reader(skip, read, 1)


def _of_array(field: Field, one: _Reader, flexible: bool) -> _Reader:
    length_at = compact_length if flexible else int32_length

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

    def read(message: _Message, pos: int) -> tuple[Any, ...] | None:
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

    return _Reader(skip, read, 1 if flexible else 4)


def _null(allowed: bool, pos: int) -> int:
    if not allowed:
        raise Nonsense("a null where there is none")
    return pos


def _slice(body: bytes, pos: int, length: int) -> bytes:
    if pos + length > len(body):
        raise IndexError
    return body[pos : pos + length]
