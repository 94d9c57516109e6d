"""The table ``inventory``: which topics there were, by hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import INVENTORY_EVENT, INVENTORY_TOPIC
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import INVENTORY
from spark_jobs.tables.columns import HOUR_US, columns_of, day_of, start_of

LAST = ("internal", "part", "parts")
"""Columns of the list that told a topic last; those that may be NULL are passed over where they are."""


def inventory(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``inventory``, one for each topic and hour, of ``parsed``."""
    lists = explode_events(parsed, "topic_inventory").selectExpr(
        "cluster_id", *fields_with_defaults("event", INVENTORY_EVENT)
    )
    told = lists.selectExpr("cluster_id", "ts", "part", "parts", "explode(inventory) AS one").selectExpr(
        "cluster_id",
        "ts",
        "part",
        "parts",
        *fields_with_defaults("one", INVENTORY_TOPIC),
        f"{day_of('ts')} AS day",
        f"{start_of('ts', HOUR_US)} AS hour",
    )
    rows = told.groupBy(*INVENTORY.keys).agg(
        F.expr("max_by(topic_id, if(topic_id IS NULL, NULL, ts))").alias("topic_id"),
        F.max("partitions").alias("partitions"),
        *[F.max_by(name, "ts").alias(name) for name in LAST],
        F.expr("min(timestamp_micros(ts))").alias("first_seen"),
        F.expr("max(timestamp_micros(ts))").alias("last_seen"),
        F.count(F.lit(1)).alias("told"),
    )
    return rows.select(*columns_of(INVENTORY))
