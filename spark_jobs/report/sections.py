"""The sections of the report in their order: each has a finding, charts, and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, Literal, NamedTuple

from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader
from spark_jobs.report import charts, formatting
from spark_jobs.report.charts import SEPARATOR, Chart
from spark_jobs.saved_queries import SAVED_QUERIES, run_saved_query
from spark_jobs.schemas.slo import FEW

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
        days = -(-self.seconds // (MAX_CHART_POINTS * 86_400))  # a clock may be years ahead
        return next((step for step in CHART_STEPS_S if self.seconds / step <= MAX_CHART_POINTS), days * 86_400)


@dataclass(frozen=True)
class ReportSection:
    """One section. All texts are plain text that has to be escaped."""

    finding: str
    """The result in one or two sentences."""
    state: SectionState = ""
    charts: tuple[Chart, ...] = ()
    rows: Sequence[Row] = ()
    """Rows of the table, all with the same columns. Only the first ``MAX_TABLE_ROWS`` are shown."""
    unreadable: str = ""
    """Why one of its tables cannot be read; then that is the finding."""
    id: str = ""
    title: str = ""
    """Both are those of its ``_Subject``."""

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to look at: no problem, no chart and no row."""
        return self.state in ("", "good") and not self.charts and not self.rows


class _Subject(NamedTuple):
    """A section that is built from tables."""

    id: str
    title: str
    tables: tuple[str, ...]
    build: Callable[[ReportScope, list[Row]], ReportSection]
    """Of the rows of ``query``."""
    query: str = ""
    """A saved query."""
    limit: int = MAX_TABLE_ROWS + 1
    nothing: ReportSection = ReportSection("")
    """The section if the query has no rows."""


def build_sections(scope: ReportScope) -> list[ReportSection]:
    """Return all sections.

    The section of a missing table says what creates it, that of a broken table why it is broken.
    """
    return [_build_section(scope, subject) for subject in _SUBJECTS]


def _build_section(scope: ReportScope, subject: _Subject) -> ReportSection:
    built = _built_section(scope, subject)
    return replace(built, id=subject.id, title=subject.title, rows=_without_same_cluster(built.rows))


def _built_section(scope: ReportScope, subject: _Subject) -> ReportSection:
    for table in subject.tables:
        if table in scope.reader.broken:
            return _unreadable_section(scope.reader.broken[table])
        if table not in scope.reader.tables:
            return ReportSection(MISSING.get(table, "There is no data for it yet."))
    try:
        rows = scope.run_saved_query(subject.query, subject.limit) if subject.query else []
        return subject.build(scope, rows) if rows or not subject.query else subject.nothing
    except QueryError as error:  # for example a missing file of a table
        return _unreadable_section(str(error))


def _unreadable_section(why: str) -> ReportSection:
    return ReportSection(_sentence(why), "bad", unreadable=why)


def _completeness_section(scope: ReportScope, _: list[Row]) -> ReportSection:
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
        why = ", ".join(sorted({reason for row in rows for reason in row["reasons"] or ()}))
        parts.append(f"{formatting.count(lost, 'event')} lost and reported as lost ({why})")
    if missing:
        parts.append(f"{formatting.count(missing, 'event')} not arrived yet, or lost without a report")
    parts += [f"broker {row['broker_id']} silent since {formatting.minute(row['last_status'])}" for row in silent]
    if not total:
        return ReportSection("No sidecar sent any event.", "bad")
    besides = _besides(scope)
    if not parts:
        finding = f"Yes: all {total:,} events that {formatting.count(len(rows), 'sidecar')} sent have arrived.{besides}"
        return ReportSection(finding, "good", rows=rows)
    share, reasons = events / total, "; ".join(parts)
    arrived = f"{formatting.percent(share, 3)} of {total:,} events have arrived"
    if conflicts:
        return ReportSection(f"No: {reasons}. {arrived}.{besides}", "bad", rows=rows)
    word: tuple[str, SectionState] = ("Mostly", "warn") if share >= 0.99 else ("Only in part", "bad")
    return ReportSection(f"{word[0]}: {arrived}. Not all of them: {reasons}.{besides}", word[1], rows=rows)


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


def _traffic_section(scope: ReportScope, _: list[Row]) -> ReportSection:
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
        return _NO_REQUESTS
    by_step = {row["step"]: row for row in found}
    values = [
        {
            "at": second * 1000,
            "direction": direction,
            "rate": by_step.get(second, {}).get(direction, 0) / scope.step,
        }
        # one more point with the value 0 ends the last interval
        for second in range(found[0]["step"], found[-1]["step"] + scope.step + 1, scope.step)
        for direction in ("produced", "consumed")
    ]
    row = max(found, key=lambda row: float(row["most"]))
    at = formatting.minute(datetime.fromtimestamp(row["most_at"], UTC))
    finding = f"The peak was {formatting.size(row['most'] / 60)}/s in both directions together, in the minute of {at}."
    return ReportSection(finding, charts=(charts.throughput_chart(values, formatting.interval(scope.step)),))


