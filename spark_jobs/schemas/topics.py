"""Topics: ``inventory`` and ``topics``; and the topics of mirrors: ``produced`` and ``mirror_check``."""

from __future__ import annotations

from spark_jobs.schemas.model import CLUSTER, Column, Table, key_column, merged_column, sum_column

INVENTORY = Table(
    "inventory",
    "Which topics existed, by hour, as reported by the cluster to the sidecars.",
    (
        key_column("day", "date", "Day of `hour`; the table is partitioned by it.", "UTC", "ts"),
        key_column("hour", "timestamp", "Hour in which the cluster was asked.", "UTC", "ts"),
        CLUSTER,
        key_column("topic", "string", "Name of the topic.", source="inventory[].topic"),
        merged_column("last", "topic_id", "string", "Its id, as last listed.", source="inventory[].topic_id"),
        merged_column("max", "partitions", "int", "Its partitions: the most in the hour.", "partitions",
                      "inventory[].partitions"),
        merged_column("last", "internal", "boolean", "Whether it is internal to Kafka.", source="inventory[].internal"),
        merged_column("last", "part", "int", "Part of the inventory that listed it last in the hour."),
        merged_column("last", "parts", "int", "Number of parts of that inventory."),
        merged_column("min", "first_seen", "timestamp", "When it was first listed in the hour.", "UTC", "ts"),
        merged_column("max", "last_seen", "timestamp", "When it was last listed in the hour.", "UTC", "ts"),
        sum_column("listings", "How often it was listed, by the sidecars of all brokers.", "lists", "topic_inventory"),
    ),
    example="SELECT topic, max(partitions) AS partitions FROM inventory WHERE NOT internal GROUP BY topic"
    " ORDER BY topic",
    order="last_seen",
)  # fmt: skip

TOPICS = Table(
    "topics",
    "Every topic that there is or that was used: when it was last written, read and polled, and by whom. `unused` "
    "refers to the time since `covered_since`, from which on the sidecars of all brokers observed all traffic: each "
    "broker had a living sidecar without a pause of a minute or more, no event is lost or missing, and no sidecar was "
    "killed. A broker whose sidecar was stopped cleanly counts as decommissioned a day later. While a sidecar is "
    "silent, no topic is called unused. Traffic that does not pass through a sidecar is never seen.",
    (
        Column("day", "date", "Day up to which this was judged; only the newest day is kept.", "UTC"),
        Column("cluster_id", "string", "The Kafka cluster's own id."),
        Column("topic", "string", "Name of the topic; `id:<topic id>` if the name is not known."),
        Column("topic_id", "string", "Its id; NULL without an inventory."),
        Column("partitions", "int", "Its partitions, as last listed.", "partitions"),
        Column("internal", "boolean", "Whether it is internal to Kafka, or one of the sidecars' (`__brokerside_…`)."),
        Column("present", "boolean", "Whether the newest complete inventory of the cluster has it; NULL: there is"
               " none."),
        Column("state", "string", "`used` (written or read), `polled_only` (asked for, never given anything), `unused`,"
               " or `unknown` (neither written nor read as far as was seen; and a sidecar is not seen now, or the topic"
               " is internal: it is used without passing a sidecar). Look at `unused_since` for how long that holds."),
        Column("last_produced", "timestamp", "Minute of the last records acknowledged, or sent without waiting for an"
               " answer; NULL: none seen.", "UTC"),
        Column("last_consumed", "timestamp", "Minute of the last records handed out; NULL: none seen.", "UTC"),
        Column("last_polled", "timestamp", "Minute in which it was last asked for in vain; NULL: never.", "UTC"),
        Column("unused_since", "timestamp", "From when on it certainly was neither written nor read: the last of"
               " `last_produced`, `last_consumed` and `covered_since`.", "UTC"),
        Column("producers", "array<string>", "Principals that wrote to it."),
        Column("consumers", "array<string>", "Principals that read from it."),
        Column("produced_bytes", "bigint", "Bytes acknowledged in that time.", "bytes"),
        Column("consumed_bytes", "bigint", "Bytes handed out in that time.", "bytes"),
        Column("since", "timestamp", "From when on this was judged.", "UTC"),
        Column("covered_since", "timestamp", "From when on everything was seen; `since`: always.", "UTC"),
        Column("coverage", "double", "Share of the time since the first status, of all brokers, in which a sidecar was"
               " alive.", "ratio"),
        Column("uncovered_brokers", "array<int>", "Brokers of which not everything was seen."),
    ),
    example="SELECT topic, state, last_produced, last_consumed, last_polled, coverage FROM topics WHERE NOT internal"
    " ORDER BY topic",
    derived_from=("traffic", "inventory", "completeness"),
    whole=True,
)  # fmt: skip

