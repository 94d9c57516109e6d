"""The table ``quota_advice``: limits that would have let through the connections that came, with room."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schemas import QUOTA_ADVICE
from spark_jobs.tables.columns import columns_of
from spark_jobs.tables.coverage import AWAY, runs

RATE, NUMBER = "connection_creation_rate", "connections"

WINDOW_SECONDS = 11
LEAST_SECONDS = 10
"""Kafka counts the connections of the present sample and the ten before it, of 1 s each, and divides them by the time
they took, at least ten seconds (``proxy.limits.sampled_rate``). Here samples begin with the seconds of the clock and
the divisor is ten: so an even flow gives up to a tenth more, and bursts eleven seconds apart may give a quarter
less."""

ROOM = 1.5
"""The advice is as many times the peak."""

CONFIG = {
    ("broker", RATE): "'max.connection.creation.rate'",
    ("broker", NUMBER): "'max.connections'",
    ("listener", RATE): "concat('listener.name.', lower(listener), '.max.connection.creation.rate')",
    ("listener", NUMBER): "concat('listener.name.', lower(listener), '.max.connections')",
    ("ip", RATE): "'ips.<default>.connection_creation_rate'",
    ("ip", NUMBER): "'max.connections.per.ip'",
}
"""SQL of the key that sets a limit, by scope and quota."""

LIMITED = ("cluster_id", "broker_id", "scope", "listener", "client_ip")
"""What a limit counts together: each sidecar counts for itself. Columns that are not of the scope are NULL."""

ADVISED = ("cluster_id", "scope", "listener", "quota")


def quota_advice(connections: DataFrame, throttles: DataFrame, completeness: DataFrame) -> DataFrame:
    """Return all rows of ``quota_advice``; all three frames are merged.

    Each connection is sorted in time, among those of its broker at most: that is what grows with them.
    """
    limited = _limited(_lives(connections, completeness))
    points = _rates(limited).unionByName(_numbers(limited))
    # Once by broker, and once for all of them together.
    counted = points.groupingSets([[*ADVISED, "broker_id"], [*ADVISED]], *ADVISED, "broker_id")
    advised = counted.agg(
        F.sum("opened").alias("observations"),
        F.min("first_at").alias("since"),
        F.max("last_at").alias("until"),
        F.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY value)").alias("p99"),
        # Of equal peaks the first.
        F.expr("min(struct(-value AS down, at, who))").alias("most"),
    )
    config = " ".join(f"WHEN scope = '{s}' AND quota = '{q}' THEN {key}" for (s, q), key in CONFIG.items())
    rows = advised.selectExpr(
        *[*ADVISED, "broker_id", "observations", "since", "until", "p99"],
        "-most.down AS peak",
        "most.at AS peak_at",
        "if(scope = 'ip', most.who, NULL) AS peak_by",
        f"greatest(1, ceil({ROOM} * -most.down)) AS advice",
        f"CASE {config} END AS config",
        "CAST(until AS DATE) AS day",
    )
    return _with_throttled(rows, throttles).select(*columns_of(QUOTA_ADVICE))


def _lives(connections: DataFrame, completeness: DataFrame) -> DataFrame:
    """Return from when to when each connection was open; ``until`` is NULL of one that still is.

    One whose end was not told ended with its sidecar's run at the latest.
    """
    newest = F.max("last_seen").over(Window.partitionBy("cluster_id"))
    gone = runs(completeness).withColumn("newest", newest).where(f"ended OR last_seen <= newest - {AWAY}")
    told = connections.join(F.broadcast(gone), ["cluster_id", "broker_id", "boot_id"], "left").selectExpr(
        *["cluster_id", "broker_id", "listener", "client_ip", "concat_ws(' ', client_ip, principal) AS who"],
        "coalesce(opened_at, timestamp_micros(unix_micros(closed_at) - 1000 * duration_ms)) AS at",
        "coalesce(closed_at, last_seen) AS until",
    )
    # No connection ends before it began, even where the clock was set back.
    ends = "if(until IS NULL, NULL, greatest(until, at + INTERVAL 1 MICROSECOND)) AS until"
    return told.where("at IS NOT NULL").selectExpr(*[name for name in told.columns if name != "until"], ends)


def _limited(lives: DataFrame) -> DataFrame:
    """Return each connection once for each scope, with the columns of LIMITED."""
    scopes = """array(
        struct('broker' AS scope, CAST(NULL AS STRING) AS listener, CAST(NULL AS STRING) AS client_ip),
        struct('listener' AS scope, listener, CAST(NULL AS STRING) AS client_ip),
        struct('ip' AS scope, CAST(NULL AS STRING) AS listener, client_ip)
    )"""
    return lives.selectExpr("cluster_id", "broker_id", "at", "until", "who", f"inline({scopes})")


def _rates(limited: DataFrame) -> DataFrame:
    """Return the rate at each second in which a connection was opened."""
    seconds = limited.groupBy(*LIMITED, F.unix_seconds("at").alias("second")).agg(
        F.count(F.lit(1)).alias("opened"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max("at").alias("at"),
        F.min("who").alias("who"),
    )
    window = Window.partitionBy(*LIMITED).orderBy("second").rangeBetween(1 - WINDOW_SECONDS, 0)
    rate = (F.sum("opened").over(window) / LEAST_SECONDS).alias("value")
    return seconds.select(*LIMITED, F.lit(RATE).alias("quota"), "opened", "first_at", "last_at", rate, "at", "who")


def _numbers(limited: DataFrame) -> DataFrame:
    """Return the most that were open at a time, by second in which a connection was opened."""
    changes = """array_compact(array(
        struct(at, 1 AS change),
        if(until IS NULL, NULL, struct(until AS at, -1 AS change))
    ))"""
    changed = limited.selectExpr(*LIMITED, "who", f"inline({changes})")
    # What ends in the same instant makes room first.
    so_far = Window.partitionBy(*LIMITED).orderBy("at", "change")
    running = F.sum("change").over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    opened = changed.withColumn("open", running).where("change > 0")
    seconds = opened.groupBy(*LIMITED, F.unix_seconds("at").alias("second")).agg(
        F.count(F.lit(1)).alias("opened"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.expr("min(struct(-open AS down, at, who))").alias("most"),
    )
    return seconds.selectExpr(
        *[*LIMITED, f"'{NUMBER}' AS quota", "opened", "first_at", "last_at"],
        "CAST(-most.down AS DOUBLE) AS value",
        "most.at AS at",
        "most.who AS who",
    )


def _with_throttled(rows: DataFrame, throttles: DataFrame) -> DataFrame:
    """Return ``rows`` with how many connections met the limit from ``since`` to ``until``."""
    met = throttles.selectExpr(
        *["cluster_id", "broker_id AS met_by", "scope", "quota", "count", "first_at", "last_at"],
        "if(scope = 'listener', listener, NULL) AS met_at",
    )
    limits = F.broadcast(rows.select(*ADVISED, "broker_id", "since", "until"))
    counted = (
        met.join(limits, ["cluster_id", "scope", "quota"])
        .where("coalesce(broker_id = met_by, true) AND met_at <=> listener")
        .where("first_at <= until AND last_at >= since")
        .groupBy(*ADVISED, "broker_id")
        .agg(F.sum("count").alias("throttled"))
    )
    same = [F.col(f"one.{name}").eqNullSafe(F.col(f"met.{name}")) for name in (*ADVISED, "broker_id")]
    joined = rows.alias("one").join(F.broadcast(counted.alias("met")), same, "left")
    return joined.selectExpr("one.*", "coalesce(met.throttled, 0) AS throttled")