def _talkers_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
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
    return ReportSection(finding, charts=(charts.talkers_chart(values),), rows=_clients_first(rows))


def _latency_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    found = scope.select(f"""
SELECT epoch(minute)::BIGINT // {scope.step} * {scope.step} AS second, api,
    quantile_ms(merge_counts(latencies), 0.5) AS p50,
    CASE WHEN list_sum(merge_counts(latencies)) >= {FEW}
        THEN quantile_ms(merge_counts(latencies), 0.99) END AS p99
FROM latency WHERE topic IS NULL AND api IN ('Produce', 'Fetch') AND day BETWEEN $since AND $until
GROUP BY second, api ORDER BY second, api""")  # noqa: S608 - numbers
    values = [
        {"at": row["second"] * 1000, "api": row["api"], "percentile": percentile, "ms": row[percentile]}
        for row in found
        for percentile in ("p50", "p99")
        if row["p50"] is not None  # a p99 that is None interrupts its line
    ]
    newest = {(value["api"], value["percentile"]): value for value in values}
    # The end of the last interval.
    values += [{**value, "at": value["at"] + scope.step * 1000} for value in newest.values()]
    p99_texts = [_p99_text(row) for row in rows if row["api"] in ("Produce", "Fetch") and row["p99_ms"] is not None]
    percentiles = "; ".join(p99_texts) or "There were no Produce or Fetch requests"
    finding = f"{percentiles}. Fetches that waited for data are not included."
    return ReportSection(finding, charts=(charts.latency_chart(values),) if values else (), rows=rows)


def _p99_text(row: Row) -> str:
    requests = f"{row['requests']:,} {row['api']} requests"
    if formatting.are_few(row["requests"]):
        return f"{requests} are too few for a percentile"
    return f"99\xa0% of {requests} took at most {formatting.number(row['p99_ms'])}\xa0ms"


def _objectives_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    rows = _without_same_cluster(rows)
    judged = [row for row in rows if row["budget_left"] is not None]
    nothing = [_objective_name(row) for row in rows if row["total"] == 0]
    few = [row for row in rows if formatting.are_few(row["total"])]
    over = [row for row in judged if row["budget_left"] < 0]
    finding = (
        f"{len(judged) - len(over)} of {formatting.count(len(rows) - len(few), 'objective')} have error budget left."
    )
    if over:
        worst = over[0]
        attainment, target = formatting.percent(worst["attainment"], 3), formatting.percent(worst["target"], 3)
        requests = "its requests" if worst["total"] is None else formatting.count(worst["total"], "request")
        finding += f" {_objective_name(worst)} has exceeded its budget most: {attainment} of {requests}"
        finding += f" were good; the target is {target}."
    if few:
        finding += f" {formatting.count(len(few), 'objective')} had fewer than {FEW} requests: too few to judge."
    if nothing:
        finding += f" No request matched {', '.join(nothing)}."
    labels = _labels([(row["judged"], row["objective"], row["slo"], row.get("cluster_id")) for row in judged])
    values = [
        {
            "what": label,
            "requests": row["total"],
            "left": row["budget_left"],
            "shown": max(-1, min(1, row["budget_left"])),
            "cut": f"◂ {formatting.percent(row['budget_left'], 0)}" if row["budget_left"] < -1 else "",
        }
        for label, row in zip(labels[:MAX_TABLE_ROWS], judged, strict=False)
    ]
    drawn = (charts.budget_chart(values),) if values else ()
    paged = any(row["alert"] == "page" for row in rows)
    state: SectionState = "bad" if over or paged else "warn" if nothing or few else "good"
    return ReportSection(finding, state, drawn, _without_columns(rows, "good", "as_of"))


