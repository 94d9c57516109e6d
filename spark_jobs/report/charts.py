"""Charts as Vega-Lite has them. Colours are variables of the page's style, so light, dark and paper need no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[dict[str, Any]]
Spec = dict[str, Any]

WIDTH = 860
"""Pixels of a chart where no script can make it fit."""

_NARROW = "containerSize()[0] < 500"
"""Whether there is little room, as on a phone; where no script draws it there is enough."""

_CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, 'Segoe UI', 'Open Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": "var(--grid)",
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": {"expr": f"{_NARROW} ? 120 : 260"},
        "labelPadding": 6,
    },
    "legend": {
        "labelColor": "var(--soft)",
        "title": None,
        "orient": "top",
        "labelFontSize": 12,
        "symbolType": "circle",
        "labelLimit": 200,
        "columns": {"expr": f"{_NARROW} ? 1 : 0"},
    },
    "text": {"fill": "var(--ink)", "fontSize": 12},
    "range": {"category": [f"var(--c{number})" for number in range(1, 9)]},
}


@dataclass(frozen=True)
class Chart:
    """One chart: what it shows, in a sentence for who cannot see it, and how."""

    caption: str
    spec: Spec

    @property
    def zooms(self) -> bool:
        """Whether it can be moved and zoomed where scripts run."""
        return "params" in self.spec


def _made(caption: str, height: int, values: Values, **parts: Any) -> Chart:
    top = {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "description": caption, "height": height}
    return Chart(caption, {**top, "data": {"values": list(values)}, "config": _CONFIG, **parts})


_NUMBER = "abs(datum.value) < 1000 ? format(datum.value, ',~g') : format(datum.value, '~s')"
"""A number of an axis, each with a prefix of its own: 0, 0.5, 20, 1.5k, 2M. One for all makes 0M of 0."""

_AT: Spec = {
    "field": "at",
    "type": "temporal",
    "scale": {"type": "utc"},
    "axis": {
        "title": None,
        "grid": False,
        "labelOverlap": True,
        "labelFlush": True,
        "labelExpr": "utcseconds(datum.value) ? '' : "
        "utcFormat(datum.value, utchours(datum.value) + utcminutes(datum.value) ? '%H:%M' : '%d %b')",
    },
}
_WHEN: Spec = {"field": "at", "type": "temporal", "title": "UTC", "scale": {"type": "utc"}, "format": "%Y-%m-%d %H:%M"}
_ZOOM: Spec = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales",
               "zoom": "wheel![event.shiftKey]"}  # fmt: skip
"""Without the key the page could not be scrolled past a chart."""


def moved(values: Values, step: str) -> Chart:
    """Bytes over time: ``at``, ``direction``, ``rate`` in bytes/s, the mean of a ``step``."""
    return _made(
        f"Bytes per second that clients produced and consumed: the mean of each {step}.",
        260,
        values,
        params=[_ZOOM],
        mark={"type": "area", "line": {"strokeWidth": 1.8, "interpolate": "step-after"}, "fillOpacity": 0.07,
              "interpolate": "step-after", "clip": True},
        encoding={
            "x": _AT,
            "y": {"field": "rate", "type": "quantitative", "stack": None,
                  "axis": {"title": "bytes per second", "labelExpr": _NUMBER, "tickCount": 5}},
            "color": {"field": "direction", "type": "nominal", "scale": {"domain": ["produced", "consumed"]}},
            "tooltip": [_WHEN, {"field": "direction", "type": "nominal"},
                        {"field": "rate", "type": "quantitative", "format": ".3s", "title": "bytes/s"}],
        },
    )  # fmt: skip


def talkers(values: Values) -> Chart:
    """Bytes by client: ``who``, ``direction``, ``bytes``; ``order`` and ``place`` from 0, of clients and directions."""
    shown = list(dict.fromkeys(value["direction"] for value in values))
    count = len({value["who"] for value in values})
    return _made(
        f"Bytes of the largest clients: {', '.join(shown)}.",
        max(60, 30 * count),
        values,
        mark={"type": "bar", "cornerRadiusEnd": 2, "height": {"band": 0.62}},
        encoding={
            "y": {"field": "who", "type": "nominal", "sort": {"field": "order"}, "axis": {"title": None}},
            "x": {"field": "bytes", "type": "quantitative",
                  "axis": {"title": "bytes", "labelExpr": _NUMBER, "tickCount": 5}},
            "color": {"field": "direction", "type": "nominal", "scale": {"domain": shown}},
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [{"field": "who", "type": "nominal", "title": "client"},
                        {"field": "direction", "type": "nominal"},
                        {"field": "bytes", "type": "quantitative", "format": ",d"}],
        },
    )  # fmt: skip


def latencies(values: Values) -> Chart:
    """Percentiles over time: ``at``, ``api``, ``percentile``, ``ms``; at least one value."""
    ticks = _ticks([value["ms"] for value in values])
    return _made(
        "Half of the requests, and 99 of 100, took at most this long.",
        260,
        values,
        params=[_ZOOM],
        mark={"type": "line", "strokeWidth": 1.8, "interpolate": "step-after", "clip": True},
        encoding={
            "x": _AT,
            "y": {"field": "ms", "type": "quantitative", "scale": {"type": "log", "domain": [ticks[0], ticks[-1]]},
                  "axis": {"title": "milliseconds", "format": "~g", "values": ticks}},
            "color": {"field": "api", "type": "nominal"},
            "strokeDash": {"field": "percentile", "type": "nominal",
                           "scale": {"domain": ["p99", "p50"], "range": [[1, 0], [3, 3]]},
                           "legend": {"symbolType": "stroke"}},
            "tooltip": [_WHEN, {"field": "api", "type": "nominal"}, {"field": "percentile", "type": "nominal"},
                        {"field": "ms", "type": "quantitative", "format": ",.3~f"}],
        },
    )  # fmt: skip


def budgets(values: Values) -> Chart:
    """Error budgets: ``what``, ``left`` as a ratio; ``shown`` is that between -1 and 1, ``cut`` tells what is less."""
    axes: Spec = {
        "y": {"field": "what", "type": "nominal", "sort": None,
              "axis": {"title": None, "labelLimit": {"expr": f"{_NARROW} ? 120 : 360"}}},
        "x": {"field": "shown", "type": "quantitative", "scale": {"domain": [-1, 1], "clamp": True},
              "axis": {"title": "budget left", "format": "%", "tickCount": 5}},
    }  # fmt: skip
    bad, scarce = "datum.left < 0", "datum.left < 0.25"
    return _made(
        "Share of each objective's error budget that is left; below 0 it is overspent.",
        max(60, 32 * len(values)),
        values,
        encoding=axes,
        layer=[
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 2, "height": {"band": 0.55}},
                "encoding": {
                    "color": {
                        "condition": [{"test": bad, "value": "var(--bad)"}, {"test": scarce, "value": "var(--warn)"}],
                        "value": "var(--good)",
                    },
                    "tooltip": [
                        {"field": "what", "type": "nominal", "title": "objective"},
                        {"field": "left", "type": "quantitative", "format": ".1%", "title": "budget left"},
                    ],
                },
            },
            {
                "transform": [{"filter": "datum.cut"}],
                "mark": {"type": "text", "align": "left", "dx": 6, "fill": "var(--paper)", "fontWeight": 600},
                "encoding": {"text": {"field": "cut", "type": "nominal"}},
            },
        ],
    )


def costs(values: Values, teams: Sequence[str], currency: str) -> Chart:
    """Cost by day: ``day``, ``team`` one of ``teams``, ``cost``, ``order``."""
    return _made(
        f"Cost of each day by team, in {currency}.",
        240,
        values,
        mark={"type": "bar", "width": {"band": 0.7}},
        encoding={
            "x": {"field": "day", "type": "ordinal", "axis": {"title": None, "labelAngle": 0, "labelOverlap": True}},
            "y": {"field": "cost", "type": "quantitative",
                  "axis": {"title": currency, "format": ",~r", "tickCount": 5}},
            "color": {"field": "team", "type": "nominal", "scale": {"domain": list(teams)}},
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": [{"field": "day", "type": "ordinal"}, {"field": "team", "type": "nominal"},
                        {"field": "cost", "type": "quantitative", "format": ",.2f", "title": currency}],
        },
    )  # fmt: skip


def _ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2, 5, 10, … around all of ``values``, which are above 0."""
    ladder = [factor * 10.0**power for power in range(-2, 6) for factor in (1, 2, 5)]
    first = max((place for place, end in enumerate(ladder) if end <= min(values)), default=0)
    last = min((place for place, end in enumerate(ladder) if end >= max(values)), default=len(ladder) - 1)
    return ladder[first : max(last, first + 1) + 1]
