"""The sections of the report in their order: each has a finding, charts, and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, NamedTuple

from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader
from spark_jobs.report import charts, formatting
from spark_jobs.report.charts import SEPARATOR, Chart
from spark_jobs.saved_queries import SAVED_QUERIES, run_saved_query

Row = dict[str, Any]
SectionState = Literal["", "good", "warn", "bad"]

MAX_TABLE_ROWS = 20
"""Rows of a table that are shown."""
MAX_CHART_POINTS = 240
"""Greatest number of points of a chart."""
CHART_STEPS_S = (60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400)
"""Possible intervals of a chart in seconds."""
MAX_HIDDEN_SHOWN = 5
"""Excluded principals and topics that are named in a sentence."""

MISSING = {
    "cost": "No prices are declared, so there are no costs.",
    "slo": "No objectives are declared.",
    "mirror_check": "No mirrors are declared.",
}
"""What a missing table means to a reader of the page; for any other one there is no data yet."""

MAX_TEAMS = 7
"""Teams with their own colour; the others are shown together."""


@dataclass(frozen=True)
class ReportScope:
    """The tables and days of a report."""

    reader: TableReader
    since: date
    until: date
    as_of: datetime
    """Time of the newest data."""
    seconds: int
    """Seconds from the first to the last minute with traffic, or of all days if there is none."""

    def run_saved_query(self, name: str, limit: int = MAX_TABLE_ROWS + 1) -> list[Row]:
        """Return the rows of a saved query for the days of the report."""
        offered = {"since": self.since, "until": self.until, "at": self.as_of, "limit": limit}
        given = {key: value for key, value in offered.items() if key in SAVED_QUERIES[name].parameters}
        columns, rows = run_saved_query(self.reader, name, given)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def select(self, sql: str) -> list[Row]:
        """Return the rows of a SELECT in which $since and $until are the days of the report."""
        columns, rows = self.reader.fetch_rows(sql, {"since": self.since, "until": self.until})
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @property
    def step(self) -> int:
        """Interval of a chart in seconds."""
        return next((step for step in CHART_STEPS_S if self.seconds / step <= MAX_CHART_POINTS), CHART_STEPS_S[-1])


@dataclass(frozen=True)
class ReportSection:
    """One section. All texts are plain text that has to be escaped."""

    id: str
    title: str
    finding: str
    """The result in one or two sentences."""
    state: SectionState = ""
    charts: tuple[Chart, ...] = ()
    rows: Sequence[Row] = ()
    """Rows of the table, all with the same columns. Only the first ``MAX_TABLE_ROWS`` are shown."""

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to look at: no problem, no chart and no row."""
        return self.state in ("", "good") and not self.charts and not self.rows


class _Subject(NamedTuple):
    """A section that is built from tables."""

    id: str
    title: str
    tables: tuple[str, ...]
    build: Callable[[ReportScope, str, str], ReportSection]


def build_sections(scope: ReportScope) -> list[ReportSection]:
    """Return all sections.

    The section of a missing table says what creates it, that of a broken table why it is broken.
    """
    return [_build_section(scope, subject) for subject in _SUBJECTS]


def _build_section(scope: ReportScope, subject: _Subject) -> ReportSection:
    name, title = subject.id, subject.title
    for table in subject.tables:
        if table in scope.reader.broken:
            return ReportSection(name, title, _sentence(scope.reader.broken[table]), "bad")
        if table not in scope.reader.tables:
            return ReportSection(name, title, MISSING.get(table, "There is no data for it yet."))
    try:
        built = subject.build(scope, name, title)
        return replace(built, rows=_without_same_cluster(built.rows))
    except QueryError as error:  # for example a missing file of a table
        return ReportSection(name, title, _sentence(str(error)), "bad")


