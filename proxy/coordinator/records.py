"""Records of the topic ``__brokerside_groups``: what a successor must know of the groups, as bytes.

The key says which record it is; its parts are percent-encoded, so that a group or a consumer may have any id. Values
are JSON with a ``version``; unknown fields are passed over, for a later release may have added them.

``coordinator/<partition>``   ``ClaimRecord``: who holds the partition.
``<group>/registry``          ``GenerationRecord``.
``<group>/ids/<consumer>``    ``MemberRecord``.
``<group>/owners/<topic>``    ``OwnersRecord``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec
from msgspec import Meta

from proxy.errors import BrokersideError

VERSION = 1
"""Of these layouts. A record with a later one is not read."""

Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Claim = Annotated[int, Meta(ge=1, le=2**63 - 1)]
BrokerId = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Level = Annotated[int, Meta(ge=1, le=32_767)]


class ClaimRecord(NamedTuple):
    """``coordinator/<partition>``: who holds the partition. It has no tombstone: claims only grow."""

    partition: int
    claim: int
    broker_id: int
    boot_id: str


class GenerationRecord(NamedTuple):
    """``<group>/registry``. ``value``: None in a tombstone, here and in the records below."""

    group: str
    value: GenerationValue | None


class GenerationValue(NamedTuple):
    """``starting`` until all owners have answered StartFetcher: until then a successor takes nothing that they report
    before it has sent StartFetcher to them. ``level``: of the protocol."""

    generation: Count
    state: Literal["starting", "stable"]
    level: Level


class MemberRecord(NamedTuple):
    """``<group>/ids/<consumer>``."""

    group: str
    consumer_id: str
    value: MemberValue | None


class MemberValue(NamedTuple):
    """What the consumer has registered with, and who it is."""

    topic_count: str
    auto_commit: bool
    auto_offset_reset: str
    session_timeout_ms: Count
    protocol_level: Level
    client_id: str
    principal: str
    listener: str


class OwnersRecord(NamedTuple):
    """``<group>/owners/<topic>``."""

    group: str
    topic: str
    value: OwnersValue | None


class OwnersValue(NamedTuple):
    """``owners``: partitions by thread id. ``generation``: the last one that has changed them."""

    generation: Count
    topic_id: str
    owners: dict[str, tuple[Partition, ...]]


GroupRecord = GenerationRecord | MemberRecord | OwnersRecord


class UnreadableRecord(BrokersideError):
    """A record of a later version, or one that no sidecar can have written. Its partition cannot be held."""

    def __init__(self, key: bytes, why: str) -> None:
        self.key = key
        name = key.decode("utf-8", "backslashreplace")
        super().__init__(f"record {name[:_SHOWN]!r} of __brokerside_groups: {why}")


class _ClaimValue(NamedTuple):
    claim: Claim
    broker_id: BrokerId
    boot_id: str


_SHOWN = 300
"""Characters of a key in a text."""

_CLAIM_KEY = re.compile(r"coordinator/(0|[1-9][0-9]{0,9})")
_GROUP_KEY = re.compile(r"([^/]*)/(?:registry|(ids|owners)/([^/]*))")

Value = TypeVar("Value", bound=tuple[Any, ...])


def _decoder(value_type: type[tuple[Any, ...]]) -> msgspec.json.Decoder[Any]:
    """Decode an object that has the fields of a named tuple, and ``version``."""
    fields = [("version", int), *get_type_hints(value_type, include_extras=True).items()]
    return msgspec.json.Decoder(msgspec.defstruct(value_type.__name__, fields))


class _Versioned(msgspec.Struct):
    version: Annotated[int, Meta(ge=1)]


_version = msgspec.json.Decoder(_Versioned)
_decoders: dict[type[tuple[Any, ...]], msgspec.json.Decoder[Any]] = {
    each: _decoder(each) for each in (_ClaimValue, GenerationValue, MemberValue, OwnersValue)
}


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition of ``__brokerside_groups`` that a group belongs to, for ever.

    ``partitions``: their number in the record ``groups`` of ``__brokerside_features``.
    """
    return crc32(group_id.encode()) % partitions


def encode_key(record: ClaimRecord | GroupRecord) -> bytes:
    """Return the key of a record."""
    match record:
        case ClaimRecord():
            return b"coordinator/%d" % record.partition
        case GenerationRecord():
            return f"{_quoted(record.group)}/registry".encode()
        case MemberRecord():
            return f"{_quoted(record.group)}/ids/{_quoted(record.consumer_id)}".encode()
        case OwnersRecord():
            return f"{_quoted(record.group)}/owners/{_quoted(record.topic)}".encode()


def encode_value(record: ClaimRecord | GroupRecord) -> bytes | None:
    """Return the value of a record; None for a tombstone."""
    value = _ClaimValue(*record[1:]) if isinstance(record, ClaimRecord) else record.value
    return None if value is None else msgspec.json.encode({"version": VERSION, **value._asdict()})


def decode_record(key: bytes, value: bytes | None) -> ClaimRecord | GroupRecord:
    """Return a record; ``value`` is None in a tombstone. Raises UnreadableRecord."""
    name = key.decode("utf-8", "replace")
    record: ClaimRecord | GroupRecord | None = None
    if found := _CLAIM_KEY.fullmatch(name):
        if value is None:
            raise UnreadableRecord(key, "a claim without a value")
        record = ClaimRecord(int(found[1]), *_value(key, value, _ClaimValue))
    elif found := _GROUP_KEY.fullmatch(name):
        group, kind, part = unquote(found[1]), found[2], unquote(found[3] or "")
        if kind is None:
            record = GenerationRecord(group, None if value is None else _value(key, value, GenerationValue))
        elif kind == "ids":
            record = MemberRecord(group, part, None if value is None else _value(key, value, MemberValue))
        else:
            record = OwnersRecord(group, part, None if value is None else _owners(key, value))
    if record is None or encode_key(record) != key:
        raise UnreadableRecord(key, "a key that no sidecar writes")
    return record


def _owners(key: bytes, value: bytes) -> OwnersValue:
    found = _value(key, value, OwnersValue)
    partitions = [partition for owned in found.owners.values() for partition in owned]
    if len(set(partitions)) != len(partitions):
        raise UnreadableRecord(key, "a partition has two owners")
    return found


def _value(key: bytes, value: bytes, value_type: type[Value]) -> Value:
    try:
        version = _version.decode(value).version
        if version > VERSION:
            raise UnreadableRecord(key, f"version {version} is later than {VERSION}, the last that this release reads")
        _, *fields = msgspec.structs.astuple(_decoders[value_type].decode(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadableRecord(key, "not as defined") from None
    return value_type(*fields)


def _quoted(part: str) -> str:
    return quote(part, safe="")
