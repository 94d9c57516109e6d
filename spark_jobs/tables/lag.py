"""The table ``lag``: committed offsets against ends of partitions, as of the end of each minute."""

from __future__ import annotations

from spark_jobs.schemas import LAG
from spark_jobs.tables.sql import table_columns

DAYS_BEFORE = 7
"""Days after its last commit in which a partition of a group has rows: Kafka's ``offsets.retention.minutes``."""

_IS_OLDER_END = "end_offset_at <= committed_at + INTERVAL 1 SECOND"
"""Whether the end was seen before the commit. A second: sidecars have different clocks, and followers are behind."""

_LAG = f"""
CASE WHEN end_offset >= committed_offset THEN end_offset - committed_offset WHEN {_IS_OLDER_END} THEN 0 END"""

_UNKNOWN_BECAUSE = f"""
CASE WHEN end_offset IS NULL THEN 'no_end'
    WHEN end_offset < committed_offset AND NOT {_IS_OLDER_END} THEN 'end_below_commit' END"""

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
)
SELECT {table_columns(LAG, lag=_LAG, unknown_because=_UNKNOWN_BECAUSE)}
FROM as_of_minute WHERE day <= committed_at::DATE + {DAYS_BEFORE} AND day IN (SELECT day FROM wanted)
"""
"""Of ``committed_offsets`` and ``end_offsets``, merged, of the days wanted and ``DAYS_BEFORE``."""