def _completeness_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("completeness", limit=1000)
    silent = [row for row in scope.run_saved_query("stale-sidecars", limit=1000) if not row["ended"]]
    events, lost, missing, conflicts = (
        sum(row[key] for row in rows) for key in ("events", "lost", "missing", "conflicts")
    )
    total = events + lost + missing
    parts = []
    if conflicts:
        brokers = ", ".join(str(row["broker_id"]) for row in rows if row["conflicts"])
        conflicting = f"{formatting.count(conflicts, 'record')} of broker {brokers}"
        reason = "contradict other records with the same event numbers"
        parts.append(f"{conflicting} {reason}, so someone else may write to the audit topic")
    if lost:
        reasons = sorted({reason for row in rows for reason in row["reasons"] or ()})
        parts.append(f"{formatting.count(lost, 'event')} lost and reported as lost ({', '.join(reasons)})")
    if missing:
        parts.append(f"{formatting.count(missing, 'event')} not arrived yet, or lost without a report")
    parts += [f"broker {row['broker_id']} silent since {formatting.minute(row['last_status'])}" for row in silent]
    if not total:
        return ReportSection(name, title, "No sidecar sent any event.", "bad")
    besides = _besides(scope)
    if not parts:
        finding = f"Yes: all {total:,} events that {formatting.count(len(rows), 'sidecar')} sent have arrived.{besides}"
        return ReportSection(name, title, finding, "good", rows=rows)
    share = events / total
    word: tuple[str, SectionState] = ("Mostly", "warn") if share >= 0.99 else ("Only in part", "bad")
    if conflicts:
        arrived = f"{formatting.percent(share, 3)} of {total:,} events have arrived"
        finding = f"No: {'; '.join(parts)}. {arrived}.{besides}"
        return ReportSection(name, title, finding, "bad", rows=rows)
    arrived = f"{formatting.percent(share, 3)} of {total:,} events have arrived"
    finding = f"{word[0]}: {arrived}. Not all of them: {'; '.join(parts)}.{besides}"
    return ReportSection(name, title, finding, word[1], rows=rows)


_PARTLY_HIDDEN = """
WITH runs AS (
    SELECT max(partly_hidden) AS events FROM completeness
    WHERE hidden_by IS NULL GROUP BY cluster_id, broker_id, boot_id
)
SELECT coalesce(sum(events), 0)::BIGINT FROM runs"""


def _hiding_names(rows: Sequence[Row]) -> str:
    """Return the first of the excluded principals and topics, and how many more there are."""
    names = ", ".join(str(row["hidden_by"]) for row in rows[:MAX_HIDDEN_SHOWN])
    return names if len(rows) <= MAX_HIDDEN_SHOWN else f"{names} and {len(rows) - MAX_HIDDEN_SHOWN} more"


def _besides(scope: ReportScope) -> str:
    """Return sentences about what the tables do not contain by configuration, and about records that are not valid."""
    sentences = []
    hidden = scope.run_saved_query("hidden", limit=1000)
    wholly, partly = ([row for row in hidden if row[count]] for count in ("events", "partly_hidden"))
    if wholly:
        events = formatting.count(sum(row["events"] for row in wholly), "event")
        sentences.append(f" Configuration hides {events}: {_hiding_names(wholly)}.")
    if partly:
        _, ((events,),) = scope.reader.fetch_rows(_PARTLY_HIDDEN, {})
        topics = _hiding_names(sorted(partly, key=lambda row: (-row["partly_hidden"], row["hidden_by"])))
        if wholly:
            sentences.append(f" It leaves topics out of {events:,} more: {topics}.")
        else:
            sentences.append(f" Configuration leaves topics out of {formatting.count(events, 'event')}: {topics}.")
    if "dead_letters" in scope.reader.tables:
        (found,) = scope.select("SELECT count(*) AS records FROM dead_letters WHERE day BETWEEN $since AND $until")
        if found["records"]:
            records = formatting.count(found["records"], "record")
            sentences.append(f" {records} of the audit topic could not be read.")
    return "".join(sentences)


