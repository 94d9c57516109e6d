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

    @property
    def all_fields(self) -> tuple[EventField, ...]:
        """Every field that an object of the array can have, of any kind."""
        return tuple(
            {each.name: each for some in (self.fields, *self.fields_by_kind.values()) for each in some}.values()
        )


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
    EventField("producer_epoch", "int", default=-1),
    EventField("base_sequence", "int", default=-1),
    EventField("base_offset", "bigint", default=-1),
    EventField("claimed", "boolean", default=False),
    EventField("upper_bound", "boolean", default=False),
)

SOURCES = ("anonymous", "unauthenticated", "sasl", "mtls", "unknown")
"""How the sidecar learned a principal."""

EVENT = (
    EventField("kind", "string", required=True),
    EventField("seq", "bigint", required=True, minimum=1),
)
"""Fields of an event of any kind."""

ITEM_ERROR = (
    EventField("error_code", "int", required=True),
    EventField("resource_type", "string", required=True),
    EventField("resource_name", "string"),
    EventField("topic_id", "string"),
    EventField("partition", "int", default=-1),
    EventField("index", "bigint", default=-1),
    EventField("parent_type", "string"),
    EventField("parent_name", "string"),
)

RESOURCE = (
    EventField("resource_type", "string", required=True),
    EventField("resource_name", "string"),
    EventField("topic_id", "string"),
    EventField("parent_type", "string"),
    EventField("parent_name", "string"),
    EventField("error_code", "int", default=0),
    EventField("op_type", "string"),
    EventField("mechanism", "string"),
    EventField("acl_pattern_type", "string"),
    EventField("acl_host", "string"),
    EventField("acl_operation", "string"),
    EventField("acl_permission_type", "string"),
)

