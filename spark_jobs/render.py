"""Renders rows as an aligned table, as JSON, YAML, or CSV."""

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
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_jobs.errors import JobError

OUTPUT_FORMATS = ("table", "json", "yaml", "csv")

MIN_TEXT_WIDTH = 12
"""Characters that a column of text keeps at least in a narrow terminal. Its values are folded, numbers never are."""

COLUMN_GAP = 2
"""Spaces between two columns of a table: what rich's padding makes."""

UNCUT_WIDTH = 100_000
"""Width in characters of a table that is written to a file or a pipe, so that no cell is cut."""


def render_rows(columns: Sequence[str], values: Sequence[Sequence[Any]], form: str) -> str:
    """Return ``values`` as text in the format ``form``, one of ``OUTPUT_FORMATS``. Raises JobError for others."""
    if form == "table":
        return _render_table(columns, values)
    if form == "json":
        described = [dict(zip(columns, map(_json_value, row), strict=True)) for row in values]
        return msgspec.json.format(_JSON.encode(described), indent=1).decode()
    if form == "yaml":
        described = [dict(zip(columns, row, strict=True)) for row in values]
        items = msgspec.to_builtins(described, builtin_types=(Decimal,), enc_hook=str)  # timestamps are text
        return yaml.dump(items, Dumper=_YamlDumper, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")
    if form == "csv":
        out = io.StringIO(newline="")
        writer = csv_writer(out)
        writer.writerow(map(_csv_value, columns))
        writer.writerows([[_csv_value(value) for value in row] for row in values])
        return out.getvalue().rstrip("\n")
    raise JobError(f"there is no output format {form}; there are: {', '.join(OUTPUT_FORMATS)}")


def _render_table(columns: Sequence[str], values: Sequence[Sequence[Any]]) -> str:
    """Return rows below a header. In a terminal that is too narrow for that, each row is a list of its columns."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else UNCUT_WIDTH
    names = [Text(escape_control_characters(name)) for name in columns]
    rows = [[_cell(name, value) for name, value in zip(columns, row, strict=True)] for row in values]
    folds = [all(_is_foldable(row[index]) for row in values) for index in range(len(columns))]
    natural = [_width_of(each) for each in zip(names, *rows, strict=True)]
    if sum(natural) + COLUMN_GAP * (len(columns) - 1) > width:
        columns_of_cells = list(zip(*rows, strict=True)) or [()] * len(names)
        names = [
            name if fold else _folded_name(name, _width_of(cells))
            for name, fold, cells in zip(names, folds, columns_of_cells, strict=True)
        ]
        least = [
            min(_width_of(each), MIN_TEXT_WIDTH) if fold else _width_of(each)
            for fold, each in zip(folds, zip(names, *rows, strict=True), strict=True)
        ]
        if sum(least) + COLUMN_GAP * (len(columns) - 1) > width:
            return _render_records(columns, rows, width, terminal)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, (name, fold) in enumerate(zip(names, folds, strict=True)):
        numeric = any(isinstance(row[index], int | float | Decimal) for row in values)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=not fold)
    for row in rows:
        table.add_row(*row)
    return _print(table, width, terminal) + ("" if rows else "\n(no rows)")


def _render_records(columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int, terminal: bool) -> str:
    """Return each row as lines of column and value, as psql does with ``\\x``."""
    longest = max(map(len, columns))
    parts = []
    for number, row in enumerate(rows, 1):
        head = f"-[ {number} ]"
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=longest)
        table.add_column(overflow="fold")
        for name, value in zip(columns, row, strict=True):
            table.add_row(Text(escape_control_characters(name), style="bold"), value)
        parts.append(f"{head}{'-' * (min(width, 40) - len(head))}\n{_print(table, width, terminal)}")
    return "\n".join(parts)


def _print(table: Table, width: int, terminal: bool) -> str:
    """Return ``table`` as rich prints it, without colours where there is no terminal."""
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def _is_foldable(value: Any) -> bool:
    """Whether a value may be folded over several lines: text and lists; a number or a time must be read in one."""
    return value is None or isinstance(value, str | list | tuple)


def _width_of(cells: Sequence[Text]) -> int:
    return max((line.cell_len for cell in cells for line in cell.split()), default=0)


def _folded_name(name: Text, width: int) -> Text:
    """Return the name of a column with line ends behind some ``_``, so that it is not much wider than its numbers."""
    lines = [""]
    for part in re.findall(r"[^_]*_?", name.plain):
        if lines[-1] and len(lines[-1]) + len(part) > max(width, MIN_TEXT_WIDTH // 2):
            lines.append("")
        lines[-1] += part
    return Text("\n".join(lines))


@dataclass(frozen=True)
class _LineFeedOutput:
    out: TextIO

    def write(self, line: str) -> int:
        return self.out.write(line.removesuffix("\r\n") + "\n")


def csv_writer(out: TextIO) -> Any:
    """Return a ``csv.writer`` with line ends ``\\n``. It quotes ``\\r``, which other programs read as a line end."""
    # The writer quotes the characters of its line terminator.
    return csv.writer(_LineFeedOutput(out), lineterminator="\r\n")


def escape_formula(text: str) -> str:
    """Return ``text`` so that no spreadsheet evaluates it as a formula. Client ids are chosen by clients."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, Decimal):
        return Text(format_money(value) if re.search(r"cost\)?$", name, re.IGNORECASE) else _format_decimal(value))
    if isinstance(value, float):
        return Text(f"{value:,.6g}")
    if isinstance(value, datetime):
        return Text(_format_instant(value))
    if isinstance(value, list | tuple):
        return Text(escape_control_characters(", ".join(str(item) for item in value)))
    return Text(escape_control_characters(str(value)))


def _format_instant(instant: datetime) -> str:
    """Return a timestamp without its time zone, which is always UTC, and without seconds if they are zero."""
    return instant.replace(tzinfo=None).isoformat(" ", "auto" if instant.second or instant.microsecond else "minutes")


def escape_control_characters(text: str) -> str:
    """Return ``text`` with escaped control characters. Client ids are chosen by clients and may control a terminal."""
    return "".join(c if c.isprintable() or c == "\xa0" else c.encode("unicode_escape").decode() for c in text)


def _csv_value(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, Decimal):
        return strip_trailing_zeros(f"{value:f}")
    text = escape_formula(value if isinstance(value, str) else _JSON.encode(value).decode().strip('"'))
    return escape_control_characters(text) if sys.stdout.isatty() else text


def strip_trailing_zeros(number: str) -> str:
    """Return a decimal number without trailing zeros in its fraction."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _format_decimal(value: Decimal) -> str:
    """Return ``value`` with all its digits, and at least two after the point if it has a fraction."""
    whole, _, fraction = strip_trailing_zeros(f"{value:,f}").partition(".")
    return f"{whole}.{fraction:0<2}" if fraction else whole


def format_money(value: Decimal) -> str:
    """Return an amount of money rounded to the cent. Less than half a cent is shown with two significant digits."""
    return f"{value:,.2f}" if not value or abs(value) > Decimal("0.005") else f"{Decimal(f'{value:.1e}'):f}"


_JSON = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
"""Encodes decimals with all their digits, and timestamps in ISO 8601."""


def _json_value(value: Any) -> Any:
    """Return ``value`` so that an integer of any size can be encoded."""
    return Decimal(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


class _YamlDumper(yaml.SafeDumper):
    """Writes decimals as numbers, with all their digits."""


def _represent_decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.ScalarNode:
    text = f"{value:f}"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)


_YamlDumper.add_representer(Decimal, _represent_decimal)
