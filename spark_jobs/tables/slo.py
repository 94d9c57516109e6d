"""The table ``slo``: how each objective is met at the end of each day. All counts are integers, so they are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_jobs.definitions.objectives import DAY, GROUP_WAIT_APIS, MINUTE, Selection, SloObjective
from spark_jobs.schemas import SLO
from spark_jobs.schemas.slo import BURN_RATE_ALERTS, BURN_RATE_WINDOWS
from spark_jobs.tables.sql import is_one_of, matches, table_columns, values

LONG_POLL_APIS = ("Fetch", "ShareFetch")
"""Apis that wait for data. A consumer that leaves closes its connection during such a request, which is no error."""

JUDGED_BY = ("api", "topic", "principal", "client_id")
VERDICT_KEYS = ("place", "cluster_id", *JUDGED_BY)
"""Keys of a verdict: the objective (its index among all), the cluster, and the columns the objective is judged by."""

DAYS_OF_WINDOWS = 3
"""Days before the judged day that the longest window includes."""

_FACT_TYPES = {
    "place": "INTEGER",
    **dict.fromkeys(("slo", "objective", "service", "sli"), "VARCHAR"),
    **dict.fromkeys(("threshold_ms", "counted_to_ms", "objective_ratio", "error_budget_ratio"), "DOUBLE"),
    "window_days": "INTEGER",
    "slice_target": "DOUBLE",
    **{f"{name}_rate": "DOUBLE" for name in BURN_RATE_ALERTS},
}
_KEYS = ", ".join(VERDICT_KEYS)
_COUNTS = ("total", "good")


def days_read(objectives: Sequence[SloObjective]) -> tuple[int, ...]:
    """Return the days whose requests count one by one for a day: so many days before it.

    Of all other days of a period the sums of the day are enough.
    """
    return tuple(sorted({*range(DAYS_OF_WINDOWS + 1), *(each.period // DAY for each in objectives)}))


def slo(objectives: Sequence[SloObjective]) -> str:
    """Return SQL of the rows of ``slo`` of the days in ``wanted`` for ``objectives``.

    ``latency`` and ``traffic``: rows of the days wanted and ``days_read`` before them. They need not be merged, because
    only sums of them are used. ``slo``: stored rows of the other days of each period, computed for the same objectives.
    """
    places = dict(enumerate(objectives))
    buckets = sorted({each.good_buckets for each in objectives if each.sli == "latency"})
    in_time = [f"coalesce(list_sum(service_latencies[:{n}]), 0) AS in_{n}" for n in buckets]
    lost = f"CASE WHEN {is_one_of('api', LONG_POLL_APIS)} THEN 0 ELSE connection_lost END"
    # An objective on errors uses both tables. Requests that have no response by design are in neither of them.
    units = [
        _units("answers", place, each, "requests", f"in_{each.good_buckets}") if each.sli == "latency"
        else _units("answers", place, each, "answered", "answered")
        for place, each in places.items()
    ]  # fmt: skip
    failures = [f"{lost} AS lost", "errors + topic_errors AS failed"]
    failing = {place: each for place, each in places.items() if each.sli != "latency"}
    units += [
        _units("failures", place, each, "lost", "-failed" if each.sli == "errors" else "0")
        for place, each in failing.items()
    ]
    return f"""
