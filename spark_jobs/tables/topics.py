"""The table ``topics``: when each topic was last written, read and polled, and which topics are unused."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schemas import TOPICS
from spark_jobs.tables.columns import table_columns
from spark_jobs.tables.coverage import coverage

# acks=0 counts as written, because the broker may have the records.
IS_WRITTEN = "api = 'Produce' AND (records > 0 OR bytes > 0 OR unconfirmed_records > 0 OR unconfirmed_bytes > 0)"
IS_READ = "api IN ('Fetch', 'ShareFetch') AND (records > 0 OR bytes > 0)"

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's internal topics, for clusters without an inventory."""

SIDECAR_TOPICS = "__brokerside_"
"""Prefix of the sidecars' own topics. Kafka does not list them as internal."""

REPLACED_COLUMNS = ("producers", "consumers", "produced_bytes", "consumed_bytes")

TOPIC_ID_PREFIX = "id:"
"""Prefix of a topic's name in events if the sidecar knew only its id."""


def topics(traffic: DataFrame, inventory: DataFrame, completeness: DataFrame) -> DataFrame:
    """Return all rows of ``topics``: one for every topic in ``traffic`` or ``inventory``. All inputs have merged rows.

    ``traffic`` is read once. For the work on ``completeness`` see ``coverage``.
    """
    existing = _listed_topics(inventory)
    rows = _with_names_of_ids(_usage_by_topic(traffic), existing).join(existing, ["cluster_id", "topic"], "full")
    rows = rows.join(F.broadcast(coverage(completeness)), "cluster_id", "left")
    rows = rows.join(F.broadcast(_newest_complete_list(inventory)), "cluster_id", "left")
    # If traffic is retained for a shorter time than completeness, topics are judged from its first day on.
    first_day = F.min("first_day").over(Window.partitionBy("cluster_id"))
    rows = rows.withColumn("first_day", first_day).where("topic IS NOT NULL")
    rows = rows.withColumn("since", F.expr("greatest(since, if(first_day > CAST(since AS DATE), first_day, NULL))"))
    rows = rows.withColumn("covered_since", F.expr("if(covered_since IS NULL, NULL, greatest(covered_since, since))"))
    is_internal = f"coalesce(internal, topic IN {INTERNAL_TOPICS}) OR startswith(topic, '{SIDECAR_TOPICS}')"
    rows = rows.withColumn("internal", F.expr(is_internal))
    rows = rows.selectExpr(
        *[column for column in rows.columns if column not in REPLACED_COLUMNS],
        *[f"coalesce({name}, array()) AS {name}" for name in ("producers", "consumers")],
        *[f"coalesce({name}, 0) AS {name}" for name in ("produced_bytes", "consumed_bytes")],
        "if(listed_at IS NULL, NULL, coalesce(last_seen >= listed_at, false)) AS present",
        """CASE
            WHEN last_produced IS NOT NULL OR last_consumed IS NOT NULL THEN 'used'
            WHEN internal OR coalesce(covered_since >= as_of, true) THEN 'unknown'
            WHEN last_polled IS NOT NULL THEN 'polled_only'
            ELSE 'unused'
        END AS state""",
        "greatest(last_produced, last_consumed, covered_since) AS unused_since",
        "CAST(as_of AS DATE) AS day",
    )
    return rows.select(*table_columns(TOPICS))


def _usage_by_topic(traffic: DataFrame) -> DataFrame:
    """Return one row for each topic, and one for whole requests (topic NULL)."""
    return traffic.groupBy("cluster_id", "topic").agg(
        F.expr(f"max(if({IS_WRITTEN}, minute, NULL))").alias("last_produced"),
        F.expr(f"max(if({IS_READ}, minute, NULL))").alias("last_consumed"),
        F.expr("max(if(polled > 0, minute, NULL))").alias("last_polled"),
        F.expr(f"collect_set(if({IS_WRITTEN}, principal, NULL))").alias("producers"),
        F.expr(f"collect_set(if({IS_READ}, principal, NULL))").alias("consumers"),
        F.expr(f"sum(if({IS_WRITTEN}, bytes, 0))").alias("produced_bytes"),
        F.expr(f"sum(if({IS_READ}, bytes, 0))").alias("consumed_bytes"),
        F.min("day").cast("timestamp").alias("first_day"),
    )


def _with_names_of_ids(used: DataFrame, existing: DataFrame) -> DataFrame:
    """Return ``used`` with topic names instead of ids, if the inventory has them."""
    names = existing.where("topic_id IS NOT NULL").selectExpr(
        "cluster_id", f"concat('{TOPIC_ID_PREFIX}', topic_id) AS topic", "topic AS name"
    )
    named = used.join(F.broadcast(names), ["cluster_id", "topic"], "left")
    return named.groupBy("cluster_id", F.coalesce("name", "topic").alias("topic")).agg(
        *[F.max(name).alias(name) for name in ("last_produced", "last_consumed", "last_polled")],
        *[
            F.expr(f"sort_array(array_distinct(flatten(collect_list({name}))))").alias(name)
            for name in ("producers", "consumers")
        ],
        *[F.sum(name).alias(name) for name in ("produced_bytes", "consumed_bytes")],
        F.min("first_day").alias("first_day"),
    )


def _listed_topics(inventory: DataFrame) -> DataFrame:
    """Return one row for each topic that was ever listed, with its last listed values."""
    return inventory.groupBy("cluster_id", "topic").agg(
        F.expr("max_by(topic_id, if(topic_id IS NULL, NULL, last_seen))").alias("topic_id"),
        F.max_by("partitions", "last_seen").alias("partitions"),
        F.max_by("internal", "last_seen").alias("internal"),
        F.max("last_seen").alias("last_seen"),
    )


def _newest_complete_list(inventory: DataFrame) -> DataFrame:
    """Return cluster_id and ``listed_at``: the time of the newest inventory with all its parts."""
    lists = inventory.groupBy("cluster_id", "last_seen").agg(
        F.countDistinct(F.coalesce("part", F.lit(1))).alias("there"),
        F.max(F.coalesce("parts", F.lit(1))).alias("parts"),
    )
    return lists.where("there = parts").groupBy("cluster_id").agg(F.max("last_seen").alias("listed_at"))
