"""What the tables' functions share: a table's own columns, and SQL of the minute, hour or day of an instant."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.schemas import Table

MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000


def columns_of(table: Table) -> list[Column]:
    """Return the columns of ``table``, in order and of its types, of rows that have them: for the closing select."""
    return [F.col(column.name).cast(column.type).alias(column.name) for column in table.columns]


def start_of(at: str, length_us: int) -> str:
    """Return SQL of the timestamp at which the minute or hour of ``at`` (SQL; µs since 1970) began."""
    return f"timestamp_micros({at} - pmod({at}, {length_us}))"


def day_of(at: str) -> str:
    """Return SQL of the day of ``at`` (SQL; µs since 1970), UTC whatever the session's time zone is."""
    return f"date_from_unix_date(CAST(({at} - pmod({at}, {DAY_US})) / {DAY_US} AS INT))"
