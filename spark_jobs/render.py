"""Rows as people or programs like to read them: an aligned table, JSON, or CSV."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_jobs.errors import JobError

FORMATS = ("table", "json", "csv")

WIDE = 100_000
"""Columns of a table that goes to a file or a pipe: nothing is cut."""


def rows(columns: Sequence[str], values: Sequence[Sequence[Any]], form: str) -> str:
    """Return the text of ``values`` under ``columns``, in one of ``FORMATS``. Raises JobError for another one."""
    if form == "table":
        return _table(columns, values)
    if form == "json":
        return json.dumps(
            [dict(zip(columns, map(_plain, row), strict=True)) for row in values], ensure_ascii=False, indent=1
        )
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([["" if value is None else _plain(value) for value in row] for row in values])
        return out.getvalue().rstrip("\n")
    raise JobError(f"there is no output format {form}; there are: {', '.join(FORMATS)}")


def _table(columns: Sequence[str], values: Sequence[Sequence[Any]]) -> str:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float | Decimal) for row in values)
        table.add_column(Text(_visible(name)), justify="right" if numeric else "left", overflow="fold")
    for row in values:
        table.add_row(*(_cell(value) for value in row))
    return printed(table)


def printed(*parts: Any) -> str:
    """Return what rich makes of ``parts``: as wide as the terminal; uncut and without colours where there is none."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else WIDE
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int | Decimal):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.6g}")
    return Text(_visible(_short(value) if isinstance(value, datetime) else str(_plain(value))))


def _short(instant: datetime) -> str:
    """Return an instant without its time zone, which is always UTC, nor seconds where there are none."""
    fine = bool(instant.second or instant.microsecond)
    return instant.replace(tzinfo=None).isoformat(" ", "auto" if fine else "minutes")


def _visible(text: str) -> str:
    """Return ``text`` with control characters spelt out: a client chooses its id, and a terminal obeys them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: instants in ISO 8601, what has no JSON type as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
