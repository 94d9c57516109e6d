"""The audit event as the jobs read it: the fields of every kind, schema levels 1 and 2. Imports only the standard
library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_LEVEL = 2
"""Highest schema level of the audit event that is read. An envelope of a higher level becomes a dead letter."""

PRODUCE = 0
"""Api key of Produce."""

MAX_INSTANT = 253_402_300_799_999_999
"""Microseconds since 1970 of the last instant of the year 9999: most programs cannot show later ones."""

MAX_FRAME = 2**31 + 3
"""Bytes of the largest frame the protocol can carry, with its size prefix."""

MAX_COUNT = 2**31 - 1
"""Greatest count in a field of 32 bits."""

MAX_SUM = 10**12
"""Greatest duration in µs (11 days), or sum of one minute (10¹² bytes are 16 GB/s). The sums of a batch full of such
values fit into 64 bits."""

MAX_TOTAL = 10**15
"""Greatest total of the life of a connection or a sidecar boot. Such totals are never added up."""

MAX_PORT = 65_535

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000


@dataclass(frozen=True)
class EventField:
    """One field of the audit event's JSON. An optional field that is left out has the value ``default``."""

    name: str
    type: str
    """``string``, ``int``, ``bigint``, ``double``, ``boolean``, ``array`` of objects of ``fields``, or one of
    ``array<string>``, ``array<bigint>``, ``map<string,bigint>``."""
    required: bool = False
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None
    allowed: tuple[str, ...] = ()
    fields: tuple[EventField, ...] = ()
    fields_by_kind: Mapping[str, tuple[EventField, ...]] = field(default_factory=dict)
    """Additional fields of the objects, by the value of their field ``kind``. Other kinds have no additional fields."""


def _fields(type: str, *names: str, **options: Any) -> tuple[EventField, ...]:
    """Return fields that differ only in their names."""
    return tuple(EventField(name, type, **options) for name in names)


# Ranges are checked only for values that the sidecar itself measures. Values that a client or broker wrote
# (``partition``, ``error_code``, ``throttle_ms``, …) are accepted as they are: a misbehaving client must not turn a
# whole envelope into a dead letter.
TOPIC_PARTITION = (
    EventField("topic", "string", required=True),
    EventField("partition", "int", required=True),
    EventField("topic_id", "string"),
    EventField("bytes", "bigint", default=0, minimum=0, maximum=MAX_FRAME),
    EventField("records", "bigint", default=0, minimum=0, maximum=MAX_COUNT),
    EventField("error_code", "int", default=0),
    EventField("producer_id", "bigint", default=-1),
    *_fields("int", "producer_epoch", "base_sequence", default=-1),
    EventField("base_offset", "bigint", default=-1),
    *_fields("boolean", "claimed", "upper_bound", default=False),
)

SOURCES = ("anonymous", "unauthenticated", "sasl", "mtls", "unknown")
"""How the sidecar learned a principal."""

EVENT = (EventField("kind", "string", required=True), EventField("seq", "bigint", required=True, minimum=1))
"""Fields of an event of any kind."""

ITEM_ERROR = (
    EventField("error_code", "int", required=True),
    EventField("resource_type", "string", required=True),
    *_fields("string", "resource_name", "topic_id"),
    EventField("partition", "int", default=-1),
    EventField("index", "bigint", default=-1),
    *_fields("string", "parent_type", "parent_name"),
)

RESOURCE = (
    EventField("resource_type", "string", required=True),
    *_fields("string", "resource_name", "topic_id", "parent_type", "parent_name"),
    EventField("error_code", "int", default=0),
    *_fields("string", "op_type", "mechanism", "acl_pattern_type", "acl_host", "acl_operation", "acl_permission_type"),
)

