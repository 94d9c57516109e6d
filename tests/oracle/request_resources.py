"""What a request is about, read by its layout: as ``proxy/compiled/items.pxi``, without programs."""

from __future__ import annotations

import struct
from typing import Any

from msgspec import Struct

from proxy.core.budget import PARTITION
from proxy.core.exchange import CommittedOffset, RequestResource, RequestResources
from proxy.core.instructions import ACL_TYPES, CONFIG_TYPES
from proxy.core.names import MAX_NAME
from proxy.core.request_resources import (
    ARRAYS,
    CHANGING,
    COMMITS,
    CONFIG_APIS,
    FIELD_NAMES,
    FIELD_TYPES,
    MAX_KEPT_CHANGED,
    MAX_KEPT_COMMITS,
    MAX_KEPT_RESOURCES,
    NAMES,
    NODES,
    PASSED,
    TOPICS_LEFT_OUT,
    UNNAMED,
)
from proxy.core.schema import Field, Layout, layout
from proxy.core.wire import Buffer
from tests.oracle.response_errors import ACL_FIELDS, AclFields, Incomplete, Reading, whole


class Around(Struct):
    """The struct around the current field."""

    kind: str = ""
    index: int = 0
    name: bytes | None = None
    topic_id: bytes | None = None
    partition: int = -1
    op_type: str | None = None
    mechanism: str | None = None