def _cost_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    found = scope.select("""
SELECT BillingCurrency AS currency, day, coalesce(x_Team, '–') AS team, sum(BilledCost) AS cost FROM cost
WHERE day BETWEEN $since AND $until GROUP BY ALL ORDER BY ALL""")
    totals: defaultdict[str, Any] = defaultdict(int)
    teams: defaultdict[str, Any] = defaultdict(int)
    days: defaultdict[tuple[str, str], float] = defaultdict(float)
    for row in found:
        totals[row["currency"]] += row["cost"]
    currency = max(totals, key=lambda one: (totals[one], one))
    of_currency = [row for row in found if row["currency"] == currency]
    for row in of_currency:
        teams[row["team"]] += row["cost"]
    largest = sorted(teams, key=lambda team: (-teams[team], team))
    shown = [*largest[:MAX_TEAMS], *(["others"] if len(largest) > MAX_TEAMS else [])]
    for row in of_currency:
        team = row["team"] if row["team"] in shown else "others"
        days[row["day"].isoformat(), team] += float(row["cost"])
    values = [
        {"day": day, "team": team, "cost": cost, "order": shown.index(team)}
        for (day, team), cost in sorted(days.items())
    ]
    amounts = " and ".join(formatting.money(totals[one], one) for one in sorted(totals))
    finding = (
        f"{amounts} on these days; {largest[0]} has the largest share, {formatting.money(teams[largest[0]], currency)}."
    )
    return ReportSection(finding, charts=(charts.cost_chart(values, shown, currency),), rows=rows)


def _unused_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    counts = {state: sum(row["state"] == state for row in rows) for state in ("unused", "polled_only", "unknown")}
    finding = f"{formatting.count(counts['unused'], 'topic')} unused, {counts['polled_only']} polled without receiving"
    finding += f" records, {counts['unknown']} unknown, because not every sidecar observed all traffic"
    return ReportSection(_sentence(finding), "warn" if counts["unused"] else "", rows=rows)


def _mirrors_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    rows = _without_columns(rows, "retried_records", "unconfirmed_records", "exact", "as_of")
    wrong = [row for row in rows if row["state"] in ("missing", "surplus")]
    missing = sum(row["missing_records"] for row in wrong)
    topics = formatting.count(len(rows), "mirrored topic")
    if not wrong:
        return ReportSection(f"All records that were due have arrived, in {topics}.", "good", rows=rows)
    finding = f"{formatting.count(missing, 'record')} missing, {len(wrong)} of {topics} differ from their source"
    return ReportSection(_sentence(finding), "bad", rows=rows)


def _refused_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    finding = f"{formatting.count(len(rows), 'client')} must be upgraded before the brokers"
    return ReportSection(_sentence(finding), "warn", rows=_clients_first(rows))


def _throttles_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    addresses = formatting.count(len({row["client_ip"] for row in rows}), "address", "addresses")
    shown = f"more than {MAX_TABLE_ROWS}" if len(rows) > MAX_TABLE_ROWS else addresses
    return ReportSection(_sentence(f"{shown} met a limit"), "warn", rows=_without_columns(rows, "action", "first_at"))


def _errors_section(scope: ReportScope, rows: list[Row]) -> ReportSection:
    first = rows[0]
    errors = formatting.count(first["errors"], "error")
    finding = f"{_client_names(rows)[0]} has most: {errors} of {first['requests']:,} requests."
    return ReportSection(finding, rows=_clients_first(rows))


_NO_REQUESTS = ReportSection("There were no requests on these days.")

_SUBJECTS = (
    _Subject("completeness", "Completeness of this report", ("completeness",), _completeness_section),
    _Subject("traffic", "Traffic over time", ("traffic",), _traffic_section),
    _Subject("talkers", "Top talkers", ("traffic",), _talkers_section, "top-talkers", nothing=_NO_REQUESTS),
    _Subject("latency", "Response times", ("latency",), _latency_section, "slowest-apis",
             nothing=ReportSection("No request was answered on these days.")),
    _Subject("objectives", "Objectives and error budgets", ("slo",), _objectives_section, "budget-left", 1000,
             ReportSection("No objective was judged on these days.")),
    _Subject("cost", "Cost by team", ("cost",), _cost_section, "chargeback",
             nothing=ReportSection("There were no charges on these days.")),
    _Subject("unused", "Unused topics", ("topics",), _unused_section, "unused-topics", 1000,
             ReportSection("Every topic is used.", "good")),
    _Subject("mirrors", "Mirrors", ("mirror_check",), _mirrors_section, "mirrors", 1000,
             ReportSection("No mirror was checked on these days.")),
    _Subject("refused", "Clients that Kafka 4 rejects", ("clients",), _refused_section, "old-clients", 1000,
             ReportSection("Kafka 4 accepts every client of these days.", "good")),
    _Subject("throttles", "Throttled clients", ("throttles", "connections", "traffic"), _throttles_section, "throttled",
             nothing=ReportSection("No client met a limit on these days.", "good")),
    _Subject("errors", "Errors", ("traffic",), _errors_section, "errors",
             nothing=ReportSection("No request of these days had an error response.", "good")),
)  # fmt: skip


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
