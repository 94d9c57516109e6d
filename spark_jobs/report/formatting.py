"""Formats numbers, sizes and texts for the report. ``cell`` and ``escape`` escape values that clients can choose."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from spark_jobs.render import escape_control_characters, format_money
from spark_jobs.schemas.slo import FEW

_NO_BREAK_SPACE = "\xa0"
"""Separates a number from its unit without a line break."""
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def escape(value: object) -> str:
    """Return ``value`` as HTML text, with escaped markup and visible control characters."""
    return html.escape(escape_control_characters(str(value)), quote=True)


def escape_with_code(value: str) -> str:
    """Return ``value`` as ``escape`` does, with text between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(value))


def number(value: float) -> str:
    """Return a number with thousands separators and at most three significant digits after the point."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.3g}"
    return f"{int(value):,}"


def size(value: float) -> str:
    """Return a number of bytes in a decimal unit such as kB or MB."""
    for unit in _BYTE_UNITS[:-1]:
        if abs(value) < 1000:
            whole = unit == "B" and (value == int(value) or abs(value) >= 1)
            return f"{value:.0f}{_NO_BREAK_SPACE}B" if whole else f"{value:.3g}{_NO_BREAK_SPACE}{unit}"
        value /= 1000
    return f"{value:,.3g}{_NO_BREAK_SPACE}{_BYTE_UNITS[-1]}"


def percent(value: float, digits: int = 2) -> str:
    """Return a ratio in percent. A ratio below 1 is never rounded to 100 %."""
    shown = f"{value * 100:.{digits}f}"
    while value < 1 and float(shown) >= 100 and digits < 9:
        digits += 1
        shown = f"{value * 100:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown}{_NO_BREAK_SPACE}%"


def are_few(requests: int | None) -> bool:
    """Return whether a percentage of so many requests says little. None: their number is not known."""
    return requests is not None and 0 < requests < FEW


def percent_of(value: float, requests: int) -> str:
    """Return the HTML of a ratio of so many requests in percent; grey for few."""
    shown = percent(value, 3)
    return f'<span class="few" title="of {count(requests, "request")}">{shown}</span>' if are_few(requests) else shown


def money(value: Decimal, currency: str) -> str:
    """Return an amount with its currency."""
    return f"{format_money(value)}{_NO_BREAK_SPACE}{currency}"


def minute(value: datetime) -> str:
    """Return a time with minutes."""
    return value.strftime("%Y-%m-%d %H:%M")


def interval(seconds: int) -> str:
    """Return an interval as text that follows "each": ``minute``, ``10 minutes``, ``day``."""
    unit, length = next(one for one in (("day", 86_400), ("hour", 3600), ("minute", 60)) if seconds % one[1] == 0)
    return unit if seconds == length else f"{seconds // length} {unit}s"


def count(number_of: int, one: str, many: str = "") -> str:
    """Return ``3 topics``, ``1 topic``, ``no topics``."""
    many = many or f"{one}s"
    return f"1 {one}" if number_of == 1 else f"{number_of:,} {many}" if number_of else f"no {many}"


def heading(column: str) -> str:
    """Return the heading of a column."""
    column = {"total": "requests"}.get(column, column)
    name = column.removesuffix("_bytes") if column.endswith("d_bytes") else column
    for suffix, unit in (("_ms", " (ms)"), ("_seconds", " (s)")):
        if name.endswith(suffix):
            name = name.removesuffix(suffix) + unit
    return name.replace("_", " ")


def cell(column: str, row: Mapping[str, Any]) -> str:
    """Return the HTML of one table cell, escaped. A percentage of few requests is grey."""
    value = row[column]
    if value is None or value == [] or value == "":
        return '<span class="none">–</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f'<span class="when">{minute(value)}</span>'
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return ", ".join(map(str, value))
        return "<br>".join(f'<span class="t">{escape(item)}</span>' for item in value)
    if isinstance(value, Decimal):
        return format_money(value)
    if isinstance(value, int | float):
        if column.endswith("_bytes"):
            return f'<span title="{value:,} bytes">{size(value)}</span>'
        if column in RATIO_COLUMNS:
            base = row.get(RATIO_COLUMNS[column])
            return percent(value, 3) if base is None else percent_of(value, base)
        return f"≤{_NO_BREAK_SPACE}{number(value)}" if re.search(r"p\d+_ms$", column) else number(value)
    return f'<span class="t">{escape(value)}</span>'


RATIO_COLUMNS = {
    "complete": "events",
    "share": "",
    "error_ratio": "requests",
    "attainment": "total",
    "target": "",
    "budget_left": "total",
    "coverage": "",
}
"""Columns of saved queries whose values are shown in percent, and the column that says of how many; empty for none."""
