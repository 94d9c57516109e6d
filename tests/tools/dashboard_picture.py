"""Draws a dashboard into ``docs/images/dashboard.png``: ``python -m tests.tools.dashboard_picture``.

A sidecar and a Prometheus run for two minutes under the load of the dashboards' test. The panels' own queries are then
drawn by a page in a headless browser, since Grafana is not there.
"""

from __future__ import annotations

import html
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proxy.local import cluster
from tests.deploy.observed import ROOT, panels, resolved, sidecar_under_load
from tests.deploy.prometheus import Prometheus, scraping
from tests.report.browser import page

TARGET = ROOT / "docs" / "images" / "dashboard.png"
SHOWN, SECONDS = "overview", 120
WIDTH, HEIGHT = 380, 110
COLOURS = (
    "#3274d9",
    "#56a64b",
    "#e02f44",
    "#ff9830",
    "#8f3bb8",
    "#00838f",
    "#a16a00",
    "#c2185b",
    "#607d8b",
    "#827717",
    "#000",
    "#aa8",
    "#7a4",
)
UNITS = {"s": "s", "bytes": "B", "Bps": "B/s", "reqps": "/s", "cps": "/s", "eps": "/s", "short": ""}
PREFIXES = {1e9: "G", 1e6: "M", 1e3: "k", 1: "", 1e-3: "m", 1e-6: "µ"}

STYLE = """
body { margin: 0; padding: 12px; width: 1240px; font: 12px sans-serif; background: #f4f5f5; color: #24292e;
  display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px; align-items: start }
section { background: #fff; border: 1px solid #d8d9da; padding: 6px 8px; min-height: 176px }
h2 { font-size: 13px; margin: 0 0 2px } svg { display: block } span { margin-right: 9px; white-space: nowrap }
p { margin: 2px 0 0; line-height: 1.3 }
"""


def number(value: float, unit: str) -> str:
    """Return a value with three digits and its unit."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    powers = (1, 1e-3, 1e-6) if unit == "s" else (1e9, 1e6, 1e3, 1)
    power = next((one for one in powers if value >= one), powers[-1])
    return f"{value / power:.3g} {PREFIXES[power]}{UNITS[unit]}".strip()


def legend(series: dict[str, Any], text: str) -> str:
    """Return what Grafana makes of ``{{label}}``."""
    for name, value in series["metric"].items():
        text = text.replace("{{" + name + "}}", str(value))
    return text


def drawn(panel: dict[str, Any], prometheus: Prometheus) -> str:
    """Return a panel as HTML."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines = []
    for target in panel["targets"]:
        for series in prometheus.history(resolved(target["expr"]), SECONDS):
            points = [(float(at), float(value)) for at, value in series["values"]]
            lines.append((legend(series, target["legendFormat"]), [one for one in points if math.isfinite(one[1])]))
    values = [value for _, points in lines for _, value in points]
    times = [at for _, points in lines for at, _ in points]
    assert values, panel["title"]
    top, end = max(values) * 1.1 or 1, max(times)
    paths, names = [], []
    for index, (name, points) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(
            f"{WIDTH * (1 - (end - at) / SECONDS):.1f},{HEIGHT * (1 - value / top):.1f}" for at, value in points
        )
        paths.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        names.append(f'<span style="color: {colour}">■ {html.escape(name)}</span>')
    return (
        f"<section><h2>{html.escape(panel['title'])}</h2>"
        f'<svg width="{WIDTH}" height="{HEIGHT}"><path d="M0 0H{WIDTH}M0 {HEIGHT}H{WIDTH}" stroke="#ccc"/>'
        f'{"".join(paths)}<text x="2" y="12" fill="#666">{number(top, unit)}</text></svg>'
        f"<p>{' '.join(names)}</p></section>"
    )


def main() -> int:
    """Run everything, and write the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = cluster.up(folder / "cluster", progress=False)
        try:
            targets = {"brokerside": state.nodes[0].admin}
            with sidecar_under_load(state, folder / "observed"), scraping(folder / "scraped", targets) as prometheus:
                time.sleep(SECONDS)
                sections = "".join(drawn(panel, prometheus) for panel in panels(SHOWN))
        finally:
            cluster.down(folder / "cluster")
        content = folder / "page.html"
        content.write_text(f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{sections}')
        with page() as shown:
            shown.emulate(width=1264)
            shown.open(content)
            TARGET.write_bytes(shown.screenshot())
    print(TARGET.relative_to(ROOT), TARGET.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
