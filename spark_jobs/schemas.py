"""The audit envelope as the jobs read it, and every table they write, column by column. Imports nothing but Python.

Types are Spark's names. ``markdown`` makes docs/tables.md of the same descriptions that the tables carry as comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_LEVEL = 1
"""Highest level of the audit event that is read; an envelope of a higher one becomes a dead letter."""

MAX_INSTANT = 253_402_300_799_999_999
"""Microseconds since 1970 of the last instant of the year 9999: later ones cannot be shown by most programs."""

MAX_FRAME = 2**31 + 3
"""Bytes of the largest frame the protocol can carry, with its size prefix."""

MAX_COUNT = 2**31 - 1
"""The most that a field of 32 bits can count."""

MAX_LATENCY = 10**15
"""Microseconds: 31 years, more than any request takes; keeps sums of it within 64 bits."""


@dataclass(frozen=True)
class Field:
    """One field of the audit event's JSON. A field that is not required has ``default`` where it is left out."""

    name: str
    type: str
    """``string``, ``int``, ``bigint``, ``double``, ``boolean``, or ``array`` of objects of ``fields``."""
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


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    source: str = ""
    key: bool = False
    """Whether it is part of what a row is about; rows with equal keys add up."""


@dataclass(frozen=True)
class Table:
    """One table: how it is stored and what its columns mean."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the key columns, in order; empty where each row stands for itself."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of the columns that add up over rows with equal keys; empty where each row stands for itself."""
        return tuple(column.name for column in self.columns if not column.key) if self.keys else ()


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
    Field("latency_us", "bigint", required=True, least=0, most=MAX_LATENCY),
    Field("request_bytes", "bigint", required=True, least=0, most=MAX_FRAME),
    Field("response_bytes", "bigint", default=0, least=0, most=MAX_FRAME),
    Field("outcome", "string", default="answered", allowed=("answered", "no_response", "connection_lost")),
    Field("decode", "string", default="none", allowed=("none", "full", "malformed", "unsupported")),
    Field("client_id", "string"),
    Field("client_software_name", "string"),
    Field("client_software_version", "string"),
    Field("throttle_ms", "int", default=0),
    Field("max_wait_ms", "int", default=0),
    Field("acks", "int"),
    Field("error_code", "int", default=0),
    Field("topics", "array", default=(), fields=TOPIC_PARTITION),
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

KINDS = {"request": REQUEST_EVENT, "throttle": THROTTLE_EVENT}
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

_EVENT = "audit event"
_REQUEST_ROW = "On the row without a topic; 0 on rows of a topic."
_TOPIC_ROW = "On rows of a topic; 0 on the row without one."

TRAFFIC = Table(
    "traffic",
    "Who did how much, by minute. Each request counts once on the row whose `topic` is NULL, and once more on the row "
    "of each topic it touched; so sum request columns `WHERE topic IS NULL`, and data columns over any rows. "
    "Only what the broker acknowledged, or a client was given, is in `records` and `bytes`.",
    (
        Column("day", "date", "Day of `minute`; the table is partitioned by it.", "UTC", "ts_request", key=True),
        Column("minute", "timestamp", "Minute in which the request arrived.", "UTC", "ts_request", key=True),
        Column("cluster_id", "string", "The Kafka cluster's own id.", source="cluster_id", key=True),
        Column("broker_id", "int", "The broker that was asked.", source="broker_id", key=True),
        Column("listener", "string", "Listener the client came in by.", source="listener", key=True),
        Column("api", "string", "Kind of request: `Produce`, `Fetch`, `Metadata`, …", source="api", key=True),
        Column(
            "topic", "string", "Topic; NULL on the row that counts whole requests.", source="topics[].topic", key=True
        ),
        Column("principal", "string", "Who the client is, `User:<name>`.", source="principal", key=True),
        Column("client_id", "string", "Client id as the client chose it; may be NULL.", source="client_id", key=True),
        Column("client_ip", "string", "Address of the client.", source="client_ip", key=True),
        Column("requests", "bigint", f"Requests. {_REQUEST_ROW}", "requests", _EVENT),
        Column("request_bytes", "bigint", f"Size of the requests on the wire. {_REQUEST_ROW}", "bytes"),
        Column("response_bytes", "bigint", f"Size of the responses on the wire. {_REQUEST_ROW}", "bytes"),
        Column(
            "errors",
            "bigint",
            f"Requests with an error code, of the whole or of any partition. {_REQUEST_ROW}",
            "requests",
            "error_code, topics[].error_code",
        ),
        Column(
            "connection_lost",
            "bigint",
            f"Requests whose connection ended before their response did. {_REQUEST_ROW}",
            "requests",
            "outcome",
        ),
        Column(
            "throttle_ms", "bigint", f"How long the broker asked clients to wait. {_REQUEST_ROW}", "ms", "throttle_ms"
        ),
        Column("topic_requests", "bigint", f"Requests that touched the topic. {_TOPIC_ROW}", "requests", "topics[]"),
        Column(
            "records",
            "bigint",
            f"Produce: records acknowledged. Fetch: records handed out. {_TOPIC_ROW}",
            "records",
            "topics[].records",
        ),
        Column("bytes", "bigint", f"Their record sets as sent, compressed. {_TOPIC_ROW}", "bytes", "topics[].bytes"),
        Column(
            "unconfirmed_records",
            "bigint",
            f"Produce without an answer: acks=0, or the connection was lost. The broker may have them. {_TOPIC_ROW}",
            "records",
            "topics[].records, outcome",
        ),
        Column("unconfirmed_bytes", "bigint", f"Their record sets. {_TOPIC_ROW}", "bytes", "topics[].bytes, outcome"),
        Column(
            "rejected_records",
            "bigint",
            f"Produce answered with an error, or with an answer that could not be read. {_TOPIC_ROW}",
            "records",
            "topics[].records, topics[].error_code",
        ),
        Column(
            "rejected_bytes",
            "bigint",
            f"Their record sets. {_TOPIC_ROW}",
            "bytes",
            "topics[].bytes, topics[].error_code",
        ),
    ),
    partitioned_by=("day",),
)

