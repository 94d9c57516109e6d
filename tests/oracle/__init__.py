"""Pure Python that does what ``proxy/compiled/items.pxi`` does, for tests and fuzzing to compare with: a body is read
whole by its layout, without programs; then what it is about, or which of its items failed, is looked up in its values.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from proxy.core import request_resources as about
from proxy.core import response_errors as errors
from proxy.core.budget import PARTITION
from proxy.core.exchange import Acl, CommittedOffset, ItemErrorFacts, ItemErrors, RequestResource, RequestResources
from proxy.core.instructions import (
    ACL_NUMBERS,
    ACL_OPERATIONS,
    ACL_TEXTS,
    ACL_TYPES,
    CONFIG_TYPES,
    LITERAL,
    MECHANISMS,
    OP_TYPES,
    PATTERN_TYPES,
    PERMISSION_TYPES,
)
from proxy.core.names import MAX_NAME, shorten
from proxy.core.schema import SIZES, Field, Layout, layout
from proxy.core.wire import MAX_STRING
from proxy.errors import MalformedBody

Values = list[tuple[Field, Any]]
"""Of a struct, in the order of the wire: those of structs in it are ``Values``, of arrays lists."""


class Malformed(Exception):
    """The bytes are not what their layout says."""


class Reader:
    def __init__(self, body: bytes, *, flexible: bool) -> None:
        self._body, self._flexible, self.pos = body, flexible, 0

    def _take(self, size: int) -> bytes:
        self.pos += size
        if self.pos > len(self._body):
            raise Malformed("it does not end")
        return self._body[self.pos - size : self.pos]

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise Malformed("a varint of more than five bytes")

    def _length(self, size: int = 4) -> int:
        length = self._uvarint() - 1 if self._flexible else int.from_bytes(self._take(size), signed=True)
        if length < -1:
            raise Malformed(f"a length of {length}")
        return length

    def _element(self, field: Field) -> Any:
        if field.layout is not None:
            return self.struct(field.layout)
        if field.type in SIZES:
            value = self._take(SIZES[field.type])
            # Numbers of one byte are none that are added up: without a sign.
            return int.from_bytes(value, signed=len(value) > 1) if field.type in ("bool", *INTEGERS) else value
        length = self._length(2 if field.type == "string" else 4)
        if field.type == "string" and length > MAX_STRING:
            raise Malformed(f"a string of {length} bytes")
        return None if length < 0 else self._take(length)

    def struct(self, made: Layout) -> Values:
        values: Values = []
        for field in made.ordered:
            if not field.array:
                is_null = field.layout is not None and field.nullable and self._take(1)[0] >= 128
                values.append((field, None if is_null else self._element(field)))
            elif field.type in SIZES:
                self._take(max(self._length(), 0) * SIZES[field.type])
            else:
                values.append((field, [self._element(field) for _ in range(self._length())]))
        for _ in range(self._uvarint() if made.flexible else 0):
            field, value = made.tagged.get(self._uvarint()), self._take(self._uvarint())  # type: ignore[assignment]
            if field is not None and errors._is_error(field):
                if len(value) != 2:
                    raise Malformed(f"an error code of {len(value)} bytes")
                values.append((field, int.from_bytes(value, signed=True)))
        return values


INTEGERS = ("int8", "int16", "int32", "int64")


def _values(made: Layout, body: bytes, *, response: bool) -> Values:
    reader = Reader(body, flexible=made.flexible)
    try:
        values = reader.struct(made)
        if reader.pos != len(body):
            raise Malformed("bytes after its end")
    except Malformed as error:
        raise MalformedBody("broker" if response else "client", str(error)) from None
    return values


ACL_FIELDS = {
    name: key
    for key, names in zip(
        ("principal", "host", "pattern", "operation", "permission"), (*ACL_TEXTS, *ACL_NUMBERS), strict=True
    )
    for name in names
}


def nth(names: Sequence[str], number: int) -> str:
    """The name of a number; that of 0 is of those that are not known."""
    return names[number] if number < len(names) else names[0]


class AclFields(Struct):
    """What was read of an ACL; numbers as on the wire."""

    principal: bytes | None = None
    host: bytes | None = None
    pattern: int = LITERAL
    operation: int = 0
    permission: int = 0

    def resource(
        self, place: int, kind: str, name: bytes | None, op_type: str | None = None, error_code: int = 0
    ) -> RequestResource:
        """The user, for whom it is."""
        pattern, permission = nth(PATTERN_TYPES, self.pattern), nth(PERMISSION_TYPES, self.permission)
        acl = Acl(pattern, self.host, nth(ACL_OPERATIONS, self.operation), permission, error_code)
        return RequestResource("user", self.principal, None, place, kind, name, op_type, None, acl)


class Around(Struct):
    """The struct around the current field."""

    kind: str = ""
    index: int = 0
    name: bytes | None = None
    topic_id: bytes | None = None
    partition: int = -1
    op_type: str | None = None
    mechanism: str | None = None
    error_code: int = 0
    acl: AclFields = msgspec.field(default_factory=AclFields)

    @property
    def id_alone(self) -> bytes | None:
        return None if self.topic_id == bytes(16) and self.name is not None else self.topic_id


def text_of(field: Field, value: Any) -> bytes | None:
    return None if value is None or field.type != "string" else shorten(value)


# ---- requests -------------------------------------------------------------------------------------------------------


def read_resources(api_key: int, version: int, body: bytes) -> list[Any]:
    """What a request is about, and the bytes that it is charged with. Raises MalformedBody."""
    made = layout(api_key, version, response=False)
    reading = ReadingOfRequest(api_key)
    found = reading.request(made, _values(made, body, response=False))
    acls = sum(one.acl is not None for one in found.items)
    return [found, (PARTITION + 2 * MAX_NAME) * (len(found.items) + acls + len(found.commits) + len(reading.fields))]


class ReadingOfRequest:
    def __init__(self, api_key: int) -> None:
        self._api_key = api_key
        self._around = [Around()]
        self._resources: list[RequestResource] = []
        self._commits: list[CommittedOffset] = []
        self.fields: dict[str, list[bytes]] = {}
        self._generation, self._validate_only = -1, False

    def request(self, made: Layout, values: Values) -> RequestResources:
        if self._api_key in about.UNNAMED:
            self._keep(about.UNNAMED[self._api_key], None)
        self._members(made, values, "", passed=False)
        single = {name: values[0] for name, values in self.fields.items() if len(set(values)) == 1}
        most = about.MAX_KEPT_CHANGED if self._api_key in about.CHANGING else about.MAX_KEPT_RESOURCES
        return RequestResources(
            tuple(self._resources[:most]), len(self._resources), tuple(self._commits[:about.MAX_KEPT_COMMITS]),
            len(self._commits), generation_id=self._generation, validate_only=self._validate_only,
            **single,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def _place(self) -> int:
        return self._around[1].index if len(self._around) > 1 else 0

    def _keep(self, kind: str, name: bytes | None, topic_id: bytes | None = None) -> None:
        *around, own = self._around
        parent = next((one for one in reversed(around) if one.name is not None), None)
        of = (None, None) if parent is None else (parent.kind, parent.name)
        self._resources.append(RequestResource(kind, name, topic_id, self._place, *of, own.op_type, own.mechanism))

    def _members(self, made: Layout, values: Values, array: str, *, passed: bool) -> None:
        own = self._around[-1]
        own.acl = AclFields()
        naming = [
            field for field in made.ordered if field is made.topic_id or (field is made.topic and not field.array)
        ]
        for field, value in values:
            unread = passed or about.PASSED.get(self._api_key) == field.name
            if field.array:
                for index, one in enumerate(value):
                    self._around.append(Around(index=index))
                    if field.layout is not None:
                        self._members(field.layout, one, field.name, passed=unread)
                    elif field.type == "string" and field.name in about.ARRAYS:
                        self._around[-1].name = text_of(field, one)
                        self._keep(about.ARRAYS[field.name], self._around[-1].name)
                    self._around.pop()
            elif field.layout is not None:
                if value is not None:
                    self._members(field.layout, value, "", passed=unread)
            elif not unread:
                self._member(field, value, array, is_topic=field in naming)
                if naming and field is naming[-1] and self._api_key not in about.TOPICS_LEFT_OUT:
                    own.kind = "topic"
                    self._keep("topic", own.name, own.id_alone)

    def _member(self, field: Field, value: Any, array: str, *, is_topic: bool) -> None:
        own, text = self._around[-1], text_of(field, value)
        completed_by, _, operation, kind = about.CHANGES_OF.get((self._api_key, array), (None, 0, 0, ""))
        if self._api_key in about.ACL_APIS and field.name in ACL_FIELDS:
            setattr(own.acl, ACL_FIELDS[field.name], text if field.type == "string" else value)
            if field.name == "PermissionType":
                self._resources.append(own.acl.resource(self._place, own.kind, own.name))
        elif field.name == completed_by:
            if field.name == "Mechanism":
                own.mechanism, own.op_type = nth(MECHANISMS, value), OP_TYPES[operation]
            else:
                number = min(value, 1) if field.name == "Remove" else value
                own.op_type = OP_TYPES[number] if number < len(OP_TYPES) else "UNKNOWN"
            own.kind = kind
            self._keep(kind, own.name)
        elif field.name in about.FIELD_NAMES and field.type == "string":
            if text is not None:
                self.fields.setdefault(about.FIELD_NAMES[field.name], []).append(text)
            named = "member" if (array, field.name) == ("Members", "MemberId") else about.FIELD_TYPES.get(field.name)
            if named is not None:
                own.kind, own.name = named, text
                self._keep(named, text)
        elif field.name == "EntityType":
            entity = (value or b"").decode("utf-8", "replace")
            own.kind = entity if entity in ("user", "client-id", "ip") else "client_quota"
        elif is_topic and field.type == "string":
            own.name = text
        elif (array, field.name) in about.NAMES:
            own.name = text
            if completed_by is None:
                own.kind = about.NAMES[array, field.name] or own.kind
                self._keep(own.kind, own.name)
        else:
            self._member_of_fixed_size(field, value, own)

    def _member_of_fixed_size(self, field: Field, value: Any, own: Around) -> None:
        match field.type, field.name:
            case "uuid", "TopicId":
                own.topic_id = value
            case "int8", "ResourceType" | "ResourceTypeFilter":
                types = CONFIG_TYPES if self._api_key in about.CONFIG_APIS else ACL_TYPES
                own.kind = types.get(value & 127, "")
            case "int32", "GenerationId" | "GenerationIdOrMemberEpoch" | "MemberEpoch":
                self._generation = value
            case "bool", "ValidateOnly" | "validateOnly":
                self._validate_only = value != 0
            case "int32", "PartitionIndex" if self._api_key in about.COMMITS:
                own.partition = value
            case "int64", "CommittedOffset":
                topic = self._around[-2]
                name = topic.topic_id if topic.name is None else topic.name
                self._commits.append(CommittedOffset(name, topic.name is None, own.partition, value))  # type: ignore[arg-type]
            case "int32", name if about.NODES.get(self._api_key) == name:
                own.kind = "broker"
                self._keep("broker", b"%d" % value)


# ---- responses ------------------------------------------------------------------------------------------------------


def read_errors(api_key: int, version: int, body: bytes) -> list[Any]:
    """The error code of a response, and the errors of its items. Raises MalformedBody."""
    made = layout(api_key, version, response=True)
    return ReadingOfResponse(api_key).response(made, _values(made, body, response=True))


class ReadingOfResponse:
    def __init__(self, api_key: int) -> None:
        self._api_key = api_key
        self._items = [Around()]
        self._counts = {errors.FAILURE: 0, errors.RETRY: 0, errors.STEP: 0}
        self._found: list[ItemErrorFacts] = []
        self._acls: list[RequestResource] = []

    def response(self, made: Layout, values: Values) -> list[Any]:
        self._struct(made, values)
        acls, counts = self._acls, self._counts
        items = ItemErrors(tuple(self._found), *counts.values(), tuple(acls[: about.MAX_KEPT_RESOURCES]), len(acls))
        return [self._items[0].error_code, items if self._found or acls else None]

    def _struct(self, made: Layout, values: Values) -> None:
        item, named, matter = (
            self._items[-1],
            errors._name_field(made),
            any(map(errors._has_error, (*made.ordered, *made.tagged.values()))),
        )
        for field, value in values:
            if field.array:
                for index, one in enumerate(value if field.layout is not None else ()):
                    assert field.layout is not None
                    kind = errors._resource_type(field.layout, self._api_key) if errors._has_error(field) else ""
                    self._items.append(Around(kind, index))
                    self._struct(field.layout, one)
                    if self._items[-1].error_code:
                        self._report()
                    self._items.pop()
            elif field.layout is not None:
                if value is not None:
                    self._struct(field.layout, value)
            elif errors._is_error(field):
                item.error_code = item.error_code or value
            elif matter and field is named:
                item.name = text_of(field, value)
            elif matter and field is made.topic_id:
                item.topic_id = value
            elif matter and field.name in errors.PARTITIONS and field.type == "int32":
                item.partition = value
            elif matter and field.name == "ResourceType" and field.type == "int8":
                item.kind = (ACL_TYPES if self._api_key in errors.NAMELESS else CONFIG_TYPES).get(value & 127, "")
            elif self._api_key == 31 and field.name in ACL_FIELDS:
                setattr(item.acl, ACL_FIELDS[field.name], text_of(field, value) if field.type == "string" else value)
                if field.name == "PermissionType":
                    found = item.acl.resource(self._items[1].index, item.kind, item.name, "DELETE", item.error_code)
                    self._acls.append(found)

    def _report(self) -> None:
        own = self._items[-1]
        code = own.error_code
        kind = errors.severity(self._api_key, code)
        self._counts[kind] += 1
        if self._counts[kind] > (errors.MAX_KEPT_FAILURES if kind == errors.FAILURE else errors.MAX_KEPT_STEPS):
            return
        around = self._items[1:]
        while around and around[-1].name is None and around[-1].topic_id is None:
            around.pop()
        item = around.pop() if around else own
        parent = None
        if item is not own or own.name is not None or own.topic_id is not None:
            parent = next((one for one in reversed(around) if one.name is not None), None)
        of = (None, None) if parent is None else (parent.kind, parent.name)
        self._found.append(ItemErrorFacts(code, item.kind, item.name, item.id_alone, own.partition, own.index, *of))
