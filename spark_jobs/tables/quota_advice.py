"""The table ``quota_advice``: quotas that would have admitted the connections that were opened, with headroom."""

from __future__ import annotations

from spark_jobs.schemas import QUOTA_ADVICE
from spark_jobs.tables.coverage import ABSENCE_LIMIT, SIDECAR_RUNS, STATUSES
from spark_jobs.tables.sql import table_columns

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

_LIMIT = "cluster_id, broker_id, scope, listener, client_ip"
"""Connections with equal values are counted together. Each sidecar counts its own. Columns outside the scope are
NULL."""

_ADVICE = ("cluster_id", "scope", "listener", "quota")

_CONFIG = " ".join(
    f"WHEN scope = '{scope}' AND quota = '{quota}' THEN {key}" for (scope, quota), key in CONFIG_KEYS.items()
)

_COLUMNS = table_columns(
    QUOTA_ADVICE,
    peak="-most.down",
    peak_at="most.at",
    peak_by="CASE WHEN scope = 'ip' THEN most.who END",
    advice=f"greatest(1, ceil({HEADROOM_FACTOR} * -most.down))",
    config=f"CASE {_CONFIG} END",
    day="until::DATE",
)

QUOTA_ADVICE_SQL = f"""
WITH {STATUSES}, {SIDECAR_RUNS},
gone AS (
    SELECT * FROM (SELECT *, max(last_seen) OVER (PARTITION BY cluster_id) AS newest FROM sidecar_runs)
    WHERE ended OR last_seen <= newest - {ABSENCE_LIMIT}
),
-- A connection without a close event ended at the latest with the boot of its sidecar; NULL: it is still open.
lifetimes AS (
    SELECT cluster_id, broker_id, listener, client_ip, concat_ws(' ', client_ip, principal) AS who,
        coalesce(opened_at, make_timestamp(epoch_us(closed_at) - 1000 * duration_ms)) AS begun,
        coalesce(closed_at, last_seen) AS ended_at
    FROM connections LEFT JOIN gone USING (cluster_id, broker_id, boot_id)
),
limited AS MATERIALIZED (
    SELECT cluster_id, broker_id, who, begun AS "at",
        -- No connection ends before it began, even where the clock was set back.
        CASE WHEN ended_at IS NOT NULL THEN greatest(ended_at, begun + INTERVAL 1 MICROSECOND) END AS until,
        unnest([
            {{'scope': 'broker', 'listener': NULL::VARCHAR, 'client_ip': NULL::VARCHAR}},
            {{'scope': 'listener', 'listener': listener, 'client_ip': NULL::VARCHAR}},
            {{'scope': 'ip', 'listener': NULL::VARCHAR, 'client_ip': client_ip}}
        ], recursive := true)
    FROM lifetimes WHERE begun >= TIMESTAMP '1970-01-01' -- an earlier one is wrong; Python has no day before year 1
),
opened_by_second AS (
    SELECT {_LIMIT}, epoch_us("at") // 1000000 AS second, count(*) AS opened, min("at") AS first_at,
        max("at") AS last_at, min(who) AS who
    FROM limited GROUP BY ALL
),
rates AS (
    SELECT *, '{RATE_QUOTA}' AS quota, last_at AS "at", sum(opened) OVER (PARTITION BY {_LIMIT} ORDER BY second
        RANGE BETWEEN {RATE_WINDOW_SECONDS - 1} PRECEDING AND CURRENT ROW) / {MIN_RATE_DIVISOR_SECONDS} AS value
    FROM opened_by_second
),
changes AS (
    SELECT {_LIMIT}, who, "at", 1 AS change FROM limited
    UNION ALL
    SELECT {_LIMIT}, who, until, -1 FROM limited WHERE until IS NOT NULL
),
-- Connections that end at the same time are subtracted first.
running AS (
    SELECT *, sum(change) OVER (PARTITION BY {_LIMIT} ORDER BY "at", change, who ROWS UNBOUNDED PRECEDING) AS open
    FROM changes
),
open_by_second AS (
    SELECT {_LIMIT}, epoch_us("at") // 1000000 AS second, count(*) AS opened, min("at") AS first_at,
        max("at") AS last_at, min(struct_pack(down := -open, "at" := "at", who := who)) AS most
    FROM running WHERE change > 0 GROUP BY {_LIMIT}, second
),
-- For each second in which a connection was opened: the rate, and the greatest number of open ones.
points AS (
    SELECT {_LIMIT}, quota, opened, first_at, last_at, value, "at", who FROM rates
    UNION ALL
    SELECT {_LIMIT}, '{CONNECTIONS_QUOTA}', opened, first_at, last_at, -most.down::DOUBLE, most.at, most.who
    FROM open_by_second
),
-- Once for each broker, and once for all brokers together.
advised AS (
    SELECT {", ".join(_ADVICE)}, broker_id, sum(opened) AS observations, min(first_at) AS since, max(last_at) AS until,
        quantile_disc(value, 0.99) AS p99,
        min(struct_pack(down := -value, "at" := "at", who := who)) AS most -- the first of equal peaks
    FROM points GROUP BY GROUPING SETS (({", ".join(_ADVICE)}, broker_id), ({", ".join(_ADVICE)}))
),
met AS (
    SELECT advised.cluster_id, advised.scope, advised.listener, advised.quota, advised.broker_id,
        sum(throttles.count) AS throttled
    FROM throttles JOIN advised ON advised.cluster_id = throttles.cluster_id AND advised.scope = throttles.scope
        AND advised.quota = throttles.quota AND coalesce(advised.broker_id = throttles.broker_id, true)
        AND CASE WHEN throttles.scope = 'listener' THEN throttles.listener END IS NOT DISTINCT FROM advised.listener
        AND throttles.first_at <= advised.until AND throttles.last_at >= advised.since
    GROUP BY ALL
)
SELECT {_COLUMNS} FROM (
    SELECT advised.*, coalesce(met.throttled, 0) AS throttled FROM advised LEFT JOIN met
    ON {" AND ".join(f"advised.{name} IS NOT DISTINCT FROM met.{name}" for name in (*_ADVICE, "broker_id"))}
)
"""
"""Of ``connections``, ``throttles`` and ``completeness``, all merged. The connections of each broker are sorted by
time; this is the part whose work grows with their number."""
