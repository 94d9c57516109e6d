"""Results as a picture: one panel for each figure, one bar for each contestant, a line from least to greatest."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from tests.tools.bench.results import Results, Summary, summary


class Panel(NamedTuple):
    """One figure; less is better unless ``more``."""

    title: str
    scenario: str
    figure: str
    decimals: int = 0
    more: bool = False


PANELS = (
    Panel("CPU µs per small request", "small", "cpu_us", 1),
    Panel("CPU ms per MiB, bulk produce", "produce", "cpu_ms_mib", 2),
    Panel("CPU ms per MiB, bulk fetch", "fetch", "cpu_ms_mib", 2),
    Panel("p99 µs at 10,000 requests/s", "paced", "p99_us"),
    Panel("Connections/s in a storm", "storm", "per_s", more=True),
    Panel("KiB per idle connection of 9,500", "idle", "kib_9500", 1),
)
COLUMNS = 2
WIDTH, LABEL, VALUE, BAR, GAP = 460, 200, 60, 16, 6
HEAD, MARGIN = 34, 20
OURS, OTHERS, SPREAD = "#1f6feb", "#9aa4b2", "#24292f"
STYLE = "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}"


def svg(results: Results) -> str:
    """The whole picture; panels without a figure are left out."""
    drawn = [(panel, bars) for panel in PANELS if (bars := _bars(results, panel))]
    rows = [drawn[at : at + COLUMNS] for at in range(0, len(drawn), COLUMNS)]
    body: list[str] = []
    y = MARGIN
    for row in rows:
        for column, (panel, bars) in enumerate(row):
            body += _panel(panel, bars, MARGIN + column * (WIDTH + MARGIN), y)
        y += HEAD + max(len(bars) for _, bars in row) * (BAR + GAP) + MARGIN
    width = MARGIN + COLUMNS * (WIDTH + MARGIN)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}">'
    return "\n".join(
        [head, f"<style>{STYLE}</style>", f'<rect width="{width}" height="{y}" fill="#fff"/>', *body, "</svg>", ""]
    )


def _bars(results: Results, panel: Panel) -> list[tuple[str, bool, Summary]]:
    """Title, whether it is ours, and the figure, of every contestant that has one."""
    found = (
        (title, name.startswith("brokerside"), summary(results.by_round(panel.scenario, name, panel.figure).values()))
        for name, title in results.titles.items()
    )
    return [(title, ours, figure) for title, ours, figure in found if figure is not None]


def _panel(panel: Panel, bars: list[tuple[str, bool, Summary]], x: int, y: int) -> Iterator[str]:
    note = "more is better" if panel.more else "less is better"
    yield f'<text class="head" x="{x}" y="{y + 14}">{escape(panel.title)} ({note})</text>'
    greatest = max(figure.greatest for _, _, figure in bars) or 1.0
    scale = (WIDTH - LABEL - VALUE) / greatest
    left = x + LABEL
    for number, (title, ours, figure) in enumerate(bars):
        top = y + HEAD - 8 + number * (BAR + GAP)
        middle = top + BAR / 2
        yield f'<text x="{left - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(title)}</text>'
        yield (
            f'<rect x="{left}" y="{top}" width="{max(0.0, figure.median) * scale:.1f}" height="{BAR}" '
            f'fill="{OURS if ours else OTHERS}"/>'
        )
        ends = (left + max(0.0, end) * scale for end in (figure.least, figure.greatest))
        first, last = ends
        yield f'<path d="M{first:.1f} {middle:.1f}H{last:.1f}" stroke="{SPREAD}"/>'
        yield f'<text x="{last + 6:.1f}" y="{middle + 4:.1f}">{figure.median:,.{panel.decimals}f}</text>'
