"""The table ``latency``: which times of requests and rollups are counted, and where."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from observers.event import ROLLUP_BUCKETS
from spark_jobs.events import MAX_SUM
from tests.spark.decoded import decoded
from tests.spark.envelopes import FETCH, METADATA, PRODUCE, Event, encoded, event, partition, rollup
from tests.spark.stored import Row

SHARE_FETCH = 78
MS = 1_000

Counts = Counter[int]


def table_of(*events: Event) -> list[Row]:
    """The rows of the table of events, each in an envelope of its own."""
    return decoded("latency", [encoded(each, first_seq=number) for number, each in enumerate(events, 1)])


def places(*times: int) -> Counts:
    """Places of the buckets of these times, in µs."""
    return Counter(bisect_left(ROLLUP_BUCKETS, time) for time in times)


def counts(histogram: Sequence[int] | None) -> Counts | None:
    """Places with what was counted there."""
    if histogram is None:
        return None
    assert len(histogram) == len(ROLLUP_BUCKETS) + 1
    return Counter({place: count for place, count in enumerate(histogram) if count})


def figures(row: Row) -> tuple[int, int, Counts | None, Counts | None, Counts | None]:
    assert row.requests == sum(row.latencies) == sum(row.service_latencies)
    histograms = (counts(row[name]) for name in ("latencies", "upstream_latencies", "service_latencies"))
    return (row.requests, row.idle, *histograms)


def test_a_bucket_ends_where_it_says() -> None:
    times = [0, 1, MAX_SUM, *[end + more for end in ROLLUP_BUCKETS for more in (-1, 0, 1)]]
    (row,) = table_of(*[event(METADATA, latency_us=time, upstream_us=time) for time in times])
    assert figures(row) == (len(times), 0, places(*times), places(*times), places(*times))


@pytest.mark.promise(
    "slo.md",
    "Latency leaves out what a fetch was asked to wait and the time that a throttled connection was left unread.",
)
def test_what_is_measured_of_a_request() -> None:
    """By client id: a request, and what it adds to requests and idle ones, latency, upstream and service time."""
    some, none = partition(), Counter[int]()
    empty, refused = partition(records=0, bytes=0), partition(records=0, bytes=0, error_code=6)
    slow, wait = 600 * MS, {"latency_us": 600 * MS, "max_wait_ms": 500}
    cases: dict[str, tuple[Event, tuple[int, int, Counts, Counts, Counts] | None]] = {
        "answered": (
            event(PRODUCE, some, latency_us=900, upstream_us=700), (1, 0, places(900), places(700), places(900))),
        "refused": (event(PRODUCE, refused, latency_us=900), (1, 0, places(900), places(0), places(900))),
        "acks=0": (event(PRODUCE, some, outcome="no_response", latency_us=0), None),
        "lost": (event(PRODUCE, some, outcome="connection_lost", latency_us=0), None),
        "idle": (event(FETCH, **wait), (0, 1, none, none, none)),
        "idle share": (replace(event(FETCH, **wait), api_key=SHARE_FETCH, api="ShareFetch"), (0, 1, none, none, none)),
        "lost fetch": (event(FETCH, outcome="connection_lost", latency_us=0), None),
        "failed fetch": (event(FETCH, error_code=29, **wait), (1, 0, places(slow), places(0), places(100 * MS))),
        "refused fetch": (event(FETCH, refused, **wait), (1, 0, places(slow), places(0), places(100 * MS))),
        "long poll": (
            event(FETCH, some, latency_us=450 * MS, max_wait_ms=500), (1, 0, places(450 * MS), places(0), places(0))),
        "share poll": (
            replace(event(FETCH, some, **wait), api_key=SHARE_FETCH, api="ShareFetch"),
            (1, 0, places(slow), places(0), places(100 * MS)),
        ),
        "nothing inside": (event(FETCH, empty, latency_us=MS), (1, 0, places(MS), places(0), places(MS))),
        "no wait": (event(FETCH, some, latency_us=MS, max_wait_ms=-500), (1, 0, places(MS), places(0), places(MS))),
        "the longest wait": (
            event(FETCH, some, latency_us=MS, max_wait_ms=2**31 - 1),
            (1, 0, places(MS), places(0), places(0)),
        ),
        "muted": (
            event(PRODUCE, some, latency_us=300 * MS, muted_us=280 * MS, throttle_ms=99),
            (1, 0, places(300 * MS), places(0), places(20 * MS)),
        ),
        "muted poll": (event(FETCH, some, muted_us=200 * MS, **wait), (1, 0, places(slow), places(0), places(0))),
        "throttled": (
            event(METADATA, latency_us=MS, throttle_ms=5_000), (1, 0, places(MS), places(0), places(MS))),
    }  # fmt: skip
    rows = table_of(*[replace(one, client_id=case) for case, (one, _) in cases.items()])
    found = {row.client_id: figures(row) for row in rows if row.topic is None}
    assert found == {case: expected for case, (_, expected) in cases.items() if expected is not None}
    topics = {row.client_id: figures(row) for row in rows if row.topic is not None}
    assert topics == {
        case: (1, 0, expected[2], None, expected[4])
        for case, (one, expected) in cases.items()
        if expected is not None and getattr(one, "topics", ())
    }


@pytest.mark.promise(
    "tables/latency.md", "A request counts once in `latency`, and once more for each topic that it touched."
)
def test_a_request_counts_once_for_each_of_its_topics() -> None:
    parts = [partition("a"), partition("b"), partition("a", partition=1), partition("a", partition=2, error_code=6)]
    rows = table_of(event(PRODUCE, *parts, latency_us=900, polled=("quiet",)), event(PRODUCE, partition("b")))
    both, one, other = places(900, 2_000), places(900), places(900, 2_000)
    assert {row.topic: figures(row) for row in rows} == {
        None: (2, 0, both, Counter({0: 2}), both), "a": (1, 0, one, None, one), "b": (2, 0, other, None, other),
    }  # fmt: skip


def test_counts_of_a_strange_sidecar_do_not_end_the_job() -> None:
    strange = rollup(METADATA, latencies=(2**63 - 1, -5), upstream_latencies=(1,) * 50)
    (row,) = table_of(strange, strange)
    assert (row.requests, row.latencies[:2]) == (2 * MAX_SUM, [2 * MAX_SUM, 0])
    assert row.upstream_latencies == [2] * 40
