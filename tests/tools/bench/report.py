"""Results as tables in Markdown, with the project's goals beside them; and as a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from statistics import median
from typing import Any, NamedTuple

import vl_convert

from tests.tools.bench.results import REFERENCE, Results, ratios_within, summary


class Figure(NamedTuple):
    """One column. ``ratio``: whether the ratio to the reference follows."""

    name: str
    title: str
    decimals: int = 0
    ratio: bool = True


class Section(NamedTuple):
    scenario: str
    title: str
    figures: tuple[Figure, ...]


def _alone(*figures: tuple[str, str, int]) -> tuple[Figure, ...]:
    return tuple(Figure(*figure, ratio=False) for figure in figures)


def _cpu(unit: str, title: str, decimals: int) -> tuple[Figure, ...]:
    """CPU for one of something, and the parts of it."""
    parts = _alone(*((f"{part}_{unit}", part, decimals) for part in ("user", "system")))
    return Figure(f"cpu_{unit}", f"CPU {title}", decimals), *parts


LATENCIES = (Figure("p50_us", "p50 µs"), Figure("p99_us", "p99 µs"), Figure("p999_us", "p99.9 µs"))
REQUESTS = (*_cpu("us", "µs/request", 1), Figure("per_s", "requests/s"))
BULK = (*_cpu("ms_mib", "ms/MiB", 3), Figure("mb_s", "MB/s"))
FOOTPRINT = _alone(
    ("start_ms", "start, ms", 0), ("rss_mib", "RSS MiB", 1), ("pss_mib", "PSS MiB", 1),
    ("idle_ms_s", "idle, CPU ms/s", 1),
)  # fmt: skip
IDLE = tuple(Figure(f"kib_{count}", f"KiB each of {count:,}", 1) for count in (1_000, 5_000, 9_500))
AUDIT = _alone(
    ("cpu_us", "CPU µs/event", 1), ("log_bytes_per_event", "bytes in the log", 1),
    ("events_per_request", "events/request", 3),
)  # fmt: skip
WORKERS = _alone(
    *((f"per_s_{count}", f"requests/s of {count}", 0) for count in (1, 2)),
    *((f"cpu_us_{count}", f"CPU µs/request of {count}", 1) for count in (1, 2)),
)
TLS = (
    Figure("request_cpu_us", "CPU µs/request", 1),
    *(Figure(f"{kind}_cpu_ms_mib", f"{kind}, CPU ms/MiB", 3) for kind in ("produce", "fetch")),
    *(Figure(f"{kind}_cpu_us", f"CPU µs/{kind} handshake") for kind in ("full", "resumed")),
)
STORM = (Figure("per_s", "connections/s"), *_cpu("us", "µs/connection", 0))
KAFKA = (Figure("produce_mb_s", "produce MB/s", 1), Figure("consume_mb_s", "consume MB/s", 1))

SECTIONS = (
    Section("small", "Small requests", REQUESTS),
    Section("small", "Small requests: latency of the closed loop", LATENCIES),
    Section("produce", "Bulk produce", BULK),
    Section("fetch", "Bulk fetch", BULK),
    Section("paced", "10,000 requests/s", LATENCIES),
    Section("paced", "10,000 requests/s: CPU", _cpu("us", "µs/request", 1)),
    Section("storm", "Storm", STORM),
    Section("footprint", "Footprint", FOOTPRINT),
    Section("idle", "Idle connections", IDLE),
    Section("audit", "The audit, per event", AUDIT),
    Section("workers", "Workers, small requests", WORKERS),
    Section("tls", "TLS that is terminated, TLS 1.3 with P-256", TLS),
    Section("kafka", "Real Kafka", KAFKA),
)


class Goal(NamedTuple):
    """A bound for the median of the ratios ``contestant`` / ``against`` of one figure, or for the figure itself."""

    text: str
    scenario: str
    figure: str
    contestant: str
    against: str | None
    bound: float
    at_least: bool = False


SAME = 1 - 0.05
"""Two throughputs of real Kafka that are the same differ by up to 5 %."""

GOALS = (
    Goal("CPU per small request, no observer", "small", "cpu_us", "brokerside", REFERENCE, 1.10),
    Goal("CPU per small request, audit on", "small", "cpu_us", "brokerside-audit", REFERENCE, 1.25),
    Goal("CPU per small request, audit on", "small", "cpu_us", "brokerside-audit", "kafka-proxy", 0.35),
    *(
        Goal(f"CPU per MiB, bulk {kind}, audit on", kind, "cpu_ms_mib", "brokerside-audit", against, bound)
        for kind in ("produce", "fetch")
        for against, bound in ((REFERENCE, 0.65), ("nginx", 0.65), ("kafka-proxy", 0.2))
    ),
    Goal("p50 at 10,000 requests/s, audit on", "paced", "p50_us", "brokerside-audit", REFERENCE, 1.1),
    Goal("p99 at 10,000 requests/s, audit on", "paced", "p99_us", "brokerside-audit", REFERENCE, 1.1),
    Goal("connections/s in a storm, audit on", "storm", "per_s", "brokerside-audit", REFERENCE, 0.6, at_least=True),
    Goal("connections/s in a storm, audit on", "storm", "per_s", "brokerside-audit", "kafka-proxy", 1.0, at_least=True),
    Goal("KiB per idle connection of 9,500, audit on", "idle", "kib_9500", "brokerside-audit", None, 5.0),
    *(
        Goal(f"CPU {what}, TLS terminated, no observer", "tls", figure, "brokerside", REFERENCE, bound)
        for what, figure, bound in (
            ("per small request", "request_cpu_us", 1.15),
            ("per MiB, produce", "produce_cpu_ms_mib", 1.15),
            ("per MiB, fetch", "fetch_cpu_ms_mib", 1.15),
            ("per full handshake", "full_cpu_us", 1.3),
            ("per resumed handshake", "resumed_cpu_us", 1.3),
        )
    ),
    *(
        Goal(f"MB/s, real Kafka, {way}, audit on", "kafka", f"{way}_mb_s", "brokerside-audit", REFERENCE, SAME, True)
        for way in ("produce", "consume")
    ),
)


def markdown(results: Results) -> str:
    """Everything for a page, from headings of the third level on."""
    return "\n".join(_document(results))


def _document(results: Results) -> Iterator[str]:
    machine = ", ".join(results.machine.values())
    yield f"{results.made}, {machine}; median of {results.rounds} rounds (least–greatest); × is the ratio to HAProxy's"
    yield "within each round, summed up in the same way. Where ranges overlap, a goal is not decided."
    if results.quick:
        yield "A quick run: it shows that everything works, and its figures mean nothing."
    tables = [(section.title, section_rows(results, section)) for section in SECTIONS]
    others = {one.scenario for one in results.measurements} - {section.scenario for section in SECTIONS}
    tables += [(scenario, figure_rows(results, scenario)) for scenario in sorted(others)]
    for title, rows in (*tables, ("Goals", goal_rows(results))):
        if len(rows) > 1:
            yield from ("", f"### {title}", "", *_pipes(rows))
    for title, reasons in (
        ("Versions", results.versions),
        ("Missing", results.missing),
        ("Failed", failures(results)),
    ):
        if reasons:
            yield from ("", f"### {title}", "")
            yield from (f"* {name}: {reason}" for name, reason in reasons.items())
    noisy = [one.foreign for one in results.measurements if one.foreign > NOISY]
    if noisy:
        yield ""
        yield (
            f"In {len(noisy)} of {len(results.measurements)} measurements others used more than {NOISY:.0%} of a CPU, "
            f"at most {max(noisy):.0%}."
        )


NOISY = 0.25
"""CPU of others, as a share of one CPU, from which a measurement is repeated once, and said to be noisy."""


def section_rows(results: Results, section: Section) -> list[list[str]]:
    figures = [
        figure
        for figure in section.figures
        if any(results.by_round(section.scenario, contestant, figure.name) for contestant in results.titles)
    ]
    header = [results.processor]
    for figure in figures:
        header += [figure.title, "×"] if figure.ratio else [figure.title]
    rows = [header]
    for contestant, title in results.titles.items():
        row = [title]
        for figure in figures:
            own = results.by_round(section.scenario, contestant, figure.name)
            row.append(_spread(own.values(), figure.decimals))
            if figure.ratio:
                reference = results.by_round(section.scenario, REFERENCE, figure.name)
                row.append(_spread(ratios_within(own, reference), 2))
        if any(cell != "–" for cell in row[1:]):
            rows.append(row)
    return rows


def figure_rows(results: Results, scenario: str) -> list[list[str]]:
    """Header, and one row for each figure of a scenario of one contestant, by its name: the last word is its unit."""
    found: dict[str, list[float]] = {}
    for one in results.measurements:
        for name, value in one.figures.items() if one.scenario == scenario else ():
            found.setdefault(name, []).append(value)
    return [[results.processor, "figure"], *([name, _spread(values, 2)] for name, values in found.items())]


def goal_rows(results: Results) -> list[list[str]]:
    """Header and one row for each goal that this run can say something about."""
    rows = [[f"goal, on {results.processor}", "figure", "bound", ""]]
    for goal in GOALS:
        own = results.by_round(goal.scenario, goal.contestant, goal.figure)
        unit = "" if goal.against is None else f" × {goal.against}"
        if goal.against is None:
            reference = dict.fromkeys(own, 1.0)
        else:
            reference = results.by_round(goal.scenario, goal.against, goal.figure)
        ratios = ratios_within(own, reference)
        bound = f"{'≥' if goal.at_least else '≤'} {goal.bound:.2f}{unit}"
        if ratios:
            said = verdict(goal, own.values(), reference.values(), ratios)
            rows.append([goal.text, f"{_spread(ratios, 2)}{unit}", bound, said])
        elif own:
            rows.append([goal.text, "–", bound, f"{goal.against} is missing"])
    return rows


REACHED, NOT_REACHED = "reached", "not reached"
OVERLAP, ONE_ROUND = "not decided (ranges overlap)", "not decided (one round)"


def verdict(goal: Goal, own: Collection[float], reference: Collection[float], ratios: Collection[float]) -> str:
    """What the rounds say about a goal.

    It is reached where the median of the ratios reaches it, and the range of the figures does not overlap that of the
    reference's × the bound: one that chance decides is not. A comparison within one round has no ranges.
    """
    worst, best = (min, max) if goal.at_least else (max, min)
    if worst(median(ratios), goal.bound) != goal.bound:
        return NOT_REACHED
    limit = best(reference) * goal.bound
    if worst(worst(own), limit) != limit:
        return OVERLAP
    return ONE_ROUND if goal.against is not None and len(ratios) == 1 else REACHED


def failures(results: Results) -> dict[str, str]:
    """The first error of each scenario and contestant that failed."""
    found: dict[str, str] = {}
    for one in results.measurements:
        if one.error:
            found.setdefault(f"{one.scenario} of {one.contestant}, round {one.round + 1}", one.error.splitlines()[0])
    return found


def _spread(values: Collection[float], decimals: int) -> str:
    found = summary(values)
    if found is None:
        return "–"
    middle, least, greatest = (f"{value:,.{decimals}f}" for value in (found.median, found.least, found.greatest))
    return middle if least == greatest else f"{middle} ({least}–{greatest})"


def _pipes(rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|---|{'---:|' * (len(rows[0]) - 1)}", *lines[1:]]


# ---- the picture -----------------------------------------------------------------------------------------------------

PANELS = (
    ("CPU µs per small request", "small", "cpu_us"),
    ("CPU ms per MiB, bulk produce", "produce", "cpu_ms_mib"),
    ("CPU ms per MiB, bulk fetch", "fetch", "cpu_ms_mib"),
    ("p99 µs at 10,000 requests/s", "paced", "p99_us"),
    ("Connections/s in a storm (more is better)", "storm", "per_s"),
    ("KiB per idle connection of 9,500", "idle", "kib_9500"),
)
"""Title, scenario, figure. Less is better, unless the title says otherwise."""


def svg(results: Results) -> str:
    """A panel for each figure that there is, with a bar for each contestant, and a line from least to greatest."""
    panels = [panel for title, *which in PANELS if (panel := _panel(results, title, *which))["data"]["values"]]
    return vl_convert.vegalite_to_svg({"background": "white", "concat": panels, "columns": 2})


def _panel(results: Results, title: str, scenario: str, figure: str) -> dict[str, Any]:
    values = []
    for name, who in results.titles.items():
        if found := summary(results.by_round(scenario, name, figure).values()):
            ours = name.startswith("brokerside")
            spread = {"median": found.median, "least": found.least, "greatest": found.greatest}
            values.append({"who": who, "colour": "#1f6feb" if ours else "#9aa4b2", **spread})
    y = {"field": "who", "type": "nominal", "sort": None, "title": None}
    colour = {"field": "colour", "type": "nominal", "scale": None}
    bars = {"x": {"field": "median", "type": "quantitative", "title": None}, "color": colour}
    ranges = {"x": {"field": "least", "type": "quantitative"}, "x2": {"field": "greatest"}}
    layers = [{"mark": "bar", "encoding": bars}, {"mark": "rule", "encoding": ranges}]
    return {"title": title, "width": 300, "data": {"values": values}, "encoding": {"y": y}, "layer": layers}
