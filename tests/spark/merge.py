"""Merges stored rows of equal keys into one row, by the rule of each column in ``spark_jobs.schemas``, with Spark: a
second opinion on what DuckDB and the workers of the job merge."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.schemas import Table
from spark_jobs.schemas.model import Column as Described
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US

HISTOGRAM_LENGTH = len(LATENCY_BUCKETS_US) + 1
"""Elements of a histogram column: one count for each bucket."""


def merge_rows(rows: DataFrame, table: Table) -> DataFrame:
    """Return ``rows`` of ``table`` with one row for each key. Rows of a table without keys are returned unchanged."""
    if not table.keys:
        return rows
    values = [
        _merged_value(column, table.order).alias(column.name)
        for column in table.columns
        if column.merge not in (None, "key")
    ]
    return rows.groupBy(*table.keys).agg(*values).select(*[column.name for column in table.columns])


def _merged_value(column: Described, order: str) -> Column:
    value = F.col(column.name)
    match column.merge:
        case "sum":
            return F.sum(value)
        case "min":
            return F.min(value)
        case "max":
            return F.max(value)
        case "last":
            known = value.isNotNull() & F.col(order).isNotNull()
            # Of two equally recent values the greater one: the result does not depend on the order of the files.
            return F.max_by(value, F.when(known, F.struct(F.col(order), value)))
        case "counts":
            sums = F.array(*[F.sum(F.get(value, F.lit(index))) for index in range(HISTOGRAM_LENGTH)])
            return F.when(F.count(value) > 0, sums)
        case other:
            raise AssertionError(other)
