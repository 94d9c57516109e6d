"""Stored rows become one row for each key, as the schemas say: what DuckDB shows of them."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import write_deltalake

from spark_jobs import query
from spark_jobs.schemas import TABLES
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US
from tests.spark.stored import write

AT = datetime(2026, 9, 22, 12, tzinfo=UTC)
CONNECTION = {"cluster_id": "c", "broker_id": 1, "boot_id": "b", "connection_id": "1"}


def only(root: Path, sql: str) -> tuple[Any, ...]:
    (row,) = query.query(root, sql)[1]
    return row


def counts(*places: int) -> list[int]:
    """Each place once more."""
    return [places.count(place) for place in range(len(LATENCY_BUCKETS_US) + 1)]


@pytest.mark.promise(
    "tables.md", "Stored rows of one key are shown as one row, whose values are merged as each column says."
)
def test_first_last_and_greatest_pass_over_what_is_not_known(tmp_path: Path) -> None:
    reported = [
        {"last_seq": 7, "principal": "User:late", "opened_at": None, "requests": 9, "closed_at": AT},
        {"last_seq": 9, "principal": None, "opened_at": None, "requests": None},
        {"last_seq": 2, "principal": "User:early", "opened_at": AT, "requests": None, "client_port": 5},
    ]
    for row in reported:
        write(tmp_path, "connections", {**CONNECTION, "day": AT.date(), "authentications": 1, **row})
    sql = "SELECT principal, client_port, opened_at, requests, closed_at, authentications, last_seq FROM connections"
    assert only(tmp_path, sql) == ("User:late", 5, AT, 9, AT, 3, 9)


@pytest.mark.promise("tables.md", "Of equally recent values the greatest one holds.")
def test_of_two_that_are_equally_late_the_greater_one_is_the_last(tmp_path: Path) -> None:
    reported = [{"last_seq": 7, "principal": who} for who in ("User:b", "User:c", "User:a", None)]
    for row in (*reported, {"last_seq": None, "principal": "User:z"}):
        write(tmp_path, "connections", {**CONNECTION, "day": AT.date(), **row})
    assert only(tmp_path, "SELECT principal, client_id, last_seq FROM connections") == ("User:c", None, 7)


@pytest.mark.promise("queries.md", "`merge_counts` adds histograms, over any rows.")
def test_histograms_are_added_element_by_element(tmp_path: Path) -> None:
    key = {"day": AT.date(), "minute": AT, "cluster_id": "c", "broker_id": 1, "listener": "C", "api": "Fetch"}
    write(tmp_path, "latency", {**key, "latencies": counts(0, 39)}, {**key, "topic": "t", "latencies": counts(3)})
    write(tmp_path, "latency", {**key, "latencies": counts(0, 5)}, {**key})
    sql = "SELECT latencies, upstream_latencies FROM latency WHERE topic IS NULL"
    assert only(tmp_path, sql) == (counts(0, 0, 5, 39), None)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency") == (counts(0, 0, 3, 5, 39),)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency WHERE api = 'none'") == (None,)
    write(tmp_path / "none", "latency", {"day": AT.date(), "latencies": counts()})
    sql = "SELECT quantile_ms(latencies, 0.5), quantile_ms(upstream_latencies, 0.5) FROM latency"
    assert only(tmp_path / "none", sql) == (None, None), "there is no percentile of nothing"


@pytest.mark.promise("queries.md", "`quantile_ms` is the upper end of the bucket that has the percentile.")
def test_a_percentile_is_the_end_of_the_bucket_it_is_in(tmp_path: Path) -> None:
    dice = random.Random(1)
    for size in (1, 7, 100, 333):
        places = sorted(dice.choices(range(len(LATENCY_BUCKETS_US) + 1), k=size))
        write(tmp_path / str(size), "latency", {"day": AT.date(), "latencies": counts(*places)})
        shares = (0, 1, 7, 29, 50, 57, 95, 99, 100)
        asked = ", ".join(f"quantile_ms(latencies, {hundredths / 100})" for hundredths in shares)
        ranks = [max(1, math.ceil(hundredths * size / 100)) for hundredths in shares]
        ends = [LATENCY_BUCKETS_US[min(places[rank - 1], len(LATENCY_BUCKETS_US) - 1)] / 1000 for rank in ranks]
        assert only(tmp_path / str(size), f"SELECT {asked} FROM latency") == tuple(ends), size


def test_a_view_has_the_columns_and_types_of_its_table(tmp_path: Path) -> None:
    """Also where the table lacks columns that a release added."""
    for name, table in TABLES.items():
        root, older = tmp_path / "now" / name, tmp_path / "older" / name
        write(root, name, {"day": AT.date()})
        shown = query.arrow(root, f"SELECT * FROM {name}").schema
        assert shown.names == [column.name for column in table.columns], name
        write_deltalake(older / name, pyarrow.table({"day": [AT.date() + timedelta(1)]}))
        assert query.arrow(older, f"SELECT * FROM {name}").schema.equals(shown), name
        assert only(older, f"SELECT count(*) FROM {name}") == (1,), name
