"""Tables that are computed from others: when, from which day on, and what happens when one cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs import compaction, derived_tables, io
from spark_jobs.definitions import Definitions
from spark_jobs.progress import Notice
from spark_jobs.schemas import COMPLETENESS, INVENTORY, LATENCY, SLO, TOPICS, TRAFFIC, Table
from spark_jobs.spark_types import table_schema
from spark_jobs.stored_table import ConcurrentChange
from spark_jobs.table_root import TableRoot
from spark_jobs.tables.registry import InputTables, tables_without_definitions

pytestmark = pytest.mark.spark

FIRST = date(2026, 3, 1)


class Root:
    """Tables with a row here and there, and what was computed of them: requests by day, in two tables."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.table_root = TableRoot(str(folder), str(folder / "checkpoint"))
        self.since: list[date | None] = []
        self.said: list[str] = []
        self._number = iter(range(1000))
        for table in (TRAFFIC, LATENCY, INVENTORY, COMPLETENESS):
            io.create_table(spark, table, self.table_root.table_path(table.name))

    def append(self, table: Table, *days: int, **values: Any) -> None:
        schema = table_schema(table)
        rows = [{"day": FIRST + timedelta(days=day), **values} for day in days]
        frame = self.spark.createDataFrame([tuple(row.get(f.name) for f in schema) for row in rows], schema)
        io.append_once(
            self.spark, frame.toArrow(), self.table_root.table_path(table.name), "writer", next(self._number)
        )

    def requests_by_day(self, table: Table, column: str) -> Callable[[InputTables], DataFrame]:
        def make(stored: InputTables) -> DataFrame:
            self.since.append(stored.since)
            sums = stored.tables["traffic"].groupBy("day").agg(F.sum("requests").alias(column))
            return sums.select(
                *[
                    F.col(c.name) if c.name in ("day", column) else F.lit(None).cast(c.type).alias(c.name)
                    for c in table.columns
                ]
            )

        return make

    def derive(self, *names: str, **changes: Any) -> tuple[str, ...]:
        self.since.clear()
        say: Callable[[Notice], None] = lambda note: self.said.append(str(note))  # noqa: E731
        definitions = Definitions(**{"objectives": ("any",), **changes})
        return derived_tables.compute_derived_tables(
            self.spark, self.table_root, names or ("slo", "topics"), definitions, say
        )

    def stored(self, table: Table, column: str) -> dict[int, int]:
        rows = self.spark.read.format("delta").load(self.table_root.table_path(table.name)).collect()
        return {(row["day"] - FIRST).days: row[column] for row in rows}