DEAD_LETTERS = Table(
    "dead_letters",
    "Records of the audit topic that are not audit envelopes this job can read. One row each; nothing of such a "
    "record is counted in any other table.",
    (
        Column("timestamp", "timestamp", "Timestamp of the Kafka record.", "UTC", "Kafka record"),
        Column("topic", "string", "The audit topic it was read from.", source="Kafka record"),
        Column("partition", "int", "Its partition.", source="Kafka record"),
        Column("offset", "bigint", "Its offset.", source="Kafka record"),
        Column("reason", "string", "Why; see the list of reasons."),
        Column("detail", "string", "Which field, or which value, as far as it can be told; may be NULL."),
        Column("value_bytes", "bigint", "Size of the record's value; 0 where it has none.", "bytes", "Kafka record"),
        Column(
            "value_sample", "string", "The first 1,024 bytes of the value, base64; NULL without one.", "base64",
            "Kafka record",
        ),
    ),
)  # fmt: skip

REASONS = {
    "empty": "The record has no value.",
    "not_utf8": "The value is not UTF-8.",
    "not_json": "The value is not one whole JSON value, or one too deep or too long for the reader.",
    "schema_level_too_high": "Written by a newer sidecar than this job can read; `detail` is the level.",
    "missing_field": "A required field is missing or null; `detail` names it.",
    "bad_value": "A value is of the wrong type or out of range; `detail` names it where it can be told.",
    "sequence_mismatch": "`first_seq`, `last_seq` and the events in between do not agree.",
}
"""Every value of ``dead_letters.reason``."""

TABLES = {table.name: table for table in (TRAFFIC, DEAD_LETTERS)}
"""Every table, by name."""


def markdown() -> str:
    """Return the text of docs/tables.md."""
    parts = [_HEAD]
    for table in TABLES.values():
        parts += [f"## `{table.name}`\n", f"{table.meaning}\n"]
        if table.keys:
            parts.append(f"Key: {', '.join(f'`{key}`' for key in table.keys)}. All other columns are sums.\n")
        parts.append("| column | type | unit | source | meaning |\n|---|---|---|---|---|")
        parts += [f"| `{c.name}` | {c.type} | {c.unit} | {c.source} | {c.meaning} |" for c in table.columns]
        parts.append("")
    parts.append("### Reasons\n\n| `reason` | meaning |\n|---|---|")
    parts += [f"| `{reason}` | {meaning} |" for reason, meaning in REASONS.items()]
    return "\n".join(parts) + "\n"


_HEAD = """# Tables

Generated from `spark_jobs/schemas.py`. `brokerside tables` prints the same of the tables that exist.

All tables are Delta tables below one root folder, written exactly once by `brokerside jobs run`. Any engine that reads
Delta can read them; `brokerside query "SELECT …"` does so without a JVM. Times are UTC.

Rows of `traffic` are stored as partial sums: each batch of the job adds its own rows, so several stored rows may have
the same key, and their sums add up. `brokerside query` shows them added up. Other engines see the stored rows: use
`sum(…)` with `GROUP BY`, which is right in either case.

The sources are fields of the [audit event](audit-event.md) unless said otherwise.
"""
