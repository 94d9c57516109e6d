"""The audit event as the jobs read it, field by field: every kind, levels 1 and 2. Imports nothing but Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_LEVEL = 2
"""Highest level of the audit event that is read; an envelope of a higher one becomes a dead letter."""

PRODUCE = 0
"""Kafka's number of the api by which records are written."""

MAX_INSTANT = 253_402_300_799_999_999
"""Microseconds since 1970 of the last instant of the year 9999: later ones cannot be shown by most programs."""

MAX_FRAME = 2**31 + 3
"""Bytes of the largest frame the protocol can carry, with its size prefix."""

MAX_COUNT = 2**31 - 1
"""The most that a field of 32 bits can count."""

MAX_SUM = 10**12
"""The most of a time in µs (11 days), or of what a minute adds up to (10¹² bytes are 16 GB/s); keeps the sums of a
batch of records full of such values within 64 bits."""

MAX_TOTAL = 10**15
"""The most of what a connection, or a run of a sidecar, counts over its life; such totals are not added up."""

MAX_PORT = 65_535


@dataclass(frozen=True)
class Field:
    """One field of the audit event's JSON. A field that is not required has ``default`` where it is left out."""

    name: str
    type: str
    """``string``, ``int``, ``bigint``, ``double``, ``boolean``, ``array`` of objects of ``fields``, or one of
    ``array<string>``, ``array<bigint>``, ``map<string,bigint>``."""
    required: bool = False
    default: Any = None
    least: int | None = None
    most: int | None = None
    allowed: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    kinds: Mapping[str, tuple[Field, ...]] = field(default_factory=dict)
    """What the objects have besides ``fields``, by their ``kind``; those of another kind need nothing more."""

    @property
    def possible(self) -> tuple[Field, ...]:
        """Every field that an object of the array may have."""
        return tuple({each.name: each for some in (self.fields, *self.kinds.values()) for each in some}.values())


# Ranges are checked only of what the sidecar itself measures. What a client or broker wrote (``partition``,
# ``error_code``, ``throttle_ms``, …) is taken as it is: a strange client must not turn a whole envelope into a dead
# letter.
TOPIC_PARTITION = (
    Field("topic", "string", required=True),
    Field("partition", "int", required=True),
    Field("topic_id", "string"),
    Field("bytes", "bigint", default=0, least=0, most=MAX_FRAME),
    Field("records", "bigint", default=0, least=0, most=MAX_COUNT),
    Field("error_code", "int", default=0),
    Field("producer_id", "bigint", default=-1),
    Field("producer_epoch", "int", default=-1),
    Field("base_sequence", "int", default=-1),
    Field("base_offset", "bigint", default=-1),
    Field("claimed", "boolean", default=False),
)

SOURCES = ("anonymous", "unauthenticated", "sasl", "unknown")
"""How a principal can be known."""

EVENT = (
    Field("kind", "string", required=True),
    Field("seq", "bigint", required=True, least=1),
)
"""What an event of any kind has."""

