"""How far the tables can be believed: ``completeness`` and ``dead_letters``."""

from __future__ import annotations

from spark_jobs.schemas.model import BOOT, BROKER, CLUSTER, DAY, Column, Table, key, merged, total

_STATUS = "As the newest status of the row's minute says; NULL without one."

COMPLETENESS = Table(
    "completeness",
    "Whether everything the sidecars told has arrived, by run of a sidecar. Events are numbered from 1 in each run: "
    "what is neither in `events` nor in `lost` is missing; where it is less than 0, so many were counted twice. Of a "
    "run that is older than the table the first numbers went with their days: the example counts from the lowest that "
    "is there. A sidecar that lives tells a status each ten seconds, so a minute without one is a minute in which it "
    "was not seen alive.",
    (
        DAY,
        key("minute", "timestamp", "Minute in which the record was sent: of one that was kept on disk, with what it"
            " says is lost, that in which it was sent at last, maybe days later. Of statuses that of the status.",
            "UTC", "sent_at, ts"),
        CLUSTER,
        BROKER,
        BOOT,
        key("reason", "string", "Why events were lost; NULL on rows of what arrived.", source="reason"),
        total("envelopes", "Records of the audit topic, each once.", "records", "envelope"),
        total("events", "Events in them.", "events", "events"),
        merged("min", "first_seq", "bigint", "Lowest number of an event.", "", "first_seq"),
        merged("max", "last_seq", "bigint", "Highest number of an event.", "", "last_seq"),
        total("lost", "Events that the sidecar says are lost. On rows with a reason.", "events", "gap"),
        merged("min", "lost_first_seq", "bigint", "Lowest number of those.", "", "lost_first_seq"),
        merged("max", "lost_last_seq", "bigint", "Highest number of those.", "", "lost_last_seq"),
        total("conflicts", "Records that claim numbers for which another record has other events: one of both is"
              " forged. What was taken first is in the tables; the other one is in `dead_letters`. In the minute that"
              " its `sent_at` says.", "records", "first_seq, last_seq"),
        total("statuses", "Statuses of that minute: about six of a sidecar that lives.", "events", "sidecar_status"),
        merged("max", "last_status", "timestamp", "When the newest of them was told.", "UTC", "ts"),
        merged("min", "started_at", "timestamp", f"When the run began. {_STATUS}", "UTC", "started_at"),
        merged("max", "seen", "bigint", f"What the sidecar has seen so far. {_STATUS}", "events", "seen"),
        merged("max", "emitted", "bigint", f"Numbers given so far. {_STATUS}", "events", "emitted"),
        merged("max", "delivered", "bigint", f"Events acknowledged so far. {_STATUS}", "events", "delivered"),
        merged("max", "hidden", "bigint", f"Seen and not told of so far. {_STATUS}", "events", "hidden"),
        merged("max", "dropped", "bigint", f"Events lost so far, for any reason. {_STATUS}", "events", "dropped"),
        merged("last", "waiting", "bigint", f"Events in memory or on disk. {_STATUS}", "events",
               "waiting, queued, spooled"),
        total("clock_step_ms", "By how much the wall clock was set, in either direction.", "ms", "clock_step_ms"),
        merged("max", "ended", "boolean", "Whether the run ended in good order with this status.", "", "last"),
        merged("max", "sidecar_version", "string", "Version of the sidecar.", "", "sidecar_version"),
    ),
    example="SELECT cluster_id, broker_id, boot_id, sum(events) AS events, sum(lost) AS lost,"
    " greatest(max(last_seq), max(lost_last_seq)) + 1 - least(min(first_seq), min(lost_first_seq)) - sum(events)"
    " - sum(lost) AS missing, sum(conflicts) AS conflicts FROM completeness GROUP BY ALL ORDER BY ALL",
    order="last_status",
)  # fmt: skip

DEAD_LETTERS = Table(
    "dead_letters",
    "Records of the audit topic that are not audit envelopes this job can read. One row each; nothing of such a "
    "record is counted in any other table.",
    (
        Column("day", "date", "Day of `timestamp`; the table is partitioned by it.", "UTC", "Kafka record"),
        Column("timestamp", "timestamp", "Timestamp of the Kafka record.", "UTC", "Kafka record"),
        Column("topic", "string", "The audit topic it was read from.", source="Kafka record"),
        Column("partition", "int", "Its partition.", source="Kafka record"),
        Column("offset", "bigint", "Its offset.", source="Kafka record"),
        Column("reason", "string", "Why; see the list of reasons."),
        Column("detail", "string", "Which field, or which value, as far as it can be told; may be NULL."),
        Column("value_bytes", "bigint", "Size of the record's value; 0 where it has none.", "bytes", "Kafka record"),
        Column("value_sample", "string", "The first 1,024 bytes of the value, base64; NULL without one.", "base64",
               "Kafka record"),
    ),
    example="SELECT reason, detail, count(*) AS records FROM dead_letters GROUP BY ALL ORDER BY ALL",
    retention_days=90,
)  # fmt: skip

REASONS = {
    "empty": "The record has no value.",
    "not_utf8": "The value is not UTF-8.",
    "not_json": "The value is not one whole JSON value, or one too deep or too long for the reader.",
    "schema_level_too_high": "Written by a newer sidecar than this job can read; `detail` is the level.",
    "missing_field": "A required field is missing or null; `detail` names it.",
    "bad_value": "A value is of the wrong type or out of range; `detail` names it where it can be told.",
    "conflict": "It claims numbers for which a record before it has other events; `detail` says which numbers, and "
    "where the other one is. Events of numbers that nobody had claimed are counted in the other tables.",
    "sequence_mismatch": "`first_seq`, `last_seq` and the events in between do not agree.",
    "unsigned": "It has no header `brokerside-hmac`. Only with `--hmac-keys`, as the next two.",
    "unknown_key": "It is signed with a key whose id is not in the file.",
    "bad_signature": "It is signed, but not with the key of this id: forged, or changed afterwards.",
}
"""Every value of ``dead_letters.reason``."""
