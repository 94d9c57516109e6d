"""``audit.mode: rollup`` gives the table that ``audit.mode: event`` gives: from exchanges to rows, all real code."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from pyspark.sql import DataFrame

from observers.batch import MAX_RECORD
from observers.event import RequestEvent
from observers.rollup import Rollup
from observers.topics import TopicNames
from observers.translate import Scope, Translator
from proxy.core.exchange import Exchange
from spark_jobs.parse import parse
from spark_jobs.tables.traffic import traffic
from tests.spark.envelopes import Event, encoded
from tests.unit.observers.samples import connection, exchange, fetch, produce

pytestmark = pytest.mark.spark

API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata", 78: "ShareFetch"}
WALL = 1_790_078_400.0
TOPICS = [b"orders", b"clicks", b"payments", b"hidden"]

KafkaRows = Callable[[Sequence[bytes | None]], DataFrame]


def exchanges(count: int) -> list[Exchange]:
    """Exchanges of a few clients over three minutes, with every outcome and with errors of all of it and of parts."""
    chance = random.Random(20260922)
    clients = [
        connection(id=f"c{n}", client_ip=f"10.0.0.{n % 2}", principal=f"User:{n % 3}", principal_source=source)
        for n, source in enumerate(["sasl", "anonymous", "sasl", "unknown"])
    ]
    made = []
    for n in range(count):
        came = chance.uniform(0, 179)
        about = {
            "connection": chance.choice(clients),
            "client_id": chance.choice(["app", "import", None]),
            "request_bytes": chance.randrange(50, 10**6),
            "response_bytes": chance.randrange(0, 10**6),
            "received_at": came,
            "answered_at": came + chance.random(),
            "outcome": chance.choice(["answered"] * 6 + ["no_response", "connection_lost"]),
        }
        parts = [
            (chance.choice(TOPICS), partition, chance.randrange(5_000), chance.randrange(100))
            for partition in range(chance.randrange(5))
        ]
        errors = [chance.choice([0, 0, 0, 6, -1]) for _ in parts]
        if n % 4 == 0:
            one = produce(parts, error_code=errors[0] if errors else 0, **about)
        elif n % 4 == 1:
            one = produce(parts, response=None, **about)  # an answer that could not be read, or none
        elif n % 4 == 2:
            got = [(*part, error) for part, error in zip(parts, errors, strict=True)]
            wanted = [(topic, partition) for topic, partition, _, _ in parts]
            one = fetch(wanted, got, api_key=chance.choice([1, 78]), **about)
        else:
            one = exchange(**about)
        error_code, throttle_ms = chance.choice([0, 0, 0, 29]), chance.choice([0, 0, 250, -1])
        made.append(msgspec.structs.replace(one, error_code=error_code, throttle_ms=throttle_ms))
    return made


def surroundings() -> tuple[TopicNames, Scope]:
    names = TopicNames(dict, clock=lambda: 0.0, sleep=lambda seconds: None)
    return names, Scope(names, topics={"hidden"}, principals=(), client_ids=())


def as_requests(told: Sequence[Exchange], boot: str) -> list[bytes]:
    """What a sidecar in ``audit.mode: event`` writes."""
    chunks = Translator(API_NAMES, *surroundings()).translate(told, 1, WALL).chunks
    return records([msgspec.json.decode(chunk.json, type=RequestEvent) for chunk in chunks], boot, 1)


def as_rollups(told: Sequence[Exchange], boot: str) -> list[bytes]:
    """What one in ``audit.mode: rollup`` does that can gather little, so that many have the same key."""
    rollup, events, at = Rollup(API_NAMES, *surroundings(), max_rollups=20), [], 0
    while at < len(told):
        at = rollup.add(told, at, WALL).until
        events += rollup.take() if rollup.full or at == len(told) else []
    return records(events, boot, 2)


def records(events: Sequence[Event], boot: str, level: int) -> list[bytes]:
    size = 20
    assert len(encoded(*events[:size])) < MAX_RECORD
    return [
        encoded(*events[at : at + size], first_seq=1 + at, boot_id=boot, schema_level=level)
        for at in range(0, len(events), size)
    ]


def test_both_modes_and_a_change_between_them_give_the_same_table(kafka_rows: KafkaRows) -> None:
    told = exchanges(600)
    half = len(told) // 2
    streams = {
        "event": as_requests(told, "one"),
        "rollup": as_rollups(told, "two"),
        "event, then rollup": as_requests(told[:half], "three") + as_rollups(told[half:], "four"),
    }
    tables = {}
    for mode, values in streams.items():
        parsed = parse(kafka_rows(values))
        assert parsed.where("reason IS NOT NULL").count() == 0
        tables[mode] = sorted(map(str, traffic(parsed).collect()))
    assert len(tables["event"]) > 200
    assert tables["rollup"] == tables["event, then rollup"] == tables["event"]
