"""The table ``slo``: how each objective is met at the end of each day. All counts are whole numbers, so exact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.definitions.objectives import DAY, MINUTE, WAITING, Objective, Selection
from spark_jobs.schemas import SLO
from spark_jobs.schemas.slo import ALERTS, WINDOWS

PATIENT = ("Fetch", "ShareFetch")
"""Apis that wait for data. A consumer that leaves does so during such a request, so a lost one of them is no error."""

BY = ("api", "topic", "principal", "client_id")
GROUP = ("place", "cluster_id", *BY)
"""What is judged on its own: an objective (its place among all) in a cluster, and by what it is judged."""

DAYS_OF_WINDOWS = 3
"""Days before its own that the longest window reaches into."""

_FACTS = (
    "place int, slo string, objective string, service string, sli string, threshold_ms double, counted_to_ms double,"
    " objective_ratio double, error_budget_ratio double, period_days int, slice_target double, "
) + ", ".join(f"{name}_rate double" for name in ALERTS)


def slo(latency: DataFrame, traffic: DataFrame, objectives: Sequence[Objective], since: date | None) -> DataFrame:
    """Return the rows of ``slo`` of the day ``since`` and later ones (None: of all days) for ``objectives``.

    ``latency`` and ``traffic`` are rows of these tables, merged or not: all that is taken of them adds up.
    """
    if since is not None:
        first = since - max(DAYS_OF_WINDOWS * DAY, *(each.period for each in objectives))
        latency, traffic = latency.where(F.col("day") >= F.lit(first)), traffic.where(F.col("day") >= F.lit(first))
    days = traffic.groupBy("cluster_id", "day").agg(F.max("minute").alias("as_of"))
    facts = latency.sparkSession.createDataFrame([_facts(*each) for each in enumerate(objectives)], _FACTS)
    counts = _counts(_units(latency, traffic, objectives, facts), days, since)
    judged = counts.where("total > 0").join(F.broadcast(days), ["cluster_id", "day"])
    judged = _with_unmatched(judged, days, facts, since)
    rows = judged.join(F.broadcast(facts), "place").withColumns(_verdicts())
    return rows.select(*[F.col(column.name).cast(column.type) for column in SLO.columns])


def _facts(place: int, of: Objective) -> tuple[object, ...]:
    """Return what is the same in all rows of an objective, as ``_FACTS`` names it."""
    threshold = None if of.threshold_ms is None else float(of.threshold_ms)
    said = (place, of.slo, of.name, of.service, of.sli, threshold, of.counted_to_ms, float(of.target))
    slice_target = None if of.slice_target is None else float(of.slice_target)
    return (*said, float(of.budget), of.period // DAY, slice_target, *(of.alerts[name] for name in ALERTS))


def _units(latency: DataFrame, traffic: DataFrame, objectives: Sequence[Objective], facts: DataFrame) -> DataFrame:
    """Return what is counted, by group and minute: requests; or slices with requests, at their last minute, as 1."""
    answered = F.col("requests") + F.col("idle")
    lost = F.when(F.col("api").isin(*PATIENT), 0).otherwise(F.col("connection_lost"))
    failed = F.col("errors") + F.col("topic_errors")
    # An objective on errors adds up what both tables tell. Requests without an answer by design are in neither part.
    of_latency = [
        _verdict(place, of, F.col("requests"), _in_time(of)) if of.sli == "latency"
        else _verdict(place, of, answered, answered)
        for place, of in enumerate(objectives)
    ]  # fmt: skip
    of_traffic = [
        _verdict(place, of, lost, -failed if of.sli == "errors" else F.lit(0))
        for place, of in enumerate(objectives)
        if of.sli != "latency"
    ]
    units = _exploded(latency, of_latency)
    if of_traffic:
        units = units.unionByName(_exploded(traffic.where((lost > 0) | (failed > 0)), of_traffic))
    sums = [F.sum(name).alias(name) for name in ("total", "good")]
    counted = units.groupBy(*GROUP, "day", "at").agg(*sums).where("total > 0")
    return counted.join(F.broadcast(facts.select("place", "period_days", "slice_target")), "place").withColumns(
        {
            "total": F.expr("if(slice_target IS NULL, total, 1)"),
            "good": F.expr("if(slice_target IS NULL, good, if(good / total >= slice_target, 1, 0))"),
        }
    )


def _exploded(rows: DataFrame, verdicts: Sequence[Column]) -> DataFrame:
    """Return the ``verdicts`` that ``rows`` have, a row each."""
    had = F.filter(F.array(*verdicts), lambda verdict: verdict.isNotNull())
    return rows.select("cluster_id", "day", F.explode(had).alias("verdict")).select("cluster_id", "day", "verdict.*")


def _verdict(place: int, of: Objective, total: Column, good: Column) -> Column:
    """Return what a row adds to an objective; NULL if it is not about it."""
    length = of.slice_window // MINUTE * 60
    start = F.unix_seconds("minute")
    values = {
        "place": F.lit(place),
        **{name: F.col(name) if name in of.selection.by else F.lit(None).cast("string") for name in BY},
        "at": (start - F.pmod(start, F.lit(length)) + (length - 60)).cast("bigint"),
        "total": total.cast("bigint"),
        "good": good.cast("bigint"),
    }
    return F.when(_selected(of.selection), F.struct(*[value.alias(name) for name, value in values.items()]))


def _selected(by: Selection) -> Column:
    """Return whether a row is about requests that are judged."""
    topic, api = F.col("topic"), F.col("api")
    conditions = [topic.isNotNull() if by.of_topics else topic.isNull()]
    conditions.append(api.isin(*by.apis) if by.apis else ~api.isin(*WAITING))
    patterns = {"cluster_id": by.clusters, "listener": by.listeners, "topic": by.topics}
    patterns |= {"principal": by.principals, "client_id": by.client_ids}
    conditions += [F.col(name).rlike(rf"\A(?:{'|'.join(each)})\z") for name, each in patterns.items() if each]
    return reduce(and_, conditions)


def _in_time(of: Objective) -> Column:
    """Return how many of a row's requests are in good buckets."""
    good = F.slice("service_latencies", 1, of.buckets)
    return F.aggregate(good, F.lit(0).cast("bigint"), lambda so_far, count: so_far + F.coalesce(count, F.lit(0)))


