"""A topic of a million requests with everything that an audit topic may have beside them, and bad records of each kind.

Two sidecars report requests and events of each other kind. Some of their records come twice, whole or in halves, and
some a day late, from a spool. A third sidecar sends rollups. All of them sign.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent
from observers.event import Envelope, Event, RequestEvent, RollupTopic, encoder
from proxy.config.hmac_keys import AUDIT
from proxy.core.authentication import Authenticator
from tests.ledger.build import FOREVER
from tests.spark import envelopes as made
from tests.spark.envelopes import METADATA, MINUTE, POISON, PRODUCE
from tests.tools.bench.jobs_topics import events

CLUSTER = "ThK9ZFduS0ONy_eg3SRv7w"
KEYS = {"old": b"o" * 40, "new": b"n" * 40}
SIGNERS = [Authenticator(AUDIT, {name: key}) for name, key in KEYS.items()]
FORGERS = {
    "unknown_key": Authenticator(AUDIT, {"other": b"x" * 40}),
    "bad_signature": Authenticator(AUDIT, {"old": b"x" * 40}),
}

PARTITIONS = 4
BEGIN = 1_795_303_200_000_000
"""µs: 2026-11-21 23:20 UTC."""

EVERY = 10_000
"""µs between two requests of a sidecar: a million of two end 83 minutes later, on the next day."""

CLIENTS = 55
"""Of each sidecar: about 500 rows of ``traffic`` a minute."""

REQUESTS_OF_RECORD = 190
LATE = 20 * 60 * MINUTE
"""What a spool delays."""


class MixedRecord(NamedTuple):
    """One record. ``at``: its timestamp, µs. ``forger``: why its signature is refused, or empty."""

    at: int
    value: bytes | None
    forger: str = ""


def write(bootstrap: str, topic: str, requests: int, of_each_reason: int) -> None:
    """Create ``topic``, and write ``requests`` requests and ``of_each_reason`` bad records of each reason."""
    config = {"retention.ms": "-1", "message.timestamp.after.max.ms": FOREVER}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})
    records = [*_rolled_up(requests // 2_000), *_poison(of_each_reason, requests // 2 * EVERY)]
    for broker in (1, 2):
        records += _of_sidecar(broker, requests // 2, of_each_reason // 2)
    for number, record in enumerate(sorted(records, key=lambda one: one.at)):
        while len(producer) > 5_000:
            producer.poll(0.1)
        signer = FORGERS.get(record.forger, SIGNERS[number % 2])
        headers: list[tuple[str, str | bytes | None]] = (
            [] if record.forger == "unsigned" else [signer.header(None, record.value)]
        )
        partition, at = number * 7 % PARTITIONS, record.at // 1_000
        producer.produce(topic, record.value, partition=partition, headers=headers, timestamp=at)
    assert not producer.flush(60)


def _of_sidecar(broker: int, requests: int, conflicts: int) -> Iterator[MixedRecord]:
    chance = random.Random(broker)
    source = events(requests, CLIENTS)
    first, number = 1, 0
    while some := list(islice(source, REQUESTS_OF_RECORD)):
        number += 1
        for each in some:
            each.ts_request = BEGIN + each.seq * EVERY
        at = some[-1].ts_request
        held = [*(_varied(chance, each) for each in some), *_others(chance, broker, number, at)]
        late = LATE if number % 50 == 41 else 0
        whole = _envelope(broker, first, held, at + late)
        middle = len(held) // 2  # as a sidecar splits
        halves = [_envelope(broker, first, held[:middle], at), _envelope(broker, first + middle, held[middle:], at)]
        sent: list[Envelope]
        match number % 50:
            case 1:
                sent = [whole, whole]
            case 11:
                sent = halves
            case 21:
                sent = [*halves, whole]
            case 31:
                sent = [whole, *halves]
            case _:
                sent = [whole]
        gap = chance.choice((1_000, MINUTE))
        yield from (
            MixedRecord(at + late + index * gap, encoder.encode(envelope)) for index, envelope in enumerate(sent)
        )
        if number % 5 == 2 and number // 5 < conflicts:
            forged = [msgspec.structs.replace(held[0], listener="OTHER"), *held[1:]]
            yield MixedRecord(at + 2_000, encoder.encode(_envelope(broker, first, forged, at)))
        first += len(held)


def _envelope(broker: int, first: int, held: Iterable[Event], at: int, level: int = 1) -> Envelope:
    numbered = [msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(held, first)]
    return Envelope(
        level, CLUSTER, broker, f"boot-{broker}", "0.1.0", first, first + len(numbered) - 1, 0, at, numbered
    )


def _varied(chance: random.Random, event: RequestEvent) -> RequestEvent:
    """Change one request of ten: its result, and names that are not plain."""
    if chance.random() > 0.1:
        return event
    changes: dict[str, Any] = chance.choice((
        {"outcome": chance.choice(("no_response", "connection_lost"))},
        {"error_code": chance.choice((1, 29))},
        {"throttle_ms": chance.choice((-7, 100, 2**40))},
        {"client_id": chance.choice((None, 'a"b\\c', "ü", "\u0000x", ""))},
        {"polled": ("quiet", "team-0.orders-0")},
        {"muted_us": 5_000},
        {"api_version": -1},
    ))  # fmt: skip
    if event.topics and chance.random() < 0.5:
        failed = msgspec.structs.replace(event.topics[0], error_code=chance.choice((6, -1)))
        changes["topics"] = (failed, *event.topics[1:], failed, msgspec.structs.replace(failed, partition=99))
    return msgspec.structs.replace(event, **changes)


def _others(chance: random.Random, broker: int, number: int, at: int) -> Iterator[Event]:
    """Events of each other kind. ``number``: of the record."""
    connection = f"b{broker}-{number}"
    yield made.connection(ts=at, change="opened", connection_id=connection, requests=0, duration_ms=0, cause="")
    if number > 5:
        yield made.connection(ts=at, connection_id=f"b{broker}-{number - 5}", client_ip=f"10.1.0.{number % 9}")
    yield made.throttle(ts_first=at, ts_last=at + number, observed=chance.random() * 100, count=1 + number % 4)
    yield made.inventory("orders", *(f"team-{n % 5}.orders-{n}" for n in range(number % 20)))
    committed = tuple(CommittedPartition("team-1.orders-1", n, number, at - n) for n in range(3))
    yield made.group(ts_first=at, ts_last=at + number, commits=3, committed=committed, member_id=f"m{number % 7}")
    yield EndOffsetsEvent(0, at, (EndOffset("team-1.orders-1", 0, 2 * number, at),))
    yield made.event(METADATA, operation="Create", ts_request=at, error_code=number % 3)
    if number % 40 == 0:
        yield made.gap(
            number, number + 3, lost_boot_id=f"dead-{number}", reason=("queue_full", "killed")[number % 80 > 0]
        )
    yield made.status(ts=at, started_at=BEGIN, seen=200 * number, emitted=199 * number, delivered=190 * number)


def _rolled_up(records: int) -> Iterator[MixedRecord]:
    chance, first = random.Random(3), 1
    for number in range(records):
        minute = BEGIN + number % 60 * MINUTE
        held: list[Event] = []
        for n in range(20):
            topic = RollupTopic(f"team-{n % 5}.orders-{n}", 2, 7, 70, errors=1, latencies=(0, 1, 1))
            changes: dict[str, Any] = {
                "minute": minute,
                "client_id": f"service-{chance.randrange(30)}",
                "requests": 1 + n,
            }
            held.append(made.rollup(n % 2, topic, **changes))
        held.append(made.event(PRODUCE, made.partition("orders", error_code=3), ts_request=minute))
        at = minute + MINUTE + number
        yield MixedRecord(at, encoder.encode(_envelope(3, first, held, at, level=2)))
        first += len(held)


def _poison(of_each_reason: int, duration: int) -> Iterator[MixedRecord]:
    """Bad records of each reason but ``conflict``."""
    by_reason: dict[str, list[bytes | None]] = defaultdict(list)
    for value, reason, _ in POISON.values():
        by_reason[reason].append(value)
    for reason in ("unsigned", *FORGERS):
        by_reason[reason] = [made.encoded(made.event(METADATA), boot_id="boot-1")]
    for place, (reason, values) in enumerate(by_reason.items()):
        for number, value in enumerate(islice(cycle(values), of_each_reason)):
            forger = reason if reason in ("unsigned", *FORGERS) else ""
            yield MixedRecord(BEGIN + number * duration // of_each_reason + place, value, forger)
