"""Renders the report page: one file that loads nothing, in which all values chosen by clients are escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import vl_convert

from spark_jobs.errors import QueryError
from spark_jobs.query import TableReader, open_tables
from spark_jobs.render import escape_control_characters
from spark_jobs.report import formatting
from spark_jobs.report.charts import CHART_WIDTH, Chart
from spark_jobs.report.sections import MAX_TABLE_ROWS, ReportScope, ReportSection, Row, build_sections
from spark_jobs.schemas import TABLES
from spark_jobs.schemas.slo import FEW

_ZOOM_HINT = '<span class="hint"> Drag to move; Shift and scroll to zoom.</span>'

DEFAULT_DAYS = 7
"""Days of a report by default."""

MAX_CLUSTERS_NAMED = 3


class ReportPage(NamedTuple):
    """``unreadable``: one sentence for each table that cannot be read, which is missing in the page."""

    html: str
    unreadable: tuple[str, ...]


def render_page(root: Path | str, since: date | None = None, until: date | None = None) -> ReportPage:
    """Return the page of the tables below ``root`` for the days from ``since`` to ``until``.

    Default: the last ``DEFAULT_DAYS`` days up to the newest day in the tables. The same tables give the same page.
    Raises QueryError if there are no tables or no rows, or if ``since`` is after ``until``.
    """
    with open_tables(root) as reader:
        scope = _report_scope(reader, since, until)
        sections = build_sections(scope)
        found = [*reader.broken.values(), *(section.unreadable for section in sections if section.unreadable)]
        unreadable = tuple(dict.fromkeys(found))
        return ReportPage(
            _render_html(scope, sections, _headline_figures(scope, sections), len(unreadable)), unreadable
        )


def _report_scope(reader: TableReader, since: date | None, until: date | None) -> ReportScope:
    known = [name for name in reader.tables if name in TABLES]
    if not known:
        raise QueryError(f"there are no Brokerside tables in {reader.root}")
    tomorrow = datetime.now(UTC).date() + timedelta(1)  # a clock that is wrong may be ahead by thousands of years
    days = [day for name in known for day in _min_and_max(reader, "day", name, until=tomorrow)]
    last = until or max(days, default=None)
    if last is None:
        raise QueryError(f"the tables in {reader.root} have no rows")
    first = since or min(last, max(min(days, default=last), last - timedelta(days=DEFAULT_DAYS - 1)))
    if first > last:
        raise QueryError(f"the first day, {first}, is after the last one, {last}")
    columns = (("completeness", "last_status"), ("traffic", "minute"))
    seen = [at for name, column in columns if name in known for at in _min_and_max(reader, column, name, until=last)]
    midnight = datetime(last.year, last.month, last.day, tzinfo=UTC)
    days_long = ((last - first).days + 1) * 86_400
    minutes = _min_and_max(reader, "minute", "traffic", first, last) if "traffic" in known else []
    long = int((minutes[1] - minutes[0]).total_seconds()) + 60 if minutes else days_long
    return ReportScope(reader, first, last, max(seen, default=midnight), min(long, days_long))


def _min_and_max(
    reader: TableReader, column: str, table: str, since: date = date.min, until: date = date.max
) -> list[Any]:
    """Return the minimum and maximum of a column in these days; an empty list without rows or for a broken table."""
    sql = f"SELECT min({column}), max({column}) FROM {table} WHERE day BETWEEN $since AND $until"  # noqa: S608 - constants
    try:
        (ends,) = reader.fetch_rows(sql, {"since": since, "until": until})[1]
    except QueryError:  # reported in the section of the table
        return []
    return [end for end in ends if end is not None]


def _headline_figures(scope: ReportScope, sections: Sequence[ReportSection]) -> list[tuple[str, str]]:
    """Return the headline figures: name, and value as HTML."""
    found: list[tuple[str, str]] = []
    by_id = {section.id: section for section in sections}
    if "traffic" in scope.reader.tables and by_id["traffic"].state != "bad":
        (row,) = scope.select("""