REQUEST_EVENT = (
    *EVENT,
    EventField("listener", "string", required=True),
    EventField("connection_id", "string", required=True),
    EventField("correlation_id", "int", required=True),
    EventField("api_key", "int", required=True),
    EventField("api", "string", required=True),
    EventField("api_version", "int", required=True),
    EventField("principal", "string", required=True),
    EventField("client_ip", "string", required=True),
    EventField("ts_request", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("latency_us", "bigint", required=True, minimum=0, maximum=MAX_SUM),
    EventField("request_bytes", "bigint", required=True, minimum=0, maximum=MAX_FRAME),
    EventField("response_bytes", "bigint", default=0, minimum=0, maximum=MAX_FRAME),
    EventField("outcome", "string", default="answered", allowed=("answered", "no_response", "connection_lost")),
    EventField("decode", "string", default="none", allowed=("none", "full", "malformed", "unsupported", "not_kept")),
    EventField("client_id", "string"),
    EventField("client_software_name", "string"),
    EventField("client_software_version", "string"),
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
    EventField("item_failures", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("item_retriable", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("item_protocol", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("operation", "string"),
    EventField("resources", "array", default=(), fields=RESOURCE),
    EventField("resource_count", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("validate_only", "boolean", default=False),
    EventField("group_id", "string"),
    EventField("group_instance_id", "string"),
    EventField("member_id", "string"),
    EventField("generation_id", "int", default=-1),
    EventField("transactional_id", "string"),
)

ROLLUP_TOPIC = (
    EventField("topic", "string", required=True),
    EventField("topic_requests", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("records", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("bytes", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("unconfirmed_records", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("unconfirmed_bytes", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("rejected_records", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("rejected_bytes", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("latencies", "array<bigint>", default=()),
    EventField("service_latencies", "array<bigint>", default=()),
    EventField("errors", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("estimated_records", "bigint", default=0, minimum=0, maximum=MAX_SUM),
)

ROLLUP_EVENT = (
    *EVENT,
    EventField("minute", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("listener", "string", required=True),
    EventField("api_key", "int", required=True),
    EventField("api", "string", required=True),
    EventField("principal", "string", required=True),
    EventField("client_ip", "string", required=True),
    EventField("requests", "bigint", required=True, minimum=0, maximum=MAX_SUM),
    EventField("request_bytes", "bigint", required=True, minimum=0, maximum=MAX_SUM),
    EventField("client_id", "string"),
    EventField("principal_source", "string", default="anonymous", allowed=SOURCES),
    EventField("api_version", "int", default=-1),
    EventField("client_software_name", "string"),
    EventField("client_software_version", "string"),
    EventField("response_bytes", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("errors", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("retriable", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("protocol", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("connection_lost", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("throttle_ms", "bigint", default=0),
    EventField("idle", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("latencies", "array<bigint>", default=()),
    EventField("upstream_latencies", "array<bigint>", default=()),
    EventField("service_latencies", "array<bigint>", default=()),
    EventField("per_topic", "array", default=(), fields=ROLLUP_TOPIC),
    EventField("polled", "array<string>", default=()),
)

CONNECTION_EVENT = (
    *EVENT,
    EventField(
        "change", "string", required=True, allowed=("opened", "authenticated", "authentication_failed", "closed")
    ),
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("listener", "string", required=True),
    EventField("connection_id", "string", required=True),
    EventField("principal", "string", required=True),
    EventField("client_ip", "string", required=True),
    EventField("client_port", "int", required=True, minimum=0, maximum=MAX_PORT),
    EventField("principal_source", "string", default="anonymous", allowed=SOURCES),
    EventField("sasl_mechanism", "string"),
    EventField("tls_version", "string"),
    EventField("tls_cipher", "string"),
    EventField("tls_client_serial", "string"),
    EventField("client_id", "string"),
    EventField("client_software_name", "string"),
    EventField("client_software_version", "string"),
    EventField("cause", "string", default=""),
    EventField("error_code", "int", default=0),
    EventField("session_lifetime_ms", "bigint", default=0),
    EventField("duration_ms", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("requests", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("received_bytes", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("sent_bytes", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
)

THROTTLE_EVENT = (
    *EVENT,
    EventField("listener", "string", required=True),
    EventField("client_ip", "string", required=True),
    EventField("scope", "string", required=True, allowed=("broker", "listener", "ip", "principal")),
    EventField("quota", "string", required=True, allowed=("connection_creation_rate", "connections")),
    EventField("action", "string", required=True, allowed=("delay", "hold", "drop", "observe")),
    EventField("count", "bigint", required=True, minimum=1),
    EventField("limit", "int", required=True, minimum=0),
    EventField("observed", "double", required=True, minimum=0),
    EventField("ts_first", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("ts_last", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("delay_ms", "bigint", default=0, minimum=0),
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
    EventField("part", "int", required=True, minimum=1),
    EventField("parts", "int", required=True, minimum=1),
    EventField("inventory", "array", default=(), fields=INVENTORY_TOPIC),
)

COMMITTED_OFFSET = (
    EventField("topic", "string", required=True),
    EventField("partition", "int", required=True),
    EventField("offset", "bigint", required=True, minimum=0),
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("transactional", "boolean", default=False),
)

GROUP_EVENT = (
    *EVENT,
    EventField("listener", "string", required=True),
    EventField("principal", "string", required=True),
    EventField("client_ip", "string", required=True),
    EventField("group_id", "string", required=True),
    EventField("ts_first", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("ts_last", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("requests", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("client_id", "string"),
    EventField("member_id", "string"),
    EventField("group_instance_id", "string"),
    EventField("generation_id", "int", default=-1),
    EventField("group_type", "string"),
    EventField("commits", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("committed", "array", default=(), fields=COMMITTED_OFFSET),
    EventField("offsets_not_listed", "bigint", default=0, minimum=0, maximum=MAX_SUM),
    EventField("fetched", "array<string>", default=()),
)

END_OFFSET = (
    EventField("topic", "string", required=True),
    EventField("partition", "int", required=True),
    EventField("offset", "bigint", required=True, minimum=0),
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
)

END_OFFSETS_EVENT = (
    *EVENT,
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("end_offsets", "array", default=(), fields=END_OFFSET),
)

GAP_EVENT = (
    *EVENT,
    EventField("reason", "string", required=True),
    EventField("lost_boot_id", "string", required=True),
    EventField("lost_first_seq", "bigint", required=True, minimum=1),
    EventField("lost_last_seq", "bigint", required=True, minimum=1),
)

STATUS_EVENT = (
    *EVENT,
    EventField("ts", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("started_at", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField("seen", "bigint", required=True, minimum=0, maximum=MAX_TOTAL),
    EventField("emitted", "bigint", required=True, minimum=0, maximum=MAX_TOTAL),
    EventField("delivered", "bigint", required=True, minimum=0, maximum=MAX_TOTAL),
    EventField("waiting", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("hidden", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("hidden_by", "map<string,bigint>", default={}),
    EventField("partly_hidden", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("partly_hidden_by", "map<string,bigint>", default={}),
    EventField("queued", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
    EventField("spooled", "bigint", default=0, minimum=0, maximum=MAX_TOTAL),
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

ENVELOPE = (
    EventField("schema_level", "int", required=True, minimum=1),
    EventField("cluster_id", "string", required=True),
    EventField("broker_id", "int", required=True),
    EventField("boot_id", "string", required=True),
    EventField("sidecar_version", "string", required=True),
    EventField("first_seq", "bigint", required=True, minimum=1),
    EventField("last_seq", "bigint", required=True, minimum=1),
    EventField("dropped", "bigint", required=True, minimum=0),
    EventField("sent_at", "bigint", required=True, minimum=0, maximum=MAX_INSTANT),
    EventField(
        "events",
        "array",
        required=True,
        fields=EVENT,
        fields_by_kind={kind: KINDS[kind][len(EVENT) :] for kind in KINDS},
    ),
)
