from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime

import pytest
from pyspark.sql import DataFrame, Row

from observers.event import RollupTopic
from spark_jobs.definitions.mirror import Mirror
from spark_jobs.schemas import PRODUCED
from spark_jobs.spark_types import table_schema
from spark_jobs.tables.produced import mirror_sides
from tests.spark.envelopes import FETCH, MINUTE, NOON, PRODUCE, connection, encoded, event, partition, rollup

pytestmark = pytest.mark.spark

Decoded = Callable[..., DataFrame]

MIRROR = Mirror(name="m", source_cluster_id="east", target_cluster_id="west", topics="orders|pay.*", prefix="east.")
SIDES = mirror_sides([MIRROR])


def topics_of(rows: Sequence[Row]) -> set[tuple[str, str]]:
    return {(row.cluster_id, row.topic) for row in rows}


def test_the_columns_are_those_of_the_schema(decoded: Decoded) -> None:
    for mirrors in ([], [MIRROR]):
        made = decoded("produced", [], mirrors=mirror_sides(mirrors)).schema
        assert [(field.name, field.dataType) for field in made] == [
            (field.name, field.dataType) for field in table_schema(PRODUCED)
        ]


def test_each_partition_of_a_request_is_a_row(decoded: Decoded) -> None:
    first = partition(producer_id=7, producer_epoch=1, base_sequence=30, base_offset=500, partition=3)
    request = event(PRODUCE, first, partition(records=2, bytes=20), partition(records=0), partition("other"))
    others = [event(FETCH, partition()), connection()]
    rows = decoded("produced", [encoded(request, *others, cluster_id="east")], mirrors=SIDES).collect()
    (row,) = [row for row in rows if row.producer_id == 7]
    assert row.asDict() == {
        "day": date(2026, 9, 22),
        "at": datetime(2026, 9, 22, 12),
        "cluster_id": "east",
        "broker_id": 1,
        "topic": "orders",
        "partition": 3,
        "principal": "User:ANONYMOUS",
        "client_id": "app",
        "producer_id": 7,
        "producer_epoch": 1,
        "base_sequence": 30,
        "base_offset": 500,
        "outcome": "acknowledged",
        "records": 10,
        "bytes": 100,
    }
    (other,) = [row for row in rows if row.producer_id == -1]
    assert (other.producer_epoch, other.base_sequence, other.base_offset, other.records) == (-1, -1, -1, 2)


def test_what_became_of_it(decoded: Decoded) -> None:
    """Of a duplicate (error 46) the broker says that it has the records."""
    reported = {
        "ok": event(PRODUCE, partition("pay-ok")),
        "denied": event(PRODUCE, partition("pay-denied", error_code=29)),
        "duplicate": event(PRODUCE, partition("pay-duplicate", error_code=46)),
        "acks=0": event(PRODUCE, partition("pay-acks0"), outcome="no_response"),
        "lost": event(PRODUCE, partition("pay-lost"), outcome="connection_lost"),
    }
    rows = decoded("produced", [encoded(*reported.values(), cluster_id="east")], mirrors=SIDES).collect()
    assert {row.topic: row.outcome for row in rows} == {
        "pay-ok": "acknowledged",
        "pay-denied": "rejected",
        "pay-duplicate": "acknowledged",
        "pay-acks0": "unconfirmed",
        "pay-lost": "unconfirmed",
    }


def test_a_rollup_is_a_row_for_each_outcome(decoded: Decoded) -> None:
    reported = rollup(
        PRODUCE,
        RollupTopic("orders", records=30, bytes=300, unconfirmed_records=2, unconfirmed_bytes=20, rejected_records=1),
        RollupTopic("payments", topic_requests=3),
        RollupTopic("clicks", records=5),
        minute=NOON + MINUTE,
    )
    fetched = rollup(FETCH, RollupTopic("orders", records=99))
    value = encoded(reported, fetched, schema_level=2, cluster_id="east")
    rows = decoded("produced", [value], mirrors=SIDES).collect()
    assert {row.outcome: (row.records, row.bytes) for row in rows} == {
        "acknowledged": (30, 300),
        "unconfirmed": (2, 20),
        "rejected": (1, 0),
    }
    assert {(row.topic, row.at, row.partition, row.producer_id, row.base_offset) for row in rows} == {
        ("orders", datetime(2026, 9, 22, 12, 1), None, None, None)
    }


def test_only_topics_of_a_mirror_are_kept_on_either_side(decoded: Decoded) -> None:
    names = ("orders", "orders2", "payments", "east.orders", "eastXorders", "east.clicks", "clicks", "east.payments")
    request = event(PRODUCE, *[partition(name) for name in names])
    values = [encoded(request, cluster_id=cluster) for cluster in ("east", "west", "north")]
    of_prefix = {("east", "orders"), ("east", "payments"), ("west", "east.orders"), ("west", "east.payments")}
    assert topics_of(decoded("produced", values, mirrors=SIDES).collect()) == of_prefix
    plain = MIRROR.model_copy(update={"name": "n", "prefix": "", "topics": "clicks", "target_cluster_id": "north"})
    assert topics_of(decoded("produced", values, mirrors=mirror_sides([MIRROR, plain])).collect()) == of_prefix | {
        ("east", "clicks"),
        ("north", "clicks"),
    }


def test_without_mirrors_there_are_no_rows(decoded: Decoded) -> None:
    assert decoded("produced", [encoded(event(PRODUCE, partition()))]).collect() == []
