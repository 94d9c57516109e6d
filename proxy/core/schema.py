"""What every request and response of Kafka's protocol is made of, version by version.

The definitions are text (``proxy.core.schema_table``, ``proxy.core.private_schema``); one is parsed when it is asked
for first, and kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from types import MappingProxyType

from msgspec import Struct

from proxy.core.observation_interest import ERROR_AFTER_THROTTLE, ERROR_FIRST, THROTTLE_FIRST
from proxy.core.private_schema import PRIVATE_REQUESTS, PRIVATE_RESPONSES
from proxy.core.schema_table import REQUESTS, RESPONSES

Version = tuple[int, int]
"""First and last version, both included."""

SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
"""Bytes of the types that always have as many; the others are string, bytes, records and struct."""

WITHHELD: Mapping[tuple[int, str], tuple[str, ...]] = MappingProxyType(
    {
        (19, "request"): ("Value",),  # CreateTopics
        (19, "response"): ("Value",),
        (33, "request"): ("Value",),  # AlterConfigs
        (36, "request"): ("AuthBytes",),  # SaslAuthenticate
        (36, "response"): ("AuthBytes",),
        (38, "response"): ("Hmac",),  # CreateDelegationToken
        (39, "request"): ("Hmac",),  # RenewDelegationToken
        (40, "request"): ("Hmac",),  # ExpireDelegationToken
        (41, "response"): ("Hmac",),  # DescribeDelegationToken
        (44, "request"): ("Value",),  # IncrementalAlterConfigs
        (51, "request"): ("Salt", "SaltedPassword"),  # AlterUserScramCredentials
        (58, "request"): ("RequestData",),  # Envelope: any other request inside
        (58, "response"): ("ResponseData",),
    }
)
"""Fields that hold, or may hold, a secret: by message, wherever in it they stand. No view lets them be read."""

OLD_NAMES: Mapping[tuple[int, str], Mapping[str, str]] = MappingProxyType(
    {
        (0, "request"): {"timeout": "TimeoutMs", "data": "PartitionData"},
        (1, "request"): {"max_wait_time": "MaxWaitMs", "max_bytes": "PartitionMaxBytes"},
        (1, "response"): {"partition_responses": "Partitions"},
        (2, "response"): {"responses": "Topics", "partition_responses": "Partitions"},
        (3, "response"): {
            "topic_metadata": "Topics",
            "topic_error_code": "ErrorCode",
            "partition_metadata": "Partitions",
            "partition_error_code": "ErrorCode",
            "partition_id": "PartitionIndex",
            "leader": "LeaderId",
            "replicas": "ReplicaNodes",
            "isr": "IsrNodes",
        },
        (8, "request"): {"offset": "CommittedOffset", "metadata": "CommittedMetadata"},
        (8, "response"): {"responses": "Topics", "partition_responses": "Partitions"},
        (9, "response"): {
            "responses": "Topics",
            "partition_responses": "Partitions",
            "offset": "CommittedOffset",
            "metadata": "Metadata",
        },
    }
)
"""Names that fields had when KIP-388 was written, by message."""

OLD_NAMES_ANYWHERE: tuple[tuple[str, str], ...] = (
    ("partition", "PartitionIndex"),
    ("partition", "Index"),
    ("record_set", "Records"),
)
"""Such names that are the same in every message."""

TOPIC, TOPIC_ID = "topic", "TopicId"

NO_KEY = -1
"""For a message that is not one of Kafka's: no name of Kafka's fields and no rule of theirs is about it."""


class UnknownMessage(LookupError):
    """There is no definition of this api key and version."""


class Field(Struct, frozen=True, eq=False):
    """One field as it is in one version.

    ``type``: a key of ``SIZES``, or ``string``, ``bytes``, ``records``, ``struct``; of an array, that of its elements.
    ``index``: its place in the order of the wire; −1 for one that is not on it. ``layout``: of a struct.
    ``tag``, ``default``: of a tagged field (KIP-482); an absent struct is None. ``short_count``: that of an array is an
    int16, as only the sidecar's own apis have it.
    """

    name: str
    type: str
    index: int = -1
    array: bool = False
    nullable: bool = False
    tag: int | None = None
    default: object = None
    layout: Layout | None = None
    short_count: bool = False

    def described(self) -> str:
        """Its type in words, as in ``array of int32``."""
        return f"array of {self.type}" if self.array else self.type


class Layout(Struct, frozen=True, eq=False):
    """The fields of one struct in one version.

    ``ordered``: in the order of the wire. ``tagged``: by tag. ``named``: every field by each name it has, plain (see
    ``plain``). ``names``: as they are defined, but for fields that are withheld. ``hidden``: plain names of those; they
    are in ``ordered`` all the same.
    ``topic``, ``topic_id``: the fields that name the topic the struct is about, as far as there are any.
    """

    flexible: bool
    ordered: tuple[Field, ...]
    tagged: Mapping[int, Field]
    named: Mapping[str, Field]
    names: tuple[str, ...]
    hidden: frozenset[str]
    topic: Field | None
    topic_id: Field | None


@cache
def layout(api_key: int, api_version: int, *, response: bool) -> Layout:
    """Return what the body of a message is made of, always the same object. Raises UnknownMessage."""
    parts = _definition(api_key, response) if api_key in REQUESTS else ()
    for versions, flexible, fields in parts:
        if versions[0] <= api_version <= versions[1]:
            return _layout(api_key, api_version, response, flexible is not None and api_version >= flexible, fields)
    raise UnknownMessage(f"no definition of api key {api_key}, version {api_version}")


@cache
def private_layout(name: str, api_version: int, *, response: bool) -> Layout:
    """As ``layout``, of one of the sidecar's own apis."""
    text = (PRIVATE_RESPONSES if response else PRIVATE_REQUESTS).get(name)
    for versions, _, fields in () if text is None else _parts(text):
        if versions[0] <= api_version <= versions[1]:
            return _layout(NO_KEY, api_version, response, False, fields)
    raise UnknownMessage(f"no definition of {name}, version {api_version}")


