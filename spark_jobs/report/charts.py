"""Charts as Vega-Lite specifications. Colours are CSS variables, so one chart serves light, dark and print styles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[dict[str, Any]]
Spec = dict[str, Any]

CHART_WIDTH = 860
"""Width in pixels of a chart that is drawn without a script."""

_NARROW = "containerSize()[0] < 500"
"""Vega expression: the chart is narrow, as on a phone. Only charts drawn by the script can be."""

SEPARATOR = " · "
"""Between the parts of a label."""

LABEL_LINE = 13
"""Pixels of a line of a label."""

_CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, 'Segoe UI', 'Open Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {"domain": False, "ticks": False, "gridColor": "var(--grid)", "labelColor": "var(--soft)",
             "titleColor": "var(--soft)", "titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12,
             "labelLimit": {"expr": f"{_NARROW} ? 120 : 260"}, "labelPadding": 6},
    "legend": {"labelColor": "var(--soft)", "title": None, "orient": "top", "labelFontSize": 12, "symbolType": "circle",
               "labelLimit": 200, "columns": {"expr": f"{_NARROW} ? 1 : 0"}},
    "text": {"fill": "var(--ink)", "fontSize": 12},
    "range": {"category": [f"var(--c{number})" for number in range(1, 9)]},
}  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """One chart. ``caption``: a sentence that describes it, also for screen readers."""

    caption: str
    spec: Spec


def _chart(caption: str, height: int, values: Values, **parts: Any) -> Chart:
    top = {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "description": caption, "height": height}
    return Chart(caption, {**top, "data": {"values": list(values)}, "config": _CONFIG, **parts})


_AXIS_NUMBER = "abs(datum.value) < 1000 ? format(datum.value, ',~g') : format(datum.value, '~s')"
"""Label expression of an axis. Each number has its own prefix: 0, 0.5, 20, 1.5k, 2M."""

_TIME: Spec = {"field": "at", "type": "temporal", "scale": {"type": "utc"}}
_TIME_AXIS: Spec = _TIME | {
    "axis": {"title": None, "grid": False, "labelOverlap": True, "labelFlush": True,
             "labelExpr": "utcseconds(datum.value) ? '' : utcFormat(datum.value, utchours(datum.value)"
             " + utcminutes(datum.value) ? '%H:%M' : '%d %b')"},
}  # fmt: skip
_TIME_TOOLTIP: Spec = _TIME | {"title": "UTC", "format": "%Y-%m-%d %H:%M"}
_ZOOM: Spec = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales",
               "zoom": "wheel![event.shiftKey]"}  # fmt: skip
"""Zooming needs Shift, so that the page can be scrolled past a chart."""


def throughput_chart(values: Values, step: str) -> Chart:
    """Return bytes over time. ``values``: ``at``, ``direction``, ``rate`` in bytes/s, the mean of each ``step``."""
    return _chart(
        f"Bytes per second that clients produced and consumed: the mean of each {step}.",
        260,
        values,
        params=[_ZOOM],
        mark={"type": "area", "line": {"strokeWidth": 1.8, "interpolate": "step-after"}, "fillOpacity": 0.07,
              "interpolate": "step-after", "clip": True},
        encoding={
            "x": _TIME_AXIS,
            "y": {"field": "rate", "type": "quantitative", "stack": None,
                  "axis": {"title": "bytes per second", "labelExpr": _AXIS_NUMBER, "tickCount": 5}},
            "color": {"field": "direction", "type": "nominal", "scale": {"domain": ["produced", "consumed"]}},
            "tooltip": [_TIME_TOOLTIP, {"field": "direction", "type": "nominal"},
                        {"field": "rate", "type": "quantitative", "format": ".3s", "title": "bytes/s"}],
        },
    )  # fmt: skip


def talkers_chart(values: Values) -> Chart:
    """Return bytes by client.

    ``values``: ``who``, ``direction``, ``bytes``; ``order`` of clients, ``place`` of directions.
    """
    shown = list(dict.fromkeys(value["direction"] for value in values))
    count = len({value["who"] for value in values})
    return _chart(
        f"Bytes of the largest clients: {', '.join(shown)}.",
        max(60, 34 * count),
        values,
        mark={"type": "bar", "cornerRadiusEnd": 2, "height": {"band": 0.62}},
        encoding={
            "y": {"field": "who", "type": "nominal", "sort": {"field": "order"},
                  "axis": {"title": None, **_label_lines(values, "who")}},
            "x": {"field": "bytes", "type": "quantitative",
                  "axis": {"title": "bytes", "labelExpr": _AXIS_NUMBER, "tickCount": 5}},
            "color": {"field": "direction", "type": "nominal", "scale": {"domain": shown}},
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [{"field": "who", "type": "nominal", "title": "client"},
                        {"field": "direction", "type": "nominal"},
                        {"field": "bytes", "type": "quantitative", "format": ",d"}],
        },
    )  # fmt: skip


def latency_chart(values: Values) -> Chart:
    """Return percentiles over time. ``values``: ``at``, ``api``, ``percentile``, ``ms``, which one of them has."""
    ticks = _log_ticks([value["ms"] for value in values if value["ms"] is not None])
    return _chart(
        "Half of the requests, and 99 of 100 where there were 100 or more, took at most this long.",
        260,
        values,
        params=[_ZOOM],
        mark={"type": "line", "strokeWidth": 1.8, "interpolate": "step-after", "clip": True},
        encoding={
            "x": _TIME_AXIS,
            "y": {"field": "ms", "type": "quantitative", "scale": {"type": "log", "domain": [ticks[0], ticks[-1]]},
                  "axis": {"title": "milliseconds", "format": "~g", "values": ticks}},
            "color": {"field": "api", "type": "nominal"},
            "strokeDash": {"field": "percentile", "type": "nominal",
                           "scale": {"domain": ["p99", "p50"], "range": [[1, 0], [3, 3]]},
                           "legend": {"symbolType": "stroke"}},
            "tooltip": [_TIME_TOOLTIP, {"field": "api", "type": "nominal"}, {"field": "percentile", "type": "nominal"},
                        {"field": "ms", "type": "quantitative", "format": ",.3~f"}],
        },
    )  # fmt: skip


def budget_chart(values: Values) -> Chart:
    """Return error budgets.

    ``values``: ``what``, ``left`` (ratio), ``shown`` (clamped to -1..1), ``cut`` (label below -1), ``requests``.
    """
    limit = {"expr": f"{_NARROW} ? 120 : 360"}
    axes: Spec = {
        "y": {"field": "what", "type": "nominal", "sort": None,
              "axis": {"title": None, "labelLimit": limit, **_label_lines(values, "what")}},
        "x": {"field": "shown", "type": "quantitative", "scale": {"domain": [-1, 1], "clamp": True},
              "axis": {"title": "budget left", "format": "%", "tickCount": 5}},
    }  # fmt: skip
    colors = {"datum.left < 0": "var(--bad)", "datum.left < 0.25": "var(--warn)"}
    bar: Spec = {
        "mark": {"type": "bar", "cornerRadiusEnd": 2, "height": {"band": 0.55}},
        "encoding": {
            "color": {"condition": [{"test": test, "value": color} for test, color in colors.items()],
                      "value": "var(--good)"},
            "tooltip": [{"field": "what", "type": "nominal", "title": "objective"},
                        {"field": "left", "type": "quantitative", "format": ".1%", "title": "budget left"},
                        {"field": "requests", "type": "quantitative", "format": ",d", "title": "requests"}],
        },
    }  # fmt: skip
    cut: Spec = {
        "transform": [{"filter": "datum.cut"}],
        "mark": {"type": "text", "align": "left", "dx": 6, "fill": "var(--paper)", "fontWeight": 600},
        "encoding": {"text": {"field": "cut", "type": "nominal"}},
    }
    return _chart(
        "Share of each objective's error budget that is left; below 0 it is overspent.",
        max(60, max(36, LABEL_LINE * _most_lines(values, "what") + 6) * len(values)),
        values,
        encoding=axes,
        layer=[bar, cut],
    )


def cost_chart(values: Values, teams: Sequence[str], currency: str) -> Chart:
    """Return cost by day. ``values``: ``day``, ``team`` (one of ``teams``), ``cost``, ``order``."""
    return _chart(
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


def _label_lines(values: Values, name: str) -> Spec:
    """Return settings of an axis: on a phone each part of a label has a line of its own, and is cut alone."""
    lines = _most_lines(values, name)
    return {
        "labelExpr": f"{_NARROW} ? split(datum.label, '{SEPARATOR}') : datum.label",
        "labelLineHeight": LABEL_LINE,
        # The first line stands where the only one would.
        "labelOffset": {"expr": f"{_NARROW} ? {-(lines - 1) * LABEL_LINE / 2:g} : 0"},
    }


def _most_lines(values: Values, name: str) -> int:
    return max((value[name].count(SEPARATOR) + 1 for value in values), default=1)


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return the ticks 1, 2, 5, 10, … that enclose all of ``values``, which are greater than 0."""
    ladder = [factor * 10.0**power for power in range(-2, 6) for factor in (1, 2, 5)]
    first = max((place for place, end in enumerate(ladder) if end <= min(values)), default=0)
    last = min((place for place, end in enumerate(ladder) if end >= max(values)), default=len(ladder) - 1)
    return ladder[first : max(last, first + 1) + 1]