def _counts(units: DataFrame, days: DataFrame, since: date | None) -> DataFrame:
    """Return the counts of each group and ``day``: of the day, of the windows and of the period that end with it."""
    # A unit matters on its day, to the windows of the next ones, and on the day in which it falls out of the period.
    on = F.explode(F.array_distinct(F.array(*map(F.lit, range(DAYS_OF_WINDOWS + 1)), F.col("period_days"))))
    spread = units.withColumn("later", on).withColumn("day", F.expr("date_add(day, later)"))
    if since is not None:
        spread = spread.where((F.col("later") == 0) | (F.col("day") >= F.lit(since)))
    aged = spread.join(F.broadcast(days), ["cluster_id", "day"]).withColumn(
        "age", F.expr("(unix_seconds(as_of) - at) DIV 60")
    )
    conditions = {"day": "later = 0", "gone": "later = period_days AND age >= period_days * 1440"}
    conditions |= {window: f"age < {minutes}" for window, minutes in WINDOWS.items()}
    both = [f"{name}_{what}" for name in conditions for what in ("total", "good")]
    sums = [
        F.expr(f"sum(if({condition}, {what}, 0))").alias(f"{name}_{what}")
        for name, condition in conditions.items()
        for what in ("total", "good")
    ]
    by_day = aged.groupBy(*GROUP, "day", "period_days").agg(*sums)
    # What a day has counts in the periods of all days up to the one in which it falls out.
    on = F.explode(F.expr("if(day_total > 0, sequence(0, period_days), array(0))"))
    spread = by_day.withColumn("later", on).withColumn("day", F.expr("date_add(day, later)"))
    if since is not None:
        spread = spread.where(F.col("day") >= F.lit(since))
    own = [F.expr(f"sum(if(later = 0, {name}, 0))").alias(name) for name in both]
    period = [F.expr(f"sum(day_{what} - if(later = 0, gone_{what}, 0))").alias(what) for what in ("total", "good")]
    return spread.groupBy(*GROUP, "day").agg(*own, *period)


def _with_unmatched(judged: DataFrame, days: DataFrame, facts: DataFrame, since: date | None) -> DataFrame:
    """Return ``judged`` with a row of zeros, of no cluster, for each objective and day that it has no row of."""
    all_days = days.groupBy("day").agg(F.max("as_of").alias("as_of"))
    if since is not None:
        all_days = all_days.where(F.col("day") >= F.lit(since))
    zeros = {name: F.lit(0) for name in judged.columns if name.endswith(("total", "good"))}
    none = all_days.crossJoin(F.broadcast(facts.select("place"))).withColumns(zeros)
    both = judged.unionByName(none, allowMissingColumns=True)
    most = F.max("total").over(Window.partitionBy("place", "day"))
    return both.withColumn("most", most).where("total > 0 OR most = 0").drop("most")


def _verdicts() -> dict[str, Column]:
    """Return the columns that follow of counts and facts."""

    def burnt(total: str, good: str) -> str:
        return f"if({total} > 0, ({total} - {good}) / {total} / error_budget_ratio, NULL)"

    rates = {window: burnt(f"`{window}_total`", f"`{window}_good`") for window in WINDOWS}
    over = {
        name: f"coalesce({rates[short]} > {name}_rate AND {rates[long]} > {name}_rate, false)"
        for name, (short, long, _) in ALERTS.items()
    }
    said = {
        "window_days": "period_days",
        "window_start": "timestampadd(MINUTE, 1 - period_days * 1440, as_of)",
        "attainment": "if(total > 0, good / total, NULL)",
        "period_error_budget_remaining_ratio": f"1 - {burnt('total', 'good')}",
        **{f"burn_rate_{window}": rate for window, rate in rates.items()},
        **over,
    }
    return {name: F.expr(sql) for name, sql in said.items()}