def _traffic_section(scope: ReportScope, name: str, title: str) -> ReportSection:
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
        return ReportSection(name, title, "There were no requests on these days.")
    by_step = {row["step"]: row for row in found}
    values = [
        {
            "at": _milliseconds(second),
            "direction": direction,
            "rate": by_step.get(second, {}).get(direction, 0) / scope.step,
        }
        # one more point with the value 0 ends the last interval
        for second in range(found[0]["step"], found[-1]["step"] + scope.step + 1, scope.step)
        for direction in ("produced", "consumed")
    ]
    row = max(found, key=lambda row: float(row["most"]))
    at = formatting.minute(_datetime_of(row["most_at"]))
    finding = f"The peak was {formatting.size(row['most'] / 60)}/s in both directions together, in the minute of {at}."
    return ReportSection(
        name, title, finding, charts=(charts.throughput_chart(values, formatting.interval(scope.step)),)
    )


def _talkers_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("top-talkers")
    if not rows:
        return ReportSection(name, title, "There were no requests on these days.")
    (whole,) = scope.select(
        "SELECT sum(bytes + unconfirmed_bytes)::DOUBLE AS bytes FROM traffic WHERE day BETWEEN $since AND $until"
    )
    first, names = rows[0], _client_names(rows)
    both = first["produced_bytes"] + first["consumed_bytes"] + first["unconfirmed_bytes"]
    share = f", {formatting.percent(both / whole['bytes'], 1)} of all" if whole["bytes"] else ""
    finding = f"{names[0]} transferred most: {formatting.size(both)}{share}."
    directions = ["produced", "consumed"]
    if any(row["unconfirmed_bytes"] for row in rows):
        directions.append("unconfirmed")
    else:
        rows = _without_columns(rows, "unconfirmed_bytes")
    values = [
        {"who": names[order], "direction": each, "bytes": row[f"{each}_bytes"], "order": order, "place": place}
        for order, row in enumerate(rows[:10])
        for place, each in enumerate(directions)
    ]
    return ReportSection(name, title, finding, charts=(charts.talkers_chart(values),), rows=_clients_first(rows))


def _latency_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("slowest-apis")
    if not rows:
        return ReportSection(name, title, "No request was answered on these days.")
    found = scope.select(f"""
SELECT epoch(minute)::BIGINT // {scope.step} * {scope.step} AS second, api,
    quantile_ms(merge_counts(latencies), 0.5) AS p50, quantile_ms(merge_counts(latencies), 0.99) AS p99
FROM latency WHERE topic IS NULL AND api IN ('Produce', 'Fetch') AND day BETWEEN $since AND $until
GROUP BY second, api ORDER BY second, api""")  # noqa: S608 - a number
    values = [
        {"at": _milliseconds(row["second"]), "api": row["api"], "percentile": percentile, "ms": row[percentile]}
        for row in found
        for percentile in ("p50", "p99")
        if row[percentile] is not None
    ]
    newest = {(value["api"], value["percentile"]): value for value in values}
    values += [
        {**value, "at": value["at"] + _milliseconds(scope.step)} for value in newest.values()
    ]  # the end of the last interval
    p99_texts = [_p99_text(row) for row in rows if row["api"] in ("Produce", "Fetch") and row["p99_ms"] is not None]
    percentiles = "; ".join(p99_texts) or "There were no Produce or Fetch requests"
    finding = f"{percentiles}. Fetches that waited for data are not included."
    return ReportSection(name, title, finding, charts=(charts.latency_chart(values),) if values else (), rows=rows)


def _p99_text(row: Row) -> str:
    requests = f"{row['requests']:,} {row['api']} requests"
    if formatting.are_few(row["requests"]):
        return f"{requests} are too few for a percentile"
    return f"99\xa0% of {requests} took at most {formatting.number(row['p99_ms'])}\xa0ms"