WITH {values("facts", _FACT_TYPES, (_objective_facts(*each) for each in enumerate(objectives)))},
days AS MATERIALIZED (SELECT cluster_id, day, max(minute) AS as_of FROM traffic GROUP BY ALL),
judged_days AS MATERIALIZED (SELECT * FROM days WHERE day IN (SELECT day FROM wanted)),
{_judged_rows("answers", "latency", places, ["requests", "requests + idle AS answered", *in_time], "true")},
{_judged_rows("failures", "traffic", failing, failures, "(lost > 0 OR failed > 0)")},
counted AS (
    SELECT {_KEYS}, day, ends, sum(total) AS total, sum(good) AS good
    FROM ({" UNION ALL ".join(units)}) GROUP BY ALL HAVING sum(total) > 0
),
units AS MATERIALIZED (
    SELECT {_KEYS}, day, ends, window_days, CASE WHEN slice_target IS NULL THEN total ELSE 1 END AS total,
        CASE WHEN slice_target IS NULL THEN good WHEN good / total >= slice_target THEN 1 ELSE 0 END AS good
    FROM counted JOIN facts USING (place)
),
{_WINDOW_COUNTS}
SELECT {table_columns(SLO, **_VERDICT_COLUMNS)} FROM with_zeros JOIN facts USING (place)
"""


def _objective_facts(place: int, objective: SloObjective) -> dict[str, object]:
    """Return the values that all rows of an objective share, by the names of ``_FACT_TYPES``."""
    return {
        "place": place,
        "slo": objective.slo,
        "objective": objective.name,
        "service": objective.service,
        "sli": objective.sli,
        "threshold_ms": None if objective.threshold_ms is None else float(objective.threshold_ms),
        "counted_to_ms": objective.counted_to_ms,
        "objective_ratio": float(objective.target),
        "error_budget_ratio": float(objective.error_budget),
        "window_days": objective.period // DAY,
        "slice_target": None if objective.slice_target is None else float(objective.slice_target),
        **{f"{name}_rate": objective.alert_burn_rates[name] for name in BURN_RATE_ALERTS},
    }


def _judged_rows(
    name: str, table: str, objectives: Mapping[int, SloObjective], counts: Sequence[str], condition: str
) -> str:
    """Return a common table expression of the rows of ``table`` that one of ``objectives`` selects.

    They have ``counts``, and a column ``of_`` for each objective: whether it selects them.
    """
    by = sorted({each for objective in objectives.values() for each in objective.selection.by})
    selected = [f"{_matches_selection(each.selection)} AS of_{place}" for place, each in objectives.items()]
    columns = ["cluster_id", "day", "epoch_us(minute) // 1000000 AS start", *by, *counts]
    columns += [f"of_{place}" for place in objectives]
    return f"""
{name} AS MATERIALIZED (
    SELECT {", ".join(columns)} FROM (SELECT {", ".join(["*", *selected])} FROM {table})
    WHERE ({" OR ".join(f"of_{place}" for place in objectives) or "false"}) AND {condition}
)"""


def _units(rows: str, place: int, objective: SloObjective, total: str, good: str) -> str:
    """Return SQL of what ``rows`` add to an objective, by the last minute of each slice (``ends``; s since 1970)."""
    length = objective.slice_window // MINUTE * 60
    by = [name if name in objective.selection.by else f"NULL::VARCHAR AS {name}" for name in JUDGED_BY]
    return (
        f"SELECT {place} AS place, cluster_id, {', '.join(by)}, day, start - start % {length} + {length - 60} AS ends,"
        f" sum({total}) AS total, sum({good}) AS good FROM {rows} WHERE of_{place} GROUP BY ALL"
    )


def _matches_selection(by: Selection) -> str:
    """Return a condition: the row is about requests of the selection."""
    conditions = [f"topic IS {'NOT NULL' if by.of_topics else 'NULL'}"]
    conditions.append(is_one_of("api", by.apis) if by.apis else f"NOT {is_one_of('api', GROUP_WAIT_APIS)}")
    patterns = {"cluster_id": by.clusters, "listener": by.listeners, "topic": by.topics}
    patterns |= {"principal": by.principals, "client_id": by.client_ids}
    return " AND ".join([*conditions, *(matches(name, each) for name, each in patterns.items() if each)])


_WINDOW_CONDITIONS = {"day": "later = 0", "gone": "later = window_days AND age >= window_days * 1440"} | {
    window: f"age < {minutes}" for window, minutes in BURN_RATE_WINDOWS.items()
}
_WINDOW_SUMS = {
    f"{name}_{what}": f"coalesce(sum({what}) FILTER ({condition}), 0)"
    for name, condition in _WINDOW_CONDITIONS.items()
    for what in _COUNTS
}

_WINDOW_COUNTS = f"""
-- A unit counts on its day, in the windows of the next days, and on the day on which it leaves the period.
spread AS (
    SELECT * REPLACE (day + later AS day) FROM (
        SELECT *, unnest(list_distinct([{", ".join(map(str, range(DAYS_OF_WINDOWS + 1)))}, window_days])) AS later
        FROM units
    )
),
aged AS (
    SELECT spread.*, (epoch_us(as_of) // 1000000 - ends) // 60 AS age
    FROM spread JOIN judged_days USING (cluster_id, day)
),
by_day AS MATERIALIZED (
    SELECT {_KEYS}, day, {", ".join(f'{sql} AS "{name}"' for name, sql in _WINDOW_SUMS.items())}
    FROM aged GROUP BY ALL
),
-- The units of a day count in the periods of all days up to the day on which they leave the period.
sums_of_days AS (
    SELECT {_KEYS}, day, window_days, sum(total) AS total, sum(good) AS good
    FROM units JOIN days USING (cluster_id, day) GROUP BY ALL
    UNION ALL
    SELECT place, {", ".join(f"slo.{name}" for name in ("cluster_id", *JUDGED_BY, "day"))}, facts.window_days,
        day_total, day_good
    FROM slo JOIN facts USING (slo, objective) WHERE day_total > 0 AND day NOT IN (SELECT day FROM days)
),
periods AS (
    SELECT place, cluster_id, {", ".join(JUDGED_BY)}, judged_days.day, sum(total) AS total, sum(good) AS good
    FROM sums_of_days JOIN judged_days USING (cluster_id)
    WHERE judged_days.day BETWEEN sums_of_days.day AND sums_of_days.day + window_days GROUP BY ALL
    UNION ALL BY NAME
    SELECT * EXCLUDE (gone_total, gone_good), -gone_total AS total, -gone_good AS good FROM by_day
),
judged AS (
    SELECT {_KEYS}, day, as_of, {
    ", ".join(
        f'coalesce(sum("{name}"), 0) AS "{name}"'
        for name in (*_COUNTS, *(name for name in _WINDOW_SUMS if not name.startswith("gone")))
    )
}
    FROM periods JOIN judged_days USING (cluster_id, day) GROUP BY ALL HAVING sum(total) > 0
),
-- A row of zeros, without a cluster, for each objective and day without a row.
without_rows AS (
    SELECT place, day, max(as_of) AS as_of FROM judged_days CROSS JOIN facts
    WHERE (place, day) NOT IN (SELECT (place, day) FROM judged) GROUP BY ALL
),
with_zeros AS (
    SELECT * FROM judged
    UNION ALL BY NAME
    SELECT *, {", ".join(f'0 AS "{name}"' for name in (*_COUNTS, *_WINDOW_SUMS) if not name.startswith("gone"))}
    FROM without_rows
)"""
"""The counts by verdict key and ``day``: of the day, and of the windows and the period that end with it."""


def _verdict_columns() -> dict[str, str]:
    """Return the columns that are computed from the counts and the values of the objective."""

    def burnt(total: str, good: str) -> str:
        return f"CASE WHEN {total} > 0 THEN ({total} - {good}) / {total} / error_budget_ratio END"

    rates = {window: burnt(f'"{window}_total"', f'"{window}_good"') for window in BURN_RATE_WINDOWS}
    over = {
        name: f"coalesce({rates[short]} > {name}_rate AND {rates[long]} > {name}_rate, false)"
        for name, (short, long, _) in BURN_RATE_ALERTS.items()
    }
    return {
        "window_start": "as_of + to_minutes(1 - window_days * 1440)",
        "attainment": "CASE WHEN total > 0 THEN good / total END",
        "period_error_budget_remaining_ratio": f"1 - {burnt('total', 'good')}",
        **{f"burn_rate_{window}": rate for window, rate in rates.items()},
        **over,
    }


_VERDICT_COLUMNS = _verdict_columns()