REQUEST_EVENT = (
    *EVENT,
    Field("listener", "string", required=True),
    Field("connection_id", "string", required=True),
    Field("correlation_id", "int", required=True),
    Field("api_key", "int", required=True),
    Field("api", "string", required=True),
    Field("api_version", "int", required=True),
    Field("principal", "string", required=True),
    Field("client_ip", "string", required=True),
    Field("ts_request", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("latency_us", "bigint", required=True, least=0, most=MAX_SUM),
    Field("request_bytes", "bigint", required=True, least=0, most=MAX_FRAME),
    Field("response_bytes", "bigint", default=0, least=0, most=MAX_FRAME),
    Field("outcome", "string", default="answered", allowed=("answered", "no_response", "connection_lost")),
    Field("decode", "string", default="none", allowed=("none", "full", "malformed", "unsupported", "not_kept")),
    Field("client_id", "string"),
    Field("client_software_name", "string"),
    Field("client_software_version", "string"),
    Field("throttle_ms", "bigint", default=0),
    Field("max_wait_ms", "int", default=0),
    Field("acks", "int"),
    Field("error_code", "int", default=0),
    Field("topics", "array", default=(), fields=TOPIC_PARTITION),
    Field("upstream_us", "bigint", default=0, least=0, most=MAX_SUM),
    Field("principal_source", "string", default="anonymous", allowed=SOURCES),
    Field("polled", "array<string>", default=()),
    Field("muted_us", "bigint", default=0, least=0, most=MAX_SUM),
    Field("synthesized", "boolean", default=False),
)

ROLLUP_TOPIC = (
    Field("topic", "string", required=True),
    Field("topic_requests", "bigint", default=0, least=0, most=MAX_SUM),
    Field("records", "bigint", default=0, least=0, most=MAX_SUM),
    Field("bytes", "bigint", default=0, least=0, most=MAX_SUM),
    Field("unconfirmed_records", "bigint", default=0, least=0, most=MAX_SUM),
    Field("unconfirmed_bytes", "bigint", default=0, least=0, most=MAX_SUM),
    Field("rejected_records", "bigint", default=0, least=0, most=MAX_SUM),
    Field("rejected_bytes", "bigint", default=0, least=0, most=MAX_SUM),
    Field("latencies", "array<bigint>", default=()),
    Field("service_latencies", "array<bigint>", default=()),
    Field("errors", "bigint", default=0, least=0, most=MAX_SUM),
)

ROLLUP_EVENT = (
    *EVENT,
    Field("minute", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("listener", "string", required=True),
    Field("api_key", "int", required=True),
    Field("api", "string", required=True),
    Field("principal", "string", required=True),
    Field("client_ip", "string", required=True),
    Field("requests", "bigint", required=True, least=0, most=MAX_SUM),
    Field("request_bytes", "bigint", required=True, least=0, most=MAX_SUM),
    Field("client_id", "string"),
    Field("principal_source", "string", default="anonymous", allowed=SOURCES),
    Field("api_version", "int", default=-1),
    Field("client_software_name", "string"),
    Field("client_software_version", "string"),
    Field("response_bytes", "bigint", default=0, least=0, most=MAX_SUM),
    Field("errors", "bigint", default=0, least=0, most=MAX_SUM),
    Field("connection_lost", "bigint", default=0, least=0, most=MAX_SUM),
    Field("throttle_ms", "bigint", default=0),
    Field("idle", "bigint", default=0, least=0, most=MAX_SUM),
    Field("latencies", "array<bigint>", default=()),
    Field("upstream_latencies", "array<bigint>", default=()),
    Field("service_latencies", "array<bigint>", default=()),
    Field("per_topic", "array", default=(), fields=ROLLUP_TOPIC),
    Field("polled", "array<string>", default=()),
)

CONNECTION_EVENT = (
    *EVENT,
    Field("change", "string", required=True, allowed=("opened", "authenticated", "authentication_failed", "closed")),
    Field("ts", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("listener", "string", required=True),
    Field("connection_id", "string", required=True),
    Field("principal", "string", required=True),
    Field("client_ip", "string", required=True),
    Field("client_port", "int", required=True, least=0, most=MAX_PORT),
    Field("principal_source", "string", default="anonymous", allowed=SOURCES),
    Field("sasl_mechanism", "string"),
    Field("client_id", "string"),
    Field("client_software_name", "string"),
    Field("client_software_version", "string"),
    Field("cause", "string", default=""),
    Field("error_code", "int", default=0),
    Field("session_lifetime_ms", "bigint", default=0),
    Field("duration_ms", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("requests", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("received_bytes", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("sent_bytes", "bigint", default=0, least=0, most=MAX_TOTAL),
)

THROTTLE_EVENT = (
    *EVENT,
    Field("listener", "string", required=True),
    Field("client_ip", "string", required=True),
    Field("scope", "string", required=True, allowed=("broker", "listener", "ip")),
    Field("quota", "string", required=True, allowed=("connection_creation_rate", "connections")),
    Field("action", "string", required=True, allowed=("delay", "hold", "drop", "observe")),
    Field("count", "bigint", required=True, least=1),
    Field("limit", "int", required=True, least=0),
    Field("observed", "double", required=True, least=0),
    Field("ts_first", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("ts_last", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("delay_ms", "bigint", default=0, least=0),
)

INVENTORY_TOPIC = (
    Field("topic", "string", required=True),
    Field("topic_id", "string"),
    Field("partitions", "int", default=0),
    Field("internal", "boolean", default=False),
)

INVENTORY_EVENT = (
    *EVENT,
    Field("ts", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("part", "int", required=True, least=1),
    Field("parts", "int", required=True, least=1),
    Field("inventory", "array", default=(), fields=INVENTORY_TOPIC),
)

GAP_EVENT = (
    *EVENT,
    Field("reason", "string", required=True),
    Field("lost_boot_id", "string", required=True),
    Field("lost_first_seq", "bigint", required=True, least=1),
    Field("lost_last_seq", "bigint", required=True, least=1),
)

STATUS_EVENT = (
    *EVENT,
    Field("ts", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("started_at", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("seen", "bigint", required=True, least=0, most=MAX_TOTAL),
    Field("emitted", "bigint", required=True, least=0, most=MAX_TOTAL),
    Field("delivered", "bigint", required=True, least=0, most=MAX_TOTAL),
    Field("waiting", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("hidden", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("queued", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("spooled", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("dropped", "map<string,bigint>", default={}),
    Field("spool_bytes", "bigint", default=0, least=0, most=MAX_TOTAL),
    Field("clock_step_ms", "bigint", default=0),
    Field("last", "boolean", default=False),
)

KINDS = {
    "request": REQUEST_EVENT,
    "rollup": ROLLUP_EVENT,
    "connection": CONNECTION_EVENT,
    "throttle": THROTTLE_EVENT,
    "topic_inventory": INVENTORY_EVENT,
    "gap": GAP_EVENT,
    "sidecar_status": STATUS_EVENT,
}
"""Kinds of events that are read, with all their fields; a field that several have is of one type in all of them."""

ENVELOPE = (
    Field("schema_level", "int", required=True, least=1),
    Field("cluster_id", "string", required=True),
    Field("broker_id", "int", required=True),
    Field("boot_id", "string", required=True),
    Field("sidecar_version", "string", required=True),
    Field("first_seq", "bigint", required=True, least=1),
    Field("last_seq", "bigint", required=True, least=1),
    Field("dropped", "bigint", required=True, least=0),
    Field("sent_at", "bigint", required=True, least=0, most=MAX_INSTANT),
    Field("events", "array", required=True, fields=EVENT, kinds={kind: KINDS[kind][len(EVENT) :] for kind in KINDS}),
)
