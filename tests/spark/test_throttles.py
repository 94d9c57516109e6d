from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime

import pytest
from pyspark.sql import DataFrame

from spark_jobs.schemas import THROTTLES
from spark_jobs.spark_types import table_schema
from tests.spark.envelopes import MINUTE, NOON, connection, encoded, event, throttle
from tests.spark.merge import merge_rows

pytestmark = pytest.mark.spark

Decoded = Callable[..., DataFrame]


def test_the_columns_are_those_of_the_schema(decoded: Decoded) -> None:
    made = decoded("throttles", []).schema
    assert [(field.name, field.dataType) for field in made] == [
        (field.name, field.dataType) for field in table_schema(THROTTLES)
    ]


def test_one_minute_of_one_address_and_limit_is_one_row(decoded: Decoded) -> None:
    reported = [
        throttle(),
        throttle(count=4, limit=10, observed=30.25, delay_ms=0, ts_first=NOON + 5, ts_last=NOON + MINUTE + 5),
        event(),
        connection(),
    ]
    (row,) = decoded("throttles", [encoded(*reported)]).collect()
    assert row.asDict() == {
        "day": date(2026, 9, 22),
        "minute": datetime(2026, 9, 22, 12),
        "cluster_id": "cluster",
        "broker_id": 1,
        "listener": "CLIENT",
        "client_ip": "10.0.0.7",
        "scope": "ip",
        "principal": None,
        "quota": "connection_creation_rate",
        "action": "hold",
        "count": 7,
        "quota_limit": 20,
        "observed": 30.25,
        "delay_ms": 750,
        "first_at": datetime(2026, 9, 22, 12),
        "last_at": datetime(2026, 9, 22, 12, 1, 0, 5),
    }


def test_what_a_row_is_about(decoded: Decoded) -> None:
    reported = [
        throttle(),
        throttle(action="drop"),
        throttle(scope="listener"),
        throttle(quota="connections"),
        throttle(scope="principal", principal="User:alice"),
        throttle(scope="principal", principal="User:bob"),
        throttle(client_ip="*"),
        throttle(listener="TLS"),
        throttle(ts_first=NOON + MINUTE, ts_last=NOON + MINUTE),
        throttle(ts_first=NOON + 12 * 60 * MINUTE, ts_last=NOON + 12 * 60 * MINUTE),
    ]
    rows = decoded("throttles", [encoded(*reported), encoded(throttle(), broker_id=2)]).collect()
    assert [row["count"] for row in rows] == [3] * 11
    assert sorted({row.day for row in rows}) == [date(2026, 9, 22), date(2026, 9, 23)]


def test_partial_rows_of_several_batches_become_the_same_row(decoded: Decoded) -> None:
    reported = [throttle(), throttle(count=1, observed=50, ts_last=NOON + 900_000)]
    values = [encoded(one, first_seq=number) for number, one in enumerate(reported, 1)]
    whole = decoded("throttles", values)
    stored = decoded("throttles", values[:1]).unionByName(decoded("throttles", values[1:]))
    assert stored.count() == 2
    assert merge_rows(stored, THROTTLES).collect() == whole.collect()
