"""The table ``produced``: every batch of records written to a topic of a declared mirror, on either side."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.events import PRODUCE, REQUEST_EVENT, ROLLUP_EVENT, ROLLUP_TOPIC, TOPIC_PARTITION
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import PRODUCED
from spark_jobs.tables.columns import columns_of, day_of

WHO = ("cluster_id", "broker_id", "principal", "client_id")
NEEDED = ("principal", "client_id", "outcome", "topics", "per_topic")
FIELDS = tuple({field.name: field for field in (*REQUEST_EVENT, *ROLLUP_EVENT) if field.name in NEEDED}.values())

DUPLICATE_SEQUENCE_NUMBER = 46

OUTCOME = f"""
    CASE WHEN error_code NOT IN (0, {DUPLICATE_SEQUENCE_NUMBER}) THEN 'rejected'
    WHEN outcome = 'answered' THEN 'acknowledged' ELSE 'unconfirmed' END
"""
"""Of one partition of a request. By the one error the broker says that it has the records already."""

OUTCOMES = {
    "acknowledged": ("records", "bytes"),
    "unconfirmed": ("unconfirmed_records", "unconfirmed_bytes"),
    "rejected": ("rejected_records", "rejected_bytes"),
}
"""The fields of a rollup's topic that count each outcome."""


def produced(parsed: DataFrame, mirrors: Sequence[Mirror]) -> DataFrame:
    """Return the rows of ``produced`` of ``parsed``: of topics that one of ``mirrors`` names; none without mirrors."""
    told = explode_events(parsed, "request", "rollup").where(F.col("event.api_key") == PRODUCE)
    told = told.where(F.col("cluster_id").isin(sorted({id for one in mirrors for id in one.cluster_ids})))
    told = told.selectExpr(
        "cluster_id",
        "broker_id",
        "event.kind = 'rollup' AS rolled_up",
        "coalesce(event.ts_request, event.minute) AS at_us",
        *fields_with_defaults("event", FIELDS),
    )
    rows = _of_requests(told.where("NOT rolled_up")).unionByName(
        _of_rollups(told.where("rolled_up")), allowMissingColumns=True
    )
    rows = rows.where(is_named(mirrors)).selectExpr("*", f"{day_of('at_us')} AS day", "timestamp_micros(at_us) AS at")
    return rows.select(*columns_of(PRODUCED))


def is_named(mirrors: Sequence[Mirror]) -> Column:
    """Return whether a row's topic is on either side of one of ``mirrors``."""
    named = F.lit(False)
    for mirror in mirrors:
        named = named | is_source(mirror) | is_target(mirror)
    return named


def is_source(mirror: Mirror) -> Column:
    """Return whether a row is of a topic that ``mirror`` copies."""
    named = F.col("topic").rlike(f"^(?:{mirror.topics})$")
    return (F.col("cluster_id") == mirror.source_cluster_id) & named


def is_target(mirror: Mirror) -> Column:
    """Return whether a row is of a topic that ``mirror`` copies to, whoever wrote it."""
    named = F.startswith("topic", F.lit(mirror.prefix)) & source_topic(mirror).rlike(f"^(?:{mirror.topics})$")
    return (F.col("cluster_id") == mirror.target_cluster_id) & named


def source_topic(mirror: Mirror) -> Column:
    """Return the name in the source of a row's topic, which is one in the target."""
    return F.expr(f"substring(topic, {len(mirror.prefix) + 1})")


def _of_requests(told: DataFrame) -> DataFrame:
    parts = told.selectExpr(*WHO, "at_us", "outcome", "explode(topics) AS part")
    parts = parts.selectExpr(*WHO, "at_us", "outcome", *fields_with_defaults("part", TOPIC_PARTITION))
    return parts.withColumn("outcome", F.expr(OUTCOME)).where("records > 0")


def _of_rollups(told: DataFrame) -> DataFrame:
    topics = told.selectExpr(*WHO, "at_us", "explode(per_topic) AS of_topic")
    topics = topics.selectExpr(*WHO, "at_us", *fields_with_defaults("of_topic", ROLLUP_TOPIC))
    counted = [f"struct('{name}' AS outcome, {of[0]} AS records, {of[1]} AS bytes)" for name, of in OUTCOMES.items()]
    split = topics.selectExpr(*WHO, "at_us", "topic", f"explode(array({', '.join(counted)})) AS one")
    return split.selectExpr(*WHO, "at_us", "topic", "one.*").where("records > 0")
