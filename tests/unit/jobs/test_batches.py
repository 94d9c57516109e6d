"""Rows of several batches become the rows of all their events at once, whichever batch is stored first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import pytest

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent, InventoryEvent, InventoryTopic
from observers.event import ConnectionEvent, Event
from spark_jobs.schemas import STREAMED
from tests.ledger.stored import merged
from tests.spark.decoded import decoded
from tests.spark.envelopes import (
    METADATA,
    MINUTE,
    NOON,
    connection,
    encoded,
    event,
    gap,
    group,
    partition,
    rollup,
    status,
    throttle,
)
from tests.spark.stored import Row


def merged_rows(table: str, batches: Sequence[Sequence[bytes]]) -> list[Row]:
    stored = [row for batch in batches for row in decoded(table, batch)]
    return sorted(map(Row, merged(STREAMED[table], stored)), key=str)


def life(first_ts: int) -> list[ConnectionEvent]:
    """Opened, logged in a second later, closed a minute after that."""
    stranger = {"principal": "User:ANONYMOUS", "principal_source": "unauthenticated", "sasl_mechanism": None}
    nothing_yet = {"cause": "", "duration_ms": 0, "requests": 0, "received_bytes": 0, "sent_bytes": 0}
    return [
        connection(change="opened", ts=first_ts, **nothing_yet, **stranger),
        connection(change="authenticated", ts=first_ts + 1_000_000, **nothing_yet),
        connection(ts=first_ts + MINUTE + 1_000_000, client_id="app"),
    ]


def listed(topic: InventoryTopic, ts: int, part: int, parts: int) -> InventoryEvent:
    return InventoryEvent(seq=0, ts=ts, part=part, parts=parts, inventory=(topic,))


REQUESTS: list[Event] = [
    event(number % 2, *[partition(f"t{each}", bytes=number) for each in range(number % 4)], latency_us=number**3,
          max_wait_ms=2, ts_request=NOON + number * MINUTE // 10)
    for number in range(40)
]  # fmt: skip
CHANGES: list[Event] = [
    event(METADATA, operation="Create", error_code=number % 3, ts_request=NOON + number) for number in range(9)
]
OFFSETS = ((5, 2_000_000), (9, 1_000_000))
"""The later one is lower."""

CASES: dict[str, list[Event]] = {
    "traffic": [*REQUESTS, rollup()],
    "latency": [*REQUESTS, rollup(), rollup(METADATA, latencies=(), upstream_latencies=(0, 2), requests=0),
                event(METADATA, latency_us=60, upstream_us=64)],
    "clients": [*REQUESTS, rollup()],
    "changes": CHANGES,
    "connections": list(life(NOON + 12 * 60 * MINUTE - 30_000_000)),  # over midnight
    "throttles": [throttle(), throttle(count=1, observed=50, ts_last=NOON + 900_000)],
    "completeness": [event(), status(), gap(1, 1), status(ts=NOON + 30_000_000, queued=9, seen=99), gap(2, 9)],
    "group_members": [group(commits=2), group(requests=0, ts_last=NOON + MINUTE, generation_id=4)],
    "committed_offsets": [group(committed=(CommittedPartition("a", 0, end, NOON + at),)) for end, at in OFFSETS],
    "end_offsets": [EndOffsetsEvent(0, NOON, (EndOffset("a", 0, end, NOON + at),)) for end, at in OFFSETS],
    "inventory": [listed(InventoryTopic("orders", "id-1", 3, True), NOON, 1, 1),
                  listed(InventoryTopic("orders", "id-2", 2), NOON + 1, 3, 4)],
}  # fmt: skip
"""Events by the table that has rows of them."""


@pytest.mark.promise("tables.md", "Stored rows of several batches merge into the rows of all their events.")
def test_rows_of_several_batches_become_those_of_one() -> None:
    for table, events in CASES.items():
        values = [encoded(one, first_seq=number, schema_level=2) for number, one in enumerate(events, 1)]
        whole = merged_rows(table, [values])
        assert whole, table
        middle = len(values) // 2
        for batches in ((values[:middle], values[middle:]), (values[middle:], values[:middle]), [[v] for v in values]):
            assert merged_rows(table, batches) == whole, table


@pytest.mark.promise("tables/inventory.md", "Of several lists of one hour the values of the last one hold.")
def test_the_later_list_holds_and_a_connection_over_midnight_is_one() -> None:
    values = [encoded(one, first_seq=number) for number, one in enumerate(CASES["inventory"], 1)]
    (row,) = merged_rows("inventory", [values[1:], values[:1]])
    assert (row.topic_id, row.internal, row.partitions, row.part, row.parts) == ("id-2", False, 3, 3, 4)
    at_once = sorted(decoded("connections", [encoded(*CASES["connections"])]), key=lambda row: row.day)
    assert [(row.day.day, row.opened_at is None, row.authentications, row.closed_at) for row in at_once] == [
        (22, False, 1, None),
        (23, True, 0, datetime(2026, 9, 23, 0, 0, 31)),
    ], "each day has what was reported on it, so it can be computed again by itself"
    (row,) = merged_rows("connections", [[encoded(*CASES["connections"])]])
    assert (row.day, row.opened_at, row.authentications) == (date(2026, 9, 23), datetime(2026, 9, 22, 23, 59, 30), 1)