OP_TYPES = {0: "SET", 1: "DELETE", 2: "APPEND", 3: "SUBTRACT"}
MECHANISMS = {0: "UNKNOWN", 1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
COMPLETED_BY = {
    (44, "Configs"): ("ConfigOperation", "config"),
    (49, "Ops"): ("Remove", "config"),
    (51, "Deletions"): ("Mechanism", "user"),
    (51, "Upsertions"): ("Mechanism", "user"),
}
"""By api key and array, the field with which a resource is complete, and its type."""


def read_resources(api_key: int, version: int, body: bytes) -> list[Any]:
    """What a request is about, and the bytes that it is charged with. Raises MalformedBody."""
    reading = ReadingOfRequest(api_key, version, body, 0)
    return [whole(reading, reading.request, "client"), (PARTITION + 2 * MAX_NAME) * reading.kept]


class ReadingOfRequest(Reading):
    """One attempt to read a whole body."""

    def __init__(self, api_key: int, version: int, buf: Buffer, pos: int) -> None:
        super().__init__(api_key, version, buf, pos)
        self._layout = layout(api_key, version, response=False)
        self._flexible = self._layout.flexible
        self._around = [Around()]
        self._resources: list[RequestResource] = []
        self._most = MAX_KEPT_CHANGED if api_key in CHANGING else MAX_KEPT_RESOURCES
        self._commits: list[CommittedOffset] = []
        self._fields: dict[str, list[bytes]] = {}
        self._generation, self._validate_only = -1, False

    @property
    def kept(self) -> int:
        """How much is kept."""
        resources = self._resources[: self._most]
        items = len(resources) + sum(one.acl is not None for one in resources)
        return items + min(len(self._commits), MAX_KEPT_COMMITS) + len(self._fields)

    def request(self) -> RequestResources:
        if self._api_key in UNNAMED:
            self._keep(UNNAMED[self._api_key], None)
        self._members(self._layout, "", passed=False)
        if self.pos > len(self._buf):
            raise Incomplete
        single = {name: values[0] for name, values in self._fields.items() if len(set(values)) == 1}
        return RequestResources(
            tuple(self._resources[: self._most]),
            len(self._resources),
            tuple(self._commits[:MAX_KEPT_COMMITS]),
            len(self._commits),
            generation_id=self._generation,
            validate_only=self._validate_only,
            **single,  # type: ignore[arg-type]
        )

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    @property
    def _place(self) -> int:
        return self._around[1].index if len(self._around) > 1 else 0

    def _keep(self, kind: str, name: bytes | None, topic_id: bytes | None = None) -> None:
        if topic_id == bytes(16) and name is not None:
            topic_id = None
        *around, own = self._around
        parent = next((one for one in reversed(around) if one.name is not None), None)
        of = (None, None) if parent is None else (parent.kind, parent.name)
        self._resources.append(RequestResource(kind, name, topic_id, self._place, *of, own.op_type, own.mechanism))

    def _members(self, made: Layout, array: str, *, passed: bool) -> None:
        if self._api_key in (29, 30, 31):
            self._acl = AclFields()
        naming = [
            field for field in made.ordered if field is made.topic_id or (field is made.topic and not field.array)
        ]
        for field in made.ordered:
            unread = passed or PASSED.get(self._api_key) == field.name
            if field.array:
                self._elements(field, unread)
            elif field.layout is not None:
                if not field.nullable or self._take(1)[0] < 128:
                    self._members(field.layout, "", passed=unread)
            elif unread:
                self._pass(field)
            else:
                self._member(field, array, is_topic=field in naming)
                if naming and field is naming[-1] and self._api_key not in TOPICS_LEFT_OUT:
                    own = self._around[-1]
                    own.kind = "topic"
                    self._keep("topic", own.name, own.topic_id)
        if made.flexible:
            self._unknown_tags()

    def _unknown_tags(self) -> None:
        for _ in range(self._uvarint()):
            self._uvarint()
            size = self._uvarint()
            self.pos += size

    def _member(self, field: Field, array: str, *, is_topic: bool) -> None:
        own = self._around[-1]
        completed_by, kind = COMPLETED_BY.get((self._api_key, array), (None, ""))
        if self._api_key in (29, 30, 31) and field.name in ACL_FIELDS:
            self._read_acl_field(self._acl, field)
            if field.name == "PermissionType":
                self._resources.append(self._acl.resource(self._place, own.kind, own.name))
        elif field.name == completed_by:
            number = self._take(1)[0]
            if field.name == "Mechanism":
                own.mechanism = MECHANISMS.get(number, "UNKNOWN")
                own.op_type = "DELETE" if array == "Deletions" else "SET"
            else:
                own.op_type = OP_TYPES.get(min(number, 1) if field.name == "Remove" else number, "UNKNOWN")
            own.kind = kind
            self._keep(kind, own.name)
        elif field.name in FIELD_NAMES and field.type == "string":
            text = self._text()
            if text is not None:
                self._fields.setdefault(FIELD_NAMES[field.name], []).append(text)
            about = FIELD_TYPES.get(field.name)
            if (array, field.name) == ("Members", "MemberId"):
                about = "member"
            if about is not None:
                own.kind, own.name = about, text
                self._keep(about, text)
        elif field.name == "EntityType":
            text = (self._text_in_full() or b"").decode("utf-8", "replace")
            own.kind = text if text in ("user", "client-id", "ip") else "client_quota"
        elif is_topic and field.type == "string":
            own.name = self._text()
        elif (array, field.name) in NAMES:
            own.name = self._text()
            if completed_by is None:
                own.kind = NAMES[array, field.name] or own.kind
                self._keep(own.kind, own.name)
        else:
            self._member_of_fixed_size(field, own)

    def _text_in_full(self) -> bytes | None:
        length = self._text_length()
        return None if length < 0 else self._take(length)

    def _member_of_fixed_size(self, field: Field, own: Around) -> None:
        match field.type, field.name:
            case "uuid", "TopicId":
                own.topic_id = self._take(16)
            case "int8", "ResourceType" | "ResourceTypeFilter":
                types = CONFIG_TYPES if self._api_key in CONFIG_APIS else ACL_TYPES
                own.kind = types.get(self._take(1)[0] & 127, "")
            case "int32", "GenerationId" | "GenerationIdOrMemberEpoch" | "MemberEpoch":
                self._generation = self._number(">i")
            case "bool", "ValidateOnly" | "validateOnly":
                self._validate_only = self._take(1) != b"\0"
            case "int32", "PartitionIndex" if self._api_key in COMMITS:
                own.partition = self._number(">i")
            case "int64", "CommittedOffset":
                topic, offset = self._around[-2], self._number(">q")
                name = topic.topic_id if topic.name is None else topic.name
                self._commits.append(CommittedOffset(name, topic.name is None, own.partition, offset))  # type: ignore[arg-type]
            case "int32", name if NODES.get(self._api_key) == name:
                own.kind = "broker"
                self._keep("broker", b"%d" % self._number(">i"))
            case _:
                self._pass(field)

    def _elements(self, field: Field, passed: bool) -> None:
        count = self._length()
        if field.layout is None and field.type not in ("string", "bytes", "records"):
            self.pos += max(count, 0) * self._size_of(field)
            return
        for index in range(count):
            if self.pos > len(self._buf):
                raise Incomplete
            self._around.append(Around(index=index))
            if field.layout is not None:
                self._members(field.layout, field.name, passed=passed)
            elif field.type == "string" and field.name in ARRAYS:
                self._around[-1].name = self._text()
                self._keep(ARRAYS[field.name], self._around[-1].name)
            else:
                self._pass(field)
            self._around.pop()
