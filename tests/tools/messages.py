"""Produce, Fetch and ShareFetch as values, and a plain encoder for every version: what the walkers are held to.

The layouts are copied by hand from the message definitions and are checked against kafka-python's encoder, which is
made from the same definitions by other people (tests/property/test_messages.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.core.exchange import RecordSet

ALWAYS = 999


class Field(NamedTuple):
    """One field: ``type`` names a scalar or, with ``fields``, a struct; ``array`` of them; ``tag`` if it is tagged."""

    name: str
    type: str
    since: int = 0
    until: int = ALWAYS
    array: bool = False
    fields: tuple[Field, ...] = ()
    nullable: bool = False
    tag: int | None = None

    def lives_in(self, version: int) -> bool:
        return self.since <= version <= self.until


class Message(NamedTuple):
    """One message: its fields, the first flexible version, the newest version."""

    fields: tuple[Field, ...]
    flexible_since: int
    max_version: int


class Made(NamedTuple):
    """The value of a ``records`` field, and what a walker has to find in it."""

    data: bytes | None
    sums: RecordSet


Values = Mapping[str, Any]
Tags = tuple[tuple[int, bytes], ...]

UNKNOWN_TAGS = "unknown_tags"
"""Key of a struct's values for tagged fields that no definition knows: pairs of tag and bytes."""

SCALARS = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"}


def _fetch_topic(since: int) -> tuple[Field, Field]:
    return Field("topic", "string", since, 12), Field("topic_id", "uuid", 13)


def _produce_topic() -> tuple[Field, Field]:
    return Field("name", "string", 0, 12), Field("topic_id", "uuid", 13)


