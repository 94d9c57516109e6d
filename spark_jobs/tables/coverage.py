"""How much of a cluster its sidecars observed, computed from ``completeness``. Used by tables that report absence.

A broker is covered from the start of a boot of its sidecar to the last status of the boot. A pause of less than a
minute between two boots is a restart, during which clients could not connect either. Not covered are: longer pauses,
events that were lost or are in conflict with others, and the end of a boot that was killed. A broker whose sidecar was
stopped cleanly a day ago or earlier, and did not come back, counts as decommissioned.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

ABSENCE_LIMIT = "INTERVAL 60 SECONDS"
"""A sidecar without a status for this long was absent. It sends one every ten seconds."""

DELIVERY_GRACE = "INTERVAL 120 SECONDS"
"""Event numbers that are missing in data newer than this may still arrive by another partition. They do not count
yet."""

DECOMMISSIONED_AFTER = "INTERVAL 1 DAY"
"""A sidecar that was stopped cleanly this long ago was decommissioned together with its broker."""


LOST_REQUESTS = "(lost > 0 AND coalesce(reason, '') <> 'interval_full')"
"""SQL condition on ``completeness``: events of requests, connections or topics were lost. Members of groups and ends of
partitions beyond the bounds of an interval are not about what was produced and consumed."""


def coverage(completeness: DataFrame) -> DataFrame:
    """Return one row for each cluster of ``completeness`` (merged rows).

    Columns: cluster_id; since, as_of: the first and the last time at which any of its sidecars was alive, NULL without
    a status; covered_since: the time from which on all brokers were covered and no event was lost, equal to since if
    that was always so; coverage: the share of the time in which brokers were covered; uncovered_brokers: the brokers
    that were not covered or whose events were lost. Only brokers with a sidecar are known.

    The work grows with boots × minutes. Only rows of one broker, or of one boot, are sorted together.
    """
    brokers = _broker_coverage(without_future_statuses(completeness))
    losses = _coverage_losses(completeness, brokers.select("cluster_id", "since", "as_of").distinct())
    unseen = brokers.unionByName(losses, allowMissingColumns=True)
    return (
        unseen.groupBy("cluster_id")
        .agg(
            F.max("since").alias("since"),
            F.max("as_of").alias("as_of"),
            F.max("unseen_until").alias("unseen_until"),
            F.expr("sum(away_us) / count(away_us)").alias("away_us"),
            F.expr("sort_array(collect_set(if(unseen_until IS NULL, NULL, broker_id)))").alias("uncovered_brokers"),
        )
        .selectExpr(
            *["cluster_id", "since", "as_of", "uncovered_brokers"],
            "least(as_of, greatest(since, unseen_until)) AS covered_since",
            "if(since < as_of, 1 - away_us / (unix_micros(as_of) - unix_micros(since)), NULL) AS coverage",
        )
    )


def without_future_statuses(completeness: DataFrame) -> DataFrame:
    """Return ``completeness`` without statuses that were sent while the clock of a sidecar was ahead.

    The clock was ahead if the boot sent an earlier time later, in the order of its event numbers.
    """
    run = Window.partitionBy("cluster_id", "broker_id", "boot_id")
    newest = F.max_by("last_status", F.expr("if(emitted IS NULL, NULL, struct(emitted, last_status))"))
    rows = completeness.withColumn("now", newest.over(run))
    return rows.where(f"coalesce(last_status < now + {ABSENCE_LIMIT}, true)").drop("now")


def sidecar_runs(completeness: DataFrame) -> DataFrame:
    """Return one row for each boot of a sidecar: cluster_id, broker_id, boot_id, last_seen, ended (stopped cleanly)."""
    return (
        without_future_statuses(completeness)
        .where("reason IS NULL")
        .groupBy("cluster_id", "broker_id", "boot_id")
        .agg(
            F.expr("coalesce(max(last_status), max(minute))").alias("last_seen"),
            F.expr("coalesce(max(ended), false)").alias("ended"),
        )
    )


def _broker_coverage(completeness: DataFrame) -> DataFrame:
    """Return since and as_of of the cluster, away_us, and unseen_until (NULL: fully covered) for each broker."""
    minutes = completeness.selectExpr(
        *["cluster_id", "broker_id", "last_status", "ended"],
        # The first status is sent ten seconds after the start of a boot, which may be in the minute before.
        f"if(statuses > 0, if(started_at > minute - {ABSENCE_LIMIT}, started_at, minute), NULL) AS begun",
        f"if({LOST_REQUESTS} OR conflicts > 0, minute + {ABSENCE_LIMIT}, NULL) AS lost_until",
    )
    before = Window.partitionBy("cluster_id", "broker_id").orderBy("begun").rowsBetween(Window.unboundedPreceding, -1)
    minutes = minutes.withColumn("reached", F.max("last_status").over(before))
    minutes = minutes.withColumn("paused", F.expr(f"begun >= reached + {ABSENCE_LIMIT}"))
    brokers = minutes.groupBy("cluster_id", "broker_id").agg(
        F.min("begun").alias("first"),
        F.max("last_status").alias("last"),
        F.expr("max_by(ended, if(last_status IS NULL, NULL, struct(last_status, ended)))").alias("ended"),
        F.expr("sum(if(paused, unix_micros(begun) - unix_micros(reached), 0))").alias("paused_us"),
        F.expr("max(if(paused, begun, NULL))").alias("back_at"),
        F.max("lost_until").alias("lost_until"),
    )
    cluster = Window.partitionBy("cluster_id")
    return (
        brokers.withColumn("since", F.min("first").over(cluster))
        .withColumn("as_of", F.max("last").over(cluster))
        .withColumn("taken_down", F.expr(f"coalesce(ended AND last <= as_of - {DECOMMISSIONED_AFTER}, false)"))
        .selectExpr(
            *["*", f"first >= since + {ABSENCE_LIMIT} AS late"],
            f"coalesce(last <= as_of - {ABSENCE_LIMIT}, true) AND NOT taken_down AS gone",
        )
        .selectExpr(
            *["cluster_id", "broker_id", "since", "as_of"],
            "paused_us + if(late, unix_micros(first) - unix_micros(since), 0)"
            " + if(gone, unix_micros(as_of) - coalesce(unix_micros(last), unix_micros(since)), 0) AS away_us",
            "greatest(back_at, lost_until, if(late, first, NULL), if(gone, as_of, NULL)) AS unseen_until",
        )
    )


def _coverage_losses(completeness: DataFrame, clusters: DataFrame) -> DataFrame:
    """Return cluster_id, broker_id and unseen_until of boots that were killed, and of missing event numbers.

    Numbers that a sidecar reported as lost are not missing. The numbers of a boot that started before the oldest row
    are counted from the first number in the table.
    """
    minutes = (
        completeness.groupBy("cluster_id", "boot_id", "minute")
        .agg(
            F.min("broker_id").alias("broker_id"),
            F.min("started_at").alias("started_at"),
            F.expr("sum(events) + sum(lost)").alias("known"),
            F.expr("least(min(first_seq), min(lost_first_seq))").alias("first"),
            F.expr("greatest(max(last_seq), max(lost_last_seq))").alias("last"),
        )
        .join(F.broadcast(clusters), "cluster_id")
    )
    run = Window.partitionBy("cluster_id", "boot_id")
    so_far = run.orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # In descending order: Spark would scan a frame that ends with the partition again for each row.
    from_here = run.orderBy(F.desc("minute")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    missing = (
        minutes.withColumn("from_its_start", F.min("started_at").over(run) >= F.col("since"))
        .withColumn("base", F.when(F.col("from_its_start"), 0).otherwise(F.min("first").over(run) - 1))
        .withColumn("open", F.max("last").over(so_far) - F.col("base") - F.sum("known").over(so_far))
        # Events that arrive later, from a spool, may fill a gap.
        .withColumn("never_filled", F.min("open").over(from_here))
        .withColumn("before", F.lag("never_filled", 1, 0).over(run.orderBy("minute")))
        .where(f"never_filled > greatest(before, 0) AND minute <= as_of - {DELIVERY_GRACE}")
        .selectExpr("cluster_id", "broker_id", f"minute + {ABSENCE_LIMIT} AS unseen_until")
    )
    killed = (
        sidecar_runs(completeness)
        .join(F.broadcast(clusters), "cluster_id")
        .where(f"NOT ended AND last_seen <= as_of - {ABSENCE_LIMIT}")
        .selectExpr("cluster_id", "broker_id", f"last_seen + {ABSENCE_LIMIT} AS unseen_until")
    )
    return missing.unionByName(killed)
