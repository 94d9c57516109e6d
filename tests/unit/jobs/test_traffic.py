"""The tables ``traffic`` and ``latency``: what requests and rollups add to their rows, in both modes of the audit."""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import ROLLUP_BUCKETS, RequestEvent
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ItemErrorFacts, ItemErrors
from spark_jobs.events import MAX_SUM
from spark_jobs.schemas import TRAFFIC
from tests.spark import stored
from tests.spark.decoded import decoded, kafka_records, partial_rows, summaries
from tests.spark.decoded import rows_of as table_rows
from tests.spark.envelopes import FETCH, METADATA, MINUTE, NOON, PRODUCE, Event, encoded, event, partition, rollup
from tests.spark.stored import Row
from tests.unit.observers.samples import connection, exchange, fetch, produce

VALUES = [column.name for column in TRAFFIC.columns if column.merge != "key"]


def rows_of(*events: Event, table: str = "traffic") -> list[Row]:
    """The rows of the table of events, each in an envelope of its own."""
    return decoded(table, [encoded(each, first_seq=number) for number, each in enumerate(events, 1)])


def sums(row: Row) -> dict[str, int]:
    return {name: row[name] for name in VALUES if row[name]}


@pytest.mark.promise(
    "tables/traffic.md", "A request counts once in `traffic`, and once more for each topic that it touched."
)
def test_a_request_counts_once_and_each_topic_once() -> None:
    request = event(
        PRODUCE, partition("orders", partition=0, bytes=100, records=1),
        partition("clicks", partition=0, bytes=10, records=2), partition("orders", partition=1, bytes=200, records=4),
    )  # fmt: skip
    rows = rows_of(request)
    assert len(rows) == 3
    assert {row.topic: sums(row) for row in rows} == {
        None: {"requests": 1, "request_bytes": 500, "response_bytes": 60},
        "orders": {"topic_requests": 1, "bytes": 300, "records": 5},
        "clicks": {"topic_requests": 1, "bytes": 10, "records": 2},
    }
    midnight = NOON + 12 * 60 * MINUTE
    rows = rows_of(*[event(METADATA, ts_request=ts) for ts in (0, midnight - 1, midnight)])
    assert sorted(row.day for row in rows) == [date(1970, 1, 1), date(2026, 9, 22), date(2026, 9, 23)]


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
    rows = rows_of(*[replace(request, client_id=case) for case, (request, _) in cases.items()])
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
    "changes.md", "A request counts once in the errors of `traffic`, by its worst code; protocol steps are none."
)
def test_steps_of_a_protocol_are_no_errors() -> None:
    reported = [event(**{"api_key": METADATA} | more, client_id=case) for case, (more, _) in CLASSES.items()]
    found = {row.client_id: row for row in rows_of(*reported) if row.topic is None}
    for case, (_, counted) in CLASSES.items():
        errors = {name: found[case][name] for name in ("errors", "retriable", "protocol") if found[case][name]}
        assert errors == counted, case


def test_sums_of_the_greatest_values_do_not_end_the_job() -> None:
    """Also those of as many as fit into three records of 1 MB, whoever wrote them."""
    most, least = (rollup(METADATA, throttle_ms=value, polled=()) for value in (2**63 - 1, -(2**63)))
    (row,) = rows_of(most, most, least, event(METADATA, throttle_ms=2**31))
    assert row.throttle_ms == 2 * MAX_SUM + 2**31
    most = rollup(METADATA, requests=MAX_SUM, request_bytes=MAX_SUM, polled=(), latencies=(MAX_SUM,))
    rows = decoded("traffic", [encoded(*[most] * 3_100, first_seq=1 + 3_100 * number) for number in range(3)])
    assert [(row.requests, row.request_bytes) for row in rows] == [(9_300 * MAX_SUM, 9_300 * MAX_SUM)]


SHARE_FETCH = 78
MS = 1_000

Counts = Counter[int]


def places(*times: int) -> Counts:
    return Counter(bisect_left(ROLLUP_BUCKETS, time) for time in times)


def counts(histogram: Sequence[int] | None) -> Counts | None:
    if histogram is None:
        return None
    assert len(histogram) == len(ROLLUP_BUCKETS) + 1
    return Counter({place: count for place, count in enumerate(histogram) if count})


def figures(row: Row) -> tuple[int, int, Counts | None, Counts | None, Counts | None]:
    assert row.requests == sum(row.latencies) == sum(row.service_latencies)
    histograms = (counts(row[name]) for name in ("latencies", "upstream_latencies", "service_latencies"))
    return (row.requests, row.idle, *histograms)


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
    rows = rows_of(*[replace(one, client_id=case) for case, (one, _) in cases.items()], table="latency")
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
    rows = rows_of(
        event(PRODUCE, *parts, latency_us=900, polled=("quiet",)), event(PRODUCE, partition("b")), table="latency"
    )
    both, one, other = places(900, 2_000), places(900), places(900, 2_000)
    assert {row.topic: figures(row) for row in rows} == {
        None: (2, 0, both, Counter({0: 2}), both), "a": (1, 0, one, None, one), "b": (2, 0, other, None, other),
    }  # fmt: skip


def test_counts_of_a_strange_sidecar_do_not_end_the_job() -> None:
    strange = rollup(METADATA, latencies=(2**63 - 1, -5), upstream_latencies=(1,) * 50)
    (row,) = rows_of(strange, strange, table="latency")
    assert (row.requests, row.latencies[:2]) == (2 * MAX_SUM, [2 * MAX_SUM, 0])
    assert row.upstream_latencies == [2] * 40


API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata", 78: "ShareFetch"}
WALL = 1_790_078_400.0
TOPICS = [b"orders", b"clicks", b"payments", b"hidden"]