LEADER = (Field("leader_id", "int32"), Field("leader_epoch", "int32"))
ENDPOINT = (
    Field("node_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("rack", "string", nullable=True),
)

PRODUCE_REQUEST = Message(
    (
        Field("transactional_id", "string", 3, nullable=True),
        Field("acks", "int16"),
        Field("timeout_ms", "int32"),
        Field(
            "topic_data",
            "topic",
            array=True,
            fields=(
                *_produce_topic(),
                Field(
                    "partition_data",
                    "partition",
                    array=True,
                    fields=(Field("index", "int32"), Field("records", "records", nullable=True)),
                ),
            ),
        ),
    ),
    flexible_since=9,
    max_version=13,
)

PRODUCE_RESPONSE = Message(
    (
        Field(
            "responses",
            "topic",
            array=True,
            fields=(
                *_produce_topic(),
                Field(
                    "partition_responses",
                    "partition",
                    array=True,
                    fields=(
                        Field("index", "int32"),
                        Field("error_code", "int16"),
                        Field("base_offset", "int64"),
                        Field("log_append_time_ms", "int64", 2),
                        Field("log_start_offset", "int64", 5),
                        Field(
                            "record_errors",
                            "error",
                            8,
                            array=True,
                            fields=(
                                Field("batch_index", "int32", 8),
                                Field("batch_index_error_message", "string", 8, nullable=True),
                            ),
                        ),
                        Field("error_message", "string", 8, nullable=True),
                        Field("current_leader", "leader", 10, fields=LEADER, tag=0),
                    ),
                ),
            ),
        ),
        Field("throttle_time_ms", "int32", 1),
        Field("node_endpoints", "endpoint", 10, array=True, fields=ENDPOINT, tag=0),
    ),
    flexible_since=9,
    max_version=13,
)

FETCH_REQUEST = Message(
    (
        Field("cluster_id", "string", 12, nullable=True, tag=0),
        Field("replica_id", "int32", 0, 14),
        Field(
            "replica_state",
            "state",
            15,
            fields=(Field("replica_id", "int32", 15), Field("replica_epoch", "int64", 15)),
            tag=1,
        ),
        Field("max_wait_ms", "int32"),
        Field("min_bytes", "int32"),
        Field("max_bytes", "int32", 3),
        Field("isolation_level", "int8", 4),
        Field("session_id", "int32", 7),
        Field("session_epoch", "int32", 7),
        Field(
            "topics",
            "topic",
            array=True,
            fields=(
                *_fetch_topic(0),
                Field(
                    "partitions",
                    "partition",
                    array=True,
                    fields=(
                        Field("partition", "int32"),
                        Field("current_leader_epoch", "int32", 9),
                        Field("fetch_offset", "int64"),
                        Field("last_fetched_epoch", "int32", 12),
                        Field("log_start_offset", "int64", 5),
                        Field("partition_max_bytes", "int32"),
                        Field("replica_directory_id", "uuid", 17, tag=0),
                        Field("high_watermark", "int64", 18, tag=1),
                    ),
                ),
            ),
        ),
        Field(
            "forgotten_topics_data",
            "forgotten",
            7,
            array=True,
            fields=(*_fetch_topic(7), Field("partitions", "int32", 7, array=True)),
        ),
        Field("rack_id", "string", 11),
    ),
    flexible_since=12,
    max_version=18,
)

FETCH_RESPONSE = Message(
    (
        Field("throttle_time_ms", "int32", 1),
        Field("error_code", "int16", 7),
        Field("session_id", "int32", 7),
        Field(
            "responses",
            "topic",
            array=True,
            fields=(
                *_fetch_topic(0),
                Field(
                    "partitions",
                    "partition",
                    array=True,
                    fields=(
                        Field("partition_index", "int32"),
                        Field("error_code", "int16"),
                        Field("high_watermark", "int64"),
                        Field("last_stable_offset", "int64", 4),
                        Field("log_start_offset", "int64", 5),
                        Field(
                            "diverging_epoch",
                            "epoch",
                            12,
                            fields=(Field("epoch", "int32", 12), Field("end_offset", "int64", 12)),
                            tag=0,
                        ),
                        Field("current_leader", "leader", 12, fields=LEADER, tag=1),
                        Field(
                            "snapshot_id",
                            "snapshot",
                            12,
                            fields=(Field("end_offset", "int64"), Field("epoch", "int32")),
                            tag=2,
                        ),
                        Field(
                            "aborted_transactions",
                            "aborted",
                            4,
                            array=True,
                            fields=(Field("producer_id", "int64", 4), Field("first_offset", "int64", 4)),
                            nullable=True,
                        ),
                        Field("preferred_read_replica", "int32", 11),
                        Field("records", "records", nullable=True),
                    ),
                ),
            ),
        ),
        Field("node_endpoints", "endpoint", 16, array=True, fields=ENDPOINT, tag=0),
    ),
    flexible_since=12,
    max_version=18,
)

SHARE_FETCH_REQUEST = Message(
    (
        Field("group_id", "string", nullable=True),
        Field("member_id", "string", nullable=True),
        Field("share_session_epoch", "int32"),
        Field("max_wait_ms", "int32"),
        Field("min_bytes", "int32"),
        Field("max_bytes", "int32"),
        Field("max_records", "int32", 1),
        Field("batch_size", "int32", 1),
        Field("share_acquire_mode", "int8", 2),
        Field("is_renew_ack", "bool", 2),
        Field(
            "topics",
            "topic",
            array=True,
            fields=(
                Field("topic_id", "uuid"),
                Field(
                    "partitions",
                    "partition",
                    array=True,
                    fields=(
                        Field("partition_index", "int32"),
                        Field("partition_max_bytes", "int32", 0, 0),
                        Field(
                            "acknowledgement_batches",
                            "batch",
                            array=True,
                            fields=(
                                Field("first_offset", "int64"),
                                Field("last_offset", "int64"),
                                Field("acknowledge_types", "int8", array=True),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        Field(
            "forgotten_topics_data",
            "forgotten",
            array=True,
            fields=(Field("topic_id", "uuid"), Field("partitions", "int32", array=True)),
        ),
    ),
    flexible_since=0,
    max_version=2,
)

SHARE_FETCH_RESPONSE = Message(
    (
        Field("throttle_time_ms", "int32"),
        Field("error_code", "int16"),
        Field("error_message", "string", nullable=True),
        Field("acquisition_lock_timeout_ms", "int32", 1),
        Field(
            "responses",
            "topic",
            array=True,
            fields=(
                Field("topic_id", "uuid"),
                Field(
                    "partitions",
                    "partition",
                    array=True,
                    fields=(
                        Field("partition_index", "int32"),
                        Field("error_code", "int16"),
                        Field("error_message", "string", nullable=True),
                        Field("acknowledge_error_code", "int16"),
                        Field("acknowledge_error_message", "string", nullable=True),
                        Field("current_leader", "leader", fields=LEADER),
                        Field("records", "records", nullable=True),
                        Field(
                            "acquired_records",
                            "acquired",
                            array=True,
                            fields=(
                                Field("first_offset", "int64"),
                                Field("last_offset", "int64"),
                                Field("delivery_count", "int16"),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        Field("node_endpoints", "endpoint", array=True, fields=ENDPOINT),
    ),
    flexible_since=0,
    max_version=2,
)


def encode(message: Message, version: int, values: Values) -> bytes:
    """Return the body. Tagged fields missing from ``values`` are left out; every other field must be there."""
    return _struct(message.fields, version, values, version >= message.flexible_since)


def uvarint(value: int) -> bytes:
    """Unsigned varint; not the one of ``proxy.core.wire``, which is tested with it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _struct(fields: tuple[Field, ...], version: int, values: Values, flexible: bool) -> bytes:
    live = [field for field in fields if field.lives_in(version)]
    out = b"".join(_value(field, version, values[field.name], flexible) for field in live if field.tag is None)
    if not flexible:
        return out
    tags: dict[int, bytes] = dict(values.get(UNKNOWN_TAGS, ()))
    tags |= {
        field.tag: _value(field, version, values[field.name], flexible)
        for field in live
        if field.tag is not None and field.name in values
    }
    section = b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tags.items()))
    return out + uvarint(len(tags)) + section


def _value(field: Field, version: int, value: Any, flexible: bool) -> bytes:
    if field.array:
        if value is None:
            return _length(None, "i", flexible)
        element = field._replace(array=False)
        return _length(len(value), "i", flexible) + b"".join(_value(element, version, one, flexible) for one in value)
    if field.fields:
        return _struct(field.fields, version, value, flexible)
    if field.type in SCALARS:
        return struct.pack(">" + SCALARS[field.type], value)
    if field.type == "uuid":
        return bytes(value)
    data = value.data if isinstance(value, Made) else value
    width = "h" if field.type == "string" else "i"
    return _length(None if data is None else len(data), width, flexible) + (data or b"")


def _length(length: int | None, width: str, flexible: bool) -> bytes:
    if flexible:
        return uvarint(0 if length is None else length + 1)
    return struct.pack(">" + width, -1 if length is None else length)
