"""The table ``topics``: when each topic was last written, read and polled, and which topics are unused."""

from __future__ import annotations

from spark_jobs.schemas import TOPICS
from spark_jobs.tables.coverage import COVERAGE
from spark_jobs.tables.sql import is_one_of, table_columns

# acks=0 counts as written, because the broker may have the records.
IS_WRITTEN = "api = 'Produce' AND (records > 0 OR bytes > 0 OR unconfirmed_records > 0 OR unconfirmed_bytes > 0)"
IS_READ = "api IN ('Fetch', 'ShareFetch') AND (records > 0 OR bytes > 0)"

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's internal topics, for clusters without an inventory."""

SIDECAR_TOPICS = "__brokerside_"
"""Prefix of the sidecars' own topics. Kafka does not list them as internal."""

TOPIC_ID_PREFIX = "id:"
"""Prefix of a topic's name in events if the sidecar knew only its id."""

_STATE = """CASE
    WHEN last_produced IS NOT NULL OR last_consumed IS NOT NULL THEN 'used'
    WHEN is_internal OR coalesce(seen_since >= as_of, true) THEN 'unknown'
    WHEN last_polled IS NOT NULL THEN 'polled_only'
    ELSE 'unused' END"""

_COLUMNS = table_columns(
    TOPICS,
    internal="is_internal",
    since="judged_since",
    covered_since="seen_since",
    present="CASE WHEN listed_at IS NOT NULL THEN coalesce(last_seen >= listed_at, false) END",
    producers="coalesce(producers, [])",
    consumers="coalesce(consumers, [])",
    produced_bytes="coalesce(produced_bytes, 0)",
    consumed_bytes="coalesce(consumed_bytes, 0)",
    state=_STATE,
    unused_since="greatest(last_produced, last_consumed, seen_since)",
    day="as_of::DATE",
)

TOPICS_SQL = f"""
WITH {COVERAGE},
existing AS MATERIALIZED (
    SELECT cluster_id, topic, arg_max(topic_id, last_seen) AS topic_id,
        (max(struct_pack(last_seen, partitions)) FILTER (last_seen IS NOT NULL)).partitions AS partitions,
        (max(struct_pack(last_seen, internal)) FILTER (last_seen IS NOT NULL)).internal AS internal,
        max(last_seen) AS last_seen
    FROM inventory GROUP BY cluster_id, topic
),
parts_of_lists AS (
    SELECT cluster_id, last_seen, count(DISTINCT coalesce(part, 1)) AS there, max(coalesce(parts, 1)) AS parts
    FROM inventory GROUP BY cluster_id, last_seen
),
newest_list AS (
    SELECT cluster_id, max(last_seen) AS listed_at FROM parts_of_lists WHERE there = parts GROUP BY cluster_id
),
by_principal AS (
    SELECT cluster_id, topic, principal, max(minute) FILTER ({IS_WRITTEN}) AS last_produced,
        max(minute) FILTER ({IS_READ}) AS last_consumed, max(minute) FILTER (polled > 0) AS last_polled,
        sum(bytes) FILTER ({IS_WRITTEN}) AS produced_bytes, sum(bytes) FILTER ({IS_READ}) AS consumed_bytes,
        min(day) AS first_day
    FROM traffic GROUP BY cluster_id, topic, principal
),
names AS (
    SELECT cluster_id, concat('{TOPIC_ID_PREFIX}', topic_id) AS topic, topic AS name FROM existing
    WHERE topic_id IS NOT NULL
),
used AS (
    SELECT cluster_id, coalesce(name, topic) AS topic, max(last_produced) AS last_produced,
        max(last_consumed) AS last_consumed, max(last_polled) AS last_polled,
        list_sort(list(DISTINCT principal) FILTER (last_produced IS NOT NULL AND principal IS NOT NULL)) AS producers,
        list_sort(list(DISTINCT principal) FILTER (last_consumed IS NOT NULL AND principal IS NOT NULL)) AS consumers,
        sum(produced_bytes) AS produced_bytes, sum(consumed_bytes) AS consumed_bytes, min(first_day) AS first_day
    FROM by_principal LEFT JOIN names USING (cluster_id, topic) GROUP BY ALL
),
joined AS (
    SELECT *, min(first_day) OVER (PARTITION BY cluster_id) AS first_day_of_traffic
    FROM used FULL JOIN existing USING (cluster_id, topic)
    LEFT JOIN coverage USING (cluster_id) LEFT JOIN newest_list USING (cluster_id)
),
judged AS (
    -- If traffic is retained for a shorter time than completeness, topics are judged from its first day on.
    SELECT *, greatest(since, CASE WHEN first_day_of_traffic > since::DATE THEN first_day_of_traffic::TIMESTAMP END)
            AS judged_since,
        CASE WHEN covered_since IS NOT NULL THEN greatest(covered_since, judged_since) END AS seen_since,
        coalesce(internal, {is_one_of("topic", INTERNAL_TOPICS)}) OR starts_with(topic, '{SIDECAR_TOPICS}')
            AS is_internal
    FROM joined WHERE topic IS NOT NULL
)
SELECT {_COLUMNS} FROM judged
"""
"""One row for every topic in ``traffic`` or ``inventory`` (merged), judged by ``completeness`` (merged)."""
