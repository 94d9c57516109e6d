from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame

from observers.event import InventoryEvent, InventoryTopic
from spark_jobs.merge import merge_rows
from spark_jobs.parse import parse_records
from spark_jobs.schemas import INVENTORY
from spark_jobs.spark_types import table_schema
from spark_jobs.tables.inventory import inventory
from tests.spark.envelopes import MINUTE, NOON, encoded, event
from tests.spark.envelopes import inventory as list_of
from tests.spark.frames import kept

pytestmark = pytest.mark.spark

KafkaRows = Callable[[Sequence[bytes | None]], DataFrame]


def listed(*topics: InventoryTopic, **changes: Any) -> InventoryEvent:
    values: dict[str, Any] = {"seq": 0, "ts": NOON, "part": 1, "parts": 1, "inventory": topics}
    return InventoryEvent(**{**values, **changes})


def test_the_columns_are_those_of_the_schema(kafka_rows: KafkaRows) -> None:
    made = inventory(parse_records(kafka_rows([]))).schema
    assert [(field.name, field.dataType) for field in made] == [
        (field.name, field.dataType) for field in table_schema(INVENTORY)
    ]


def test_the_lists_of_an_hour_are_one_row_for_each_topic(kafka_rows: KafkaRows) -> None:
    """Of two brokers' sidecars; the topic grew, and one of them knew no ids."""
    values = [
        encoded(listed(InventoryTopic("orders", "id-1", 3), InventoryTopic("__offsets", None, 50, True)), event()),
        encoded(
            listed(InventoryTopic("orders", None, 6), ts=NOON + 59 * MINUTE, part=2, parts=2),
            listed(ts=NOON + 59 * MINUTE, part=1, parts=2),
            broker_id=2,
        ),
    ]
    internal, orders = inventory(kept(parse_records(kafka_rows(values)))).orderBy("topic").collect()
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
        "told": 2,
    }
    assert (internal.topic, internal.internal, internal.partitions, internal.told) == ("__offsets", True, 50, 1)


def test_each_hour_and_each_cluster_has_rows_of_its_own(kafka_rows: KafkaRows) -> None:
    values = [
        encoded(list_of("a", "b"), listed(InventoryTopic("a"), ts=NOON + 60 * MINUTE)),
        encoded(list_of("a"), cluster_id="west"),
    ]
    rows = inventory(kept(parse_records(kafka_rows(values)))).collect()
    assert sorted((row.cluster_id, row.topic, row.hour.hour) for row in rows) == [
        ("cluster", "a", 12), ("cluster", "a", 13), ("cluster", "b", 12), ("west", "a", 12),
    ]  # fmt: skip


def test_partial_rows_of_several_batches_become_the_same_row(kafka_rows: KafkaRows) -> None:
    """Whichever batch is stored first: the later list counts."""
    reported = [
        listed(InventoryTopic("orders", "id-1", 3, True)),
        listed(InventoryTopic("orders", "id-2", 2), ts=NOON + 1, part=3, parts=4),
    ]
    values = [encoded(one, first_seq=number) for number, one in enumerate(reported, 1)]
    (row,) = inventory(kept(parse_records(kafka_rows(values)))).collect()
    stored = inventory(kept(parse_records(kafka_rows(values[1:])))).unionByName(
        inventory(kept(parse_records(kafka_rows(values[:1]))))
    )
    assert merge_rows(stored, INVENTORY).collect() == [row]
    assert (row.topic_id, row.internal, row.partitions, row.part, row.parts) == ("id-2", False, 3, 3, 4)
