"""Rows as people or programs like to read them: an aligned table, JSON, or CSV."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TextIO

import msgspec
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
        described = [dict(zip(columns, map(_in_json, row), strict=True)) for row in values]
        return msgspec.json.format(_JSON.encode(described), indent=1).decode()
    if form == "csv":
        out = io.StringIO(newline="")
        writer = csv_lines(out)
        writer.writerow([in_a_sheet(name) for name in columns])
        writer.writerows([[_in_csv(value) for value in row] for row in values])
        return out.getvalue().rstrip("\n")
    raise JobError(f"there is no output format {form}; there are: {', '.join(FORMATS)}")


def _table(columns: Sequence[str], values: Sequence[Sequence[Any]]) -> str:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = any(isinstance(row[index], int | float | Decimal) for row in values)
        table.add_column(Text(visible(name)), justify="right" if numeric else "left", overflow="fold")
    for row in values:
        table.add_row(*(_cell(name, value) for name, value in zip(columns, row, strict=True)))
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


@dataclass(frozen=True)
class _Lines:
    out: TextIO

    def write(self, line: str) -> int:
        return self.out.write(line.removesuffix("\r\n") + "\n")


def csv_lines(out: TextIO) -> Any:
    """Return a ``csv.writer`` whose lines end with ``\\n``; ``\\r`` is quoted: others see a line's end in it."""
    return csv.writer(_Lines(out), lineterminator="\r\n")  # it quotes what its lines end with


def in_a_sheet(text: str) -> str:
    """Return ``text`` so that no spreadsheet takes it for a formula: a client chooses its id, and people open files."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, Decimal):
        return Text(amount(value) if re.search(r"cost\)?$", name, re.IGNORECASE) else _number(value))
    if isinstance(value, float):
        return Text(f"{value:,.6g}")
    if isinstance(value, datetime):
        return Text(_short(value))
    if isinstance(value, list | tuple):
        return Text(visible(", ".join(str(item) for item in value)))
    return Text(visible(str(value)))


def _short(instant: datetime) -> str:
    """Return an instant without its time zone, which is always UTC, nor seconds where there are none."""
    fine = bool(instant.second or instant.microsecond)
    return instant.replace(tzinfo=None).isoformat(" ", "auto" if fine else "minutes")


def visible(text: str) -> str:
    """Return ``text`` with control characters spelt out: a client chooses its id, and a terminal obeys them."""
    return "".join(c if c.isprintable() or c == "\xa0" else c.encode("unicode_escape").decode() for c in text)


def _in_csv(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, Decimal):
        return trimmed(f"{value:f}")
    return in_a_sheet(value if isinstance(value, str) else _JSON.encode(value).decode().strip('"'))


def trimmed(number: str) -> str:
    """Return a number without zeros at the end of its fraction."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _number(value: Decimal) -> str:
    """Return ``value`` with all its digits, and two after the point where these are enough."""
    whole, _, fraction = trimmed(f"{value:,f}").partition(".")
    return f"{whole}.{fraction:0<2}" if fraction else whole


def amount(value: Decimal) -> str:
    """Return money to the cent; what is less than half a cent with two digits."""
    return f"{value:,.2f}" if not value or abs(value) > Decimal("0.005") else f"{Decimal(f'{value:.1e}'):f}"


_JSON = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
"""Money keeps its digits; instants are in ISO 8601."""


def _in_json(value: Any) -> Any:
    """Return ``value`` so that a number of any size can be encoded."""
    return Decimal(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value
