"""Completeness of the data: ``completeness`` and ``dead_letters``."""

from __future__ import annotations

from spark_jobs.schemas.model import BOOT, BROKER, CLUSTER, DAY, Column, Table, key_column, merged_column, sum_column

_STATUS = "Value of the newest status in the minute of the row; NULL without one."

COMPLETENESS = Table(
    "completeness",
    "Whether all events that the sidecars sent have arrived, by boot of a sidecar. Events are numbered from 1 in each "
    "boot. Numbers that are neither in `events` nor in `lost` are missing; a negative difference is the number of "
    "duplicates. If a boot is older than the table, its first numbers were deleted with their days: the example counts "
    "from the lowest number in the table. A living sidecar sends a status every ten seconds, so a minute without a "
    "status is a minute in which it was not seen alive.",
    (
        DAY,
        key_column("minute", "timestamp", "Minute in which the record was sent. A record that was spooled on disk may"
                   " be sent days later, with the events it reports as lost. For statuses: the minute of the status.",
                   "UTC", "sent_at, ts"),
        CLUSTER, BROKER, BOOT,
        key_column("reason", "string", "Why events were lost; NULL on rows of events that arrived."),
        key_column("hidden_by", "string", "On rows that count what configuration hides: `principal NAME` or `topic"
                   " NAME` of `audit.exclude.principals` or `audit.exclude.topics`; NULL on all others.",
                   source="hidden_by, partly_hidden_by"),
        sum_column("envelopes", "Records of the audit topic, each once.", "records", "envelope"),
        sum_column("events", "Events in them.", "events"),
        merged_column("min", "first_seq", "bigint", "Lowest number of an event."),
        merged_column("max", "last_seq", "bigint", "Highest number of an event."),
        sum_column("lost", "Events that the sidecar reports as lost. On rows with a reason.", "events", "gap"),
        merged_column("min", "lost_first_seq", "bigint", "Lowest number of those."),
        merged_column("max", "lost_last_seq", "bigint", "Highest number of those."),
        sum_column("conflicts", "Records with event numbers for which another record has other events: one of them is"
                   " forged. The record that was read first is in the tables, the other one in `dead_letters`. The"
                   " minute is that of its `sent_at`.", "records", "first_seq, last_seq"),
        sum_column("statuses", "Statuses of that minute: about six of a living sidecar.", "events", "sidecar_status"),
        merged_column("max", "last_status", "timestamp", "Time of the newest of them.", "UTC", "ts"),
        merged_column("min", "started_at", "timestamp", f"When the boot started. {_STATUS}", "UTC"),
        merged_column("max", "seen", "bigint", f"What the sidecar has seen so far. {_STATUS}", "events"),
        merged_column("max", "emitted", "bigint", f"Numbers given so far. {_STATUS}", "events"),
        merged_column("max", "delivered", "bigint", f"Events acknowledged so far. {_STATUS}", "events"),
        merged_column("max", "hidden", "bigint", "What the sidecar has seen so far and configuration hides: of the"
                      f" principal or topic of `hidden_by`, or in all. {_STATUS}", "events", "hidden, hidden_by"),
        merged_column("max", "partly_hidden", "bigint", "Events and requests in rollups so far that lack excluded"
                      " topics: the topic of `hidden_by`, or any. What lacks several topics counts for each of them,"
                      f" and once in all. They are not in `hidden`. {_STATUS}", "events",
                      "partly_hidden, partly_hidden_by"),
        merged_column("max", "dropped", "bigint", f"Events lost so far for any reason. {_STATUS}", "events"),
        merged_column("last", "waiting", "bigint", f"Events in memory or on disk. {_STATUS}", "events",
                      "waiting, queued, spooled"),
        sum_column("clock_step_ms", "By how much the wall clock was set, in either direction.", "ms"),
        merged_column("max", "ended", "boolean", "Whether the sidecar stopped cleanly with this status.",
                      source="last"),
        merged_column("max", "sidecar_version", "string", "Version of the sidecar."),
    ),
    example="SELECT cluster_id, broker_id, boot_id, sum(events) AS events, sum(lost) AS lost,"
    " greatest(max(last_seq), max(lost_last_seq)) + 1 - least(min(first_seq), min(lost_first_seq)) - sum(events)"
    " - sum(lost) AS missing, sum(conflicts) AS conflicts FROM completeness GROUP BY ALL ORDER BY ALL",
    order="last_status",
)  # fmt: skip

DEAD_LETTERS = Table(
    "dead_letters",
    "Records of the audit topic that are not valid audit envelopes. One row for each record; it is not counted in any "
    "other table.",
    (
        Column("day", "date", "Day of `timestamp`; the table is partitioned by it.", "UTC", "Kafka record"),
        Column("timestamp", "timestamp", "Timestamp of the Kafka record.", "UTC", "Kafka record"),
        Column("topic", "string", "The audit topic it was read from.", source="Kafka record"),
        Column("partition", "int", "Its partition.", source="Kafka record"),
        Column("offset", "bigint", "Its offset.", source="Kafka record"),
        Column("reason", "string", "Why; see the list of reasons."),
        Column("detail", "string", "Which field, or which value, if that is known; may be NULL."),
        Column("value_bytes", "bigint", "Size of the record's value; 0 where it has none.", "bytes", "Kafka record"),
        Column("value_sample", "string", "The first 1,024 bytes of the value, base64; NULL without one.", "base64",
               "Kafka record"),
    ),
    example="SELECT reason, detail, count(*) AS records FROM dead_letters GROUP BY ALL ORDER BY ALL",
    retention_days=90,
)  # fmt: skip

DEAD_LETTER_REASONS = {
    "empty": "The record has no value.",
    "not_utf8": "The value is not UTF-8.",
    "not_json": "The value is not one whole JSON value, or one too deep or too long for the reader.",
    "schema_level_too_high": "Written by a newer sidecar than this job can read; `detail` is the level.",
    "missing_field": "A required field is missing or null; `detail` names it.",
    "bad_value": "A value is of the wrong type or out of range; `detail` names it if that is known.",
    "conflict": "It has event numbers for which an earlier record has other events; `detail` has the numbers and the "
    "position of the earlier record. Events with new numbers are counted in the other tables.",
    "sequence_mismatch": "`first_seq`, `last_seq` and the events in between do not match.",
    "unsigned": "It has no header `brokerside-hmac`. Only with `--hmac-keys`, as the next two.",
    "unknown_key": "It is signed with a key whose id is not in the file.",
    "bad_signature": "It is signed, but not with the key of this id: forged, or changed afterwards.",
}
"""Every value of ``dead_letters.reason``."""