@pytest.fixture
def root(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    root = Root(spark, tmp_path)
    made = {"slo": root.requests_by_day(SLO, "total"), "topics": root.requests_by_day(TOPICS, "produced_bytes")}
    monkeypatch.setattr(derived_tables, "DERIVED_FUNCTIONS", made)
    monkeypatch.setattr(derived_tables, "UNMATCHED_FUNCTIONS", {})  # what is declared here are no objectives
    return root


def test_days_are_computed_again_from_the_first_on_that_changed(root: Root) -> None:
    root.append(TRAFFIC, 0, 1, 2, requests=5)
    assert root.derive("slo") == ()
    assert root.since == [None]
    assert root.stored(SLO, "total") == {0: 5, 1: 5, 2: 5}

    assert root.derive("slo") == ()
    assert root.since == []

    root.append(TRAFFIC, 1, 3, requests=1)
    root.append(LATENCY, 2)
    assert root.derive("slo") == ()
    assert root.since == [FIRST + timedelta(days=1)]
    assert root.stored(SLO, "total") == {0: 5, 1: 6, 2: 5, 3: 1}

    root.append(LATENCY, 2)
    compaction.maintain_tables(root.spark, root.table_root, ["traffic"], Definitions(), lambda note: None, vacuum=False)
    root.derive("slo")
    assert root.since == [FIRST + timedelta(days=2)], "joined files are no change"

    root.derive("slo", objectives=("other",))
    assert root.since == [FIRST + timedelta(days=3 - 399)], "other definitions change every day that is kept"
    computed = [re.fullmatch(r"table slo: computed(?: from (.+) on)?, \d+\.\d s", said) for said in root.said]
    days = [1, 2, 3 - 399]
    assert [one and one[1] for one in computed] == [None, *(str(FIRST + timedelta(days=day)) for day in days)]


def test_what_is_made_as_a_whole_is_replaced_as_a_whole(root: Root) -> None:
    root.append(TRAFFIC, 0, requests=5)
    root.derive("topics")
    root.append(TRAFFIC, 0, 1, requests=5)
    root.derive("topics")
    assert root.since == [None]
    assert root.stored(TOPICS, "produced_bytes") == {0: 10, 1: 5}


def test_days_whose_inputs_were_deleted_for_their_age_stay_as_they_were(root: Root) -> None:
    root.append(TRAFFIC, 0, 4, requests=5)
    root.derive("slo")
    kept = {"retention": {"traffic": timedelta(days=2)}}
    compaction.maintain_tables(
        root.spark, root.table_root, ["traffic"], Definitions(**kept), lambda note: None, vacuum=False
    )
    root.append(TRAFFIC, 4, 5, requests=5)
    assert root.derive("slo", objectives=("other",), **kept) == ()
    assert root.since == [FIRST + timedelta(days=4)]
    assert root.stored(SLO, "total") == {0: 5, 4: 10, 5: 5}


def test_days_whose_inputs_are_gone_stay_also_where_nothing_says_any_more_what_was_computed(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.append(TRAFFIC, 0, 4, requests=5)
    root.derive("slo")
    kept = {"retention": {"traffic": timedelta(days=2)}}
    compaction.maintain_tables(
        root.spark, root.table_root, ["traffic"], Definitions(**kept), lambda note: None, vacuum=False
    )
    monkeypatch.setattr(derived_tables, "HISTORY_COMMITS", 1)
    root.spark.sql(f"ALTER TABLE delta.`{root.table_root.table_path('slo')}` SET TBLPROPERTIES ('note' = 'pushed out')")
    root.append(TRAFFIC, 4, requests=5)
    assert root.derive("slo", **kept) == ()
    assert root.since == [FIRST + timedelta(days=3)]
    assert root.stored(SLO, "total") == {0: 5, 4: 10}


def test_a_release_that_computes_other_values_does_so_of_every_day(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.append(TRAFFIC, 0, requests=5)
    root.derive("slo")
    monkeypatch.setitem(derived_tables.COMPUTATION_VERSIONS, "slo", derived_tables.COMPUTATION_VERSIONS["slo"] + 1)
    root.derive("slo")
    assert root.since == [FIRST - timedelta(days=399)]
    root.derive("slo")
    assert root.since == []


def test_what_only_adds_up_is_not_merged_first(root: Root) -> None:
    root.append(TRAFFIC, 0, requests=5)
    root.append(TRAFFIC, 0, requests=6)
    root.append(INVENTORY, 0, topic="t", part=1)
    root.append(INVENTORY, 0, topic="t", part=1)
    rows: dict[str, int] = {}

    def count(stored: InputTables) -> DataFrame:
        rows.update({name: stored.tables[name].count() for name in ("traffic", "inventory")})
        return root.requests_by_day(TOPICS, "produced_bytes")(stored)

    derived_tables.DERIVED_FUNCTIONS["topics"] = count
    assert root.derive("topics") == ()
    assert rows == {"traffic": 2, "inventory": 1}
    assert root.stored(TOPICS, "produced_bytes") == {0: 11}


def test_one_that_fails_is_said_and_does_not_stop_the_others(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stored: InputTables) -> DataFrame:
        raise ValueError("too many cooks\nand more")

    monkeypatch.setitem(derived_tables.DERIVED_FUNCTIONS, "slo", broken)
    root.append(TRAFFIC, 0, requests=5)
    assert root.derive() == ("slo",)
    assert root.said[0] == "table slo could not be computed: ValueError: too many cooks"
    assert root.stored(TOPICS, "produced_bytes") == {0: 5}


def test_what_nothing_is_declared_for_is_not_made(root: Root) -> None:
    assert tables_without_definitions(["traffic", "slo", "topics"], Definitions()) == ["slo"]
    assert root.derive("slo", objectives=()) == ()
    assert not Path(root.table_root.table_path("slo")).exists()


def test_another_job_that_replaces_rows_meanwhile_is_tried_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, failures = io.replace_files, [1, 2]

    def disturbed(*given: Any, **options: Any) -> None:
        if failures:
            failures.pop()
            raise ConcurrentChange
        replace(*given, **options)

    monkeypatch.setattr(io, "replace_files", disturbed)
    root.append(TRAFFIC, 0, requests=5)
    assert root.derive("slo") == ()
    assert root.stored(SLO, "total") == {0: 5}


def test_rows_that_come_while_tables_are_computed_are_not_missed(root: Root) -> None:
    slo = derived_tables.DERIVED_FUNCTIONS["slo"]

    def disturbed(stored: InputTables) -> DataFrame:
        made = slo(stored)
        root.append(TRAFFIC, 1, requests=7)
        return made

    derived_tables.DERIVED_FUNCTIONS["slo"] = disturbed
    root.append(TRAFFIC, 0, requests=5)
    assert root.derive() == ()
    derived_tables.DERIVED_FUNCTIONS["slo"] = slo
    assert root.derive() == ()
    assert (root.stored(SLO, "total"), root.stored(TOPICS, "produced_bytes")) == ({0: 5, 1: 7}, {0: 5, 1: 7})
    assert root.derive() == ()
    assert root.since == []
