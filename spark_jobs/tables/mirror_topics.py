"""Which topics a mirror copies, as conditions of rows."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror


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
