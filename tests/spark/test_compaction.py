"""Upkeep: what every reader sees stays the same, in fewer rows and files, and no longer than it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import compaction, io
from spark_jobs.definitions import Definitions
from spark_jobs.progress import Notice
from spark_jobs.schemas import DEAD_LETTERS, TRAFFIC
from spark_jobs.spark_types import table_schema
from spark_jobs.stored_table import StoredTable
from spark_jobs.table_root import TableRoot

pytestmark = pytest.mark.spark

FIRST = date(2024, 3, 1)

Append = Callable[..., None]


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> TableRoot:
    target = TableRoot(str(tmp_path), str(tmp_path / "checkpoint"))
    io.create_table(spark, TRAFFIC, target.table_path("traffic"))
    io.create_table(spark, DEAD_LETTERS, target.table_path("dead_letters"))
    return target


@pytest.fixture
def append(spark: SparkSession, target: TableRoot) -> Append:
    """Adds a file for each day to ``traffic``: a row with two requests and another one with 10, days after FIRST."""
    number = iter(range(1000))

    def make(*days: int) -> None:
        rows = [(FIRST + timedelta(days=day), who, requests) for day in days for who, requests in (("a", 2), ("b", 10))]
        names = ("day", "principal", "requests")
        schema = table_schema(TRAFFIC)
        values = [tuple(dict(zip(names, row, strict=True)).get(field.name) for field in schema) for row in rows]
        frame = spark.createDataFrame(values, schema)
        io.append_once(spark, frame.toArrow(), target.table_path("traffic"), "writer", next(number))

    return make


def maintain(
    spark: SparkSession, target: TableRoot, definitions: Definitions | None = None, *, vacuum: bool = False
) -> None:
    said: list[Notice] = []
    compaction.maintain_tables(
        spark, target, ["traffic", "dead_letters", "slo"], definitions or Definitions(), said.append, vacuum=vacuum
    )
    assert said == []


def files(spark: SparkSession, target: TableRoot) -> dict[int, int]:
    return {
        (day - FIRST).days: count
        for day, count in io.open_table(spark, target.table_path("traffic")).files_by_day.items()
    }


def requests(spark: SparkSession, target: TableRoot) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for row in spark.read.format("delta").load(target.table_path("traffic")).collect():
        found[(row["day"] - FIRST).days, row["principal"]] += row["requests"]
    return found


def test_days_that_are_over_become_one_row_for_each_key(
    spark: SparkSession,
    target: TableRoot,
    append: Append,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "MIN_FILES_TO_COMPACT", 4)
    for days in ([0, 3], [0, 1, 3], [0, 3], [2], [2]):
        append(*days)
    before = requests(spark, target)
    maintain(spark, target)
    assert files(spark, target) == {0: 1, 1: 1, 2: 2, 3: 3}
    assert (
        requests(spark, target)
        == before
        == Counter(
            {
                (day, who): times * each
                for day, times in ((0, 3), (1, 1), (2, 2), (3, 3))
                for who, each in (("a", 2), ("b", 10))
            }
        )
    )
    assert spark.read.format("delta").load(target.table_path("traffic")).where(f"day = '{FIRST}'").count() == 2
    version = io.open_table(spark, target.table_path("traffic")).version
    maintain(spark, target)
    assert io.open_table(spark, target.table_path("traffic")).version == version
    append(0, 3)
    maintain(spark, target)
    assert files(spark, target) == {0: 1, 1: 1, 2: 2, 3: 1}
    assert requests(spark, target) == before + Counter({(0, "a"): 2, (0, "b"): 10, (3, "a"): 2, (3, "b"): 10})
    assert io.open_table(spark, target.table_path("traffic")).writers == {"writer": 5}


def test_what_is_appended_while_files_are_joined_is_kept(
    spark: SparkSession, target: TableRoot, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(0, 5)
    append(0)
    replace = io.replace_files

    def late(*given: Any, **options: Any) -> None:
        append(0)
        replace(*given, **options)

    monkeypatch.setattr(io, "replace_files", late)
    maintain(spark, target)
    assert requests(spark, target)[0, "a"] == 6


def test_days_are_kept_as_long_as_their_table_says(spark: SparkSession, target: TableRoot, append: Append) -> None:
    append(0, 10, 399, 400)
    maintain(spark, target)
    assert set(files(spark, target)) == {10, 399, 400}
    maintain(spark, target, Definitions(retention={"traffic": timedelta(days=2)}))
    assert set(files(spark, target)) == {399, 400}


def test_files_that_nothing_needs_any_more_are_removed_also_where_a_table_is_replaced_as_a_whole(
    spark: SparkSession, target: TableRoot, append: Append
) -> None:
    append(0)
    path = target.table_path("traffic")
    rows = spark.createDataFrame(spark.read.format("delta").load(path).collect(), table_schema(TRAFFIC))
    stored = io.open_table(spark, path)
    io.replace_files(rows, stored, stored.files)
    files = lambda: sorted(Path(path).glob("day=*/*.parquet"))  # noqa: E731
    assert len(files()) == 2
    maintain(spark, target, vacuum=True)
    assert len(files()) == 2, "a reader may be at it"
    at_once = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({at_once})")
    maintain(spark, target)
    assert len(files()) == 2
    maintain(spark, target, vacuum=True)
    assert len(files()) == 1
    assert requests(spark, target) == Counter({(0, "a"): 2, (0, "b"): 10})


def test_tables_keep_two_days_of_their_log_also_those_of_before(spark: SparkSession, target: TableRoot) -> None:
    path = target.table_path("traffic")
    assert io.open_table(spark, path).properties == io.DELTA_PROPERTIES
    names = ", ".join(f"'{name}'" for name in io.DELTA_PROPERTIES)
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ({names})")
    io.create_table(spark, TRAFFIC, path)
    stored = io.open_table(spark, path)
    assert stored.properties == io.DELTA_PROPERTIES
    io.create_table(spark, TRAFFIC, path)
    assert io.open_table(spark, path).version == stored.version


def test_a_clock_that_is_years_ahead_deletes_nothing(spark: SparkSession, target: TableRoot, append: Append) -> None:
    today = (datetime.now(UTC).date() - FIRST).days
    append(today - 1, today, 700_000)
    maintain(spark, target, Definitions(retention={"traffic": timedelta(days=2)}))
    assert set(files(spark, target)) == {today - 1, today, 700_000}


def test_a_table_that_cannot_be_looked_after_is_said_and_does_not_stop_the_others(
    spark: SparkSession, target: TableRoot, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(0)
    append(0)
    append(5)
    look = io.open_table

    def failing(spark: SparkSession, path: str) -> StoredTable:
        if path.endswith("dead_letters"):
            raise OSError("the disk is away")
        return look(spark, path)

    monkeypatch.setattr(io, "open_table", failing)
    said: list[Notice] = []
    compaction.maintain_tables(spark, target, ["dead_letters", "traffic"], Definitions(), said.append, vacuum=False)
    assert list(map(str, said)) == [
        "table dead_letters: maintenance failed and is retried later: OSError: the disk is away"
    ]
    assert files(spark, target) == {0: 1, 5: 1}
