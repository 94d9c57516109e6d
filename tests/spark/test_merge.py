"""Stored rows with equal keys become one, as each column says (``tests.spark.merge``)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.schemas import Column, Table
from spark_jobs.spark_types import table_schema
from tests.spark.merge import HISTOGRAM_LENGTH, merge_rows

pytestmark = pytest.mark.spark

TABLE = Table(
    "table",
    "A table.",
    (
        Column("who", "string", "Who.", merge="key"),
        Column("total", "bigint", "Sum.", merge="sum"),
        Column("least", "bigint", "Least.", merge="min"),
        Column("most", "bigint", "Most.", merge="max"),
        Column("latest", "string", "Latest.", merge="last"),
        Column("at", "bigint", "When.", merge="max"),
        Column("counts", "array<bigint>", "Counts.", merge="counts"),
    ),
    example="SELECT 1",
    order="at",
)


def counts(*values: int | None) -> list[int | None]:
    return [*values, *[0] * (HISTOGRAM_LENGTH - len(values))]


def test_every_way_to_merge(spark: SparkSession) -> None:
    rows: list[tuple[Any, ...]] = [
        ("a", 1, 5, 5, "early", 10, counts(1, 2)),
        ("a", 2, 3, 3, "late", 30, None),
        ("a", None, None, None, None, 40, counts(10, 20)),
        (None, 7, 7, 7, "of nobody", 1, None),
        ("tie", 0, 0, 0, "greater", 5, None),
        ("tie", 0, 0, 0, "gone", 5, None),
        ("tie", 0, 0, 0, "without a time", None, None),
        ("nothing", None, None, None, None, None, None),
    ]
    for order in (rows, rows[::-1]):
        stored = spark.createDataFrame(order, table_schema(TABLE))
        found = {row["who"]: tuple(row) for row in merge_rows(stored, TABLE).collect()}
        assert found == {
            "a": ("a", 3, 3, 5, "late", 40, counts(11, 22)),
            None: (None, 7, 7, 7, "of nobody", 1, None),
            "tie": ("tie", 0, 0, 0, "greater", 5, None),
            "nothing": ("nothing", None, None, None, None, None, None),
        }


def test_rows_that_stand_for_themselves_stay_as_they_are(spark: SparkSession) -> None:
    table = Table("table", "A table.", (Column("who", "string", "Who."),), example="SELECT 1")
    stored = spark.createDataFrame([("a",), ("a",)], table_schema(table))
    assert merge_rows(stored, table).collect() == stored.collect()
