"""How much of a cluster its sidecars saw, told from ``completeness``: for tables that speak of what did not happen.

A broker is covered from the beginning of a run of its sidecar to the run's last status. A pause of less than a minute
between two of them is a restart, during which clients had no way in either. What nobody can say: what passed while a
sidecar was away for longer, what was in events that were lost or are in conflict with others, and what a run did last
that was killed. A broker whose sidecar ended in good order a day ago or more, and did not come back, is gone with it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

AWAY = "INTERVAL 60 SECONDS"
"""A sidecar that tells no status for this long was away; it tells one each ten seconds."""

ON_THE_WAY = "INTERVAL 120 SECONDS"
"""Numbers that are missing in the newest data may be on their way, by another partition; for so long they are not
missed."""

TAKEN_DOWN = "INTERVAL 1 DAY"
"""A sidecar that ended in good order so long ago was taken down together with its broker."""


def coverage(completeness: DataFrame) -> DataFrame:
    """Return one row for each cluster of ``completeness``, which is merged.

    cluster_id; since, as_of: the first and the last instant in which any of its sidecars was seen alive, NULL without
    a status; covered_since: from when on all brokers were covered and nothing was lost, equal to since where that is
    so throughout; coverage: the share of that time in which brokers were covered; uncovered_brokers: those that were
    not, or whose events were lost. Brokers are those that any sidecar of the cluster stood in front of.

    Grows with runs × minutes; only those of one broker, or of one run, are ever sorted together.
    """
    brokers = _brokers(in_time(completeness))
    losses = _losses(completeness, brokers.select("cluster_id", "since", "as_of").distinct())
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


def in_time(completeness: DataFrame) -> DataFrame:
    """Return ``completeness`` without statuses of a clock that was ahead.

    It was where the run told of an earlier time later, by its own count of events.
    """
    run = Window.partitionBy("cluster_id", "broker_id", "boot_id")
    newest = F.max_by("last_status", F.expr("if(emitted IS NULL, NULL, struct(emitted, last_status))"))
    told = completeness.withColumn("now", newest.over(run))
    return told.where(f"coalesce(last_status < now + {AWAY}, true)").drop("now")


def runs(completeness: DataFrame) -> DataFrame:
    """Return one row for each run of a sidecar: cluster_id, broker_id, boot_id, last_seen, ended (in good order)."""
    return (
        in_time(completeness)
        .where("reason IS NULL")
        .groupBy("cluster_id", "broker_id", "boot_id")
        .agg(
            F.expr("coalesce(max(last_status), max(minute))").alias("last_seen"),
            F.expr("coalesce(max(ended), false)").alias("ended"),
        )
    )


def _brokers(completeness: DataFrame) -> DataFrame:
    """Return one row for each broker: since and as_of of its cluster, away_us, and unseen_until (NULL: all seen)."""
    told = completeness.selectExpr(
        *["cluster_id", "broker_id", "last_status", "ended"],
        # A run's first status comes ten seconds after its beginning, which may be in the minute before.
        f"if(statuses > 0, if(started_at > minute - {AWAY}, started_at, minute), NULL) AS begun",
        f"if(lost > 0 OR conflicts > 0, minute + {AWAY}, NULL) AS lost_until",
    )
    before = Window.partitionBy("cluster_id", "broker_id").orderBy("begun").rowsBetween(Window.unboundedPreceding, -1)
    told = told.withColumn("reached", F.max("last_status").over(before))
    told = told.withColumn("paused", F.expr(f"begun >= reached + {AWAY}"))
    brokers = told.groupBy("cluster_id", "broker_id").agg(
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
        .withColumn("taken_down", F.expr(f"coalesce(ended AND last <= as_of - {TAKEN_DOWN}, false)"))
        .selectExpr(
            *["*", f"first >= since + {AWAY} AS late"],
            f"coalesce(last <= as_of - {AWAY}, true) AND NOT taken_down AS gone",
        )
        .selectExpr(
            *["cluster_id", "broker_id", "since", "as_of"],
            "paused_us + if(late, unix_micros(first) - unix_micros(since), 0)"
            " + if(gone, unix_micros(as_of) - coalesce(unix_micros(last), unix_micros(since)), 0) AS away_us",
            "greatest(back_at, lost_until, if(late, first, NULL), if(gone, as_of, NULL)) AS unseen_until",
        )
    )


def _losses(completeness: DataFrame, clusters: DataFrame) -> DataFrame:
    """Return cluster_id, broker_id, unseen_until of runs that were killed, and of numbers that are missing.

    Those that a sidecar says are lost are no longer missing. Numbers of a run that began before the oldest row are
    counted from the first one that is there.
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
    # Backwards: a frame that ends with the partition would be gone through for each of its rows.
    from_here = run.orderBy(F.desc("minute")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    missing = (
        minutes.withColumn("from_its_start", F.min("started_at").over(run) >= F.col("since"))
        .withColumn("base", F.when(F.col("from_its_start"), 0).otherwise(F.min("first").over(run) - 1))
        .withColumn("open", F.max("last").over(so_far) - F.col("base") - F.sum("known").over(so_far))
        # What comes later, from a spool, may fill a hole.
        .withColumn("never_filled", F.min("open").over(from_here))
        .withColumn("before", F.lag("never_filled", 1, 0).over(run.orderBy("minute")))
        .where(f"never_filled > greatest(before, 0) AND minute <= as_of - {ON_THE_WAY}")
        .selectExpr("cluster_id", "broker_id", f"minute + {AWAY} AS unseen_until")
    )
    killed = (
        runs(completeness)
        .join(F.broadcast(clusters), "cluster_id")
        .where(f"NOT ended AND last_seen <= as_of - {AWAY}")
        .selectExpr("cluster_id", "broker_id", f"last_seen + {AWAY} AS unseen_until")
    )
    return missing.unionByName(killed)
