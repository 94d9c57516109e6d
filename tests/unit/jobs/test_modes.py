"""``audit.mode: rollup`` gives the tables that ``audit.mode: event`` gives: from exchanges to rows."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ItemErrorFacts, ItemErrors
from tests.spark import stored
from tests.spark.decoded import kafka_records, partial_rows, rows_of, summaries
from tests.spark.envelopes import Event, encoded
from tests.unit.observers.samples import connection, exchange, fetch, produce

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
    """What a sidecar in ``audit.mode: event`` writes."""
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
        for row in stored.plain(rows_of(table, partial)):
            rows.setdefault(row.cluster_id, []).append(str({**row, "cluster_id": None}))
        of_event, of_rollup, of_both = (sorted(rows[cluster]) for cluster in ("event", "rollup", "both"))
        assert len(of_event) > 100
        assert of_rollup == of_event
        assert of_both == of_event
    latency = stored.plain(rows_of("latency", partial))
    waited = [row for row in latency if row.api == "Produce" and row.latencies != row.service_latencies]
    assert len(waited) > 10, "some requests waited for a throttle alone"