PRODUCED = Table(
    "produced",
    "Every batch of records that was written to a topic of a declared mirror, on either side. One row each time a "
    "request brought it, retries included: `mirror_check` counts them once.",
    (
        Column("day", "date", "Day of `at`; the table is partitioned by it.", "UTC", "ts_request"),
        Column("at", "timestamp", "When the request arrived; of a rollup the minute.", "UTC", "ts_request, minute"),
        Column("cluster_id", "string", "The Kafka cluster's own id.", source="cluster_id"),
        Column("broker_id", "int", "The broker that was asked.", source="broker_id"),
        Column("topic", "string", "The topic.", source="topics[].topic"),
        Column("partition", "int", "The partition; NULL of a rollup.", source="topics[].partition"),
        Column("principal", "string", "Who wrote it.", source="principal"),
        Column("client_id", "string", "Its client id.", source="client_id"),
        Column("producer_id", "bigint", "Producer id; −1 without idempotence, NULL of a rollup.",
               source="topics[].producer_id"),
        Column("producer_epoch", "int", "Producer epoch; likewise.", source="topics[].producer_epoch"),
        Column("base_sequence", "int", "Sequence number of the first record; likewise.",
               source="topics[].base_sequence"),
        Column("base_offset", "bigint", "Offset the broker gave to the first record; −1 if it sent none, NULL for a"
               " rollup.", source="topics[].base_offset"),
        Column("outcome", "string", "`acknowledged`, `unconfirmed` (no answer), `rejected`.",
               source="outcome, topics[].error_code"),
        Column("records", "bigint", "Records.", "records", "topics[].records"),
        Column("bytes", "bigint", "Their record set.", "bytes", "topics[].bytes"),
    ),
    example="SELECT cluster_id, topic, outcome, count(*) AS batches, sum(records) AS records FROM produced"
    " GROUP BY ALL ORDER BY ALL",
    retention_days=30,
)  # fmt: skip

MIRROR_CHECK = Table(
    "mirror_check",
    "Whether what was produced to one cluster arrived in another: for each day on which anything came or became due, "
    "and all days up to its end. A batch that an idempotent producer sent twice counts once. Records are counted, not "
    "compared; those of aborted transactions count as produced. Totals count from `since` on; what a mirror copies "
    "from before that is surplus, and what it lost before that is forgotten.",
    (
        Column("day", "date", "Day, by arrival in each cluster; the table is partitioned by it.", "UTC"),
        Column("mirror", "string", "Name of the mirror's definition."),
        Column("source_cluster_id", "string", "Where the records come from."),
        Column("source_topic", "string", "The topic there."),
        Column("target_cluster_id", "string", "Where they are copied to."),
        Column("target_topic", "string", "The topic there."),
        Column("produced_records", "bigint", "Acknowledged by the source that day, each once.", "records"),
        Column("mirrored_records", "bigint", "Acknowledged by the target that day, each once, of the mirror's own"
               " producers.", "records"),
        Column("retried_records", "bigint", "Records in batches that came once more, on either side; not counted"
               " above.", "records"),
        Column("unconfirmed_records", "bigint", "Produced to the source without an answer (acks=0): they may be"
               " mirrored, and are not in `produced_records`.", "records"),
        Column("since", "date", "First day of the totals: the oldest one that `produced` kept when this was computed.",
               "UTC"),
        Column("produced_total", "bigint", "`produced_records` from `since` up to this day.", "records"),
        Column("mirrored_total", "bigint", "`mirrored_records` from `since` up to this day.", "records"),
        Column("due_total", "bigint", "What was produced up to the allowed lag before `as_of`.", "records"),
        Column("missing_records", "bigint", "What of that has not arrived: `due_total` − `mirrored_total`, or what that"
               " was at the end of an earlier minute, if it has not come since: if at the end of none that followed"
               " fewer were open (produced, and not there). Counts cannot separate a loss from a delay that is allowed:"
               " while records flow without a pause, one that is smaller than what flows within the lag does not show;"
               " it shows once the flow is less, and stays. Of a mirror that was overdue and caught up, as many stay as"
               " were on their way when there were fewest. What arrived on the oldest day and was produced before it"
               " hides as much, too.", "records"),
        Column("behind_records", "bigint", "The fewest that were open at the end of a minute of this day, of those that"
               " are known of both clusters, and in which something came or became due; NULL: there is none. Near 0 of"
               " a mirror that keeps up; what stays from day to day is lost, or a delay that never ends.", "records"),
        Column("surplus_records", "bigint", "What arrived beyond all that was produced, as far as the source is known"
               " up to then; more than 0 where the mirror repeats itself, or the source has producers without answers."
               " What arrived on the oldest day within the allowed lag of its beginning is left out.", "records"),
        Column("state", "string", "`equal`, `lagging` (fewer arrived than were produced, but none is overdue),"
               " `missing`, `surplus`, or `unknown`: there are no events of one of the clusters, or a sidecar of a"
               " broker is silent, so that it is not known whether records are overdue. A sidecar that stopped cleanly"
               " is not silent; one that did not counts as silent while `produced` retains its last day."),
        Column("exact", "boolean", "False if rollups are included up to then, because retries in them cannot be"
               " distinguished; and if events of a cluster were lost, as their records are missing or surplus."),
        Column("as_of", "timestamp", "Newest minute up to this day that is known of both clusters: for which all their"
               " sidecars sent a status, or for a later one.", "UTC"),
    ),
    example="SELECT mirror, source_topic, produced_total, mirrored_total, retried_records, missing_records, state"
    " FROM mirror_check ORDER BY ALL",
    derived_from=("produced", "completeness"),
)  # fmt: skip
