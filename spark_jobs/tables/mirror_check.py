"""The table ``mirror_check``: whether what was produced to one cluster arrived in another, each batch counted once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import MIRROR_CHECK
from spark_jobs.tables.columns import DAY_US, MINUTE_US, columns_of, day_of
from spark_jobs.tables.coverage import in_time
from spark_jobs.tables.produced import is_source, is_target, source_topic

PAIR = ("mirror", "source_cluster_id", "source_topic", "target_cluster_id", "target_topic")

SEQUENCE = ("cluster_id", "topic", "partition", "producer_id", "producer_epoch", "base_sequence")
"""What an idempotent producer numbers a batch by; numbers come again after 2³¹ records, at another offset."""

SILENT_US = 2 * MINUTE_US
"""For so long what a sidecar tells may be on its way; one of which nothing came for longer is silent."""

COUNTS = ("produced", "mirrored", "retried", "unconfirmed", "due", "judged")
"""What is added up by day: of the target ``judged`` is what of ``mirrored`` is held against ``produced``."""


def mirror_check(
    produced: DataFrame, completeness: DataFrame, mirrors: Sequence[Mirror], since: date | None = None
) -> DataFrame:
    """Return the rows of ``mirror_check`` of ``since`` and later: one for each pair of topics and day.

    Days are those on which anything came or became due; a row is made of what was told of its day and those before.
    ``produced``: the whole table, as totals begin with its oldest day; it is grouped by batch, so work grows with its
    batches. ``completeness``, merged, says up to when a cluster is known.
    """
    oldest = F.broadcast(produced.agg(F.min("day").alias("oldest")))
    heard = _heard(completeness, oldest)
    minutes = _with_heard(_minutes(_matched(_once(produced), mirrors).crossJoin(oldest)), heard)
    stayed = _stayed(minutes)
    counted = minutes.select(*PAIR, "exact", F.explode(_counted()).alias("of")).select(*PAIR, "exact", "of.*")
    days = counted.groupBy(*PAIR, "day").agg(
        F.expr("bool_and(exact)").alias("exact"),
        *[F.sum(name).alias(f"{name}_records") for name in COUNTS],
    )
    days = _with_heard(days, heard).join(stayed, [*PAIR], "left").crossJoin(oldest)
    so_far = Window.partitionBy(*PAIR).orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    for name in ("produced", "mirrored", "due", "judged"):
        days = days.withColumn(f"{name}_total", F.sum(f"{name}_records").over(so_far))
    days = days.withColumn("exact", F.min("exact").over(so_far)).selectExpr(
        *[column for column in days.columns if column != "exact"],
        f"exact AND NOT ({_lossy('source')} OR {_lossy('target')}) AS exact",
        f"greatest(0, due_total - mirrored_total, least({_STAYS}, produced_total - mirrored_total)) AS missing_records",
        "greatest(0, judged_total - produced_total) AS surplus_records",
        f"{_silent('source')} OR {_silent('target')} AS silent",
        f"{_known('source')} AS source_us",
        f"{_known('target')} AS target_us",
    )
    rows = days.selectExpr(
        "*",
        "oldest AS since",
        "greatest(0, get(filter(stayed, one -> one.day = day), 0).open) AS behind_records",
        f"timestamp_micros({_both('least', 'source_us', 'target_us')} - {MINUTE_US}) AS as_of",
        """CASE
            WHEN source_us IS NULL OR target_us IS NULL THEN 'unknown'
            WHEN missing_records > 0 THEN 'missing'
            WHEN surplus_records > 0 THEN 'surplus'
            WHEN silent THEN 'unknown'
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
    batches = sent.groupBy(*SEQUENCE, "principal", "client_id", "base_offset", "sent_at", "outcome").agg(
        F.min("at").alias("at"),
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


def _minutes(written: DataFrame) -> DataFrame:
    """Return sums of ``written`` by pair, side, day, and ``known_us``.

    That is the end of the minute up to which a cluster has to be known: of the source's records when they are due, of
    the target's when they came.
    """
    known = "at_us + if(is_source, lag_us, 0)"
    # What arrives early on the oldest day may have been produced on the day before, which is not kept any more.
    is_judged = f"NOT is_source AND at_us >= {DAY_US} * unix_date(oldest) + lag_us"
    return (
        written.selectExpr(
            *[*PAIR, "is_source", "lag_us", "confirmed", "unconfirmed", "again"],
            "partition IS NOT NULL AS exact",
            f"{day_of('at_us')} AS day",
            f"({known} + {MINUTE_US - 1}) DIV {MINUTE_US} * {MINUTE_US} AS known_us",
            f"if({is_judged}, confirmed, 0L) AS judged",
        )
        .groupBy(*PAIR, "is_source", "lag_us", "exact", "day", "known_us")
        .agg(*[F.sum(name).alias(name) for name in ("confirmed", "unconfirmed", "again", "judged")])
    )


_STAYS = """coalesce(aggregate(
    filter(stayed, one -> one.day <= day), 0L, (so_far, one) -> greatest(one.missing, least(so_far, one.open))
), 0)"""
"""SQL of what was missing at the end of a row's day, as far as it is known: a day may add to it, or take from it."""


def _stayed(minutes: DataFrame) -> DataFrame:
    """Return PAIR and ``stayed``: of each day what stayed ``missing`` of what became overdue, and the least ``open``.

    ``minutes`` have what was heard; days are those on which they became known. What was overdue at the end of a minute
    may have come late. More of it than is open (produced, and not there) at the end of a later one has not stayed so.
    """
    changes = minutes.selectExpr(
        *[*PAIR, "source_heard", "target_heard"],
        """inline(if(is_source, array(
            struct(known_us, confirmed AS overdue, 0L AS open),
            struct(known_us - lag_us AS known_us, 0L AS overdue, confirmed AS open)
        ), array(struct(known_us, -confirmed AS overdue, -confirmed AS open))))""",
    )
    heard = [F.first(f"{side}_heard").alias(f"{side}_heard") for side in ("source", "target")]
    sums = [F.sum(name).alias(name) for name in ("overdue", "open")]
    so_far = Window.partitionBy(*PAIR).orderBy("known_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ends = (
        changes.groupBy(*PAIR, "known_us")
        .agg(*sums, *heard)
        .withColumns({name: F.sum(name).over(so_far) for name in ("overdue", "open")})
        .withColumn("day", F.expr(_both("greatest", _known_on("source"), _known_on("target"))))
        .where("day IS NOT NULL")
    )
    # Backwards: a frame that ends with the partition would be gone through for each of its rows.
    from_here = Window.partitionBy(*PAIR, "day").orderBy(F.desc("known_us"))
    from_here = from_here.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    days = (
        ends.withColumn("least_open", F.min("open").over(from_here))
        .groupBy(*PAIR, "day")
        .agg(F.expr("max(least(overdue, least_open)) AS missing"), F.min("open").alias("open"))
    )
    return days.groupBy(*PAIR).agg(F.expr("sort_array(collect_list(struct(day, missing, open))) AS stayed"))


def _heard(completeness: DataFrame, oldest: DataFrame) -> DataFrame:
    """Return cluster_id and ``heard``: what is known at the end of each day on which its sidecars told a status.

    ``until_us``: the end of the last minute that all of them told of, but for those that ended in good order;
    ``silent``: one told nothing for a while; ``lossy``: events were lost so far.
    """
    told = in_time(completeness).crossJoin(oldest).where("day >= oldest")
    brokers = told.groupBy("cluster_id", "broker_id", "day").agg(
        F.expr(f"max(if(last_status IS NULL, NULL, unix_micros(minute) + {MINUTE_US}))").alias("until_us"),
        F.expr("max_by(struct(ended), last_status)").alias("newest"),
        F.expr("max(lost > 0)").alias("lossy"),
    )
    days = brokers.where("until_us IS NOT NULL").select("cluster_id", F.col("day").alias("as_of")).distinct()
    so_far = brokers.join(F.broadcast(days), "cluster_id").where("day <= as_of")
    so_far = so_far.groupBy("cluster_id", "as_of", "broker_id").agg(
        F.max("until_us").alias("until_us"),
        F.expr("coalesce(max_by(newest, until_us).ended, false)").alias("ended"),
        F.max("lossy").alias("lossy"),
    )
    known = so_far.groupBy("cluster_id", "as_of").agg(
        F.expr("coalesce(min(if(ended, NULL, until_us)), max(until_us))").alias("until_us"),
        F.max("until_us").alias("newest_us"),
        F.max("lossy").alias("lossy"),
    )
    one = f"struct(as_of AS day, until_us, newest_us - until_us > {SILENT_US} AS silent, lossy)"
    return known.groupBy("cluster_id").agg(F.collect_list(F.expr(one)).alias("heard"))


def _with_heard(rows: DataFrame, heard: DataFrame) -> DataFrame:
    """Return ``rows`` with what was heard of both clusters, NULL where that is nothing."""
    for side in ("source", "target"):
        of_side = heard.select(F.col("cluster_id").alias(f"{side}_cluster_id"), F.col("heard").alias(f"{side}_heard"))
        rows = rows.join(F.broadcast(of_side), f"{side}_cluster_id", "left")
    return rows


def _known(side: str) -> str:
    """Return SQL of the instant up to which a cluster was known on a row's day; NULL: it was not."""
    return f"array_max(transform(filter({side}_heard, one -> one.day <= day), one -> one.until_us))"


def _silent(side: str) -> str:
    """Return SQL of whether a sidecar of a cluster was silent at the end of a row's day, as far as it is known."""
    newest = f"array_max(transform(filter({side}_heard, one -> one.day <= day), one -> struct(one.day, one.silent)))"
    return f"coalesce({newest}.silent, false)"


def _lossy(side: str) -> str:
    """Return SQL of whether events of a cluster were lost up to a row's day."""
    return f"coalesce(exists({side}_heard, one -> one.day <= day AND one.lossy), false)"


def _known_on(side: str) -> str:
    """Return SQL of the first day on which a cluster was known up to ``known_us``; NULL: it is not yet."""
    return f"array_min(transform(filter({side}_heard, one -> one.until_us >= known_us), one -> one.day))"


def _counted() -> Column:
    """Return what a row of ``_minutes`` adds to which day, as an array of a struct of each."""
    parts = [
        _part("day", "is_source", produced="confirmed", retried="again", unconfirmed="unconfirmed"),
        _part("day", "NOT is_source", mirrored="confirmed", retried="again"),
        _part(_both("greatest", _known_on("source"), _known_on("target")), "is_source", due="confirmed"),
        _part(_both("greatest", "day", _known_on("source")), "NOT is_source", judged="judged"),
    ]
    # No row of a day on which nothing came, became due or became known.
    nothing = " + ".join(f"one.{name}" for name in COUNTS)
    return F.expr(f"filter(array({', '.join(parts)}), one -> one.day IS NOT NULL AND (one.day = day OR {nothing} > 0))")


def _part(day: str, condition: str, **counts: str) -> str:
    values = [f"{counts.get(name, '0L')} AS {name}" for name in COUNTS]
    return f"struct(if({condition}, {day}, NULL) AS day, {', '.join(values)})"


def _both(function: str, one: str, other: str) -> str:
    """Return SQL of ``least`` or ``greatest`` of two values, NULL if either is."""
    return f"if({one} IS NULL OR {other} IS NULL, NULL, {function}({one}, {other}))"
