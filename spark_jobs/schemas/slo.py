"""Objectives and how they are met: ``slo``."""

from __future__ import annotations

from spark_jobs.schemas.model import Column, Table

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""Windows of the burn rates, short to long."""

ALERTS = {
    "page_quick": ("5m", "1h", 14.4),
    "page_slow": ("30m", "6h", 6.0),
    "ticket_quick": ("2h", "1d", 3.0),
    "ticket_slow": ("6h", "3d", 1.0),
}
"""Pairs of windows that must both burn at a rate, of a budget of 30 days (Google SRE workbook, Sloth)."""

_BURN = "Burn rate: errors over the window's end at `as_of`, as a multiple of what the budget allows"

SLO = Table(
    "slo",
    "How each objective is met, at the end of each day (of the newest day: at the newest minute told). One row for "
    "each combination of what the objective is judged by.",
    (
        Column("day", "date", "Day of `as_of`; the table is partitioned by it.", "UTC"),
        Column("as_of", "timestamp", "Up to when this was judged.", "UTC"),
        Column("slo", "string", "Name of the SLO, `metadata.name`.", source="OpenSLO"),
        Column("objective", "string", "Name of its objective: `displayName`, or its place.", source="OpenSLO"),
        Column("service", "string", "Its service, `spec.service`.", source="OpenSLO"),
        Column("sli", "string", "`latency` or `errors`.", source="OpenSLO"),
        Column("cluster_id", "string", "The Kafka cluster's own id."),
        Column("api", "string", "Kind of request, if it is judged by it; else NULL."),
        Column("topic", "string", "Topic, if it is judged by it; else NULL."),
        Column("principal", "string", "Principal, if it is judged by it; else NULL."),
        Column("client_id", "string", "Client id, if it is judged by it; else NULL."),
        Column("threshold_ms", "double", "The most that a good request takes; NULL of `errors`.", "ms", "OpenSLO"),
        Column("counted_to_ms", "double", "Where that is counted: the next end of a latency bucket below it.", "ms"),
        Column("objective_ratio", "double", "Share of good requests that is aimed at.", "ratio", "OpenSLO"),
        Column("window_days", "double", "Length of the objective's period.", "days", "OpenSLO"),
        Column("window_start", "timestamp", "Where the period begins; before the oldest data it is shorter.", "UTC"),
        Column("day_total", "bigint", "Requests of the day; timeslices where the method is `Timeslices`.", "requests"),
        Column("day_good", "bigint", "The good ones of them.", "requests"),
        Column("total", "bigint", "The same of the period.", "requests"),
        Column("good", "bigint", "The good ones of them.", "requests"),
        Column("attainment", "double", "`good` / `total`; NULL without requests.", "ratio"),
        Column("error_budget_ratio", "double", "1 − `objective_ratio`.", "ratio"),
        Column("period_error_budget_remaining_ratio", "double", "Share of the period's budget that is left; below 0 it"
               " is overspent.", "ratio"),
        *[Column(f"burn_rate_{window}", "double", f"{_BURN}. NULL without requests in it.", "ratio")
          for window in WINDOWS],
        *[Column(name, "boolean", f"Both `burn_rate_{short}` and `burn_rate_{long}` are above {rate:g}.")
          for name, (short, long, rate) in ALERTS.items()],
    ),
    example="SELECT slo, objective, topic, total, good, attainment, period_error_budget_remaining_ratio AS budget_left"
    " FROM slo ORDER BY ALL",
    derived_from=("latency", "traffic"),
)  # fmt: skip