def private_versions(name: str) -> range:
    """Return the versions that one of the sidecar's own apis has a definition of; none of what is no such api."""
    parts = [versions for versions, _, _ in _parts(PRIVATE_REQUESTS[name])] if name in PRIVATE_REQUESTS else []
    return range(min(low for low, _ in parts), max(high for _, high in parts) + 1) if parts else range(0)


def response_prefix(api_key: int, api_version: int) -> int:
    """Return how the body of a response begins: flags of ``proxy.core.observation_interest``, 0 if unknown."""
    try:
        ordered = layout(api_key, api_version, response=True).ordered
    except UnknownMessage:
        return 0
    first, second, *_ = [(field.name, field.type) for field in ordered] + [("", "")] * 2
    if first == ("ErrorCode", "int16"):
        return ERROR_FIRST
    if first != ("ThrottleTimeMs", "int32"):
        return 0
    return THROTTLE_FIRST | (ERROR_AFTER_THROTTLE if second == ("ErrorCode", "int16") else 0)


@lru_cache(4096)
def plain(name: str) -> str:
    """Return ``name`` as it is compared: ``TopicData``, ``topicData`` and ``topic_data`` are one."""
    return name.replace("_", "").lower()


class _Defined(Struct, frozen=True):
    """One field as the text has it, for all versions."""

    name: str
    type: str
    array: bool
    is_topic: bool
    versions: Version | None
    nullable: Version | bool
    tag: int | None
    default: str | None
    fields: tuple[_Defined, ...]
    short_count: bool

    def lives_in(self, version: int) -> bool:
        return self.versions is None or self.versions[0] <= version <= self.versions[1]

    def nullable_in(self, version: int) -> bool:
        if isinstance(self.nullable, bool):
            return self.nullable
        return self.nullable[0] <= version <= self.nullable[1]


_HEAD = re.compile(r"(\d+)-(\d+) (\d+|-) ?")
_FIELD = re.compile(r" ?(\w+)(~?):([\[<]?)(?:(\w+)|\{)")
_REST = re.compile(r"[\]>]?(?:@(\d+)-(\d+))?(\?(?:(\d+)-(\d+))?)?(?:#(\d+)(?:=([^ }]+))?)?")


