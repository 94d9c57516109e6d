"""Helpers for all tables: the columns of a table, and SQL of the minute, hour or day of a time."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.schemas import Table

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000


def table_columns(table: Table) -> list[Column]:
    """Return the columns of ``table`` in order, cast to their types, for the final select."""
    return [F.col(column.name).cast(column.type).alias(column.name) for column in table.columns]


def start_of_interval(at: str, length_us: int) -> str:
    """Return SQL of the start of the interval of ``length_us`` that contains ``at`` (SQL; µs since 1970)."""
    return f"timestamp_micros({at} - pmod({at}, {length_us}))"


def day_of(at: str) -> str:
    """Return SQL of the UTC day of ``at`` (SQL; µs since 1970), independent of the session's time zone."""
    return f"date_from_unix_date(CAST(({at} - pmod({at}, {DAY_US})) / {DAY_US} AS INT))"
