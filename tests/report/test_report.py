"""The page of ``brokerside report``: what it contains, that it loads nothing, and what a real browser makes of it.

Its tables are those of the scripted load of tests/ledger, with a hostile client and a silent sidecar besides.
"""

import ast
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.errors import QueryError
from spark_jobs.report import render_page
from spark_jobs.schemas import TABLES
from tests.ledger.tables import write_tables
from tests.report import browser
from tests.spark.stored import write

CHARTS = 5
FIRST = datetime(2026, 9, 21, 18, tzinfo=UTC)
HOSTILE = "</script><script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"


class Parsed(HTMLParser):
    """Every element of a page with its attributes, and the text of its sections."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.hidden = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.hidden = tag in ("script", "style")
        if tag == "section":
            self.sections[dict(attrs)["id"] or ""] = ""

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if self.sections and not self.hidden:
            self.sections[list(self.sections)[-1]] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(root: Path, *days: date, **named: date) -> str:
    page = render_page(root, *days, **named)
    assert page.unreadable == ()
    return page.html


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("company")
    write_tables(root)
    key = {"day": FIRST.date(), "minute": FIRST, "cluster_id": "west", "broker_id": 4}
    who = {"listener": "CLIENT", "api": "Fetch", "principal": "ANONYMOUS", "client_id": HOSTILE}
    write(root, "traffic", {**key, **who, "requests": 200, "errors": 20})
    write(root, "traffic", {**key, **who, "topic": "orders", "topic_requests": 200, "bytes": 1_355_890})
    status = {"boot_id": "w4", "started_at": FIRST, "statuses": 1, "last_status": FIRST, "ended": False}
    write(root, "completeness", {**key, **status, "events": 1, "first_seq": 1, "last_seq": 1})
    unknown = {"cluster_id": "west", "topic": "seldom", "state": "unknown", "present": True}
    write(root, "topics", {**unknown, "day": FIRST.date() + timedelta(1)})
    return root


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return report(root)


@pytest.fixture(scope="module")
def file(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def shown() -> Iterator[browser.Page]:
    try:
        with browser.page() as shown:
            yield shown
    except browser.NoBrowserError as error:
        pytest.skip(f"no browser: {error}")


@pytest.mark.promise("queries.md", "The report is one file that loads nothing.")
def test_the_page_loads_nothing(text: str) -> None:
    parsed = Parsed(text)
    assert {tag for tag, _ in parsed.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"} == set()
    for tag, attributes in parsed.elements:
        assert not {name for name in attributes if name.startswith("on")}, (tag, attributes)
        assert all((attributes.get(name) or "#").startswith("#") for name in ("src", "href", "xlink:href"))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


@pytest.mark.promise("queries.md", "Values that clients chose are escaped in the report.")
def test_what_a_client_chose_is_text(text: str) -> None:
    assert text.count("window.hacked") > 5, "the hostile client is in it, but"
    parsed = Parsed(text)
    assert len(parsed.of("script")) == CHARTS + 1 == text.count("</script>")
    assert HOSTILE not in text
    names = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    assert HOSTILE in parsed.sections["talkers"]
    assert HOSTILE in parsed.sections["errors"]


@pytest.mark.promise(
    "queries.md", "The report has a finding for each of its sections, first whether the data is complete."
)
def test_findings_are_what_the_tables_say(root: Path, text: str) -> None:
    assert "<p>Cluster east, west: 2026-09-21 to 2026-09-22, as observed" in text
    assert '<p>Look first at: <a href="#objectives">Objectives and error budgets</a>, then <a href="#mirrors">' in text
    reported = {name: " ".join(words.split()) for name, words in Parsed(text).sections.items()}
    assert next(iter(reported)) == "completeness"
    assert "Mostly: 99.949 % of 15,719 events have arrived." in reported["completeness"]
    lost = "8 events lost and reported as lost (killed, queue_full); broker 4 silent since 2026-09-21 18:00."
    assert lost in reported["completeness"]
    hidden = "Configuration hides 7,195 events: topic scratch, principal User:monitoring."
    assert f"{hidden} It leaves topics out of 5,756 more: topic scratch, topic tmp." in reported["completeness"]
    assert "17 records of the audit topic could not be read." in reported["completeness"]
    assert "clickstream · User:web transferred most: 14.7 MB" in reported["talkers"]
    assert "7 of 11 objectives have error budget left. no-errors · 99 % · User:shop" in reported["objectives"]
    assert "187.23 EUR on these days; data has the largest share, 66.00 EUR." in reported["cost"]
    assert "2 topics unused, 1 polled without receiving records, 1 unknown" in reported["unused"]
    assert "7 records missing, 1 of 2 mirrored topics differ from their source." in reported["mirrors"]
    assert "1 client must be upgraded" in reported["refused"]
    assert "2 addresses met a limit." in reported["throttles"]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text.split('id="latency"')[1].split("</section>")[0])
    assert [cell for cell in cells if cell.startswith("≤\xa0")] != [], "the end of a bucket is a bound"
    assert report(root) == text, "the same tables give the same page"


def chart(text: str, name: str) -> Any:
    found = re.search(rf'id="{name}-0-data">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


def bursts(root: Path, *minutes: tuple[int, int]) -> None:
    for minute, size in minutes:
        at = FIRST + timedelta(minutes=minute)
        write(root, "traffic", {"day": at.date(), "minute": at, "api": "Produce", "topic": "t", "bytes": size})


@pytest.mark.promise("queries.md", "The peak of the report is that of one minute.")
def test_the_peak_is_that_of_the_busiest_minute(tmp_path: Path) -> None:
    bursts(tmp_path, (42, 26_220_000), (43, 60), (57, 6000), (23 * 60, 26_220_000))
    text = report(tmp_path)
    reported = " ".join(Parsed(text).sections["traffic"].split())
    assert "The peak was 437 kB/s in both directions together, in the minute of 2026-09-21 18:42." in reported
    assert "the mean of each 10 minutes." in reported
    produced = [v["rate"] for v in chart(text, "traffic")["data"]["values"] if v["direction"] == "produced"]
    assert produced[:3] == [26_220_060 / 600, 6000 / 600, 0]


@pytest.mark.promise(
    "queries.md", "A table that cannot be read is a sentence in the report, and the others are reported."
)
def test_a_broken_table_is_a_sentence_and_the_others_are_reported(tmp_path: Path) -> None:
    for number, where in enumerate(("_delta_log/*.json", "day=*/*.parquet")):
        root = tmp_path / str(number)
        bursts(root, (42, 60))
        for name in ("latency", "cost"):
            write(root, name, {"day": FIRST.date()})
            for file in (root / name).glob(where):
                file.write_text("garbage")
        html, unreadable = render_page(root)
        reported = {name: " ".join(words.split()) for name, words in Parsed(html).sections.items()}
        assert [f"the table {name} in {root} cannot be read" for name in ("latency", "cost")] == sorted(
            (one.partition(":")[0] for one in unreadable), reverse=True
        )
        body = html[html.index("<h1>") :]
        assert 0 < body.index("2 tables cannot be read, so this page is not complete") < body.index("as observed by")
        assert f"The table latency in {root} cannot be read: " in reported["latency"]
        assert f"The table cost in {root} cannot be read: " in reported["cost"]
        assert "The peak was 1 B/s" in reported["traffic"]
        for file in (root / "traffic").glob(where):
            file.write_text("garbage")
        write(root, "completeness", {"day": FIRST.date()})
        assert f"The table traffic in {root} cannot be read: " in Parsed(render_page(root).html).sections["traffic"]


@pytest.mark.promise("queries.md", "`--since` and `--until` select the days of the report.")
def test_days_can_be_chosen(root: Path) -> None:
    first = FIRST.date()
    reported = Parsed(report(root, since=first, until=first)).sections
    assert "93.62\xa0EUR on these days" in reported["cost"]
    assert "Kafka 4 accepts every client of these days." not in reported["refused"]
    later = Parsed(report(root, since=first + timedelta(9), until=first + timedelta(9))).sections
    assert "There were no requests on these days." in later["traffic"]
    with pytest.raises(QueryError, match="the first day, 2026-09-22, is after the last one, 2026-09-21"):
        report(root, since=first + timedelta(1), until=first)


@pytest.mark.promise(
    "queries.md", "By default the report ends with the newest day up to tomorrow, whatever a clock has said."
)
def test_events_of_the_year_9999_are_not_the_newest(tmp_path: Path) -> None:
    bursts(tmp_path, (42, 60))
    far = datetime(9999, 12, 30, tzinfo=UTC)
    status = {"boot_id": "b", "started_at": far, "statuses": 1, "last_status": far, "ended": False}
    write(tmp_path, "traffic", {"day": far.date(), "minute": far, "api": "Produce", "requests": 1})
    write(tmp_path, "completeness", {"day": far.date(), "minute": far, **status})
    assert "<p>2026-09-21, as observed by the sidecars up to 2026-09-21 18:42 UTC." in report(tmp_path)


def test_tables_without_rows_are_refused_and_one_row_is_enough(tmp_path: Path) -> None:
    for name in TABLES:
        write(tmp_path, name)
    with pytest.raises(QueryError, match="have no rows"):
        report(tmp_path)
    write(tmp_path, "inventory", {"day": FIRST.date()})
    assert "No sidecar sent any event." in Parsed(report(tmp_path)).sections["completeness"]


def test_a_clock_that_is_ahead_by_thousands_of_years_makes_no_more_points(tmp_path: Path) -> None:
    bursts(tmp_path, (0, 60), (7_900 * 365 * 24 * 60, 60))
    values = chart(report(tmp_path, FIRST.date()), "traffic")["data"]["values"]
    assert len(values) <= 2 * (240 + 2)
    assert sum(value["rate"] for value in values) > 0


def test_what_xml_excludes_is_visible_in_a_chart(tmp_path: Path) -> None:
    """The renderer of charts ends the process on some of these."""
    row = {"day": FIRST.date(), "minute": FIRST, "api": "Produce", "topic": "t", "principal": "User:app"}
    names = ("nul\0", "escape\x1b[2J", "no character\uffff")
    write(tmp_path, "traffic", *({**row, "client_id": name, "bytes": 9 - at} for at, name in enumerate(names)))
    shown = dict.fromkeys(value["who"] for value in chart(report(tmp_path), "talkers")["data"]["values"])
    assert list(shown) == [name.encode("unicode_escape").decode() for name in names]


@pytest.mark.promise(
    "queries.md", "A percentage of fewer than 100 requests is grey in the report, and judges no objective."
)
def test_a_percentage_of_few_requests_is_grey_and_judges_nobody(tmp_path: Path) -> None:
    row = {"day": FIRST.date(), "slo": "s", "attainment": 0.9, "objective_ratio": 0.99}
    for name, total, left in (("few", 99, -9.0), ("enough", 100, 0.5)):
        write(tmp_path, "slo", {**row, "objective": name, "total": total, "period_error_budget_remaining_ratio": left})
    traffic = {"day": FIRST.date(), "minute": FIRST, "api": "Fetch"}
    write(tmp_path, "traffic", {**traffic, "requests": 40, "errors": 1})
    write(tmp_path, "latency", {**traffic, "requests": 8, "latencies": [0] * 10 + [8] + [0] * 29})
    text = report(tmp_path)
    reported = " ".join(Parsed(text).sections["objectives"].split())
    assert (
        "1 of 1 objective have error budget left. 1 objective had fewer than 100 requests: too few to judge."
        in reported
    )
    assert [value["left"] for value in chart(text, "objectives")["data"]["values"]] == [0.5]
    assert "8 Fetch requests are too few for a percentile." in Parsed(text).sections["latency"]
    drawn = [one for one in chart(text, "latency")["data"]["values"] if one["ms"] is not None]
    assert {one["percentile"] for one in drawn} == {"p50"}
    write(tmp_path, "latency", {**traffic, "requests": 92, "latencies": [0] * 10 + [92] + [0] * 29})
    assert all(one["ms"] is not None for one in chart(report(tmp_path), "latency")["data"]["values"])
    greys = re.findall(r'<span class="few" title="(.*?)">(.*?)</span>', text)
    assert ("of 99 requests", "90\xa0%") in greys
    assert all(title != "of 100 requests" for title, _ in greys)
    assert '<span class="few" title="of 40 requests">2.5\xa0%</span><small>1 of 40</small>' in text


@pytest.mark.promise(
    "queries.md", "Sections of the report with nothing to look at are folded into one line at the end."
)
def test_sections_without_anything_to_look_at_are_folded(root: Path, tmp_path: Path) -> None:
    assert "<details>" not in report(root)
    bursts(tmp_path, (42, 60))
    page = report(tmp_path)
    folded = page[page.index("<details>") : page.index("</details>")]
    assert "<summary>Nothing to look at: Response times, " in folded
    assert re.findall(r'<section id="(\w+)"', folded)[-2:] == ["throttles", "errors"]
    assert 'id="talkers"' not in folded


READY = """new Promise((done, failed) => {
  const until = Date.now() + 60000;
  (function look() {
    if (document.documentElement.classList.contains("ready")) done(true);
    else if (Date.now() > until) failed(new Error("not ready"));
    else setTimeout(look, 20);
  })();
})"""
MARKS = "[...document.querySelectorAll('.live svg')].map(svg => svg.querySelectorAll('.role-mark path').length)"
VISIBLE = "[...document.querySelectorAll('{}')].filter(each => each.getClientRects().length).length"
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.promise(
    "queries.md",
    "The report draws interactive charts in a browser, loads nothing, and shows values of clients as text.",
)
def test_a_browser_draws_every_chart_and_asks_for_nothing(shown: browser.Page, file: Path) -> None:
    shown.emulate()
    shown.open(file)
    assert shown.evaluate(READY)
    marks = shown.evaluate(MARKS)
    assert len(marks) == CHARTS
    assert all(marks)
    assert shown.evaluate(VISIBLE.format(".drawn")) == 0
    assert shown.requests == [file.as_uri()]
    assert shown.complaints == []
    assert shown.evaluate("typeof window.hacked") == "undefined"
    place = shown.evaluate("""(() => {
        const bars = [...document.querySelectorAll('#talkers .live .role-mark path')];
        const found = bars.find(bar => bar.getAttribute('aria-label').includes('hacked')
            && bar.getBoundingClientRect().width > 0.5);
        found.scrollIntoView({behavior: 'instant', block: 'center'});
        const box = found.getBoundingClientRect();
        return {x: box.x + box.width / 2, y: box.y + box.height / 2};
    })()""")
    deadline = time.monotonic() + 60
    while not (tip := shown.evaluate("document.getElementById('vg-tooltip-element')?.textContent")):
        assert time.monotonic() < deadline, "nothing is shown"
        shown.call("Input.dispatchMouseEvent", type="mouseMoved", **place)  # the first may come before the first frame
        time.sleep(0.05)
    assert "<img src=x" in tip
    assert "1,355,890" in tip
    assert shown.evaluate("document.querySelectorAll('#vg-tooltip-element img').length") == 0
    assert shown.evaluate("typeof window.hacked") == "undefined"
    for width in (1280, 390):
        shown.emulate(width=width)
        assert shown.evaluate(WIDER) == 0, width


@pytest.mark.slow
@pytest.mark.promise(
    "queries.md", "The policy of the report's page allows only its own script, and without it static charts are shown."
)
def test_the_page_allows_its_own_script_alone_and_is_whole_without_it(shown: browser.Page, file: Path) -> None:
    shown.emulate()
    shown.open(file)
    shown.evaluate("""new Promise(done => {
        document.addEventListener('securitypolicyviolation', () => setTimeout(done, 50));
        document.body.insertAdjacentHTML('beforeend', `<img src="data:," onerror="window.hacked = true">`);
    })""")
    assert shown.evaluate("typeof window.hacked") == "undefined"

    shown.emulate(scripts=False)
    shown.open(file)
    assert shown.evaluate(VISIBLE.format(".drawn svg")) == CHARTS
    assert shown.evaluate(VISIBLE.format(".live")) == 0
    shown.emulate()
    shown.open(file)
    assert shown.evaluate(READY)
    shown.emulate(media="print", scheme="dark")
    assert shown.evaluate(VISIBLE.format(".drawn svg")) == CHARTS
    assert shown.evaluate(VISIBLE.format(".live, nav, .hint")) == 0
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"

    paint = "getComputedStyle(document.querySelector('.drawn text, .live text')).fill"
    seen = []
    for scheme in ("light", "dark"):
        shown.emulate(scheme=scheme)
        shown.open(file)
        assert shown.evaluate(READY)
        seen.append((shown.evaluate("getComputedStyle(document.body).backgroundColor"), shown.evaluate(paint)))
    assert seen == [("rgb(255, 255, 255)", "rgb(86, 100, 116)"), ("rgb(15, 20, 26)", "rgb(159, 176, 192)")]


NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "tables.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def given(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: what its last expression gives is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None


@pytest.mark.promise("queries.md", "Every cell of the notebook of examples runs, and shows something.")
def test_every_cell_runs_and_shows_something(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERSIDE_TABLES", str(root))
    names: dict[str, Any] = {"__name__": "__main__"}
    setup, completeness, table, bars, lines = [given("".join(cell["source"]), names) for cell in cells()]
    assert setup is None
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells()), (
        "committed without outputs"
    )
    assert completeness["events"].sum() == 15_711
    produced = {"clicks", "east.orders", "east.payments", "exports", "orders", "payments", "reports", "telemetry"}
    assert {*table.columns} == produced
    assert len(table) == 2
    for chart, marks in ((bars, 2 * len(produced) - 1), (lines, 2 * 12)):  # exports are of the evening alone
        svg = chart._repr_mimebundle_()["image/svg+xml"]
        assert svg.count('aria-roledescription="bar"') + svg.count('aria-roledescription="point"') == marks
