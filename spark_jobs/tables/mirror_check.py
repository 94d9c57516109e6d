"""The table ``mirror_check``: whether the records produced to one cluster arrived in another; batches count once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import MIRROR_CHECK
from spark_jobs.tables.columns import DAY_US, MINUTE_US, day_of, table_columns
from spark_jobs.tables.coverage import LOST_REQUESTS, without_future_statuses
from spark_jobs.tables.produced import is_source_of, is_target_of, source_topic

TOPIC_PAIR = ("mirror", "source_cluster_id", "source_topic", "target_cluster_id", "target_topic")

BATCH_SEQUENCE = ("cluster_id", "topic", "partition", "producer_id", "producer_epoch", "base_sequence")
"""Columns that identify a batch of an idempotent producer. Sequence numbers repeat after 2³¹ records, at another
offset."""

SILENCE_LIMIT_US = 2 * MINUTE_US
"""Delivery time of sidecar events in µs. A sidecar without events for longer is silent."""

DAILY_COUNTS = ("produced", "mirrored", "retried", "unconfirmed", "due", "judged")
"""Counts that are summed by day. ``judged``: the part of ``mirrored`` that is compared with ``produced``."""


def mirror_check(
    produced: DataFrame, completeness: DataFrame, mirrors: Sequence[Mirror], since: date | None = None
) -> DataFrame:
    """Return the rows of ``mirror_check`` of the day ``since`` and later: one for each pair of topics and day.

    A pair has a row for each day on which records arrived or became due. A row depends only on its day and earlier
    days. ``produced``: the whole table, because totals start with its oldest day; it is grouped by batch, so the work
    grows with its batches. ``completeness`` (merged rows) says up to which time a cluster is known.
    """
    oldest = F.broadcast(produced.agg(F.min("day").alias("oldest")))
    heard = _status_history(completeness, oldest)
    minutes = _with_status_histories(
        _sums_by_minute(_with_mirror_sides(_count_batches_once(produced), mirrors).crossJoin(oldest)), heard
    )
    stayed = _lasting_losses(minutes)
    counted = minutes.select(*TOPIC_PAIR, "exact", F.explode(_daily_counts()).alias("of")).select(
        *TOPIC_PAIR, "exact", "of.*"
    )
    days = counted.groupBy(*TOPIC_PAIR, "day").agg(
        F.expr("bool_and(exact)").alias("exact"),
        *[F.sum(name).alias(f"{name}_records") for name in DAILY_COUNTS],
    )
    days = _with_status_histories(days, heard).join(stayed, [*TOPIC_PAIR], "left").crossJoin(oldest)
    so_far = Window.partitionBy(*TOPIC_PAIR).orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    for name in ("produced", "mirrored", "due", "judged"):
        days = days.withColumn(f"{name}_total", F.sum(f"{name}_records").over(so_far))
    days = days.withColumn("exact", F.min("exact").over(so_far)).selectExpr(
        *[column for column in days.columns if column != "exact"],
        f"exact AND NOT ({_has_losses('source')} OR {_has_losses('target')}) AS exact",
        f"greatest(0, due_total - mirrored_total, least({_STAYED_MISSING}, produced_total - mirrored_total))"
        " AS missing_records",
        "greatest(0, judged_total - produced_total) AS surplus_records",
        f"{_is_silent('source')} OR {_is_silent('target')} AS silent",
        f"{_known_until('source')} AS source_us",
        f"{_known_until('target')} AS target_us",
    )
    rows = days.selectExpr(
        "*",
        "oldest AS since",
        "greatest(0, get(filter(stayed, one -> one.day = day), 0).open) AS behind_records",
        f"timestamp_micros({_null_unless_both('least', 'source_us', 'target_us')} - {MINUTE_US}) AS as_of",
        """CASE
            WHEN source_us IS NULL OR target_us IS NULL THEN 'unknown'
            WHEN missing_records > 0 THEN 'missing'
            WHEN surplus_records > 0 THEN 'surplus'
            WHEN silent THEN 'unknown'
            WHEN mirrored_total < produced_total THEN 'lagging'
            ELSE 'equal'
        END AS state""",
    )
    return rows.where(F.lit(True) if since is None else F.col("day") >= since).select(*table_columns(MIRROR_CHECK))


def _count_batches_once(produced: DataFrame) -> DataFrame:
    """Return each written batch once, with its ``confirmed``, ``unconfirmed`` and retried (``again``) records.

    A batch is identified by its sequence if its producer is idempotent, otherwise by its offset if it has one. A batch
    without a response was retried if the same sequence was acknowledged. Rollups are not deduplicated.
    """
    written = produced.where("outcome != 'rejected'")
    distinct = "coalesce(producer_id >= 0 OR (outcome = 'acknowledged' AND base_offset >= 0), false)"
    sent = written.where(distinct).withColumn("sent_at", F.expr("if(producer_id >= 0, NULL, at)"))
    batches = sent.groupBy(*BATCH_SEQUENCE, "principal", "client_id", "base_offset", "sent_at", "outcome").agg(
        F.min("at").alias("at"),
        F.max("records").alias("records"),
        F.count(F.lit(1)).alias("copies"),
    )
    single = written.where(f"NOT {distinct}").withColumn("copies", F.lit(1))
    # For equal sequences: an acknowledgement with an offset, then one without (a duplicate), then no response.
    rank = F.expr("if(outcome = 'acknowledged', if(base_offset >= 0, 2, 1), 0)")
    batches = batches.withColumn("rank", rank).withColumn(
        "best", F.when(F.col("producer_id") >= 0, F.max("rank").over(Window.partitionBy(*BATCH_SEQUENCE)))
    )
    batches = batches.withColumn("kept", F.expr("if(coalesce(rank = best, true), 1, 0)"))
    each = batches.unionByName(single.withColumn("kept", F.lit(1)), allowMissingColumns=True)
    return each.selectExpr(
        *["cluster_id", "topic", "partition", "principal", "client_id", "unix_micros(at) AS at_us"],
        "if(outcome = 'acknowledged', kept * records, 0) AS confirmed",
        "if(outcome = 'unconfirmed', kept * records, 0) AS unconfirmed",
        "(copies - kept) * records AS again",
    )


def _with_mirror_sides(written: DataFrame, mirrors: Sequence[Mirror]) -> DataFrame:
    """Return ``written`` for each mirror and side, with TOPIC_PAIR, ``is_source`` and ``lag_us``."""
    sides = [side for mirror in mirrors for side in _side_structs(mirror)]
    matched = written.select("*", F.explode(F.array_compact(F.array(*sides))).alias("side"))
    return matched.select(*written.columns, "side.*")


def _side_structs(mirror: Mirror) -> list[Column]:
    source = F.when(is_source_of(mirror), _side_struct(mirror, F.col("topic"), True))
    written_by_it = is_target_of(mirror)
    if mirror.principals:
        written_by_it &= F.col("principal").isin(*mirror.principals)
    if mirror.client_ids:
        written_by_it &= F.col("client_id").isin(*mirror.client_ids)
    return [source, F.when(written_by_it, _side_struct(mirror, source_topic(mirror), False))]


def _side_struct(mirror: Mirror, topic: Column, is_source: bool) -> Column:
    return F.struct(
        F.lit(mirror.name).alias("mirror"),
        F.lit(mirror.source_cluster_id).alias("source_cluster_id"),
        topic.alias("source_topic"),
        F.lit(mirror.target_cluster_id).alias("target_cluster_id"),
        F.concat(F.lit(mirror.prefix), topic).alias("target_topic"),
        F.lit(is_source).alias("is_source"),
        F.lit(mirror.lag // timedelta(microseconds=1)).alias("lag_us"),
    )


def _sums_by_minute(written: DataFrame) -> DataFrame:
    """Return sums of ``written`` by pair, side, day, and ``known_us``.

    ``known_us`` is the end of the minute up to which a cluster has to be known: the minute in which records of the
    source are due, and in which records of the target arrived.
    """
    known = "at_us + if(is_source, lag_us, 0)"
    # Records that arrive early on the oldest day may have been produced on the day before, which is not retained.
    is_judged = f"NOT is_source AND at_us >= {DAY_US} * unix_date(oldest) + lag_us"
    return (
        written.selectExpr(
            *[*TOPIC_PAIR, "is_source", "lag_us", "confirmed", "unconfirmed", "again"],
            "partition IS NOT NULL AS exact",
            f"{day_of('at_us')} AS day",
            f"({known} + {MINUTE_US - 1}) DIV {MINUTE_US} * {MINUTE_US} AS known_us",
            f"if({is_judged}, confirmed, 0L) AS judged",
        )
        .groupBy(*TOPIC_PAIR, "is_source", "lag_us", "exact", "day", "known_us")
        .agg(*[F.sum(name).alias(name) for name in ("confirmed", "unconfirmed", "again", "judged")])
    )


_STAYED_MISSING = """coalesce(aggregate(
    filter(stayed, one -> one.day <= day), 0L, (so_far, one) -> greatest(one.missing, least(so_far, one.open))
), 0)"""
"""SQL of the records that were missing at the end of a row's day. Each day may increase or decrease the number."""


