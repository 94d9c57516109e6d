"""Stored rows with equal keys become one: what ``spark_jobs.schemas`` says of each column, for Spark. Pure."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.schemas import Table
from spark_jobs.schemas.model import Column as Described
from spark_jobs.schemas.traffic import BUCKETS

HISTOGRAM_LENGTH = len(BUCKETS) + 1
"""Elements of an array of counts."""


def merge_rows(rows: DataFrame, table: Table) -> DataFrame:
    """Return ``rows`` of ``table`` with one row for each key; as they are where each row stands for itself."""
    if not table.keys:
        return rows
    values = [_merged_value(column, table.order).alias(column.name) for column in table.merged]
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
            # Of two that are equally late the greater one: the same whatever the order of the files.
            return F.max_by(value, F.when(known, F.struct(F.col(order), value)))
        case "counts":
            sums = F.array(*[F.sum(F.get(value, F.lit(index))) for index in range(HISTOGRAM_LENGTH)])
            return F.when(F.count(value) > 0, sums)
        case other:
            raise AssertionError(other)
