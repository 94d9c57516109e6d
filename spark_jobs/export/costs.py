"""Reads ``cost`` for the exports, in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.render import strip_trailing_zeros
from spark_jobs.schemas import COST


def days(root: Path | str, first: date | None, last: date | None) -> Iterator[tuple[date, list[dict[str, Any]]]]:
    """Give each day from ``first`` to ``last`` (None: no limit) that has costs, with its rows, by name of the column.

    Raises QueryError where there is no table ``cost``, or ``last`` is before ``first``.
    """
    if first is not None and last is not None and last < first:
        raise QueryError(f"the last day, {last}, is before the first one, {first}")
    between = "coalesce(day >= $first, true) AND coalesce(day <= $last, true)"
    with query.open_tables(root) as reader:
        if COST.name not in reader.tables:
            raise QueryError(reader.absent(COST.name))
        limits = {"first": first, "last": last}
        _, found = reader.rows(f"SELECT DISTINCT day FROM cost WHERE {between} ORDER BY day", limits)  # noqa: S608
        for (day,) in found:
            names, rows = reader.rows("SELECT * FROM cost WHERE day = $day ORDER BY ALL", {"day": day})
            yield day, [dict(zip(names, row, strict=True)) for row in rows]


def plain(value: Decimal) -> str:
    """Return ``value`` with all its digits, without zeros at the end and without an exponent."""
    return strip_trailing_zeros(f"{value:f}")  # normalize() would round to 28 digits