def _lasting_losses(minutes: DataFrame) -> DataFrame:
    """Return TOPIC_PAIR and ``stayed``: for each day the ``missing`` records and the least ``open`` ones.

    ``minutes``: with status histories. Days are those on which the minutes became known. Records that were overdue at
    the end of a minute may arrive later. They are missing only up to the number of records that are open (produced and
    not arrived) at the end of every later minute.
    """
    changes = minutes.selectExpr(
        *[*TOPIC_PAIR, "source_heard", "target_heard"],
        """inline(if(is_source, array(
            struct(known_us, confirmed AS overdue, 0L AS open),
            struct(known_us - lag_us AS known_us, 0L AS overdue, confirmed AS open)
        ), array(struct(known_us, -confirmed AS overdue, -confirmed AS open))))""",
    )
    heard = [F.first(f"{side}_heard").alias(f"{side}_heard") for side in ("source", "target")]
    sums = [F.sum(name).alias(name) for name in ("overdue", "open")]
    so_far = (
        Window.partitionBy(*TOPIC_PAIR).orderBy("known_us").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    ends = (
        changes.groupBy(*TOPIC_PAIR, "known_us")
        .agg(*sums, *heard)
        .withColumns({name: F.sum(name).over(so_far) for name in ("overdue", "open")})
        .withColumn(
            "day", F.expr(_null_unless_both("greatest", _first_day_known("source"), _first_day_known("target")))
        )
        .where("day IS NOT NULL")
    )
    # In descending order: Spark would scan a frame that ends with the partition again for each row.
    from_here = Window.partitionBy(*TOPIC_PAIR, "day").orderBy(F.desc("known_us"))
    from_here = from_here.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    days = (
        ends.withColumn("least_open", F.min("open").over(from_here))
        .groupBy(*TOPIC_PAIR, "day")
        .agg(F.expr("max(least(overdue, least_open)) AS missing"), F.min("open").alias("open"))
    )
    return days.groupBy(*TOPIC_PAIR).agg(F.expr("sort_array(collect_list(struct(day, missing, open))) AS stayed"))


def _status_history(completeness: DataFrame, oldest: DataFrame) -> DataFrame:
    """Return cluster_id and ``heard``: an array with the state at the end of each day with statuses of its sidecars.

    ``until_us``: the end of the last minute that all sidecars have reported, without those that were stopped cleanly;
    ``silent``: a sidecar has not reported for ``SILENCE_LIMIT_US``; ``lossy``: events were lost so far.
    """
    statuses = without_future_statuses(completeness).crossJoin(oldest).where("day >= oldest")
    brokers = statuses.groupBy("cluster_id", "broker_id", "day").agg(
        F.expr(f"max(if(last_status IS NULL, NULL, unix_micros(minute) + {MINUTE_US}))").alias("until_us"),
        F.expr("max_by(struct(ended), last_status)").alias("newest"),
        F.expr(f"max({LOST_REQUESTS})").alias("lossy"),
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
    one = f"struct(as_of AS day, until_us, newest_us - until_us > {SILENCE_LIMIT_US} AS silent, lossy)"
    return known.groupBy("cluster_id").agg(F.collect_list(F.expr(one)).alias("heard"))


def _with_status_histories(rows: DataFrame, heard: DataFrame) -> DataFrame:
    """Return ``rows`` with the status histories of both clusters, NULL for a cluster without statuses."""
    for side in ("source", "target"):
        of_side = heard.select(F.col("cluster_id").alias(f"{side}_cluster_id"), F.col("heard").alias(f"{side}_heard"))
        rows = rows.join(F.broadcast(of_side), f"{side}_cluster_id", "left")
    return rows


def _known_until(side: str) -> str:
    """Return SQL of the time up to which a cluster was known at the end of a row's day; NULL if it was unknown."""
    return f"array_max(transform(filter({side}_heard, one -> one.day <= day), one -> one.until_us))"


def _is_silent(side: str) -> str:
    """Return an SQL condition: a sidecar of the cluster was silent at the end of a row's day."""
    newest = f"array_max(transform(filter({side}_heard, one -> one.day <= day), one -> struct(one.day, one.silent)))"
    return f"coalesce({newest}.silent, false)"


def _has_losses(side: str) -> str:
    """Return an SQL condition: events of the cluster were lost up to a row's day."""
    return f"coalesce(exists({side}_heard, one -> one.day <= day AND one.lossy), false)"


def _first_day_known(side: str) -> str:
    """Return SQL of the first day on which a cluster was known up to ``known_us``; NULL if it is not yet."""
    return f"array_min(transform(filter({side}_heard, one -> one.until_us >= known_us), one -> one.day))"


def _daily_counts() -> Column:
    """Return an array of structs: what a row of ``_sums_by_minute`` adds to the counts of which day."""
    parts = [
        _daily_count("day", "is_source", produced="confirmed", retried="again", unconfirmed="unconfirmed"),
        _daily_count("day", "NOT is_source", mirrored="confirmed", retried="again"),
        _daily_count(
            _null_unless_both("greatest", _first_day_known("source"), _first_day_known("target")),
            "is_source",
            due="confirmed",
        ),
        _daily_count(
            _null_unless_both("greatest", "day", _first_day_known("source")), "NOT is_source", judged="judged"
        ),
    ]
    # There is no row for a day on which no record arrived, became due or became known.
    nothing = " + ".join(f"one.{name}" for name in DAILY_COUNTS)
    return F.expr(f"filter(array({', '.join(parts)}), one -> one.day IS NOT NULL AND (one.day = day OR {nothing} > 0))")


def _daily_count(day: str, condition: str, **counts: str) -> str:
    values = [f"{counts.get(name, '0L')} AS {name}" for name in DAILY_COUNTS]
    return f"struct(if({condition}, {day}, NULL) AS day, {', '.join(values)})"


def _null_unless_both(function: str, one: str, other: str) -> str:
    """Return SQL of ``function`` (``least`` or ``greatest``) of two values, NULL if either of them is NULL."""
    return f"if({one} IS NULL OR {other} IS NULL, NULL, {function}({one}, {other}))"
