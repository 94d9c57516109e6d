"""Query results in a terminal of 80 columns, and in other forms."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

from spark_jobs import render

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = ["principal", "client_id", "produced_bytes", "consumed_bytes", "unconfirmed_bytes"]
ROWS = [
    ("User:checkout", "checkout-7f9c", 2_412_345_678_901, 31, 0),
    ("User:warehouse", "connect-s3-sink-of-the-warehouse", 0, 1_500_000_000_000, 12),
]


Rendered = Callable[[list[str], list[tuple[Any, ...]]], list[str]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Rendered:
    """Render a table for a terminal of 80 columns."""

    def rendered(columns: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda: True)
        monkeypatch.setattr(render.shutil, "get_terminal_size", lambda fallback=None: os.terminal_size((80, 24)))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            lines = ESCAPE.sub("", render.render_rows(columns, rows, "table")).splitlines()
        assert max(map(len, lines)) <= 80
        return lines

    return rendered


@pytest.mark.promise("queries.md", "In a terminal text is folded, and a number, a time or a day never is.")
def test_text_is_folded_and_names_of_columns_but_never_a_number(table: Rendered) -> None:
    lines = table(COLUMNS, ROWS)
    text = "\n".join(lines)
    for number in ("2,412,345,678,901", "1,500,000,000,000"):
        assert number in text
    names = next(line for line in lines if "principal" in line).split()
    assert names == ["principal", "client_id", "produced_bytes", "consumed_bytes", "bytes"]
    assert lines[0].split() == ["unconfirmed_"]
    assert len(lines) > 4, "the long client id takes more than one line"

    at = datetime(2026, 9, 22, 12, 30, tzinfo=UTC)
    rows = [(f"{'x' * 70}", at, date(2026, 9, 22), ["a" * 30, "b" * 30])]
    text = "\n".join(table(["name", "first_at", "day", "topics"], rows))
    assert "2026-09-22 12:30" in text
    assert re.search(r"2026-09-22(?! 12)", text)
