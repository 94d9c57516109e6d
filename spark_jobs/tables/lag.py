"""The table ``lag``: committed offsets against ends of partitions, as of the end of each minute."""

from __future__ import annotations

from datetime import date, timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schemas import LAG
from spark_jobs.tables.columns import table_columns

DAYS_BEFORE = 7
"""Days after its last commit in which a partition of a group has rows: Kafka's ``offsets.retention.minutes``."""

PARTITION = ("cluster_id", "topic", "partition")
COMMITTED = ("committed_offset", "committed_at", "transactional")
END = ("end_offset", "end_offset_at")


def lag(committed: DataFrame, ends: DataFrame, since: date | None) -> DataFrame:
    """Return the rows of ``lag`` of the day ``since`` and later ones (None: of all days), from merged rows."""
    if since is not None:
        first = max(since, date.min + timedelta(days=DAYS_BEFORE)) - timedelta(days=DAYS_BEFORE)
        committed, ends = (table.where(F.col("day") >= F.lit(first)) for table in (committed, ends))
    read = committed.select(*PARTITION, "group_id").distinct()
    changes = committed.unionByName(ends.join(read, [*PARTITION]), allowMissingColumns=True)
    by_minute = changes.groupBy("day", "minute", *PARTITION, "group_id").agg(
        *[F.max(name).alias(name) for name in (*COMMITTED, *END)]  # one row has them, the other has NULL
    )
    so_far = Window.partitionBy(*PARTITION, "group_id").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    rows = by_minute.select(
        *("day", "minute", *PARTITION, "group_id"),
        *[F.last(name, ignorenulls=True).over(so_far).alias(name) for name in (*COMMITTED, *END)],
    )
    rows = rows.where(f"day <= date_add(CAST(committed_at AS DATE), {DAYS_BEFORE})")
    behind = "if(end_offset IS NULL, NULL, greatest(0, end_offset - committed_offset))"
    return rows.withColumn("lag", F.expr(behind)).select(*table_columns(LAG))