SELECT coalesce(sum(bytes) FILTER (api = 'Produce'), 0)::BIGINT AS produced,
    coalesce(sum(bytes) FILTER (api IN ('Fetch', 'ShareFetch')), 0)::BIGINT AS consumed,
    coalesce(sum(requests), 0)::BIGINT AS requests, coalesce(sum(errors), 0)::BIGINT AS errors,
    count(DISTINCT principal) AS principals, count(DISTINCT topic) AS topics
FROM traffic WHERE day BETWEEN $since AND $until""")
        found += [
            ("produced", formatting.size(row["produced"])),
            ("consumed", formatting.size(row["consumed"])),
            ("requests", formatting.number(row["requests"])),
            ("with an error", _error_figure(row["errors"], row["requests"])),
            ("principals", formatting.number(row["principals"])),
            ("topics touched", formatting.number(row["topics"])),
        ]
    if by_id["cost"].rows:
        (row,) = scope.select("""
SELECT string_agg(DISTINCT BillingCurrency, ' + ') AS currency, sum(BilledCost) AS cost
FROM cost WHERE day BETWEEN $since AND $until""")
        if row["cost"] is not None and "+" not in row["currency"]:
            found.append(("cost", formatting.escape(formatting.money(row["cost"], row["currency"]))))
    if by_id["objectives"].rows:
        rows = by_id["objectives"].rows
        left = [row["budget_left"] for row in rows if not formatting.are_few(row["total"])]
        met = sum(one is not None and one >= 0 for one in left)
        found.append(("objectives with budget left", f"{met} of {len(left)}"))
    return found


def _error_figure(errors: int, requests: int) -> str:
    """Return the HTML of the share of requests with an error, with the numbers that it is made of."""
    if not requests:
        return "–"
    return f"{formatting.percent_of(errors / requests, requests)}<small>{errors:,} of {requests:,}</small>"


def _render_html(
    scope: ReportScope, sections: Sequence[ReportSection], figures: Sequence[tuple[str, str]], unreadable: int
) -> str:
    style, script = _read_asset("page.css"), _chart_script()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{_csp_hash(script)}'"
    days = f"{scope.since}" if scope.since == scope.until else f"{scope.since} to {scope.until}"
    tiles = "".join(f"<div><dt>{formatting.escape(name)}</dt><dd>{value}</dd></div>" for name, value in figures)
    links = "".join(f'<li><a href="#{each.id}">{formatting.escape(each.title)}</a></li>' for each in sections)
    damage = f"{formatting.count(unreadable, 'table')} cannot be read, so this page is not complete: see below."
    first, *others = sections
    folded = [each for each in others if each.is_empty]
    others = [each for each in others if not each.is_empty]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Kafka, {days}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#{first.id}">Skip to the report</a>
<header>
<h1>What passed through Kafka</h1>
{f'<div class="bad"><p class="finding">{damage}</p></div>' if unreadable else ""}
<p>{_clusters(scope)}{days}, as observed by the sidecars up to {formatting.minute(scope.as_of)} UTC. All times are UTC.
</p>
{_what_first(sections)}
<dl class="figures">{tiles}</dl>
<nav aria-label="Contents"><ul>{links}</ul></nav>
</header>
<main>
{_render_section(first)}
{"".join(_render_section(each) for each in others)}
{_render_folded(folded)}</main>
<footer><p>Made by Brokerside from what its sidecars observed. Requests that did not pass through a sidecar are not
included. A percentage of fewer than {FEW} requests is grey. Times after ≤ are upper bounds.</p></footer>
<script>{script}</script>
</body>
</html>
"""


def _clusters(scope: ReportScope) -> str:
    """Return the beginning of a sentence: which clusters the page is about; nothing if that cannot be read."""
    if "traffic" not in scope.reader.tables:
        return ""
    sql = "SELECT DISTINCT cluster_id FROM traffic WHERE day BETWEEN $since AND $until AND cluster_id IS NOT NULL"
    try:
        found = scope.select(f"{sql} ORDER BY ALL")
    except QueryError:  # reported in the section of the table
        return ""
    names = [formatting.escape(str(row["cluster_id"])) for row in found]
    more = f" and {len(names) - MAX_CLUSTERS_NAMED} more" if len(names) > MAX_CLUSTERS_NAMED else ""
    return f"Cluster {', '.join(names[:MAX_CLUSTERS_NAMED])}{more}: " if names else ""


