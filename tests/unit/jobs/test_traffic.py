"""The table ``traffic``: what requests and rollups add to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from observers.event import RequestEvent
from spark_jobs.events import MAX_SUM
from spark_jobs.schemas import TRAFFIC
from tests.spark.decoded import decoded
from tests.spark.envelopes import (
    FETCH,
    METADATA,
    MINUTE,
    NOON,
    PRODUCE,
    Event,
    encoded,
    event,
    partition,
    rollup,
)
from tests.spark.stored import Row

VALUES = [column.name for column in TRAFFIC.columns if column.merge != "key"]
POLLED = {"polled": 1}


def rows_of(*events: Event) -> list[Row]:
    """The rows of the table of events, each in an envelope of its own."""
    return decoded("traffic", [encoded(each, first_seq=number) for number, each in enumerate(events, 1)])


def sums(row: Row) -> dict[str, int]:
    """What is not 0 in a row."""
    return {name: row[name] for name in VALUES if row[name]}


def by_topic(rows: Sequence[Row]) -> dict[str | None, dict[str, int]]:
    assert len({row.topic for row in rows}) == len(rows)
    return {row.topic: sums(row) for row in rows}


@pytest.mark.promise(
    "tables/traffic.md", "A request counts once in `traffic`, and once more for each topic that it touched."
)
def test_a_request_counts_once_and_each_topic_once() -> None:
    request = event(
        PRODUCE, partition("orders", partition=0, bytes=100, records=1),
        partition("clicks", partition=0, bytes=10, records=2), partition("orders", partition=1, bytes=200, records=4),
    )  # fmt: skip
    assert by_topic(rows_of(request)) == {
        None: {"requests": 1, "request_bytes": 500, "response_bytes": 60},
        "orders": {"topic_requests": 1, "bytes": 300, "records": 5},
        "clicks": {"topic_requests": 1, "bytes": 10, "records": 2},
    }


@pytest.mark.promise(
    "tables/traffic.md", "Records and bytes in `traffic` are those that the broker acknowledged or handed out."
)
def test_only_what_was_acknowledged_counts_as_traffic() -> None:
    taken, rejected = {"bytes": 100, "records": 10}, {"rejected_bytes": 100, "rejected_records": 10}
    unconfirmed, failed = {"unconfirmed_bytes": 100, "unconfirmed_records": 10}, {"topic_errors": 1}
    cases: dict[str, tuple[RequestEvent, dict[str, int]]] = {
        "acknowledged": (event(PRODUCE, partition()), taken),
        "denied": (event(PRODUCE, partition(error_code=29)), rejected | failed),
        "answer not readable": (event(PRODUCE, partition(error_code=-1)), rejected | failed),
        "acks=0": (event(PRODUCE, partition(), outcome="no_response", acks=0), unconfirmed),
        "connection lost": (event(PRODUCE, partition(), outcome="connection_lost"), unconfirmed),
        "fetched": (event(FETCH, partition()), taken),
        "fetched, at most so many": (event(FETCH, partition(upper_bound=True)), taken | {"estimated_records": 10}),
        "produced, at least so many": (event(PRODUCE, partition(claimed=True)), taken | {"estimated_records": 10}),
        "not acknowledged": (event(PRODUCE, partition(claimed=True, error_code=29)), rejected | failed),
        "fetch refused": (event(FETCH, partition(bytes=0, records=0, error_code=1)), failed),
        "fetch lost": (event(FETCH, partition(), outcome="connection_lost"), {}),
    }
    rows = rows_of(*[msgspec.structs.replace(request, client_id=case) for case, (request, _) in cases.items()])
    found = {row.client_id: sums(row) for row in rows if row.topic == "orders"}
    assert found == {case: {"topic_requests": 1, **expected} for case, (_, expected) in cases.items()}


CLASSES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "leader moves": ({"topics": (partition(error_code=6),)}, {"retriable": 1}),
    "coordinator loads": ({"error_code": 14}, {"retriable": 1}), "member id": ({"error_code": 79}, {"protocol": 1}),
    "rebalance": ({"error_code": 27}, {"protocol": 1}), "session is new": ({"error_code": 70}, {"protocol": 1}),
    "version is agreed": ({"api_key": 18, "error_code": 35}, {"protocol": 1}),
    "version is refused": ({"error_code": 35}, {"errors": 1}), "denied": ({"error_code": 29}, {"errors": 1}),
    "unknown": ({"error_code": -1}, {"errors": 1}), "topic is denied": ({"item_failures": 1}, {"errors": 1}),
    "topics move": ({"item_retriable": 2}, {"retriable": 1}), "members leave": ({"item_protocol": 3}, {"protocol": 1}),
    "a failure is worse than a move": ({"error_code": 6, "item_failures": 1}, {"errors": 1}),
    "a move is worse than a step": ({"error_code": 79, "item_retriable": 1}, {"retriable": 1}),
    "one partition fails": ({"topics": (partition(error_code=6), partition(error_code=29))}, {"errors": 1}),
    "nothing": ({"topics": (partition(), partition(partition=1))}, {}),
}  # fmt: skip


@pytest.mark.promise(
    "changes.md",
    "A request counts once in the errors of `traffic`, by its worst code; protocol steps are none.",
)
def test_steps_of_a_protocol_are_no_errors() -> None:
    reported = [event(**{"api_key": METADATA} | more, client_id=case) for case, (more, _) in CLASSES.items()]
    found = {row.client_id: row for row in rows_of(*reported) if row.topic is None}
    for case, (_, counted) in CLASSES.items():
        errors = {name: found[case][name] for name in ("errors", "retriable", "protocol") if found[case][name]}
        assert errors == counted, case


def test_an_error_of_any_partition_is_one_of_its_topic_and_a_moving_leader_is_none() -> None:
    moved = by_topic(rows_of(event(PRODUCE, partition("a", error_code=6), partition("b", error_code=29))))
    assert "topic_errors" not in moved["a"]
    assert moved["a"]["rejected_records"] == 10
    assert moved["b"]["topic_errors"] == 1
    several = [partition("a"), partition("a", partition=1, error_code=29), partition("a", partition=2, error_code=7)]
    rows = rows_of(
        event(FETCH, *several, partition("b")),
        event(FETCH, partition("a", error_code=3), partition("b", error_code=3)),
        event(FETCH, partition("a"), partition("b"), error_code=29),
    )
    found = {row.topic: (row.errors, row.topic_requests, row.topic_errors) for row in rows}
    assert found == {None: (3, 0, 0), "a": (0, 3, 2), "b": (0, 3, 1)}


def test_a_topic_that_was_polled_has_a_row_of_its_own() -> None:
    """However often: it is reported in both modes, and by as many connections as a client has."""
    rows = rows_of(
        event(FETCH, polled=("quiet", "read"), request_bytes=100, response_bytes=0),
        event(FETCH, partition("read"), polled=("quiet",), request_bytes=100, response_bytes=0),
        event(FETCH, polled=("quiet",), ts_request=NOON - 30 * 24 * 60 * MINUTE),
    )
    assert by_topic([row for row in rows if row.day.month == 9]) == {
        None: {"requests": 2, "request_bytes": 200},
        "quiet": POLLED,
        "read": {"topic_requests": 1, "records": 10, "bytes": 100, **POLLED},
    }
    assert by_topic([row for row in rows if row.day.month == 8])["quiet"] == POLLED


def test_sums_of_the_greatest_values_do_not_end_the_job() -> None:
    """Also those of as many as fit into three records of 1 MB, whoever wrote them."""
    most, least = (rollup(METADATA, throttle_ms=value, polled=()) for value in (2**63 - 1, -(2**63)))
    (row,) = rows_of(most, most, least, event(METADATA, throttle_ms=2**31))
    assert row.throttle_ms == 2 * MAX_SUM + 2**31
    most = rollup(METADATA, requests=MAX_SUM, request_bytes=MAX_SUM, polled=(), latencies=(MAX_SUM,))
    rows = decoded("traffic", [encoded(*[most] * 3_100, first_seq=1 + 3_100 * number) for number in range(3)])
    assert [(row.requests, row.request_bytes) for row in rows] == [(9_300 * MAX_SUM, 9_300 * MAX_SUM)]
