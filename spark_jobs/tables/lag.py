"""The table ``lag``: committed offsets against ends of partitions, as of the end of each minute."""

from __future__ import annotations

from spark_jobs.schemas import LAG
from spark_jobs.tables.sql import table_columns

DAYS_BEFORE = 7
"""Days after its last commit in which a partition of a group has rows: Kafka's ``offsets.retention.minutes``."""

TOLERANCE = "INTERVAL 10 SECONDS"
"""How much later an end may be that is below the commit: sidecars have different clocks, and followers are behind."""

_LAG = "CASE WHEN end_offset IS NOT NULL AND NOT contradicts THEN greatest(0, end_offset - committed_offset) END"
_UNKNOWN_BECAUSE = "CASE WHEN end_offset IS NULL THEN 'no_end' WHEN contradicts THEN 'end_below_commit' END"

LAG_SQL = f"""
WITH reads AS (SELECT DISTINCT cluster_id, topic, partition, group_id FROM committed_offsets),
changes AS (
    SELECT day, minute, cluster_id, topic, partition, group_id, committed_offset, committed_at, transactional
    FROM committed_offsets
    UNION ALL BY NAME
    SELECT day, minute, cluster_id, topic, partition, group_id, end_offset, end_offset_at
    FROM end_offsets JOIN reads USING (cluster_id, topic, partition)
),
by_minute AS (
    -- One of two rows has a value, the other has NULL.
    SELECT day, minute, cluster_id, topic, partition, group_id, max(committed_offset) AS committed_offset,
        max(committed_at) AS committed_at, max(transactional) AS transactional, max(end_offset) AS end_offset,
        max(end_offset_at) AS end_offset_at
    FROM changes GROUP BY day, minute, cluster_id, topic, partition, group_id
),
as_of_minute AS (
    SELECT day, minute, cluster_id, topic, partition, group_id,
        last_value(committed_offset IGNORE NULLS) OVER so_far AS committed_offset,
        last_value(committed_at IGNORE NULLS) OVER so_far AS committed_at,
        last_value(transactional IGNORE NULLS) OVER so_far AS transactional,
        last_value(end_offset IGNORE NULLS) OVER so_far AS end_offset,
        last_value(end_offset_at IGNORE NULLS) OVER so_far AS end_offset_at
    FROM by_minute
    WINDOW so_far AS (
        PARTITION BY cluster_id, topic, partition, group_id ORDER BY minute ROWS UNBOUNDED PRECEDING)
),
judged AS (
    -- An end that has passed the commit again says nothing of the topic that the commit was of.
    SELECT *, bool_or(end_offset < committed_offset AND end_offset_at > committed_at + {TOLERANCE}) OVER (
        PARTITION BY cluster_id, topic, partition, group_id, committed_at ORDER BY minute ROWS UNBOUNDED PRECEDING
    ) AS contradicts
    FROM as_of_minute
)
SELECT {table_columns(LAG, lag=_LAG, unknown_because=_UNKNOWN_BECAUSE)}
FROM judged WHERE day <= committed_at::DATE + {DAYS_BEFORE} AND day IN (SELECT day FROM wanted)
"""
"""Of ``committed_offsets`` and ``end_offsets``, merged, of the days wanted and ``DAYS_BEFORE``."""
