"""Every table that the jobs write, column by column. Imports nothing but Python.

Types are Spark's names. ``markdown`` makes docs/tables.md of the same descriptions that the tables carry as comments.
"""

from __future__ import annotations

from dataclasses import dataclass


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


_EVENT = "audit event"
_REQUEST_ROW = "On the row without a topic; 0 on rows of a topic."
_TOPIC_ROW = "On rows of a topic; 0 on the row without one."

TRAFFIC = Table(
    "traffic",
    "Who did how much, by minute. Each request counts once on the row whose `topic` is NULL, and once more on the row "
    "of each topic it touched; so sum request columns `WHERE topic IS NULL`, and data columns over any rows. "
    "Only what the broker acknowledged, or a client was given, is in `records` and `bytes`. "
    "The rows are the same whether a sidecar tells of each request or rolls them up (`audit.mode`).",
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

The sources are fields of the [audit event](audit-event.md) unless said otherwise: of a request, and of a rollup those
that sum them up.
"""
