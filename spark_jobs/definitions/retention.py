"""``kind: Retention``: how many days of each table are kept."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, field_validator

from spark_jobs.definitions.model import Duration, Strict
from spark_jobs.schemas import TABLES


class Retention(Strict):
    """Lengths of time by table; a table that is not named keeps its default (docs/tables.md)."""

    tables: dict[str, Duration] = Field(min_length=1)

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, value: dict[str, timedelta]) -> dict[str, timedelta]:
        unknown = sorted(set(value) - set(TABLES))
        if unknown:
            raise ValueError(f"there is no table {unknown[0]}; there are: {', '.join(TABLES)}")
        short = sorted(name for name, kept in value.items() if kept < timedelta(days=1) or kept.seconds)
        if short:
            raise ValueError(f"{short[0]}: whole days are kept, at least 1d")
        return value
