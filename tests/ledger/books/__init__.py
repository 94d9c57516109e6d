"""One book for each table: from its key to the other columns, as the table must hold them after merging.

Kept from the acts alone, with dicts and integers. A book says what is exact; what a table has besides is not compared.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

Row = dict[str, Any]
Book = dict[tuple[Any, ...], Row]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def minute(us: int) -> datetime:
    return instant(us - us % 60_000_000)


def hour(us: int) -> datetime:
    return instant(us - us % 3_600_000_000)


def day(us: int) -> date:
    return instant(us).date()


def add(row: Row, **numbers: int) -> None:
    for name, number in numbers.items():
        row[name] = row.get(name, 0) + number


def most(row: Row, **values: Any) -> None:
    for name, value in values.items():
        row[name] = value if row.get(name) is None else max(row[name], value)


def least(row: Row, **values: Any) -> None:
    for name, value in values.items():
        row[name] = value if row.get(name) is None else min(row[name], value)
