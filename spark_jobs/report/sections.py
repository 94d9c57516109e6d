"""What the report tells, in its order: for each subject a sentence, charts, and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader
from spark_jobs.report import charts, formatting
from spark_jobs.report.charts import Chart
from spark_jobs.saved_queries import SAVED_QUERIES, run_saved_query

Row = dict[str, Any]
State = Literal["", "good", "warn", "bad"]

MOST_ROWS = 20
"""Rows of a table of the page."""
MOST_POINTS = 240
"""Points of time of a chart."""
STEPS = (60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400)
"""Seconds between two points."""
MOST_TEAMS = 7
"""Teams that have a colour of their own; the others are told together."""


@dataclass(frozen=True)
class Scope:
    """What the report is about: tables, and days."""

    reader: TableReader
    since: date
    until: date
    as_of: datetime
    """When something was last told."""
    seconds: int
    """From the first minute with traffic to the last one; all of the days where that is not known."""

    def ask(self, name: str, limit: int = MOST_ROWS + 1) -> list[Row]:
        """Return the answer to a question for these days."""
        offered = {"since": self.since, "until": self.until, "at": self.as_of, "limit": limit}
        given = {key: value for key, value in offered.items() if key in SAVED_QUERIES[name].parameters}
        columns, rows = run_saved_query(self.reader, name, given)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def select(self, sql: str) -> list[Row]:
        """Return the rows of a SELECT in which $since and $until are these days."""
        columns, rows = self.reader.rows(sql, {"since": self.since, "until": self.until})
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @property
    def step(self) -> int:
        """Seconds between two points of a chart."""
        return next((step for step in STEPS if self.seconds / step <= MOST_POINTS), STEPS[-1])


@dataclass(frozen=True)
class Section:
    """One subject; all texts are plain, to be escaped."""

    id: str
    title: str
    finding: str
    """What there is to know, in a sentence or two."""
    state: State = ""
    charts: tuple[Chart, ...] = ()
    rows: Sequence[Row] = ()
    """Rows of its table, all with the same columns; those beyond ``MOST_ROWS`` are not shown."""


def sections(scope: Scope) -> list[Section]:
    """Return all of them. A table that does not exist gives a sentence on how it comes to be, a broken one on why."""
    return [_section(scope, *subject) for subject in _SUBJECTS]


def _section(scope: Scope, name: str, title: str, tables: Sequence[str], tell: Callable[..., Section]) -> Section:
    for table in tables:
        if table not in scope.reader.tables:
            state: State = "bad" if table in scope.reader.broken else ""
            return Section(name, title, _sentence(scope.reader.absent(table)), state)
    try:
        return tell(scope, name, title)
    except QueryError as error:  # a file of a table is lost
        return Section(name, title, _sentence(str(error)), "bad")


def _belief(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("completeness", limit=1000)
    silent = [row for row in scope.ask("stale-sidecars", limit=1000) if not row["ended"]]
    events, lost, missing, conflicts = (
        sum(row[key] for row in rows) for key in ("events", "lost", "missing", "conflicts")
    )
    told = events + lost + missing
    parts = []
    if conflicts:
        of = ", ".join(str(row["broker_id"]) for row in rows if row["conflicts"])
        said = f"{formatting.count(conflicts, 'record')} of broker {of} contradict others of the same numbers"
        parts.append(f"{said}, so somebody else may write to the audit topic")
    if lost:
        reasons = sorted({reason for row in rows for reason in row["reasons"] or ()})
        parts.append(f"{formatting.count(lost, 'event')} lost, and counted ({', '.join(reasons)})")
    if missing:
        parts.append(f"{formatting.count(missing, 'event')} not arrived yet, or lost without a word")
    parts += [f"broker {row['broker_id']} silent since {formatting.minute(row['last_status'])}" for row in silent]
    if not told:
        return Section(name, title, "Nothing was told by any sidecar.", "bad")
    if not parts:
        finding = f"Yes: all {told:,} events that {formatting.count(len(rows), 'sidecar')} told have arrived."
        return Section(name, title, finding, "good", rows=rows)
    share = events / told
    word: tuple[str, State] = ("Mostly", "warn") if share >= 0.99 else ("Only in part", "bad")
    if conflicts:
        finding = f"No: {'; '.join(parts)}. {formatting.percent(share, 3)} of {told:,} events have arrived."
        return Section(name, title, finding, "bad", rows=rows)
    finding = f"{word[0]}: {formatting.percent(share, 3)} of {told:,} events have arrived. Not all: {'; '.join(parts)}."
    return Section(name, title, finding, word[1], rows=rows)


def _traffic(scope: Scope, name: str, title: str) -> Section:
    found = scope.select(f"""
