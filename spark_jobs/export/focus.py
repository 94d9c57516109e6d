"""``cost`` as a CSV file of FOCUS 1.2, the FinOps Open Cost and Usage Specification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import msgspec

from spark_jobs.export.costs import read_costs_by_day
from spark_jobs.render import csv_writer, escape_formula, strip_trailing_zeros
from spark_jobs.schemas import COST

COMMITMENT_DISCOUNT_COLUMNS = (
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
)
"""Columns of commitment discounts. They are always empty, but FOCUS 1.0 requires them."""

FOCUS_COLUMNS = (*sorted([*[c.name for c in COST.columns if c.source == "FOCUS"], *COMMITMENT_DISCOUNT_COLUMNS]),
           *[c.name for c in COST.columns if c.name.startswith("x_")])  # fmt: skip
"""The columns of FOCUS sorted by name, then the custom columns."""


def write_focus_csv(root: Path | str, out: TextIO, first: date | None = None, last: date | None = None) -> int:
    """Write the costs of ``first`` to ``last`` below ``root`` to ``out``, which was opened with ``newline=""``.

    Returns the number of rows. Raises QueryError with one sentence on the cause.
    """
    days = read_costs_by_day(root, first, last)
    begun = next(days, None)  # before anything is written: it may raise
    writer = csv_writer(out)
    writer.writerow(FOCUS_COLUMNS)
    count = 0
    for _, rows in chain(filter(None, (begun,)), days):
        writer.writerows(focus_rows(rows))
        count += len(rows)
    return count


def focus_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield ``rows`` of ``cost`` in the value formats of FOCUS: times in UTC with a Z, plain numbers, tags as JSON.

    FOCUS requires texts in its own columns to be unchanged. In custom columns, texts that look like formulas are
    escaped.
    """
    for row in rows:
        yield [
            escape_formula(_format_value(row.get(name))) if name.startswith("x_") else _format_value(row.get(name))
            for name in FOCUS_COLUMNS
        ]


def _format_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case Decimal():
            return strip_trailing_zeros(f"{value:f}")  # normalize() would round to 28 digits
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        case dict():
            return msgspec.json.encode(value, order="sorted").decode()
    return str(value)
