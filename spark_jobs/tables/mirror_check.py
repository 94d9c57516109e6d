"""The table ``mirror_check``: whether what was produced to one cluster arrived in another, each batch counted once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import MIRROR_CHECK
from spark_jobs.tables.columns import MINUTE_US, columns_of, day_of
from spark_jobs.tables.produced import is_source, is_target, source_topic

PAIR = ("mirror", "source_cluster_id", "source_topic", "target_cluster_id", "target_topic")

SEQUENCE = ("cluster_id", "topic", "partition", "producer_id", "producer_epoch", "base_sequence")
"""What an idempotent producer numbers a batch by; numbers come again after 2³¹ records, at another offset."""

COUNTS = ("produced_records", "mirrored_records", "retried_records", "unconfirmed_records", "due_records")


def mirror_check(
    produced: DataFrame, completeness: DataFrame, mirrors: Sequence[Mirror], since: date | None = None
) -> DataFrame:
    """Return the rows of ``mirror_check`` of ``since`` and later: one for each pair of topics and day.

    Days are those on which anything came or became due. ``produced``: the whole table, as totals begin with its oldest
    day; it is grouped by batch, so work grows with its batches. ``completeness``, merged, says up to when both clusters
    are known; without that of both there are no rows.
    """
    matched = _matched(_once(produced), mirrors)
    for side in ("source", "target"):
        heard = _heard(completeness).select(
            F.col("cluster_id").alias(f"{side}_cluster_id"), F.col("until_us").alias(f"{side}_us")
        )
        matched = matched.join(F.broadcast(heard), f"{side}_cluster_id")
    judged = matched.withColumn("until_us", F.least("source_us", "target_us")).where("at_us < until_us")
    days = (
        judged.select(
            *PAIR, "until_us", F.col("partition").isNotNull().alias("exact"), F.explode(_counted()).alias("c")
        )
        .select(*PAIR, "until_us", "exact", "c.*")
        .groupBy(*PAIR, "day")
        .agg(
            F.max("until_us").alias("until_us"),
            F.expr("bool_and(exact)").alias("exact"),
            *[F.sum(name).alias(name) for name in COUNTS],
        )
    )
    so_far = Window.partitionBy(*PAIR).orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    for name in ("produced", "mirrored", "due"):
        days = days.withColumn(f"{name}_total", F.sum(f"{name}_records").over(so_far))
    days = days.withColumn("exact", F.min("exact").over(so_far))
    rows = days.selectExpr(
        "*",
        "greatest(0, due_total - mirrored_total) AS missing_records",
        "greatest(0, mirrored_total - produced_total) AS surplus_records",
        f"timestamp_micros(least(until_us, unix_micros(CAST(day + 1 AS TIMESTAMP))) - {MINUTE_US}) AS as_of",
    ).selectExpr(
        "*",
        """CASE
            WHEN missing_records > 0 THEN 'missing'
            WHEN surplus_records > 0 THEN 'surplus'
            WHEN mirrored_total < produced_total THEN 'lagging'
            ELSE 'equal'
        END AS state""",
    )
    return rows.where(F.lit(True) if since is None else F.col("day") >= since).select(*columns_of(MIRROR_CHECK))


def _once(produced: DataFrame) -> DataFrame:
    """Return what was written, each batch once: ``confirmed``, ``unconfirmed`` and ``again`` are its records.

    A batch is told apart by its numbers where its producer is idempotent, else by its offset where it has one. What was
    sent without an answer was sent again if the same numbers were acknowledged. Rollups are taken as they are.
    """
    written = produced.where("outcome != 'rejected'")
    told_apart = "coalesce(producer_id >= 0 OR (outcome = 'acknowledged' AND base_offset >= 0), false)"
    sent = written.where(told_apart).withColumn("sent_at", F.expr("if(producer_id >= 0, NULL, at)"))
    batches = sent.groupBy(*SEQUENCE, "base_offset", "sent_at", "outcome").agg(
        F.min("at").alias("at"),
        F.min_by("principal", "at").alias("principal"),
        F.min_by("client_id", "at").alias("client_id"),
        F.max("records").alias("records"),
        F.count(F.lit(1)).alias("copies"),
    )
    single = written.where(f"NOT {told_apart}").withColumn("copies", F.lit(1))
    # Of equal numbers an acknowledgement with an offset goes before one without (a duplicate), and that before silence.
    rank = F.expr("if(outcome = 'acknowledged', if(base_offset >= 0, 2, 1), 0)")
    batches = batches.withColumn("rank", rank).withColumn(
        "best", F.when(F.col("producer_id") >= 0, F.max("rank").over(Window.partitionBy(*SEQUENCE)))
    )
    batches = batches.withColumn("kept", F.expr("if(coalesce(rank = best, true), 1, 0)"))
    each = batches.unionByName(single.withColumn("kept", F.lit(1)), allowMissingColumns=True)
    return each.selectExpr(
        *["cluster_id", "topic", "partition", "principal", "client_id", "unix_micros(at) AS at_us"],
        "if(outcome = 'acknowledged', kept * records, 0) AS confirmed",
        "if(outcome = 'unconfirmed', kept * records, 0) AS unconfirmed",
        "(copies - kept) * records AS again",
    )


def _matched(written: DataFrame, mirrors: Sequence[Mirror]) -> DataFrame:
    """Return ``written`` for each mirror and side it is on, with the columns of PAIR, ``is_source`` and ``lag_us``."""
    sides = [side for mirror in mirrors for side in _sides(mirror)]
    matched = written.select("*", F.explode(F.array_compact(F.array(*sides))).alias("side"))
    return matched.select(*written.columns, "side.*")


def _sides(mirror: Mirror) -> list[Column]:
    source = F.when(is_source(mirror), _side(mirror, F.col("topic"), True))
    written_by_it = is_target(mirror)
    if mirror.principals:
        written_by_it &= F.col("principal").isin(*mirror.principals)
    if mirror.client_ids:
        written_by_it &= F.col("client_id").isin(*mirror.client_ids)
    return [source, F.when(written_by_it, _side(mirror, source_topic(mirror), False))]


def _side(mirror: Mirror, topic: Column, is_source: bool) -> Column:
    return F.struct(
        F.lit(mirror.name).alias("mirror"),
        F.lit(mirror.source_cluster_id).alias("source_cluster_id"),
        topic.alias("source_topic"),
        F.lit(mirror.target_cluster_id).alias("target_cluster_id"),
        F.concat(F.lit(mirror.prefix), topic).alias("target_topic"),
        F.lit(is_source).alias("is_source"),
        F.lit(mirror.lag // timedelta(microseconds=1)).alias("lag_us"),
    )


def _heard(completeness: DataFrame) -> DataFrame:
    """Return cluster_id and ``until_us``: the end of the newest minute that its sidecars told anything of."""
    newest = completeness.groupBy("cluster_id").agg(F.max("minute").alias("minute"))
    return newest.selectExpr("cluster_id", f"unix_micros(minute) + {MINUTE_US} AS until_us")


def _counted() -> Column:
    """Return what a row adds to which day: to that of its arrival, and of the source to that on which it is due."""
    arrived = f"""struct({day_of("at_us")} AS day,
        if(is_source, confirmed, 0L) AS produced_records, if(is_source, 0L, confirmed) AS mirrored_records,
        again AS retried_records, if(is_source, unconfirmed, 0L) AS unconfirmed_records, 0L AS due_records)"""
    due = f"""struct({day_of("at_us + lag_us")} AS day, 0L AS produced_records, 0L AS mirrored_records,
        0L AS retried_records, 0L AS unconfirmed_records, confirmed AS due_records)"""
    is_due = "is_source AND confirmed > 0 AND at_us + lag_us <= until_us"
    return F.expr(f"array_compact(array({arrived}, if({is_due}, {due}, NULL)))")