DENIED, MOVED = (ItemErrorFacts(code, "topic", b"orders", None, 0, 0, None, None) for code in (29, 6))
ITEM_ERRORS = [ItemErrors((DENIED, MOVED), 1, 1, 0), ItemErrors((MOVED,), 0, 1, 7), ItemErrors((), 0, 0, 1)]


def exchanges(count: int) -> list[Exchange]:
    """Exchanges of a few clients over three minutes, with every outcome and with errors of all of it and of parts.

    Some answers throttle the client, which sends its next requests all the same, and long before they are answered.
    """
    chance = random.Random(20260922)
    clients = [
        connection(
            id=f"c{n}", client_ip=f"10.0.0.{n % 2}", principal=f"User:{n % 3}", principal_source=source,
            client_software_name=software, client_software_version=f"{n}.0",
        )
        for n, (source, software) in enumerate(
            [("sasl", "kgo"), ("anonymous", None), ("sasl", "librdkafka"), ("unknown", "kgo")]
        )
    ]  # fmt: skip
    made = []
    for n in range(count):
        came = n * 179 / count
        answered = came + chance.random() ** 8 * 9
        about = {
            "connection": chance.choice(clients), "client_id": chance.choice(["app", "import", None]),
            "request_bytes": chance.randrange(50, 10**6), "response_bytes": chance.randrange(0, 10**6),
            "received_at": came, "forwarded_at": came, "responded_at": answered,
            "answered_at": answered + chance.random() / 1000, "api_version": chance.choice([0, 3, 12]),
            "outcome": chance.choice(["answered"] * 6 + ["no_response", "connection_lost"]),
        }  # fmt: skip
        parts = [
            (chance.choice(TOPICS), partition, chance.randrange(5_000), chance.randrange(100))
            for partition in range(chance.randrange(5))
        ]
        errors = [chance.choice([0, 0, 0, 6, 79, -1]) for _ in parts]
        if n % 4 == 0:
            one = produce(parts, error_code=errors[0] if errors else 0, **about)
        elif n % 4 == 1:
            one = produce(parts, response=None, **about)  # an answer that could not be read, or none
        elif n % 4 == 2:
            got = [(*part, error) for part, error in zip(parts, errors, strict=True)]
            wanted = [(topic, partition) for topic, partition, _, _ in parts]
            one = fetch(wanted, got, api_key=chance.choice([1, 78]), max_wait_ms=chance.choice([0, 5, 500]), **about)
        else:
            one = exchange(**about, item_errors=chance.choice([None, *ITEM_ERRORS]))
        one.error_code, one.throttle_ms = chance.choice([0, 0, 0, 29, 6, 27]), chance.choice([0, 0, 2_500, -1])
        made.append(one)
    return made


def surroundings() -> tuple[TopicNames, AuditFilter]:
    names = TopicNames(dict, clock=lambda: 0.0, sleep=lambda seconds: None)
    return names, AuditFilter(names, topics={"hidden"}, principals=())


def as_requests(
    reported: Sequence[Exchange], cluster: str, names: TopicNames, audit_filter: AuditFilter
) -> list[bytes]:
    chunks = RequestEventEncoder(API_NAMES, names, audit_filter).encode_exchanges(reported, 1, WALL).chunks
    requests = msgspec.json.decode(b"[%b]" % b",".join(chunk.json for chunk in chunks), type=list[RequestEvent])
    return records(requests, cluster, 1)


def as_rollups(reported: Sequence[Exchange], cluster: str, names: TopicNames, audit_filter: AuditFilter) -> list[bytes]:
    """What one in ``audit.mode: rollup`` does that can gather little, so that many have the same key."""
    rollup, rolled_up, at = RollupAggregator(API_NAMES, names, audit_filter, max_rollups=20), [], 0
    while at < len(reported):
        at = rollup.add_exchanges(reported, at, WALL).until
        rolled_up += rollup.drain() if rollup.full or at == len(reported) else []
    return records(rolled_up, cluster, 2)


def records(reported: Sequence[Event], cluster: str, level: int) -> list[bytes]:
    size = 20
    return [
        encoded(*reported[at : at + size], first_seq=1 + at, cluster_id=cluster, boot_id=str(level), schema_level=level)
        for at in range(0, len(reported), size)
    ]


@pytest.mark.promise(
    "tables/traffic.md", "The rows are the same whether a sidecar sends an event for each request or rollups."
)
def test_both_modes_and_a_change_between_them_give_the_same_tables() -> None:
    reported = exchanges(600)
    half = len(reported) // 2
    known = surroundings()  # as if the change were without a restart: what is known of connections stays
    values = [  # of three clusters, so that they are gone through at once
        *as_requests(reported, "event", *surroundings()), *as_rollups(reported, "rollup", *surroundings()),
        *as_requests(reported[:half], "both", *known), *as_rollups(reported[half:], "both", *known),
    ]  # fmt: skip
    partial = partial_rows(kafka_records(values))
    assert not any(record.dead for record in summaries(partial))
    for table in ("traffic", "latency", "clients"):
        rows: dict[str, list[str]] = {}
        for row in stored.plain(table_rows(table, partial)):
            rows.setdefault(row.cluster_id, []).append(str({**row, "cluster_id": None}))
        of_event, of_rollup, of_both = (sorted(rows[cluster]) for cluster in ("event", "rollup", "both"))
        assert len(of_event) > 100
        assert of_rollup == of_event
        assert of_both == of_event
    latency = stored.plain(table_rows("latency", partial))
    waited = [row for row in latency if row.api == "Produce" and row.latencies != row.service_latencies]
    assert len(waited) > 10, "some requests waited for a throttle alone"
