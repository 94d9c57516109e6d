"""Random messages of any api key and version, with the values that are in them: what the struct views are held to."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from proxy.core.accessors import Accessors, Records
from proxy.core.apis import APIS
from proxy.core.fields import FORMATS
from proxy.core.schema import Field, Layout, UnknownMessage, layout
from tests.tools.messages import length, uvarint

UNKNOWN_TAGS = "unknown tagged fields"
"""Key of a struct's values for tagged fields that no definition knows: bytes by tag."""

LETTERS = "abcXYZ019-._é€"


class Drawn(NamedTuple):
    """A message: its body, and the values of its fields by name. Tagged fields that are not on the wire have none."""

    key: int
    version: int
    response: bool
    body: bytes
    values: Mapping[str, Any]


def all_messages() -> Iterator[tuple[int, int, bool]]:
    """Every api key, version and direction there is a definition of."""
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            for response in (False, True):
                try:
                    layout(key, version, response=response)
                except UnknownMessage:
                    continue
                yield key, version, response


def draw(random: Random, key: int, version: int, response: bool, *, tame: bool = False) -> Drawn:
    """Draw one message. ``tame``: without unknown tags, and with codes and times as brokers send them."""
    body, values = _Drawing(random, tame).struct(layout(key, version, response=response))
    return Drawn(key, version, response, body, values)


class _Drawing:
    def __init__(self, random: Random, tame: bool) -> None:
        self.random = random
        self.tame = tame

    def struct(self, made: Layout) -> tuple[bytes, dict[str, Any]]:
        parts, values = [], {}
        for field in made.ordered:
            part, values[field.name] = self.field(field, made.flexible)
            parts.append(part)
        if made.flexible:
            part, tagged = self.tags(made)
            parts.append(part)
            values |= tagged
        return b"".join(parts), values

    def tags(self, made: Layout) -> tuple[bytes, dict[str, Any]]:
        sent: dict[int, bytes] = {}
        values: dict[str, Any] = {}
        for tag, field in made.tagged.items():
            if self.random.random() < 0.5:
                part, value = self.field(field, True)
                if value not in (field.default, (), None, "", bytes(16)):
                    sent[tag], values[field.name] = part, value
        if not self.tame and self.random.random() < 0.2:
            unknown = {
                tag: self.random.randbytes(self.random.randrange(5)) for tag in self.random.sample(range(50, 400), 2)
            }
            sent |= unknown
            values[UNKNOWN_TAGS] = unknown
        pieces = (uvarint(tag) + uvarint(len(sent[tag])) + sent[tag] for tag in sorted(sent))
        return uvarint(len(sent)) + b"".join(pieces), values

    def field(self, field: Field, flexible: bool) -> tuple[bytes, Any]:
        if not field.array:
            return self.one(field, flexible, nullable=field.nullable)
        if field.nullable and self.random.random() < 0.2:
            return length(None, flexible, 4), None
        drawn = [self.one(field, flexible, nullable=False) for _ in range(self.random.randrange(4))]
        return length(len(drawn), flexible, 4) + b"".join(part for part, _ in drawn), tuple(one for _, one in drawn)

    def one(self, field: Field, flexible: bool, *, nullable: bool) -> tuple[bytes, Any]:
        random = self.random
        null = nullable and random.random() < 0.2
        match field.type:
            case "struct":
                assert field.layout is not None
                if null:
                    return b"\xff", None
                part, values = self.struct(field.layout)
                return (b"\x01" if nullable else b"") + part, values
            case "string":
                if null:
                    return length(None, flexible, 2), None
                text = "".join(random.choices(LETTERS, k=random.choice((0, 1, 5, 130))))
                return length(len(text.encode()), flexible, 2) + text.encode(), text
            case "bytes" | "records":
                if null:
                    return length(None, flexible, 4), None
                data = random.randbytes(random.choice((0, 3, 200)))
                return length(len(data), flexible, 4) + data, data
            case "uuid":
                data = random.randbytes(16)
                return data, data
            case "bool":
                value: Any = random.random() < 0.5
            case "float64":
                value = random.uniform(-1e9, 1e9)
            case _:
                value = self.integer(field)
        return struct.pack(f">{FORMATS[field.type]}", value), value

    def integer(self, field: Field) -> int:
        if self.tame:
            return self.random.randrange(100)
        bits = int(field.type.removeprefix("u").removeprefix("int"))
        low = 0 if field.type.startswith("u") else -(1 << bits - 1)
        return self.random.choice((low, low + (1 << bits) - 1, self.random.randrange(low, low + (1 << bits))))


def read_all(struct: Accessors) -> dict[str, Any]:
    """Every field of a view as ``draw`` returns it, but for what is withheld; raises what reading raises."""
    values = {name: _drawn(struct.get(name)) for name in struct.field_names()}
    unknown = struct.unknown_tagged_fields()
    return {**values, UNKNOWN_TAGS: dict(unknown)} if unknown else values


def _drawn(value: Any) -> Any:
    match value:
        case Accessors():
            return read_all(value)
        case Records():
            return bytes(value.data or b"")
        case tuple():
            return tuple(map(_drawn, value))
        case _:
            return value
