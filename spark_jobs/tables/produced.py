"""The table ``produced``: every batch of records written to a topic of a declared mirror, on either side."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.events import PRODUCE, REQUEST_EVENT, ROLLUP_EVENT, ROLLUP_TOPIC, TOPIC_PARTITION
from spark_jobs.parse import explode_events, fields_with_defaults
from spark_jobs.schemas import PRODUCED
from spark_jobs.tables.columns import day_of, table_columns

WRITER_COLUMNS = ("cluster_id", "broker_id", "principal", "client_id")
USED_FIELD_NAMES = ("principal", "client_id", "outcome", "topics", "per_topic")
USED_FIELDS = tuple(
    {field.name: field for field in (*REQUEST_EVENT, *ROLLUP_EVENT) if field.name in USED_FIELD_NAMES}.values()
)

DUPLICATE_SEQUENCE_NUMBER = 46

OUTCOME_SQL = f"""
    CASE WHEN error_code NOT IN (0, {DUPLICATE_SEQUENCE_NUMBER}) THEN 'rejected'
    WHEN outcome = 'answered' THEN 'acknowledged' ELSE 'unconfirmed' END
"""
"""SQL of the outcome for one partition. With error 46 the broker reports that it already has the records."""

ROLLUP_OUTCOME_FIELDS = {
    "acknowledged": ("records", "bytes"),
    "unconfirmed": ("unconfirmed_records", "unconfirmed_bytes"),
    "rejected": ("rejected_records", "rejected_bytes"),
}
"""By outcome, the fields of a rollup's topic that count its records and bytes."""


def produced(parsed: DataFrame, mirrors: Sequence[Mirror]) -> DataFrame:
    """Return the rows of ``produced`` for the topics of ``mirrors`` in ``parsed``; none without mirrors."""
    writes = explode_events(parsed, "request", "rollup").where(F.col("event.api_key") == PRODUCE)
    writes = writes.where(F.col("cluster_id").isin(sorted({id for one in mirrors for id in one.cluster_ids})))
    writes = writes.selectExpr(
        "cluster_id",
        "broker_id",
        "event.kind = 'rollup' AS rolled_up",
        "coalesce(event.ts_request, event.minute) AS at_us",
        *fields_with_defaults("event", USED_FIELDS),
    )
    rows = _batches_of_requests(writes.where("NOT rolled_up")).unionByName(
        _batches_of_rollups(writes.where("rolled_up")), allowMissingColumns=True
    )
    rows = rows.where(is_mirrored(mirrors)).selectExpr(
        "*", f"{day_of('at_us')} AS day", "timestamp_micros(at_us) AS at"
    )
    return rows.select(*table_columns(PRODUCED))


def is_mirrored(mirrors: Sequence[Mirror]) -> Column:
    """Return a condition: the topic of the row is on either side of one of ``mirrors``."""
    named = F.lit(False)
    for mirror in mirrors:
        named = named | is_source_of(mirror) | is_target_of(mirror)
    return named


def is_source_of(mirror: Mirror) -> Column:
    """Return a condition: ``mirror`` copies the topic of the row."""
    named = F.col("topic").rlike(f"^(?:{mirror.topics})$")
    return (F.col("cluster_id") == mirror.source_cluster_id) & named


def is_target_of(mirror: Mirror) -> Column:
    """Return a condition: ``mirror`` copies to the topic of the row, whoever wrote the row."""
    named = F.startswith("topic", F.lit(mirror.prefix)) & source_topic(mirror).rlike(f"^(?:{mirror.topics})$")
    return (F.col("cluster_id") == mirror.target_cluster_id) & named


def source_topic(mirror: Mirror) -> Column:
    """Return the name in the source cluster of the row's topic in the target cluster."""
    return F.expr(f"substring(topic, {len(mirror.prefix) + 1})")


def _batches_of_requests(writes: DataFrame) -> DataFrame:
    parts = writes.selectExpr(*WRITER_COLUMNS, "at_us", "outcome", "explode(topics) AS part")
    parts = parts.selectExpr(*WRITER_COLUMNS, "at_us", "outcome", *fields_with_defaults("part", TOPIC_PARTITION))
    return parts.withColumn("outcome", F.expr(OUTCOME_SQL)).where("records > 0")


def _batches_of_rollups(writes: DataFrame) -> DataFrame:
    topics = writes.selectExpr(*WRITER_COLUMNS, "at_us", "explode(per_topic) AS of_topic")
    topics = topics.selectExpr(*WRITER_COLUMNS, "at_us", *fields_with_defaults("of_topic", ROLLUP_TOPIC))
    counted = [
        f"struct('{name}' AS outcome, {of[0]} AS records, {of[1]} AS bytes)"
        for name, of in ROLLUP_OUTCOME_FIELDS.items()
    ]
    split = topics.selectExpr(*WRITER_COLUMNS, "at_us", "topic", f"explode(array({', '.join(counted)})) AS one")
    return split.selectExpr(*WRITER_COLUMNS, "at_us", "topic", "one.*").where("records > 0")
