"""Messages as read-only structs over their bytes: nothing is decoded before it is asked for.

A count or a length is believed only as far as there are bytes; nesting is as deep as the definitions. So whatever the
bytes are, a struct costs time and memory in proportion to them, and raises nothing but SchemaError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from proxy.core.apis import API_VERSIONS
from proxy.core.fields import Message, NameOf, Plan, plan_of, sliced
from proxy.core.schema import Field, Layout, UnknownMessage, layout, plain
from proxy.core.wire import TRUNCATED, DecodeError, uvarint

__all__ = [
    "MissingField",
    "NameOf",
    "ObservableStructImpl",
    "Records",
    "SchemaError",
    "SchemaException",
    "UnknownMessage",
    "view",
    "view_as",
]

UNSUPPORTED_VERSION = b"\0\x23"
"""Error 35: an ApiVersions request that is too new for the broker is answered so, and as version 0 (KIP-511)."""


def view(
    api_key: int,
    api_version: int,
    body: bytes,
    *,
    response: bool,
    size: int | None = None,
    name_of: NameOf = lambda topic_id: None,
) -> ObservableStructImpl:
    """Return the message whose bytes after the header are ``body``. Bytes after its end are not looked at.

    ``size``: of the whole frame, for ``size_of``. ``name_of``: asked for the topic's name where only its id travels.
    Raises UnknownMessage for an api key or version without a definition; malformed bytes are found when they are read.
    """
    if response and api_key == API_VERSIONS and body.startswith(UNSUPPORTED_VERSION):
        api_version = 0
    return view_as(layout(api_key, api_version, response=response), body, response=response, size=size, name_of=name_of)


def view_as(
    made: Layout,
    body: bytes,
    *,
    response: bool,
    size: int | None = None,
    name_of: NameOf = lambda topic_id: None,
) -> ObservableStructImpl:
    """As ``view``, of a message with this layout."""
    message = Message(body, "broker" if response else "client", name_of, ObservableStructImpl)
    return ObservableStructImpl(plan_of(made), message, 0, len(body) if size is None else size)


class ObservableStructImpl(Accessors):
    """One message, or a struct in it, over the bytes of the message. See ``view``."""

    __slots__ = ("_message", "_plan", "_size", "_start", "_starts", "_tags")

    _plan: Plan
    _message: Message
    _size: int | None  # of a message: its frame
    _start: int
    _starts: tuple[int, ...]  # of its fields, as far as known; after the last one the tagged fields begin
    _tags: _Tags | None  # once read

    def __init__(self, plan: Plan, message: Message, start: int, size: int | None = None) -> None:
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
        return f"<ObservableStructImpl of {', '.join(self.field_names())}>"

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
        topic_id = sliced(self._message.body, start, 16)
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
            value = sliced(body, pos, size)
            reader = self._plan.tagged.get(tag)
            if reader is None:
                unknown[tag] = value
            elif reader.skip(body, pos) != pos + size:
                raise DecodeError(f"a tagged field {tag} that is not as long as it says")
            else:
                known[tag] = pos
            pos += size
        return _Tags(MappingProxyType(known), MappingProxyType(unknown), pos)

    def _guarded(self, read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except TRUNCATED:
            raise SchemaError(self._message.side, "a body that ends too early") from None
        except DecodeError as error:
            raise SchemaError(self._message.side, error.detail) from None


class _Tags(Struct, frozen=True):
    """The tagged fields of one struct: where those known begin, the bytes of the others, and where they all end."""

    known: Mapping[int, int]
    unknown: Mapping[int, bytes]
    end: int