REQUEST_EVENT = (
    *EVENT,
    *_fields("string", "listener", "connection_id", required=True),
    *_fields("int", "correlation_id", "api_key", required=True),
    EventField("api", "string", required=True),
    EventField("api_version", "int", required=True),
    *_fields("string", "principal", "client_ip", required=True),
    EventField("ts_request", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("latency_us", "bigint", required=True, minimum=0, maximum=MAX_SUM),
    EventField("request_bytes", "bigint", required=True, minimum=0, maximum=MAX_FRAME),
    EventField("response_bytes", "bigint", default=0, minimum=0, maximum=MAX_FRAME),
    EventField("outcome", "string", default="answered", allowed=("answered", "no_response", "connection_lost")),
    EventField("decode", "string", default="none", allowed=("none", "full", "malformed", "unsupported", "not_kept")),
    *_fields("string", "client_id", "client_software_name", "client_software_version"),
    EventField("throttle_ms", "bigint", default=0),
    EventField("max_wait_ms", "int", default=0),
    EventField("acks", "int"),
    EventField("error_code", "int", default=0),
    EventField("topics", "array", default=(), fields=TOPIC_PARTITION),
    EventField("upstream_us", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("principal_source", "string", default="anonymous", allowed=SOURCES),
    EventField("polled", "array<string>", default=()),
    EventField("muted_us", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("synthesized", "boolean", default=False),
    EventField("item_errors", "array", default=(), fields=ITEM_ERROR),
    *_fields("bigint", "item_failures", "item_retriable", "item_protocol", default=0, minimum=0, maximum=MAX_SUM),
    EventField("operation", "string"),
    EventField("resources", "array", default=(), fields=RESOURCE),
    EventField("resource_count", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("validate_only", "boolean", default=False),
    *_fields("string", "group_id", "group_instance_id", "member_id"),
    EventField("generation_id", "int", default=-1),
    EventField("transactional_id", "string"),
)

ROLLUP_TOPIC = (
    EventField("topic", "string", required=True),
    *_fields("bigint", "topic_requests", "records", "bytes", default=0, minimum=0, maximum=MAX_SUM),
    *_fields("bigint", "unconfirmed_records", "unconfirmed_bytes", default=0, minimum=0, maximum=MAX_SUM),
    *_fields("bigint", "rejected_records", "rejected_bytes", default=0, minimum=0, maximum=MAX_SUM),
    *_fields("array<bigint>", "latencies", "service_latencies", default=()),
    *_fields("bigint", "errors", "estimated_records", default=0, minimum=0, maximum=MAX_SUM),
)

ROLLUP_EVENT = (
    *EVENT,
    EventField("minute", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("listener", "string", required=True),
    EventField("api_key", "int", required=True),
    *_fields("string", "api", "principal", "client_ip", required=True),
    *_fields("bigint", "requests", "request_bytes", required=True, minimum=0, maximum=MAX_SUM),
    EventField("client_id", "string"),
    EventField("principal_source", "string", default="anonymous", allowed=SOURCES),
    EventField("api_version", "int", default=-1),
    *_fields("string", "client_software_name", "client_software_version"),
    *_fields("bigint", "response_bytes", "errors", "retriable", "protocol", default=0, minimum=0, maximum=MAX_SUM),
    EventField("connection_lost", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("throttle_ms", "bigint", default=0),
    EventField("idle", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    *_fields("array<bigint>", "latencies", "upstream_latencies", "service_latencies", default=()),
    EventField("per_topic", "array", default=(), fields=ROLLUP_TOPIC),
    EventField("polled", "array<string>", default=()),
)

CHANGES = ("opened", "authenticated", "authentication_failed", "closed")
"""What happens to a connection."""

CONNECTION_EVENT = (
    *EVENT,
    EventField("change", "string", required=True, allowed=CHANGES),
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    *_fields("string", "listener", "connection_id", "principal", "client_ip", required=True),
    EventField("client_port", "int", required=True, minimum=0, maximum=MAX_PORT),
    EventField("principal_source", "string", default="anonymous", allowed=SOURCES),
    *_fields("string", "sasl_mechanism", "tls_version", "tls_cipher", "tls_client_serial", "client_id"),
    *_fields("string", "client_software_name", "client_software_version"),
    EventField("cause", "string", default=""),
    EventField("error_code", "int", default=0),
    EventField("session_lifetime_ms", "bigint", default=0),
    *_fields("bigint", "duration_ms", "requests", "received_bytes", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("sent_bytes", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
)

THROTTLE_EVENT = (
    *EVENT,
    *_fields("string", "listener", "client_ip", required=True),
    EventField("scope", "string", required=True, allowed=("broker", "listener", "ip", "principal")),
    EventField("quota", "string", required=True, allowed=("connection_creation_rate", "connections")),
    EventField("action", "string", required=True, allowed=("delay", "hold", "drop", "observe")),
    EventField("count", "bigint", required=True, minimum=1, maximum=MAX_SUM),
    EventField("limit", "int", required=True, minimum=0),
    EventField("observed", "double", required=True, minimum=0),
    *_fields("bigint", "ts_first", "ts_last", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("delay_ms", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("principal", "string", default=""),
)

INVENTORY_TOPIC = (
    EventField("topic", "string", required=True),
    EventField("topic_id", "string"),
    EventField("partitions", "int", default=0),
    EventField("internal", "boolean", default=False),
)

INVENTORY_EVENT = (
    *EVENT,
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    *_fields("int", "part", "parts", required=True, minimum=1),
    EventField("inventory", "array", default=(), fields=INVENTORY_TOPIC),
)

END_OFFSET = (
    EventField("topic", "string", required=True),
    EventField("partition", "int", required=True),
    EventField("offset", "bigint", required=True, minimum=0),
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
)

COMMITTED_OFFSET = (*END_OFFSET, EventField("transactional", "boolean", default=False))

GROUP_EVENT = (
    *EVENT,
    *_fields("string", "listener", "principal", "client_ip", "group_id", required=True),
    *_fields("bigint", "ts_first", "ts_last", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("requests", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    *_fields("string", "client_id", "member_id", "group_instance_id"),
    EventField("generation_id", "int", default=-1),
    EventField("group_type", "string"),
    EventField("commits", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("committed", "array", default=(), fields=COMMITTED_OFFSET),
    EventField("offsets_not_listed", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("fetched", "array<string>", default=()),
)

END_OFFSETS_EVENT = (
    *EVENT,
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("end_offsets", "array", default=(), fields=END_OFFSET),
)

GAP_EVENT = (
    *EVENT,
    *_fields("string", "reason", "lost_boot_id", required=True),
    *_fields("bigint", "lost_first_seq", "lost_last_seq", required=True, minimum=1),
)

STATUS_EVENT = (
    *EVENT,
    *_fields("bigint", "ts", "started_at", required=True, minimum=0, maximum=MAX_INSTANT),
    *_fields("bigint", "seen", "emitted", "delivered", required=True, minimum=0, maximum=MAX_TOTAL),
    *_fields("bigint", "waiting", "hidden", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("hidden_by", "map<string,bigint>", default={}),
    EventField("partly_hidden", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("partly_hidden_by", "map<string,bigint>", default={}),
    *_fields("bigint", "queued", "spooled", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("dropped", "map<string,bigint>", default={}),
    EventField("spool_bytes", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("clock_step_ms", "bigint", default=0),
    EventField("last", "boolean", default=False),
)

KINDS = {
    "request": REQUEST_EVENT,
    "rollup": ROLLUP_EVENT,
    "connection": CONNECTION_EVENT,
    "throttle": THROTTLE_EVENT,
    "topic_inventory": INVENTORY_EVENT,
    "group": GROUP_EVENT,
    "end_offsets": END_OFFSETS_EVENT,
    "gap": GAP_EVENT,
    "sidecar_status": STATUS_EVENT,
}
"""Fields of each event kind that is read. A field that several kinds have is of the same type in all of them."""

_FIELDS_BY_KIND = {kind: fields[len(EVENT) :] for kind, fields in KINDS.items()}

ENVELOPE = (
    EventField("schema_level", "int", required=True, minimum=1),
    EventField("cluster_id", "string", required=True),
    EventField("broker_id", "int", required=True),
    *_fields("string", "boot_id", "sidecar_version", required=True),
    *_fields("bigint", "first_seq", "last_seq", required=True, minimum=1),
    EventField("dropped", "bigint", required=True, minimum=0),
    EventField("sent_at", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("events", "array", required=True, fields=EVENT, fields_by_kind=_FIELDS_BY_KIND),
)
