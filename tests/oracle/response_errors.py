"""Error codes of the items of a response, read by its layout: as ``proxy/compiled/items.pxi``, without programs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from proxy.core.exchange import Acl, ItemErrorFacts, ItemErrors, RequestResource
from proxy.core.instructions import ACL_TYPES, CONFIG_TYPES
from proxy.core.names import shorten
from proxy.core.request_resources import MAX_KEPT_RESOURCES
from proxy.core.response_errors import (
    FAILURE,
    MAX_KEPT_FAILURES,
    MAX_KEPT_STEPS,
    NAMED_BY,
    NAMELESS,
    PARTITIONS,
    PROTOCOL,
    RETRIABLE,
    RETRY,
    STEP,
)
from proxy.core.schema import SIZES, Field, Layout, layout
from proxy.core.wire import MAX_STRING, Buffer, DecodeError
from proxy.errors import MalformedBody, Side

MOST = {FAILURE: MAX_KEPT_FAILURES, RETRY: MAX_KEPT_STEPS, STEP: MAX_KEPT_STEPS}


class Incomplete(Exception):
    """Bytes are missing."""


ACL_FIELDS = {
    "Principal": "principal", "PrincipalFilter": "principal", "Host": "host", "HostFilter": "host",
    "PatternType": "pattern", "ResourcePatternType": "pattern", "PatternTypeFilter": "pattern",
    "Operation": "operation", "PermissionType": "permission",
}  # fmt: skip
PATTERNS = {1: "ANY", 2: "MATCH", 3: "LITERAL", 4: "PREFIXED"}
PERMISSIONS = {1: "ANY", 2: "DENY", 3: "ALLOW"}
OPERATIONS = {
    1: "Any", 2: "All", 3: "Read", 4: "Write", 5: "Create", 6: "Delete", 7: "Alter", 8: "Describe", 9: "ClusterAction",
    10: "DescribeConfigs", 11: "AlterConfigs", 12: "IdempotentWrite", 13: "CreateTokens", 14: "DescribeTokens",
    15: "TwoPhaseCommit",
}  # fmt: skip


class AclFields(Struct):
    """What was read of an ACL; numbers as on the wire."""

    principal: bytes | None = None
    host: bytes | None = None
    pattern: int = 3
    operation: int = 0
    permission: int = 0

    def resource(
        self, place: int, kind: str, name: bytes | None, op_type: str | None = None, error_code: int = 0
    ) -> RequestResource:
        """The user, for whom it is."""
        acl = Acl(
            PATTERNS.get(self.pattern, "UNKNOWN"),
            self.host,
            OPERATIONS.get(self.operation, "Unknown"),
            PERMISSIONS.get(self.permission, "UNKNOWN"),
            error_code,
        )
        return RequestResource("user", self.principal, None, place, kind, name, op_type, None, acl)


class Item(Struct):
    """One element of an array around the current field."""

    kind: str
    index: int
    name: bytes | None = None
    topic_id: bytes | None = None
    partition: int = -1
    error_code: int = 0
    acl: AclFields = msgspec.field(default_factory=AclFields)


def read_errors(api_key: int, version: int, body: bytes) -> list[Any]:
    """The error code of a response, and the errors of its items. Raises MalformedBody."""
    reading = Reading(api_key, version, body, 0)
    return whole(reading, reading.response, "broker")


AnyFound = TypeVar("AnyFound")


def whole(reading: Reading, read: Callable[[], AnyFound], side: Side) -> AnyFound:
    """Read a body to its end. Raises MalformedBody."""
    try:
        found = read()
    except Incomplete:
        raise MalformedBody(side, "it does not end") from None
    except DecodeError as nonsense:
        raise MalformedBody(side, nonsense.detail) from None
    if reading.pos != len(reading._buf):
        raise MalformedBody(side, "bytes after its end")
    return found


class Reading:
    """One attempt to read a whole body."""

    def __init__(self, api_key: int, version: int, buf: Buffer, pos: int) -> None:
        self._api_key = api_key
        self._layout = layout(api_key, version, response=True)
        self._flexible = self._layout.flexible
        self._buf = buf
        self._items: list[Item] = []
        self._counts = {FAILURE: 0, RETRY: 0, STEP: 0}
        self.pos = pos
        self.found: list[ItemErrorFacts] = []
        self.acls: list[RequestResource] = []

    def response(self) -> list[Any]:
        self._items = [Item("", 0)]
        self._struct(self._layout)
        if self.pos > len(self._buf):
            raise Incomplete
        items = None
        if self.found or self.acls:
            items = ItemErrors(
                tuple(self.found), self._counts[FAILURE], self._counts[RETRY], self._counts[STEP],
                tuple(self.acls[:MAX_KEPT_RESOURCES]), len(self.acls),
            )  # fmt: skip
        return [self._items[0].error_code, items]

    def _take(self, size: int) -> bytes:
        if self.pos + size > len(self._buf):
            raise Incomplete
        self.pos += size
        return bytes(self._buf[self.pos - size : self.pos])

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise DecodeError("a varint of more than five bytes")

    def _length(self, width: str = ">i") -> int:
        if self._flexible:
            return self._uvarint() - 1
        length: int = struct.unpack(width, self._take(struct.calcsize(width)))[0]
        if length < -1:
            raise DecodeError(f"a length of {length}")
        return length

    def _text_length(self) -> int:
        length = self._length(">h")
        if length > MAX_STRING:
            raise DecodeError(f"a string of {length} bytes")
        return length

    def _skip(self, field: Field) -> None:
        """Pass over a text or bytes."""
        length = self._text_length() if field.type == "string" else self._length()
        self.pos += max(length, 0)

    def _size_of(self, field: Field) -> int:
        return SIZES[field.type]

    def _pass(self, field: Field) -> None:
        """Pass over a field that is no struct."""
        if field.type in SIZES:
            self.pos += SIZES[field.type]
        else:
            self._skip(field)

    def _struct(self, made: Layout) -> None:
        item = self._items[-1]
        named = topic_of(made)
        for field in made.ordered:
            if field.array:
                self._array(field)
            elif field.layout is not None:
                if not field.nullable or self._take(1)[0] < 128:
                    self._struct(field.layout)
            elif is_error(field):
                code = struct.unpack(">h", self._take(2))[0]
                item.error_code = item.error_code or code
            elif matters(made) and field is named:
                length = self._text_length()
                item.name = None if length < 0 else shorten(self._take(length))
            elif matters(made) and field is made.topic_id:
                item.topic_id = self._take(16)
            elif matters(made) and field.name in PARTITIONS and field.type == "int32":
                item.partition = struct.unpack(">i", self._take(4))[0]
            elif matters(made) and field.name == "ResourceType" and field.type == "int8":
                types = ACL_TYPES if self._api_key in NAMELESS else CONFIG_TYPES
                item.kind = types.get(self._take(1)[0] & 127, "")
            elif self._api_key == 31 and field.name in ACL_FIELDS:
                self._read_acl_field(item.acl, field)
                if field.name == "PermissionType":
                    found = item.acl.resource(self._items[1].index, item.kind, item.name, "DELETE", item.error_code)
                    self.acls.append(found)
            else:
                self._pass(field)
        if made.flexible:
            self._tags(made, item)

    def _text(self) -> bytes | None:
        length = self._text_length()
        return None if length < 0 else shorten(self._take(length))

    def _read_acl_field(self, acl: AclFields, field: Field) -> None:
        setattr(acl, ACL_FIELDS[field.name], self._text() if field.type == "string" else self._take(1)[0])

    def _tags(self, made: Layout, item: Item) -> None:
        for _ in range(self._uvarint()):
            tag, size = self._uvarint(), self._uvarint()
            field = made.tagged.get(tag)
            if field is not None and is_error(field):
                if size != 2:
                    raise DecodeError(f"an error code of {size} bytes")
                code = struct.unpack(">h", self._take(2))[0]
                item.error_code = item.error_code or code
            else:
                self.pos += size

    def _array(self, field: Field) -> None:
        count = self._length()
        if field.type in SIZES:
            self.pos += max(count, 0) * SIZES[field.type]
            return
        for index in range(count):
            if self.pos > len(self._buf):
                raise Incomplete
            if field.layout is None:
                self._skip(field)
                continue
            self._items.append(Item(kind_of(field.layout, self._api_key) if matters(field.layout) else "", index))
            self._struct(field.layout)
            if self._items[-1].error_code:
                self._report()
            self._items.pop()

    def _report(self) -> None:
        own = self._items[-1]
        code = own.error_code
        kind = RETRY if code in RETRIABLE else STEP if code in PROTOCOL else FAILURE
        self._counts[kind] += 1
        if self._counts[kind] > MOST[kind]:
            return
        around = self._items[1:]
        while around and around[-1].name is None and around[-1].topic_id is None:
            around.pop()
        about = around.pop() if around else own
        parent = None
        if about is not own or own.name is not None or own.topic_id is not None:
            parent = next((one for one in reversed(around) if one.name is not None), None)
        topic_id = about.topic_id
        if topic_id == bytes(16) and about.name is not None:
            topic_id = None
        self.found.append(
            ItemErrorFacts(
                code,
                about.kind,
                about.name,
                topic_id,
                own.partition,
                own.index,
                None if parent is None else parent.kind,
                None if parent is None else parent.name,
            )
        )


def is_error(field: Field) -> bool:
    """Whether it is an error code."""
    return field.type == "int16" and not field.array and field.name.endswith("ErrorCode")


def matters(made: Layout) -> bool:
    """Whether the struct, or any in it, has an error code."""
    return any(
        is_error(field) if field.layout is None else matters(field.layout)
        for field in (*made.ordered, *made.tagged.values())
    )


def topic_of(made: Layout) -> Field | None:
    """The field that names what a struct is about."""
    if made.topic is not None:
        return made.topic
    texts = {field.name: field for field in made.ordered if field.type == "string" and not field.array}
    return next((texts[name] for name in NAMED_BY if name in texts), None)


def kind_of(made: Layout, api_key: int) -> str:
    """The resource type of what a struct is about."""
    named = topic_of(made)
    if made.topic is not None or made.topic_id is not None:
        return "topic"
    if named is not None:
        return NAMED_BY[named.name]
    if any(field.name in PARTITIONS for field in made.ordered):
        return "partition"
    return NAMELESS.get(api_key, "")