def _objectives_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("budget-left", limit=1000)
    if not rows:
        return ReportSection(name, title, "No objective was judged on these days.")
    rows = _without_same_cluster(rows)
    judged = [row for row in rows if row["budget_left"] is not None]
    nothing = [_objective_name(row) for row in rows if row["total"] == 0]
    few = [row for row in judged if formatting.are_few(row["total"])]
    over = [row for row in judged if row["budget_left"] < 0 and row not in few]
    counted = len(rows) - len(few)
    finding = (
        f"{len(judged) - len(few) - len(over)} of {formatting.count(counted, 'objective')} have error budget left."
    )
    if over:
        worst = over[0]
        attainment, target = formatting.percent(worst["attainment"], 3), formatting.percent(worst["target"], 3)
        requests = "its requests" if worst["total"] is None else formatting.count(worst["total"], "request")
        finding += f" {_objective_name(worst)} has exceeded its budget most: {attainment} of {requests}"
        finding += f" were good; the target is {target}."
    if few:
        finding += (
            f" {formatting.count(len(few), 'objective')} had fewer than {formatting.FEW} requests: too few to judge."
        )
    if nothing:
        finding += f" No request matched {', '.join(nothing)}."
    labels = _labels([(row["judged"], row["objective"], row["slo"], row.get("cluster_id")) for row in judged])
    values = [
        {
            "what": label,
            "few": row in few,
            "requests": row["total"],
            "left": row["budget_left"],
            "shown": max(-1, min(1, row["budget_left"])),
            "cut": f"◂ {formatting.percent(row['budget_left'], 0)}" if row["budget_left"] < -1 else "",
        }
        for label, row in zip(labels[:MAX_TABLE_ROWS], judged, strict=False)
    ]
    drawn = (charts.budget_chart(values),) if values else ()
    state: SectionState = "bad" if over else "warn" if nothing or few else "good"
    return ReportSection(name, title, finding, state, drawn, _without_columns(rows, "good", "as_of"))


def _cost_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("chargeback")
    if not rows:
        return ReportSection(name, title, "There were no charges on these days.")
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
    own = set(largest[:MAX_TEAMS])
    days: dict[tuple[str, str], float] = {}
    for row in found:
        if row["currency"] == currency:
            place = (row["day"].isoformat(), row["team"] if row["team"] in own else "others")
            days[place] = days.get(place, 0.0) + float(row["cost"])
    shown = [*largest[:MAX_TEAMS], *(["others"] if len(largest) > MAX_TEAMS else [])]
    values = [
        {"day": day, "team": team, "cost": cost, "order": shown.index(team)}
        for (day, team), cost in sorted(days.items())
    ]
    amounts = " and ".join(formatting.money(totals[one], one) for one in sorted(totals))
    finding = (
        f"{amounts} on these days; {largest[0]} has the largest share, {formatting.money(teams[largest[0]], currency)}."
    )
    return ReportSection(name, title, finding, charts=(charts.cost_chart(values, shown, currency),), rows=rows)


def _unused_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("unused-topics", limit=1000)
    counts = {state: sum(row["state"] == state for row in rows) for state in ("unused", "polled_only", "unknown")}
    if not rows:
        return ReportSection(name, title, "Every topic is used.", "good")
    finding = f"{formatting.count(counts['unused'], 'topic')} unused, {counts['polled_only']} polled without receiving"
    finding += f" records, {counts['unknown']} unknown, because not every sidecar observed all traffic"
    return ReportSection(name, title, _sentence(finding), "warn" if counts["unused"] else "", rows=rows)


def _mirrors_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("mirrors", limit=1000)
    if not rows:
        return ReportSection(name, title, "No mirror was checked on these days.")
    rows = _without_columns(rows, "retried_records", "unconfirmed_records", "exact", "as_of")
    wrong = [row for row in rows if row["state"] in ("missing", "surplus")]
    missing = sum(row["missing_records"] for row in wrong)
    topics = formatting.count(len(rows), "mirrored topic")
    if not wrong:
        return ReportSection(name, title, f"All records that were due have arrived, in {topics}.", "good", rows=rows)
    finding = f"{formatting.count(missing, 'record')} missing, {len(wrong)} of {topics} differ from their source"
    return ReportSection(name, title, _sentence(finding), "bad", rows=rows)


