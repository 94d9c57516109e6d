"""``kind: Retention``: how many days of each table are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from spark_jobs.definitions.model import Duration, Strict
from spark_jobs.schemas import TABLES


def _table(value: str) -> str:
    if value not in TABLES:
        raise ValueError(f"there is no table {value}; there are: {', '.join(TABLES)}")
    return value


def _days(value: timedelta) -> timedelta:
    if value < timedelta(days=1) or value.seconds:
        raise ValueError("must be whole days, at least 1d")
    return value


class Retention(Strict):
    """Lengths of time by table; a table that is not named keeps its default (docs/tables.md)."""

    tables: dict[Annotated[str, AfterValidator(_table)], Annotated[Duration, AfterValidator(_days)]] = Field(
        min_length=1
    )