WITH minutes AS (
    SELECT epoch(minute)::BIGINT AS second, coalesce(sum(bytes) FILTER (api = 'Produce'), 0)::DOUBLE AS produced,
        coalesce(sum(bytes) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::DOUBLE AS consumed
    FROM traffic WHERE day BETWEEN $since AND $until GROUP BY second
)
SELECT second // {scope.step} * {scope.step} AS step, sum(produced) AS produced, sum(consumed) AS consumed,
    max(produced + consumed) AS most, arg_max(second, (produced + consumed, -second)) AS most_at
FROM minutes GROUP BY step ORDER BY step""")  # noqa: S608 - a number
    if not found:
        return Section(name, title, "No request passed in these days.")
    by_step = {row["step"]: row for row in found}
    values = [
        {
            "at": _instant(second),
            "direction": direction,
            "rate": by_step.get(second, {}).get(direction, 0) / scope.step,
        }
        # one more, of nothing, ends the last one
        for second in range(found[0]["step"], found[-1]["step"] + scope.step + 1, scope.step)
        for direction in ("produced", "consumed")
    ]
    row = max(found, key=lambda row: float(row["most"]))
    at = formatting.minute(_at(row["most_at"]))
    finding = f"At most {formatting.size(row['most'] / 60)}/s passed, both directions together: in the minute of {at}."
    return Section(name, title, finding, charts=(charts.moved(values, formatting.interval(scope.step)),))


def _talkers(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("top-talkers")
    if not rows:
        return Section(name, title, "No request passed in these days.")
    (whole,) = scope.select(
        "SELECT sum(bytes + unconfirmed_bytes)::DOUBLE AS bytes FROM traffic WHERE day BETWEEN $since AND $until"
    )
    first = rows[0]
    both = first["produced_bytes"] + first["consumed_bytes"] + first["unconfirmed_bytes"]
    share = f", {formatting.percent(both / whole['bytes'], 1)} of all" if whole["bytes"] else ""
    finding = f"{_client(first)} moved most: {formatting.size(both)}{share}."
    directions = ["produced", "consumed"]
    if any(row["unconfirmed_bytes"] for row in rows):
        directions.append("unconfirmed")
    else:
        rows = _without(rows, "unconfirmed_bytes")
    values = [
        {"who": _client(row), "direction": each, "bytes": row[f"{each}_bytes"], "order": order, "place": place}
        for order, row in enumerate(rows[:10])
        for place, each in enumerate(directions)
    ]
    return Section(name, title, finding, charts=(charts.talkers(values),), rows=rows)


def _latency(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("slowest-apis")
    if not rows:
        return Section(name, title, "No request was answered in these days.")
    found = scope.select(f"""
SELECT epoch(minute)::BIGINT // {scope.step} * {scope.step} AS second, api,
    quantile_ms(merge_counts(latencies), 0.5) AS p50, quantile_ms(merge_counts(latencies), 0.99) AS p99
FROM latency WHERE topic IS NULL AND api IN ('Produce', 'Fetch') AND day BETWEEN $since AND $until
GROUP BY second, api ORDER BY second, api""")  # noqa: S608 - a number
    values = [
        {"at": _instant(row["second"]), "api": row["api"], "percentile": percentile, "ms": row[percentile]}
        for row in found
        for percentile in ("p50", "p99")
        if row[percentile] is not None
    ]
    newest = {(value["api"], value["percentile"]): value for value in values}
    values += [{**value, "at": value["at"] + _instant(scope.step)} for value in newest.values()]  # where they end
    told = [f"99 of 100 {row['api']} requests took at most {formatting.number(row['p99_ms'])}\xa0ms"
            for row in rows if row["api"] in ("Produce", "Fetch") and row["p99_ms"] is not None]  # fmt: skip
    finding = f"{'; '.join(told) or 'Nothing was produced or fetched'}. Fetches that waited for data are left out."
    return Section(name, title, finding, charts=(charts.latencies(values),) if values else (), rows=rows)


def _objectives(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("budget-left", limit=1000)
    if not rows:
        return Section(name, title, "No objective was judged in these days.")
    if len({row["cluster_id"] for row in rows}) == 1:
        rows = _without(rows, "cluster_id")
    judged = [row for row in rows if row["budget_left"] is not None]
    nothing = [_objective(row) for row in rows if row["total"] == 0]
    over = [row for row in judged if row["budget_left"] < 0]
    finding = f"{len(judged) - len(over)} of {formatting.count(len(rows), 'objective')} have error budget left."
    if over:
        worst = over[0]
        finding += (
            f" {_objective(worst)} has overspent most: {formatting.percent(worst['attainment'], 3)} of its requests"
        )
        finding += f" were good, {formatting.percent(worst['target'], 3)} should be."
    if nothing:
        finding += f" Nothing matched {', '.join(nothing)}."
    values = [
        {
            "what": _objective(row),
            "left": row["budget_left"],
            "shown": max(-1, min(1, row["budget_left"])),
            "cut": f"◂ {formatting.percent(row['budget_left'], 0)}" if row["budget_left"] < -1 else "",
        }
        for row in judged[:MOST_ROWS]
    ]
    drawn = (charts.budgets(values),) if values else ()
    state: State = "bad" if over else "warn" if nothing else "good"
    return Section(name, title, finding, state, drawn, _without(rows, "good", "as_of"))


def _cost(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("chargeback")
    if not rows:
        return Section(name, title, "Nothing was charged in these days.")
    found = scope.select("""
SELECT BillingCurrency AS currency, day, coalesce(x_Team, '–') AS team, sum(BilledCost) AS cost FROM cost
WHERE day BETWEEN $since AND $until GROUP BY ALL ORDER BY ALL""")
    totals: dict[str, Any] = {}
    for row in found:
        totals[row["currency"]] = totals.get(row["currency"], 0) + row["cost"]
    currency = max(totals, key=lambda one: (totals[one], one))
    teams: dict[str, Any] = {}
    for row in found:
        if row["currency"] == currency:
            teams[row["team"]] = teams.get(row["team"], 0) + row["cost"]
    largest = sorted(teams, key=lambda team: (-teams[team], team))
    own = set(largest[:MOST_TEAMS])
    days: dict[tuple[str, str], float] = {}
    for row in found:
        if row["currency"] == currency:
            place = (row["day"].isoformat(), row["team"] if row["team"] in own else "others")
            days[place] = days.get(place, 0.0) + float(row["cost"])
    shown = [*largest[:MOST_TEAMS], *(["others"] if len(largest) > MOST_TEAMS else [])]
    values = [
        {"day": day, "team": team, "cost": cost, "order": shown.index(team)}
        for (day, team), cost in sorted(days.items())
    ]
    amounts = " and ".join(formatting.money(totals[one], one) for one in sorted(totals))
    finding = (
        f"{amounts} in these days; {largest[0]} has the largest part, {formatting.money(teams[largest[0]], currency)}."
    )
    return Section(name, title, finding, charts=(charts.costs(values, shown, currency),), rows=rows)


def _unused(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("unused-topics", limit=1000)
    counts = {state: sum(row["state"] == state for row in rows) for state in ("unused", "polled_only", "unknown")}
    if not rows:
        return Section(name, title, "Every topic is used.", "good")
    finding = f"{formatting.count(counts['unused'], 'topic')} unused, {counts['polled_only']} asked for but never given"
    finding += f" anything, {counts['unknown']} of which it cannot be told, as not every sidecar saw everything"
    return Section(name, title, _sentence(finding), "warn" if counts["unused"] else "", rows=rows)


def _mirrors(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("mirrors", limit=1000)
    if not rows:
        return Section(name, title, "No mirror was judged in these days.")
    rows = _without(rows, "retried_records", "unconfirmed_records", "exact", "as_of")
    wrong = [row for row in rows if row["state"] in ("missing", "surplus")]
    missing = sum(row["missing_records"] for row in wrong)
    topics = formatting.count(len(rows), "mirrored topic")
    if not wrong:
        return Section(name, title, f"All that was due has arrived, in {topics}.", "good", rows=rows)
    finding = f"{formatting.count(missing, 'record')} missing, {len(wrong)} of {topics} not as it was produced"
    return Section(name, title, _sentence(finding), "bad", rows=rows)


def _refused(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("old-clients", limit=1000)
    if not rows:
        return Section(name, title, "Every client that came in these days could stay.", "good")
    finding = f"{formatting.count(len(rows), 'client')} must be upgraded before the brokers are"
    return Section(name, title, _sentence(finding), "warn", rows=rows)


def _throttles(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("throttled")
    if not rows:
        return Section(name, title, "Nobody met a limit in these days.", "good")
    addresses = len({row["client_ip"] for row in rows})
    shown = f"more than {MOST_ROWS}" if len(rows) > MOST_ROWS else formatting.count(addresses, "address", "addresses")
    return Section(name, title, _sentence(f"{shown} met a limit"), "warn", rows=_without(rows, "action", "first_at"))


def _errors(scope: Scope, name: str, title: str) -> Section:
    rows = scope.ask("errors")
    if not rows:
        return Section(name, title, "Every request of these days was answered without an error.", "good")
    first = rows[0]
    finding = (
        f"{_client(first)} has most: {formatting.count(first['errors'], 'error')} of {first['requests']:,} requests."
    )
    return Section(name, title, finding, rows=rows)


_SUBJECTS: tuple[tuple[str, str, tuple[str, ...], Callable[[Scope, str, str], Section]], ...] = (
    ("completeness", "Can this be believed?", ("completeness",), _belief),
    ("traffic", "Traffic over time", ("traffic",), _traffic),
    ("talkers", "Top talkers", ("traffic",), _talkers),
    ("latency", "How long answers take", ("latency",), _latency),
    ("objectives", "Objectives and error budgets", ("slo",), _objectives),
    ("cost", "Cost by team", ("cost",), _cost),
    ("unused", "Topics that nobody uses", ("topics",), _unused),
    ("mirrors", "What mirrors copied", ("mirror_check",), _mirrors),
    ("refused", "Clients that Kafka 4 refuses", ("clients",), _refused),
    ("throttles", "Who is slowed down", ("throttles", "connections", "traffic"), _throttles),
    ("errors", "Errors", ("traffic",), _errors),
)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _without(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return ``rows`` without what the page has no room for."""
    return [{key: value for key, value in row.items() if key not in columns} for row in rows]


def _client(row: Row) -> str:
    return f"{row['principal']} · {row['client_id'] or '–'}"


def _objective(row: Row) -> str:
    return " · ".join(part for part in (row["slo"], row["objective"], row["judged"], row.get("cluster_id")) if part)


def _at(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def _instant(second: int) -> int:
    return second * 1000
