"""Clients of the script that write."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.ledger.acts import HOUR, MINUTE, SECOND, Part
from tests.ledger.cast import (
    BATCH,
    BEGIN,
    CLICKS,
    DROPPED,
    END,
    EXPORTS,
    LEADERS,
    MIRROR,
    ORDERS,
    PAYER,
    PAYMENTS,
    SENSORS,
    SHOP,
    TELEMETRY,
    WEB,
)
from tests.ledger.world import World, timed


def orders(world: World) -> None:
    """10,000 records of an idempotent producer, some of them sent twice; the mirror drops 7."""
    random = Random("orders")
    sequences, offsets, mirrored = [0, 0], [0, 0], [0, 0]
    for number in range(500):
        at = BEGIN + 60 * SECOND + number * 84 * SECOND + random.randrange(SECOND)
        partition = number % 2
        broker = LEADERS[ORDERS][partition]
        size = 1_500 + random.randrange(900)
        batch = Part(ORDERS, partition, 20, size, 0, (4_001, 0), sequences[partition], offsets[partition])
        sent: dict[str, Any] = {"api": "Produce", "version": 11, "request_bytes": size + 130, "acks": -1}
        if number % 50 == 17:  # the answer was lost, so it comes again
            lost = Part(ORDERS, partition, 20, size, 0, (4_001, 0), sequences[partition])
            world.call(SHOP, "east", broker, at, **sent, parts=(lost,), outcome="connection_lost")
            at += 300_000
        world.call(SHOP, "east", broker, at, **sent, parts=(batch,), response_bytes=90, **timed(random))
        if number % 70 == 33:  # it was answered, and the client did not wait for that
            at += 2 * SECOND
            world.call(SHOP, "east", broker, at, **sent, parts=(batch,), response_bytes=90, **timed(random))
        sequences[partition] += 20
        offsets[partition] += 20
        kept = 19 if number in DROPPED else 20
        at += 5 * SECOND
        read = Part(ORDERS, partition, 20, size, offset=offsets[partition] - 20)
        world.call(
            MIRROR, "east", broker, at, "Fetch", 17, parts=(read,), response_bytes=size + 120, max_wait_ms=500,
            **timed(random, wait=random.randrange(400_000)),
        )  # fmt: skip
        at = _safe(world, broker, at + SECOND)
        copy = Part(
            "east.orders", partition, kept, size * kept // 20, 0, (77, 1), mirrored[partition] + 7, mirrored[partition]
        )
        world.call(
            MIRROR, "west", broker, at, "Produce", 11, parts=(copy,), request_bytes=size + 140, response_bytes=96,
            acks=-1, **timed(random, 900),
        )  # fmt: skip
        mirrored[partition] += kept


def _safe(world: World, broker: int, at: int) -> int:
    """The first time from ``at`` on at which a sidecar of the west neither was away nor loses what it saw."""
    run = world.run("west", broker, at)
    if run.killed and at > run.ended - 2 * MINUTE:
        run = world.run("west", broker, run.ended)
    if run.overrun and run.overrun[0] - SECOND <= at < run.overrun[1]:
        at = run.overrun[1] + SECOND
    return max(at, run.started + SECOND)


def payments(world: World) -> None:
    """Not idempotent, throttled every now and then, with records that are too large; mirrored, but for the last."""
    random = Random("payments")
    offsets, mirrored = [0, 0, 0], [0, 0, 0]
    for number in range(297):
        at = BEGIN + 100 * SECOND + number * 145 * SECOND + random.randrange(SECOND)
        partition = number % 3
        broker = LEADERS[PAYMENTS][partition]
        size, records = 700 + random.randrange(5_000), 1 + random.randrange(12)
        sent: dict[str, Any] = {
            "api": "Produce", "version": 9, "request_bytes": size + 110, "acks": -1, "response_bytes": 77,
        }  # fmt: skip
        throttled = number % 12 == 5
        if number % 20 == 3:
            large = Part(PAYMENTS, partition, 1, 1_200_000, 10)
            world.call(
                PAYER, "east", broker, at - SECOND, **sent | {"request_bytes": 1_200_110}, parts=(large,),
                **timed(random),
            )  # fmt: skip
        batch = Part(PAYMENTS, partition, records, size, offset=offsets[partition])
        world.call(PAYER, "east", broker, at, **sent, parts=(batch,), throttle_ms=250 * throttled, **timed(random))
        if throttled:  # what comes next waits until the broker reads on
            world.call(
                PAYER, "east", broker, at + 60_000, "Metadata", 12, response_bytes=900, muted_us=190_000,
                **timed(random, muted=190_000),
            )  # fmt: skip
        if at < END - 5 * MINUTE:
            copy = Part("east.payments", partition, records, size, 0, (78, 0), mirrored[partition], offsets[partition])
            world.call(
                MIRROR, "west", broker, _safe(world, broker, at + 20 * SECOND), "Produce", 11, parts=(copy,),
                request_bytes=size + 140, response_bytes=96, acks=-1, **timed(random, 900),
            )  # fmt: skip
            mirrored[partition] += records
        offsets[partition] += records


def clicks(world: World) -> None:
    """Bursts within a minute, two topics in a request, one of which may fail."""
    random = Random("clicks")
    offsets = [0, 0]
    for number in range(120):
        at = BEGIN + 30 * SECOND + number * 357 * SECOND
        for more in range(5):
            partition = more % 2
            size, records = 9_000 + random.randrange(30_000), 50 + random.randrange(100)
            parts = [Part(CLICKS, partition, records, size, offset=offsets[partition])]
            offsets[partition] += records
            if partition == 0 and more == 2:
                refused = 6 if number % 15 == 4 else 0
                parts.append(Part(TELEMETRY, 1, 3, 400, refused, offset=-1 if refused else number * 3))
            world.call(
                WEB, "east", LEADERS[CLICKS][partition], at + more * 4 * SECOND, "Produce", 12, parts=tuple(parts),
                request_bytes=sum(part.bytes for part in parts) + 150, response_bytes=110, acks=1, **timed(random, 700),
            )  # fmt: skip


def telemetry(world: World) -> None:
    """Nobody answers, by design."""
    random = Random("telemetry")
    for number in range(240):
        partition = number % 2
        batch = Part(TELEMETRY, partition, 30, 2_000 + random.randrange(500))
        world.call(
            SENSORS, "east", LEADERS[TELEMETRY][partition], BEGIN + 45 * SECOND + number * 179 * SECOND, "Produce", 10,
            parts=(batch,), request_bytes=batch.bytes + 100, outcome="no_response", acks=0,
        )  # fmt: skip


def exports(world: World) -> None:
    """Once in the evening; the topic is deleted in the night."""
    random = Random("exports")
    for number in range(60):
        batch = Part(EXPORTS, 0, 200, 60_000 + random.randrange(9_000), 0, (900, 3), number * 200, number * 200)
        world.call(
            BATCH, "east", 1, BEGIN + HOUR + number * 11 * SECOND, "Produce", 11, parts=(batch,),
            request_bytes=batch.bytes + 120, response_bytes=88, acks=-1, **timed(random, 2_000),
        )  # fmt: skip
