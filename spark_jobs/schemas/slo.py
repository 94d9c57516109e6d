"""Objectives and how they are met: ``slo``."""

from __future__ import annotations

from spark_jobs.schemas.model import Column, Table

BURN_RATE_WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "2h": 120, "6h": 360, "1d": 1_440, "3d": 4_320}
"""Windows of the burn rates, short to long, in minutes."""

BURN_RATE_ALERTS = {
    "page_quick": ("5m", "1h", 14.4),
    "page_slow": ("30m", "6h", 6.0),
    "ticket_quick": ("2h", "1d", 3.0),
    "ticket_slow": ("6h", "3d", 1.0),
}
"""By alert: a short and a long window, and the burn rate that both must exceed. The rates use 2 %, 5 %, 10 % and 10 %
of the budget of ``BURN_RATE_PERIOD_DAYS`` in the long window (Google SRE workbook, Sloth)."""

BURN_RATE_PERIOD_DAYS = 30
"""Period in days of the rates of ``BURN_RATE_ALERTS``. For other periods they are scaled by the length."""

FEW = 100
"""Requests below which nothing is judged: one request more or less changes a percentage by 1 % or more."""

_BURN = "Burn rate: share of bad ones in the window's minutes up to `as_of`, as a multiple of `error_budget_ratio`"

SLO = Table(
    "slo",
    "How each objective is met, at the end of each day (for the newest day: at its newest minute). One row for "
    "each combination of what the objective is judged by, as long as its period has requests. An objective that has "
    "none at all has one row with a `total` of 0: nothing matches it, or nothing came.",
    (
        Column("day", "date", "Day of `as_of`; the table is partitioned by it.", "UTC"),
        Column("as_of", "timestamp", "The last minute that was judged: the newest one of the cluster on this day.",
               "UTC"),
        Column("slo", "string", "Name of the SLO, `metadata.name`.", source="OpenSLO"),
        Column("objective", "string", "Name of its objective: `displayName`, or its place.", source="OpenSLO"),
        Column("service", "string", "Its service, `spec.service`.", source="OpenSLO"),
        Column("sli", "string", "What is good: `latency` (in time), `errors` (answered without an error) or `answered`"
               " (at all).", source="OpenSLO"),
        Column("cluster_id", "string", "The Kafka cluster's own id; NULL where `total` is 0."),
        Column("api", "string", "Kind of request, if it is judged by it; else NULL."),
        Column("topic", "string", "Topic, if it is judged by it; else NULL."),
        Column("principal", "string", "Principal, if it is judged by it; else NULL."),
        Column("client_id", "string", "Client id, if it is judged by it; else NULL, as of a client without one."),
        Column("threshold_ms", "double", "The most that a good request takes; NULL but of `latency`.", "ms", "OpenSLO"),
        Column("counted_to_ms", "double", "Up to where requests are counted as good: the end of a latency bucket, at"
               " `threshold_ms` or the next below it.", "ms"),
        Column("objective_ratio", "double", "Share of good ones that is aimed at.", "ratio", "OpenSLO"),
        Column("window_days", "double", "Length of the objective's period.", "days", "OpenSLO"),
        Column("window_start", "timestamp", "First minute of the period that ends with `as_of`. Where the data begin"
               " later, the period is shorter.", "UTC"),
        Column("day_total", "bigint", "Requests of the day; timeslices with requests where the method is `Timeslices`.",
               "requests"),
        Column("day_good", "bigint", "The good ones of them.", "requests"),
        Column("total", "bigint", "The same of the period.", "requests"),
        Column("good", "bigint", "The good ones of them.", "requests"),
        Column("attainment", "double", "`good` / `total`; NULL where that is 0.", "ratio"),
        Column("error_budget_ratio", "double", "1 − `objective_ratio`.", "ratio"),
        Column("period_error_budget_remaining_ratio", "double", "Share of the period's budget that is left; below 0 it"
               " is overspent. NULL where `total` is 0.", "ratio"),
        *[Column(f"burn_rate_{window}", "double", f"{_BURN}. NULL without requests in it.", "ratio")
          for window in BURN_RATE_WINDOWS],
        *[Column(name, "boolean", f"Both `burn_rate_{short}` and `burn_rate_{long}` are above {rate:g} ×"
                 f" `window_days` / {BURN_RATE_PERIOD_DAYS}.")
          for name, (short, long, rate) in BURN_RATE_ALERTS.items()],
    ),
    example="SELECT slo, objective, topic, total, good, attainment, period_error_budget_remaining_ratio AS budget_left"
    " FROM slo WHERE day = (SELECT max(day) FROM slo) ORDER BY ALL",
    derived_from=("latency", "traffic"),
)  # fmt: skip