@cache
def _definition(api_key: int, response: bool) -> tuple[tuple[Version, int | None, tuple[_Defined, ...]], ...]:
    return tuple(_parts((RESPONSES if response else REQUESTS)[api_key]))


def _parts(text: str) -> Iterator[tuple[Version, int | None, tuple[_Defined, ...]]]:
    for part in text.split("; "):
        head = _HEAD.match(part)
        assert head is not None
        fields, _ = _fields(part, head.end())
        yield (int(head[1]), int(head[2])), None if head[3] == "-" else int(head[3]), fields


def _fields(text: str, pos: int) -> tuple[tuple[_Defined, ...], int]:
    """Parse the fields at ``pos``; return them and the position after the last one."""
    found = []
    while (match := _FIELD.match(text, pos)) is not None:
        name, topic, array, kind = match.groups()
        pos = match.end()
        nested: tuple[_Defined, ...] = ()
        if kind is None:
            nested, pos = _fields(text, pos)
            pos += 1  # the brace
        rest = _REST.match(text, pos)
        assert rest is not None
        low, high, nullable, null_low, null_high, tag, default = rest.groups()
        found.append(
            _Defined(
                name,
                kind or "struct",
                bool(array),
                bool(topic),
                None if low is None else (int(low), int(high)),
                bool(nullable) if null_low is None else (int(null_low), int(null_high)),
                None if tag is None else int(tag),
                default,
                nested,
                array == "<",
            )
        )
        pos = rest.end()
    return tuple(found), pos


def _layout(api_key: int, version: int, response: bool, flexible: bool, defined: tuple[_Defined, ...]) -> Layout:
    message = api_key, "response" if response else "request"
    ordered: list[Field] = []
    tagged: dict[int, Field] = {}
    for one in defined:
        if not one.lives_in(version):
            continue
        nested = _layout(api_key, version, response, flexible, one.fields) if one.type == "struct" else None
        nullable = one.nullable_in(version)
        if one.tag is None:
            place = len(ordered)
            ordered.append(
                Field(one.name, one.type, place, one.array, nullable, layout=nested, short_count=one.short_count)
            )
        else:
            tagged[one.tag] = Field(
                one.name, one.type, -1, one.array, nullable, one.tag, _default(one, nullable), layout=nested
            )
    topic_names = {one.name for one in defined if one.is_topic}
    own = {plain(field.name): field for field in (*ordered, *tagged.values())}
    topic = next((field for field in ordered if field.name in topic_names), None)
    topic_id = next((field for field in ordered if (field.name, field.type) == (TOPIC_ID, "uuid")), None)
    named = {**_old_names(message, own), **own}
    if topic is not None or topic_id is not None:
        for name in (TOPIC, *topic_names):
            named.setdefault(plain(name), Field(name, "string"))
    hidden = frozenset(map(plain, WITHHELD.get(message, ())))
    return Layout(
        flexible,
        tuple(ordered),
        MappingProxyType(tagged),
        MappingProxyType(named),
        tuple(field.name for name, field in own.items() if name not in hidden),
        hidden,
        topic,
        topic_id,
    )


def _old_names(message: tuple[int, str], own: Mapping[str, Field]) -> dict[str, Field]:
    pairs = (*OLD_NAMES.get(message, {}).items(), *OLD_NAMES_ANYWHERE)
    return {plain(old): own[plain(new)] for old, new in pairs if plain(new) in own}


def _default(defined: _Defined, nullable: bool) -> object:
    """Value of a tagged field that is not on the wire."""
    if defined.array:
        return None if defined.default == "null" else ()
    if defined.default == "null" and nullable:
        return None
    match defined.type:
        case "struct" | "records":
            return None
        case "string":
            return defined.default or ""
        case "bytes":
            return b""
        case "uuid":
            return bytes(16)
        case "bool":
            return defined.default == "true"
        case "float64":
            return float(defined.default or 0)
        case _:
            return int(defined.default or "0", 0)
