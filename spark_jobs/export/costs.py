"""Reads ``cost`` for the exports, in a stable order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from spark_jobs import query
from spark_jobs.errors import QueryError
from spark_jobs.schemas import COST


def read_costs_by_day(
    root: Path | str, first: date | None, last: date | None
) -> Iterator[tuple[date, list[dict[str, Any]]]]:
    """Yield each day from ``first`` to ``last`` (None: unlimited) with costs, and its rows as dicts by column.

    Raises QueryError if there is no table ``cost``, or if ``last`` is before ``first``.
    """
    if first is not None and last is not None and last < first:
        raise QueryError(f"the last day, {last}, is before the first one, {first}")
    between = "coalesce(day >= $first, true) AND coalesce(day <= $last, true)"
    with query.open_tables(root) as reader:
        if COST.name not in reader.tables:
            raise QueryError(reader.explain_missing(COST.name))
        limits = {"first": first, "last": last}
        _, found = reader.fetch_rows(f"SELECT DISTINCT day FROM cost WHERE {between} ORDER BY day", limits)  # noqa: S608
        for (day,) in found:
            names, rows = reader.fetch_rows("SELECT * FROM cost WHERE day = $day ORDER BY ALL", {"day": day})
            yield day, [dict(zip(names, row, strict=True)) for row in rows]