def _what_first(sections: Sequence[ReportSection]) -> str:
    """Return a paragraph: which sections need attention, the worst first; nothing if none says so."""
    urgent = [each for state in ("bad", "warn") for each in sections if each.state == state]
    links = [f'<a href="#{each.id}">{formatting.escape(each.title)}</a>' for each in urgent]
    return f"<p>Look first at: {', then '.join(links)}.</p>" if links else ""


def _render_section(section: ReportSection) -> str:
    state = f' class="{section.state}"' if section.state else ""
    drawn = "".join(_render_chart(f"{section.id}-{place}", chart) for place, chart in enumerate(section.charts))
    return f"""<section id="{section.id}"{state} aria-labelledby="{section.id}-title">
<h2 id="{section.id}-title">{formatting.escape(section.title)}</h2>
<p class="finding">{formatting.escape_with_code(section.finding)}</p>
{drawn}{_render_table(section.title, section.rows)}</section>
"""


def _render_folded(sections: Sequence[ReportSection]) -> str:
    """Return the sections that have nothing to look at, folded into one line with their titles."""
    if not sections:
        return ""
    titles = formatting.escape(", ".join(each.title for each in sections))
    inner = "".join(_render_section(each) for each in sections)
    return f"<details><summary>Nothing to look at: {titles}</summary>\n{inner}</details>\n"


def _render_chart(name: str, chart: Chart) -> str:
    printable = _with_visible_controls(chart.spec)
    drawn = _with_unique_ids(
        vl_convert.vegalite_to_svg({**printable, "width": CHART_WIDTH}, allowed_base_urls=[]), name
    )
    spec = {**printable, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return f"""<figure>
<div class="drawn" role="img" aria-label="{formatting.escape(chart.caption)}">{drawn}</div>
<div class="live" data-chart="{name}-data" hidden></div>
<script type="application/json" id="{name}-data">{_script_json(spec)}</script>
<figcaption>{formatting.escape(chart.caption)}{_ZOOM_HINT if "params" in chart.spec else ""}</figcaption>
</figure>
"""


def _with_visible_controls(value: Any) -> Any:
    """Return ``value`` with escaped control characters. The renderer aborts the process on those that XML excludes."""
    match value:
        case str():
            return escape_control_characters(value)
        case list():
            return [_with_visible_controls(each) for each in value]
        case dict():
            return {name: _with_visible_controls(each) for name, each in value.items()}
        case _:
            return value


def _with_unique_ids(svg: str, name: str) -> str:
    """Return ``svg`` with unique ids. The renderer continues its own numbering over all charts of the process."""
    ids = dict.fromkeys(re.findall(r'id="([^"]+)"', svg))
    for place, old in enumerate(ids):
        svg = svg.replace(f'id="{old}"', f'id="{name}-{place}"').replace(f"url(#{old})", f"url(#{name}-{place})")
    return svg


def _render_table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    shown = rows[:MAX_TABLE_ROWS]
    columns = [name for name in shown[0] if any(row[name] not in (None, "", []) for row in shown)]
    right = {name for name in columns if all(_is_numeric(row[name]) for row in shown)}
    head = "".join(
        f'<th scope="col"{_number_class(name in right)}>{formatting.escape(formatting.heading(name))}</th>'
        for name in columns
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{_number_class(name in right)}>{formatting.cell(name, row)}</td>" for name in columns)
        + "</tr>\n"
        for row in shown
    )
    more = "<p class=more>Only the first rows are shown.</p>" if len(rows) > len(shown) else ""
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{formatting.escape(title)}, table"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}</tbody>
</table></div>{more}
"""


def _is_numeric(value: object) -> bool:
    return value is None or (not isinstance(value, bool | str | list | date))


def _number_class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _script_json(value: object) -> str:
    """Return ``value`` as JSON for a script element, which would end at the first ``</script``."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _chart_script() -> str:
    """Return the script with Vega, Vega-Lite and the code that draws the charts."""
    return (
        str(vl_convert.javascript_bundle(_read_asset("page.js")))
        .replace("</script", "<\\/script")
        .replace("<!--", "<\\!--")
    )


def _csp_hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _read_asset(name: str) -> str:
    return files("spark_jobs.report").joinpath(name).read_text(encoding="utf-8")
