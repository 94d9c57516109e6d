"""The table ``quota_advice``: quotas that would have admitted the connections that were opened, with headroom."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.schemas import QUOTA_ADVICE
from spark_jobs.tables.columns import table_columns
from spark_jobs.tables.coverage import ABSENCE_LIMIT, sidecar_runs

RATE_QUOTA, CONNECTIONS_QUOTA = "connection_creation_rate", "connections"

RATE_WINDOW_SECONDS = 11
MIN_RATE_DIVISOR_SECONDS = 10
"""Kafka counts the connections of the current sample and the ten before it, of 1 s each, and divides them by their
duration, at least ten seconds (``proxy.limits.sampled_rate``). Here samples start at full seconds and the divisor is
always ten: a constant rate is up to a tenth higher, and bursts eleven seconds apart may be a quarter lower."""

HEADROOM_FACTOR = 1.5
"""The advice is the peak multiplied by this."""

CONFIG_KEYS = {
    ("broker", RATE_QUOTA): "'max.connection.creation.rate'",
    ("broker", CONNECTIONS_QUOTA): "'max.connections'",
    ("listener", RATE_QUOTA): "concat('listener.name.', lower(listener), '.max.connection.creation.rate')",
    ("listener", CONNECTIONS_QUOTA): "concat('listener.name.', lower(listener), '.max.connections')",
    ("ip", RATE_QUOTA): "'ips.<default>.connection_creation_rate'",
    ("ip", CONNECTIONS_QUOTA): "'max.connections.per.ip'",
}
"""By scope and quota, SQL of the config key that sets the quota."""

LIMIT_KEYS = ("cluster_id", "broker_id", "scope", "listener", "client_ip")
"""Connections with equal values are counted together. Each sidecar counts its own. Columns outside the scope are
NULL."""

ADVICE_KEYS = ("cluster_id", "scope", "listener", "quota")


def quota_advice(connections: DataFrame, throttles: DataFrame, completeness: DataFrame) -> DataFrame:
    """Return all rows of ``quota_advice``. All three data frames have merged rows.

    The connections of each broker are sorted by time; this is the part whose work grows with their number.
    """
    limited = _connections_by_limit(_connection_lifetimes(connections, completeness))
    points = _connection_rates(limited).unionByName(_open_connections(limited))
    # Once for each broker, and once for all brokers together.
    counted = points.groupingSets([[*ADVICE_KEYS, "broker_id"], [*ADVICE_KEYS]], *ADVICE_KEYS, "broker_id")
    advised = counted.agg(
        F.sum("opened").alias("observations"),
        F.min("first_at").alias("since"),
        F.max("last_at").alias("until"),
        F.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY value)").alias("p99"),
        # The first of equal peaks.
        F.expr("min(struct(-value AS down, at, who))").alias("most"),
    )
    config = " ".join(f"WHEN scope = '{s}' AND quota = '{q}' THEN {key}" for (s, q), key in CONFIG_KEYS.items())
    rows = advised.selectExpr(
        *[*ADVICE_KEYS, "broker_id", "observations", "since", "until", "p99"],
        "-most.down AS peak",
        "most.at AS peak_at",
        "if(scope = 'ip', most.who, NULL) AS peak_by",
        f"greatest(1, ceil({HEADROOM_FACTOR} * -most.down)) AS advice",
        f"CASE {config} END AS config",
        "CAST(until AS DATE) AS day",
    )
    return _with_throttled_count(rows, throttles).select(*table_columns(QUOTA_ADVICE))


def _connection_lifetimes(connections: DataFrame, completeness: DataFrame) -> DataFrame:
    """Return the time from which and ``until`` which each connection was open; NULL if it is still open.

    A connection without a close event ended at the latest with the boot of its sidecar.
    """
    newest = F.max("last_seen").over(Window.partitionBy("cluster_id"))
    gone = (
        sidecar_runs(completeness).withColumn("newest", newest).where(f"ended OR last_seen <= newest - {ABSENCE_LIMIT}")
    )
    lifetimes = connections.join(F.broadcast(gone), ["cluster_id", "broker_id", "boot_id"], "left").selectExpr(
        *["cluster_id", "broker_id", "listener", "client_ip", "concat_ws(' ', client_ip, principal) AS who"],
        "coalesce(opened_at, timestamp_micros(unix_micros(closed_at) - 1000 * duration_ms)) AS at",
        "coalesce(closed_at, last_seen) AS until",
    )
    # No connection ends before it began, even where the clock was set back.
    ends = "if(until IS NULL, NULL, greatest(until, at + INTERVAL 1 MICROSECOND)) AS until"
    return lifetimes.where("at IS NOT NULL").selectExpr(*[name for name in lifetimes.columns if name != "until"], ends)


def _connections_by_limit(lives: DataFrame) -> DataFrame:
    """Return each connection once for each scope, with the columns of LIMITED."""
    scopes = """array(
        struct('broker' AS scope, CAST(NULL AS STRING) AS listener, CAST(NULL AS STRING) AS client_ip),
        struct('listener' AS scope, listener, CAST(NULL AS STRING) AS client_ip),
        struct('ip' AS scope, CAST(NULL AS STRING) AS listener, client_ip)
    )"""
    return lives.selectExpr("cluster_id", "broker_id", "at", "until", "who", f"inline({scopes})")


def _connection_rates(limited: DataFrame) -> DataFrame:
    """Return the connection rate at each second in which a connection was opened."""
    seconds = limited.groupBy(*LIMIT_KEYS, F.unix_seconds("at").alias("second")).agg(
        F.count(F.lit(1)).alias("opened"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.max("at").alias("at"),
        F.min("who").alias("who"),
    )
    window = Window.partitionBy(*LIMIT_KEYS).orderBy("second").rangeBetween(1 - RATE_WINDOW_SECONDS, 0)
    rate = (F.sum("opened").over(window) / MIN_RATE_DIVISOR_SECONDS).alias("value")
    return seconds.select(
        *LIMIT_KEYS, F.lit(RATE_QUOTA).alias("quota"), "opened", "first_at", "last_at", rate, "at", "who"
    )


def _open_connections(limited: DataFrame) -> DataFrame:
    """Return the greatest number of open connections, for each second in which a connection was opened."""
    changes = """array_compact(array(
        struct(at, 1 AS change),
        if(until IS NULL, NULL, struct(until AS at, -1 AS change))
    ))"""
    changed = limited.selectExpr(*LIMIT_KEYS, "who", f"inline({changes})")
    # Connections that end at the same time are subtracted first.
    so_far = Window.partitionBy(*LIMIT_KEYS).orderBy("at", "change")
    running = F.sum("change").over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    opened = changed.withColumn("open", running).where("change > 0")
    seconds = opened.groupBy(*LIMIT_KEYS, F.unix_seconds("at").alias("second")).agg(
        F.count(F.lit(1)).alias("opened"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.expr("min(struct(-open AS down, at, who))").alias("most"),
    )
    return seconds.selectExpr(
        *[*LIMIT_KEYS, f"'{CONNECTIONS_QUOTA}' AS quota", "opened", "first_at", "last_at"],
        "CAST(-most.down AS DOUBLE) AS value",
        "most.at AS at",
        "most.who AS who",
    )


def _with_throttled_count(rows: DataFrame, throttles: DataFrame) -> DataFrame:
    """Return ``rows`` with ``throttled``: the number of connections that met the quota from ``since`` to ``until``."""
    met = throttles.selectExpr(
        *["cluster_id", "broker_id AS met_by", "scope", "quota", "count", "first_at", "last_at"],
        "if(scope = 'listener', listener, NULL) AS met_at",
    )
    limits = F.broadcast(rows.select(*ADVICE_KEYS, "broker_id", "since", "until"))
    counted = (
        met.join(limits, ["cluster_id", "scope", "quota"])
        .where("coalesce(broker_id = met_by, true) AND met_at <=> listener")
        .where("first_at <= until AND last_at >= since")
        .groupBy(*ADVICE_KEYS, "broker_id")
        .agg(F.sum("count").alias("throttled"))
    )
    same = [F.col(f"one.{name}").eqNullSafe(F.col(f"met.{name}")) for name in (*ADVICE_KEYS, "broker_id")]
    joined = rows.alias("one").join(F.broadcast(counted.alias("met")), same, "left")
    return joined.selectExpr("one.*", "coalesce(met.throttled, 0) AS throttled")
