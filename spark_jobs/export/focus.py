"""``cost`` as a CSV file of FOCUS 1.2, the FinOps Open Cost and Usage Specification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import msgspec

from spark_jobs.export.costs import days, plain
from spark_jobs.render import csv_writer, escape_formula
from spark_jobs.schemas import COST

NOT_OURS = (
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
)
"""Columns of discounts, which there are none of here: always empty. FOCUS 1.0 wants them in any case."""

COLUMNS = (*sorted([*[c.name for c in COST.columns if c.source == "FOCUS"], *NOT_OURS]),
           *[c.name for c in COST.columns if c.name.startswith("x_")])  # fmt: skip
"""Those of FOCUS by name, then our own."""


def write(root: Path | str, out: TextIO, first: date | None = None, last: date | None = None) -> int:
    """Write the costs of ``first`` to ``last`` below ``root`` to ``out``, which was opened with ``newline=""``.

    Returns the number of rows. Raises QueryError, with one sentence on what is wrong.
    """
    writer = csv_writer(out)
    writer.writerow(COLUMNS)
    count = 0
    for _, rows in days(root, first, last):
        writer.writerows(csv_rows(rows))
        count += len(rows)
    return count


def csv_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Give ``rows`` of ``cost`` as FOCUS writes values: instants in UTC with a Z, numbers plain, tags as JSON.

    FOCUS wants texts in its own columns as they are; in those that are ours no text is a formula to a spreadsheet.
    """
    for row in rows:
        yield [
            escape_formula(_text(row.get(name))) if name.startswith("x_") else _text(row.get(name)) for name in COLUMNS
        ]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case Decimal():
            return plain(value)
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        case dict():
            return msgspec.json.encode(value, order="sorted").decode()
    return str(value)
