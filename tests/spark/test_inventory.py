from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from itertools import permutations
from typing import Any

import pytest
from pyspark.sql import DataFrame

from observers.cluster_events import InventoryEvent, InventoryTopic
from spark_jobs.schemas import INVENTORY
from spark_jobs.spark_types import table_schema
from tests.spark.decoded import kafka_records, partial_rows, rows_of
from tests.spark.envelopes import MINUTE, NOON, encoded, event
from tests.spark.envelopes import inventory as list_of
from tests.spark.merge import merge_rows

pytestmark = pytest.mark.spark

Decoded = Callable[..., DataFrame]


def listed(*topics: InventoryTopic, **changes: Any) -> InventoryEvent:
    values: dict[str, Any] = {"seq": 0, "ts": NOON, "part": 1, "parts": 1, "inventory": topics}
    return InventoryEvent(**{**values, **changes})


def test_the_columns_are_those_of_the_schema(decoded: Decoded) -> None:
    made = decoded("inventory", []).schema
    assert [(field.name, field.dataType) for field in made] == [
        (field.name, field.dataType) for field in table_schema(INVENTORY)
    ]


def test_the_lists_of_an_hour_are_one_row_for_each_topic(decoded: Decoded) -> None:
    """Of two brokers' sidecars; the topic grew, and one of them knew no ids."""
    values = [
        encoded(listed(InventoryTopic("orders", "id-1", 3), InventoryTopic("__offsets", None, 50, True)), event()),
        encoded(
            listed(InventoryTopic("orders", None, 6), ts=NOON + 59 * MINUTE, part=2, parts=2),
            listed(ts=NOON + 59 * MINUTE, part=1, parts=2),
            broker_id=2,
        ),
    ]
    internal, orders = decoded("inventory", values).orderBy("topic").collect()
    assert orders.asDict() == {
        "day": date(2026, 9, 22),
        "hour": datetime(2026, 9, 22, 12),
        "cluster_id": "cluster",
        "topic": "orders",
        "topic_id": "id-1",
        "partitions": 6,
        "internal": False,
        "part": 2,
        "parts": 2,
        "first_seen": datetime(2026, 9, 22, 12),
        "last_seen": datetime(2026, 9, 22, 12, 59),
        "listings": 2,
    }
    assert (internal.topic, internal.internal, internal.partitions, internal.listings) == ("__offsets", True, 50, 1)


def test_of_values_at_one_time_the_greatest_holds_in_any_order() -> None:
    lists = [
        listed(InventoryTopic("orders", topic_id, partitions, internal), part=part, parts=parts)
        for topic_id, partitions, internal, part, parts in (
            ("id-1", 3, True, 1, 4), ("id-2", 2, False, 3, 3), (None, 1, False, 2, 2),
        )
    ]  # fmt: skip
    for each in permutations(lists):
        values = [encoded(one, first_seq=number) for number, one in enumerate(each, 1)]
        (row,) = rows_of("inventory", partial_rows(kafka_records(values))).to_pylist()
        found = [row[name] for name in ("topic_id", "partitions", "internal", "part", "parts")]
        assert found == ["id-2", 3, True, 3, 4]


def test_each_hour_and_each_cluster_has_rows_of_its_own(decoded: Decoded) -> None:
    values = [
        encoded(list_of("a", "b"), listed(InventoryTopic("a"), ts=NOON + 60 * MINUTE)),
        encoded(list_of("a"), cluster_id="west"),
    ]
    rows = decoded("inventory", values).collect()
    assert sorted((row.cluster_id, row.topic, row.hour.hour) for row in rows) == [
        ("cluster", "a", 12), ("cluster", "a", 13), ("cluster", "b", 12), ("west", "a", 12),
    ]  # fmt: skip


def test_partial_rows_of_several_batches_become_the_same_row(decoded: Decoded) -> None:
    """Whichever batch is stored first: the later list counts."""
    reported = [
        listed(InventoryTopic("orders", "id-1", 3, True)),
        listed(InventoryTopic("orders", "id-2", 2), ts=NOON + 1, part=3, parts=4),
    ]
    values = [encoded(one, first_seq=number) for number, one in enumerate(reported, 1)]
    (row,) = decoded("inventory", values).collect()
    stored = decoded("inventory", values[1:]).unionByName(decoded("inventory", values[:1]))
    assert merge_rows(stored, INVENTORY).collect() == [row]
    assert (row.topic_id, row.internal, row.partitions, row.part, row.parts) == ("id-2", False, 3, 3, 4)
