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


def test_of_two_that_are_equally_late_the_greater_one_is_the_last(tmp_path: Path) -> None:
    reported = [{"last_seq": 7, "principal": who} for who in ("User:b", "User:c", "User:a", None)]
    for row in (*reported, {"last_seq": None, "principal": "User:z"}):
        write(tmp_path, "connections", {**CONNECTION, "day": AT.date(), **row})
    assert only(tmp_path, "SELECT principal, client_id, last_seq FROM connections") == ("User:c", None, 7)


def test_histograms_are_added_element_by_element(tmp_path: Path) -> None:
    key = {"day": AT.date(), "minute": AT, "cluster_id": "c", "broker_id": 1, "listener": "C", "api": "Fetch"}
    write(tmp_path, "latency", {**key, "latencies": counts(0, 39)}, {**key, "topic": "t", "latencies": counts(3)})
    write(tmp_path, "latency", {**key, "latencies": counts(0, 5)}, {**key})
    sql = "SELECT latencies, upstream_latencies FROM latency WHERE topic IS NULL"
    assert only(tmp_path, sql) == (counts(0, 0, 5, 39), None)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency") == (counts(0, 0, 3, 5, 39),)
    assert only(tmp_path, "SELECT merge_counts(latencies) FROM latency WHERE api = 'none'") == (None,)


@pytest.mark.parametrize("seed", range(5))
def test_a_percentile_is_the_end_of_the_bucket_it_is_in(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    places = sorted(dice.choices(range(len(LATENCY_BUCKETS_US) + 1), k=100 * (seed + 1)))
    write(tmp_path, "latency", {"day": AT.date(), "latencies": counts(*places)})
    for hundredths in (0, 1, 7, 29, 50, 57, 95, 99, 100):
        rank = max(1, math.ceil(hundredths * len(places) / 100)) if hundredths else 1
        place = places[rank - 1]
        end = LATENCY_BUCKETS_US[min(place, len(LATENCY_BUCKETS_US) - 1)] / 1000
        assert only(tmp_path, f"SELECT quantile_ms(latencies, {hundredths / 100}) FROM latency") == (end,), hundredths


def test_there_is_no_percentile_of_nothing(tmp_path: Path) -> None:
    write(tmp_path, "latency", {"day": AT.date(), "latencies": counts()})
    sql = "SELECT quantile_ms(latencies, 0.5), quantile_ms(upstream_latencies, 0.5) FROM latency"
    assert only(tmp_path, sql) == (None, None)


@pytest.mark.parametrize("name", TABLES)
def test_a_view_has_the_columns_and_types_of_its_table(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, {"day": AT.date()})
    shown = query.arrow(tmp_path, f"SELECT * FROM {name}").schema
    stored = [column.name for column in TABLES[name].columns]
    assert shown.names == stored
    write_deltalake(tmp_path / "of" / name, pyarrow.table({"day": [AT.date() + timedelta(1)]}))
    assert query.arrow(tmp_path / "of", f"SELECT * FROM {name}").schema.equals(shown), "columns a release added"
    assert only(tmp_path / "of", f"SELECT count(*) FROM {name}") == (1,)
