"""The table ``throttles``: which connections met which quota, by minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import THROTTLE_EVENT
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import THROTTLES
from spark_jobs.tables.columns import MINUTE_US, day_of, start_of_interval, table_columns


def throttles(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``throttles``, one for each key, of ``parsed``."""
    throttled = explode_events(parsed, "throttle").selectExpr(
        "cluster_id",
        "broker_id",
        *fields_with_defaults("event", THROTTLE_EVENT),
        f"{day_of('event.ts_first')} AS day",
        f"{start_of_interval('event.ts_first', MINUTE_US)} AS minute",
    )
    throttled = throttled.withColumn("principal", F.expr("nullif(principal, '')"))
    rows = throttled.groupBy(*THROTTLES.keys).agg(
        F.sum("count").alias("count"),
        F.max("limit").alias("quota_limit"),
        F.max("observed").alias("observed"),
        F.max("delay_ms").alias("delay_ms"),
        F.expr("min(timestamp_micros(ts_first))").alias("first_at"),
        F.expr("max(timestamp_micros(ts_last))").alias("last_at"),
    )
    return rows.select(*table_columns(THROTTLES))