def _refused_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("old-clients", limit=1000)
    if not rows:
        return ReportSection(name, title, "Kafka 4 accepts every client of these days.", "good")
    finding = f"{formatting.count(len(rows), 'client')} must be upgraded before the brokers"
    return ReportSection(name, title, _sentence(finding), "warn", rows=_clients_first(rows))


def _throttles_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("throttled")
    if not rows:
        return ReportSection(name, title, "No client met a limit on these days.", "good")
    addresses = len({row["client_ip"] for row in rows})
    shown = (
        f"more than {MAX_TABLE_ROWS}"
        if len(rows) > MAX_TABLE_ROWS
        else formatting.count(addresses, "address", "addresses")
    )
    return ReportSection(
        name, title, _sentence(f"{shown} met a limit"), "warn", rows=_without_columns(rows, "action", "first_at")
    )


def _errors_section(scope: ReportScope, name: str, title: str) -> ReportSection:
    rows = scope.run_saved_query("errors")
    if not rows:
        return ReportSection(name, title, "No request of these days had an error response.", "good")
    first = rows[0]
    errors = formatting.count(first["errors"], "error")
    finding = f"{_client_names(rows)[0]} has most: {errors} of {first['requests']:,} requests."
    return ReportSection(name, title, finding, rows=_clients_first(rows))


_SUBJECTS = (
    _Subject("completeness", "Completeness of this report", ("completeness",), _completeness_section),
    _Subject("traffic", "Traffic over time", ("traffic",), _traffic_section),
    _Subject("talkers", "Top talkers", ("traffic",), _talkers_section),
    _Subject("latency", "Response times", ("latency",), _latency_section),
    _Subject("objectives", "Objectives and error budgets", ("slo",), _objectives_section),
    _Subject("cost", "Cost by team", ("cost",), _cost_section),
    _Subject("unused", "Unused topics", ("topics",), _unused_section),
    _Subject("mirrors", "Mirrors", ("mirror_check",), _mirrors_section),
    _Subject("refused", "Clients that Kafka 4 rejects", ("clients",), _refused_section),
    _Subject("throttles", "Throttled clients", ("throttles", "connections", "traffic"), _throttles_section),
    _Subject("errors", "Errors", ("traffic",), _errors_section),
)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _without_columns(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return ``rows`` without ``columns``, for which the page has no room."""
    return [{key: value for key, value in row.items() if key not in columns} for row in rows]


def _without_same_cluster(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` without the cluster where all have the same."""
    same = len({row.get("cluster_id") for row in rows}) == 1
    return _without_columns(rows, "cluster_id") if same else list(rows)


def _client_names(rows: Sequence[Row]) -> list[str]:
    """Return a name for each client: its client id, and its principal where not all have the same."""
    return _labels([(row["client_id"] or "–", row["principal"]) for row in rows])


def _clients_first(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` with the client id first; without the principal where all have the same."""
    same = len(rows) > 1 and len({row["principal"] for row in rows}) == 1
    return [
        {
            "client_id": row["client_id"],
            **{key: value for key, value in row.items() if not (same and key == "principal")},
        }
        for row in rows
    ]


def _labels(parts: Sequence[Sequence[str | None]]) -> list[str]:
    """Return a label for each row of ``parts``, without parts that are the same in all rows, and without empty ones.

    The first part always stays: it identifies best, and a narrow chart cuts labels at their end.
    """
    kept = [
        place for place in range(len(parts[0]) if parts else 0)
        if place == 0 or len(parts) == 1 or len({row[place] for row in parts}) > 1
    ]  # fmt: skip
    return [SEPARATOR.join(row[place] or "" for place in kept if row[place]) or "–" for row in parts]


def _objective_name(row: Row) -> str:
    return SEPARATOR.join(part for part in (row["slo"], row["objective"], row["judged"], row.get("cluster_id")) if part)


def _datetime_of(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def _milliseconds(second: int) -> int:
    return second * 1000
