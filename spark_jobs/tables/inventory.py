"""The table ``inventory``: which topics existed, by hour."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.events import INVENTORY_EVENT, INVENTORY_TOPIC
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import INVENTORY
from spark_jobs.tables.columns import HOUR_US, day_of, start_of_interval, table_columns

LAST_LISTED_COLUMNS = ("internal", "part", "parts")
"""Columns with the value of the last list that has the topic."""


def inventory(parsed: DataFrame) -> DataFrame:
    """Return partial rows of ``inventory``, one for each topic and hour, of ``parsed``."""
    lists = explode_events(parsed, "topic_inventory").selectExpr(
        "cluster_id", *fields_with_defaults("event", INVENTORY_EVENT)
    )
    listed = lists.selectExpr("cluster_id", "ts", "part", "parts", "explode(inventory) AS one").selectExpr(
        "cluster_id",
        "ts",
        "part",
        "parts",
        *fields_with_defaults("one", INVENTORY_TOPIC),
        f"{day_of('ts')} AS day",
        f"{start_of_interval('ts', HOUR_US)} AS hour",
    )
    rows = listed.groupBy(*INVENTORY.keys).agg(
        F.expr("max_by(topic_id, if(topic_id IS NULL, NULL, ts))").alias("topic_id"),
        F.max("partitions").alias("partitions"),
        *[F.max_by(name, "ts").alias(name) for name in LAST_LISTED_COLUMNS],
        F.expr("min(timestamp_micros(ts))").alias("first_seen"),
        F.expr("max(timestamp_micros(ts))").alias("last_seen"),
        F.count(F.lit(1)).alias("told"),
    )
    return rows.select(*table_columns(INVENTORY))
