"""The table ``slo``: how each objective is met at the end of each day. All counts are integers, so they are exact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.definitions.objectives import DAY, GROUP_WAIT_APIS, MINUTE, Selection, SloObjective
from spark_jobs.schemas import SLO
from spark_jobs.schemas.slo import BURN_RATE_ALERTS, BURN_RATE_WINDOWS

LONG_POLL_APIS = ("Fetch", "ShareFetch")
"""Apis that wait for data. A consumer that leaves closes its connection during such a request, which is no error."""

JUDGED_BY = ("api", "topic", "principal", "client_id")
VERDICT_KEYS = ("place", "cluster_id", *JUDGED_BY)
"""Keys of a verdict: the objective (its index among all), the cluster, and the columns the objective is judged by."""

DAYS_OF_WINDOWS = 3
"""Days before the judged day that the longest window includes."""

_FACTS_SCHEMA = (
    "place int, slo string, objective string, service string, sli string, threshold_ms double, counted_to_ms double,"
    " objective_ratio double, error_budget_ratio double, period_days int, slice_target double, "
) + ", ".join(f"{name}_rate double" for name in BURN_RATE_ALERTS)


def slo(latency: DataFrame, traffic: DataFrame, objectives: Sequence[SloObjective], since: date | None) -> DataFrame:
    """Return the rows of ``slo`` of the day ``since`` and later ones (None: of all days) for ``objectives``.

    ``latency`` and ``traffic``: rows of these tables. They need not be merged, because only sums of them are used.
    """
    if since is not None:
        first = since - max(DAYS_OF_WINDOWS * DAY, *(each.period for each in objectives))
        latency, traffic = latency.where(F.col("day") >= F.lit(first)), traffic.where(F.col("day") >= F.lit(first))
    days = traffic.groupBy("cluster_id", "day").agg(F.max("minute").alias("as_of"))
    facts = latency.sparkSession.createDataFrame(
        [_objective_facts(*each) for each in enumerate(objectives)], _FACTS_SCHEMA
    )
    counts = _window_counts(_counted_units(latency, traffic, objectives, facts), days, since)
    judged = counts.where("total > 0").join(F.broadcast(days), ["cluster_id", "day"])
    judged = _with_zero_rows(judged, days, facts, since)
    rows = judged.join(F.broadcast(facts), "place").withColumns(_verdict_columns())
    return rows.select(*[F.col(column.name).cast(column.type) for column in SLO.columns])


def _objective_facts(place: int, objective: SloObjective) -> dict[str, object]:
    """Return the values that all rows of an objective share, by the names of ``_FACTS_SCHEMA``."""
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
        "period_days": objective.period // DAY,
        "slice_target": None if objective.slice_target is None else float(objective.slice_target),
        **{f"{name}_rate": objective.alert_burn_rates[name] for name in BURN_RATE_ALERTS},
    }


def _counted_units(
    latency: DataFrame, traffic: DataFrame, objectives: Sequence[SloObjective], facts: DataFrame
) -> DataFrame:
    """Return the counted units by verdict key and minute: requests, or 1 at the last minute of each slice."""
    answered = F.col("requests") + F.col("idle")
    lost = F.when(F.col("api").isin(*LONG_POLL_APIS), 0).otherwise(F.col("connection_lost"))
    failed = F.col("errors") + F.col("topic_errors")
    # An objective on errors uses both tables. Requests that have no response by design are in neither of them.
    of_latency = [
        _verdict_struct(place, objective, F.col("requests"), _requests_in_time(objective)) if objective.sli == "latency"
        else _verdict_struct(place, objective, answered, answered)
        for place, objective in enumerate(objectives)
    ]  # fmt: skip
    of_traffic = [
        _verdict_struct(place, objective, lost, -failed if objective.sli == "errors" else F.lit(0))
        for place, objective in enumerate(objectives)
        if objective.sli != "latency"
    ]
    units = _explode_verdicts(latency, of_latency)
    if of_traffic:
        units = units.unionByName(_explode_verdicts(traffic.where((lost > 0) | (failed > 0)), of_traffic))
    sums = [F.sum(name).alias(name) for name in ("total", "good")]
    counted = units.groupBy(*VERDICT_KEYS, "day", "at").agg(*sums).where("total > 0")
    return counted.join(F.broadcast(facts.select("place", "period_days", "slice_target")), "place").withColumns(
        {
            "total": F.expr("if(slice_target IS NULL, total, 1)"),
            "good": F.expr("if(slice_target IS NULL, good, if(good / total >= slice_target, 1, 0))"),
        }
    )


def _explode_verdicts(rows: DataFrame, verdicts: Sequence[Column]) -> DataFrame:
    """Return one row for each of ``verdicts`` that is not NULL in a row."""
    had = F.filter(F.array(*verdicts), lambda verdict: verdict.isNotNull())
    return rows.select("cluster_id", "day", F.explode(had).alias("verdict")).select("cluster_id", "day", "verdict.*")


def _verdict_struct(place: int, objective: SloObjective, total: Column, good: Column) -> Column:
    """Return what a row adds to an objective, NULL if the objective does not select the row."""
    length = objective.slice_window // MINUTE * 60
    start = F.unix_seconds("minute")
    values = {
        "place": F.lit(place),
        **{name: F.col(name) if name in objective.selection.by else F.lit(None).cast("string") for name in JUDGED_BY},
        "at": (start - F.pmod(start, F.lit(length)) + (length - 60)).cast("bigint"),
        "total": total.cast("bigint"),
        "good": good.cast("bigint"),
    }
    verdict = F.struct(*[value.alias(name) for name, value in values.items()])
    return F.when(_matches_selection(objective.selection), verdict)


def _matches_selection(by: Selection) -> Column:
    """Return a condition: the row is about requests of the selection."""
    topic, api = F.col("topic"), F.col("api")
    conditions = [topic.isNotNull() if by.of_topics else topic.isNull()]
    conditions.append(api.isin(*by.apis) if by.apis else ~api.isin(*GROUP_WAIT_APIS))
    patterns = {"cluster_id": by.clusters, "listener": by.listeners, "topic": by.topics}
    patterns |= {"principal": by.principals, "client_id": by.client_ids}
    conditions += [F.col(name).rlike(rf"\A(?:{'|'.join(each)})\z") for name, each in patterns.items() if each]
    return reduce(and_, conditions)


def _requests_in_time(objective: SloObjective) -> Column:
    """Return the number of requests of a row in good buckets."""
    good = F.slice("service_latencies", 1, objective.good_buckets)
    return F.aggregate(good, F.lit(0).cast("bigint"), lambda so_far, count: so_far + F.coalesce(count, F.lit(0)))


def _window_counts(units: DataFrame, days: DataFrame, since: date | None) -> DataFrame:
    """Return the counts by verdict key and ``day``: of the day, and of the windows and the period that end with it."""
    # A unit counts on its day, in the windows of the next days, and on the day on which it leaves the period.
    on = F.explode(F.array_distinct(F.array(*map(F.lit, range(DAYS_OF_WINDOWS + 1)), F.col("period_days"))))
    spread = units.withColumn("later", on).withColumn("day", F.expr("date_add(day, later)"))
    if since is not None:
        spread = spread.where((F.col("later") == 0) | (F.col("day") >= F.lit(since)))
    aged = spread.join(F.broadcast(days), ["cluster_id", "day"]).withColumn(
        "age", F.expr("(unix_seconds(as_of) - at) DIV 60")
    )
    conditions = {"day": "later = 0", "gone": "later = period_days AND age >= period_days * 1440"}
    conditions |= {window: f"age < {minutes}" for window, minutes in BURN_RATE_WINDOWS.items()}
    both = [f"{name}_{what}" for name in conditions for what in ("total", "good")]
    sums = [
        F.expr(f"sum(if({condition}, {what}, 0))").alias(f"{name}_{what}")
        for name, condition in conditions.items()
        for what in ("total", "good")
    ]
    by_day = aged.groupBy(*VERDICT_KEYS, "day", "period_days").agg(*sums)
    # The units of a day count in the periods of all days up to the day on which they leave the period.
    on = F.explode(F.expr("if(day_total > 0, sequence(0, period_days), array(0))"))
    spread = by_day.withColumn("later", on).withColumn("day", F.expr("date_add(day, later)"))
    if since is not None:
        spread = spread.where(F.col("day") >= F.lit(since))
    own = [F.expr(f"sum(if(later = 0, {name}, 0))").alias(name) for name in both]
    period = [F.expr(f"sum(day_{what} - if(later = 0, gone_{what}, 0))").alias(what) for what in ("total", "good")]
    return spread.groupBy(*VERDICT_KEYS, "day").agg(*own, *period)


def _with_zero_rows(judged: DataFrame, days: DataFrame, facts: DataFrame, since: date | None) -> DataFrame:
    """Return ``judged`` with a row of zeros, without a cluster, for each objective and day without a row."""
    all_days = days.groupBy("day").agg(F.max("as_of").alias("as_of"))
    if since is not None:
        all_days = all_days.where(F.col("day") >= F.lit(since))
    zeros = {name: F.lit(0) for name in judged.columns if name.endswith(("total", "good"))}
    none = all_days.crossJoin(F.broadcast(facts.select("place"))).withColumns(zeros)
    both = judged.unionByName(none, allowMissingColumns=True)
    most = F.max("total").over(Window.partitionBy("place", "day"))
    return both.withColumn("most", most).where("total > 0 OR most = 0").drop("most")


def _verdict_columns() -> dict[str, Column]:
    """Return the columns that are computed from the counts and the values of the objective."""

    def burnt(total: str, good: str) -> str:
        return f"if({total} > 0, ({total} - {good}) / {total} / error_budget_ratio, NULL)"

    rates = {window: burnt(f"`{window}_total`", f"`{window}_good`") for window in BURN_RATE_WINDOWS}
    over = {
        name: f"coalesce({rates[short]} > {name}_rate AND {rates[long]} > {name}_rate, false)"
        for name, (short, long, _) in BURN_RATE_ALERTS.items()
    }
    values = {
        "window_days": "period_days",
        "window_start": "timestampadd(MINUTE, 1 - period_days * 1440, as_of)",
        "attainment": "if(total > 0, good / total, NULL)",
        "period_error_budget_remaining_ratio": f"1 - {burnt('total', 'good')}",
        **{f"burn_rate_{window}": rate for window, rate in rates.items()},
        **over,
    }
    return {name: F.expr(sql) for name, sql in values.items()}
