"""``kind: Retention``: how many days of each table are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from spark_jobs.definitions.model import Duration, StrictModel
from spark_jobs.schemas import TABLES


def _check_table(value: str) -> str:
    if value not in TABLES:
        raise ValueError(f"there is no table {value}; there are: {', '.join(TABLES)}")
    return value


def _check_days(value: timedelta) -> timedelta:
    if value < timedelta(days=1) or value.seconds:
        raise ValueError("must be whole days, at least 1d")
    return value


class Retention(StrictModel):
    """Retention by table. A table that is not named has its default (docs/tables.md)."""

    tables: dict[Annotated[str, AfterValidator(_check_table)], Annotated[Duration, AfterValidator(_check_days)]] = (
        Field(min_length=1)
    )
