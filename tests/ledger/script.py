"""Twelve hours of two clusters of three brokers, from an evening over midnight to a morning.

``east`` is watched without a break; ``west`` has a mirror of its topics, a sidecar that was killed, one that was away,
and one that lost events. Sidecars of broker 3 roll up: in the east always, in the west from midnight on.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.ledger.acts import HOUR, MINUTE, SECOND, Limited, Part
from tests.ledger.cast import (
    ANALYST,
    BATCH,
    BEGIN,
    BILLING,
    DROPPED,
    EAST_TOPICS,
    END,
    HOSTILE,
    INTRUDER,
    LEADERS,
    MIRROR,
    OLD,
    ORDERS,
    PAYER,
    QUIET,
    SENSORS,
    SHOP,
    STAYING,
    WATCHER,
    WEB,
    WEST_TOPICS,
    runs,
)
from tests.ledger.world import World


def happened() -> World:
    """The whole script."""
    world = World(runs())
    for act in (_orders, _payments, _clicks, _telemetry, _reads, _watches, _exports, _old, _guests, _reports):
        act(world)
    for hour in range(12):
        for cluster, topics in (("east", EAST_TOPICS), ("west", WEST_TOPICS)):
            at = BEGIN + hour * HOUR + 90 * SECOND
            # The east's ``legacy`` is listed to the end, ``exports`` is deleted in the ninth hour.
            there = [topic for topic in topics if topic.name != EXPORTS or hour < 9]
            world.list_topics(cluster, at, there, parts=2 if cluster == "east" and hour % 4 == 1 else 1)
    world.close(STAYING)
    return world


def _latency(random: Random, least: int = 300) -> int:
    """µs: most of them short, some a hundred times as long."""
    return int(least * 1.23 ** (random.random() ** 3 * 30)) + random.randrange(least)


def _timed(random: Random, least: int = 300, muted: int = 0, wait: int = 0) -> dict[str, Any]:
    upstream = _latency(random, least)
    return {"latency_us": upstream + 40 + random.randrange(60) + muted + wait, "upstream_us": upstream + muted + wait}


def _orders(world: World) -> None:
    """10,000 records of an idempotent producer, some of them sent twice; the mirror drops 7."""
    random = Random("orders")
    sequences, offsets, mirrored = [0, 0], [0, 0], [0, 0]
    for number in range(500):
        at = BEGIN + 60 * SECOND + number * 86 * SECOND + random.randrange(SECOND)
        partition = number % 2
        broker = LEADERS[ORDERS][partition]
        size = 1_500 + random.randrange(900)
        batch = Part(ORDERS, partition, 20, size, 0, (4_001, 0), sequences[partition], offsets[partition])
        sent: dict[str, Any] = {"api": "Produce", "version": 11, "request_bytes": size + 130, "acks": -1}
        if number % 50 == 17:  # the answer was lost, so it comes again
            lost = Part(ORDERS, partition, 20, size, 0, (4_001, 0), sequences[partition])
            world.call(SHOP, "east", broker, at, **sent, parts=(lost,), outcome="connection_lost")
            at += 300_000
        world.call(SHOP, "east", broker, at, **sent, parts=(batch,), response_bytes=90, **_timed(random))
        if number % 70 == 33:  # it was answered, and the client did not wait for that
            at += 2 * SECOND
            world.call(SHOP, "east", broker, at, **sent, parts=(batch,), response_bytes=90, **_timed(random))
        sequences[partition] += 20
        offsets[partition] += 20
        kept = 19 if number in DROPPED else 20
        at += 5 * SECOND
        read = Part(ORDERS, partition, 20, size, offset=offsets[partition] - 20)
        world.call(
            MIRROR,
            "east",
            broker,
            at,
            "Fetch",
            17,
            parts=(read,),
            response_bytes=size + 120,
            max_wait_ms=500,
            **_timed(random, wait=random.randrange(400_000)),
        )
        at = _safe(world, broker, at + SECOND)
        copy = Part(
            "east.orders", partition, kept, size * kept // 20, 0, (77, 1), mirrored[partition] + 7, mirrored[partition]
        )
        world.call(
            MIRROR,
            "west",
            broker,
            at,
            "Produce",
            11,
            parts=(copy,),
            request_bytes=size + 140,
            response_bytes=96,
            acks=-1,
            **_timed(random, 900),
        )
        mirrored[partition] += kept


def _safe(world: World, broker: int, at: int) -> int:
    """The first time from ``at`` on at which a sidecar of the west neither was away nor loses what it saw."""
    run = world.run("west", broker, at)
    if run.killed and at > run.ended - 2 * MINUTE:
        run = world.run("west", broker, run.ended)
    if run.overrun and run.overrun[0] - SECOND <= at < run.overrun[1]:
        at = run.overrun[1] + SECOND
    return max(at, run.started + SECOND)


def _payments(world: World) -> None:
    """Not idempotent, throttled every now and then, with records that are too large; mirrored, but for the last."""
    random = Random("payments")
    offsets, mirrored = [0, 0, 0], [0, 0, 0]
    for number in range(297):
        at = BEGIN + 100 * SECOND + number * 145 * SECOND + random.randrange(SECOND)
        partition = number % 3
        broker = LEADERS[PAYMENTS][partition]
        size, records = 700 + random.randrange(5_000), 1 + random.randrange(12)
        sent: dict[str, Any] = {
            "api": "Produce",
            "version": 9,
            "request_bytes": size + 110,
            "acks": -1,
            "response_bytes": 77,
        }
        throttled = number % 12 == 5
        if number % 20 == 3:
            large = Part(PAYMENTS, partition, 1, 1_200_000, 10)
            world.call(
                PAYER,
                "east",
                broker,
                at - SECOND,
                **sent | {"request_bytes": 1_200_110},
                parts=(large,),
                **_timed(random),
            )
        batch = Part(PAYMENTS, partition, records, size, offset=offsets[partition])
        world.call(PAYER, "east", broker, at, **sent, parts=(batch,), throttle_ms=250 * throttled, **_timed(random))
        if throttled:  # what comes next waits until the broker reads on
            world.call(
                PAYER,
                "east",
                broker,
                at + 60_000,
                "Metadata",
                12,
                response_bytes=900,
                muted_us=190_000,
                **_timed(random, muted=190_000),
            )
        if at < END - 5 * MINUTE:
            copy = Part("east.payments", partition, records, size, 0, (78, 0), mirrored[partition], offsets[partition])
            world.call(
                MIRROR,
                "west",
                broker,
                _safe(world, broker, at + 20 * SECOND),
                "Produce",
                11,
                parts=(copy,),
                request_bytes=size + 140,
                response_bytes=96,
                acks=-1,
                **_timed(random, 900),
            )
            mirrored[partition] += records
        offsets[partition] += records


def _clicks(world: World) -> None:
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
                WEB,
                "east",
                LEADERS[CLICKS][partition],
                at + more * 4 * SECOND,
                "Produce",
                12,
                parts=tuple(parts),
                request_bytes=sum(part.bytes for part in parts) + 150,
                response_bytes=110,
                acks=1,
                **_timed(random, 700),
            )


def _telemetry(world: World) -> None:
    """Nobody answers, by design."""
    random = Random("telemetry")
    for number in range(240):
        partition = number % 2
        batch = Part(TELEMETRY, partition, 30, 2_000 + random.randrange(500))
        world.call(
            SENSORS,
            "east",
            LEADERS[TELEMETRY][partition],
            BEGIN + 45 * SECOND + number * 179 * SECOND,
            "Produce",
            10,
            parts=(batch,),
            request_bytes=batch.bytes + 100,
            outcome="no_response",
            acks=0,
        )


def _reads(world: World) -> None:
    """A consumer that is given what there is, waits for more, and has a group."""
    random = Random("reads")
    for number in range(360):
        at = BEGIN + 70 * SECOND + number * 119 * SECOND
        topic = (ORDERS, PAYMENTS)[number % 2]
        partition = number // 2 % len(LEADERS[topic])
        broker = LEADERS[topic][partition]
        read = Part(topic, partition, 20 + random.randrange(9), 2_000 + random.randrange(999), offset=number * 20)
        world.call(
            BILLING,
            "east",
            broker,
            at,
            "Fetch",
            17,
            parts=(read,),
            response_bytes=read.bytes + 130,
            max_wait_ms=500,
            **_timed(random, wait=random.randrange(450_000)),
        )
        for again in range(3):
            world.call(
                BILLING,
                "east",
                broker,
                at + (again + 1) * 510_000,
                "Fetch",
                17,
                response_bytes=40,
                max_wait_ms=500,
                polled=(topic,) if again == 0 else (),
                **_timed(random, wait=500_000),
            )
        if number % 30 == 0:
            world.call(
                BILLING,
                "east",
                1,
                at + 5 * SECOND,
                "JoinGroup",
                9,
                response_bytes=210,
                latency_us=3_000_400,
                upstream_us=3_000_300,
            )
        if number % 9 == 0:
            error = 27 if number % 45 == 0 else 0  # REBALANCE_IN_PROGRESS
            world.call(
                BILLING, "east", 1, at + 6 * SECOND, "OffsetCommit", 9, response_bytes=60, error=error, **_timed(random)
            )
        if number % 40 == 7:
            gone = Part(topic, partition, error=1)  # OFFSET_OUT_OF_RANGE
            world.call(
                BILLING,
                "east",
                broker,
                at + 7 * SECOND,
                "Fetch",
                17,
                parts=(gone,),
                response_bytes=90,
                **_timed(random),
            )


def _watches(world: World) -> None:
    """Asks for a topic that nobody writes to."""
    random = Random("watches")
    for number in range(700):
        world.call(
            WATCHER,
            "east",
            1,
            BEGIN + 20 * SECOND + number * 61 * SECOND,
            "Fetch",
            17,
            response_bytes=40,
            max_wait_ms=500,
            polled=(QUIET,),
            **_timed(random, wait=500_000),
        )


def _exports(world: World) -> None:
    """Once in the evening; the topic is deleted in the night."""
    random = Random("exports")
    for number in range(60):
        batch = Part(EXPORTS, 0, 200, 60_000 + random.randrange(9_000), 0, (900, 3), number * 200, number * 200)
        world.call(
            BATCH,
            "east",
            1,
            BEGIN + HOUR + number * 11 * SECOND,
            "Produce",
            11,
            parts=(batch,),
            request_bytes=batch.bytes + 120,
            response_bytes=88,
            acks=-1,
            **_timed(random, 2_000),
        )


def _old(world: World) -> None:
    """Speaks versions that Kafka 4 refuses."""
    random = Random("old")
    for number in range(100):
        at = BEGIN + 80 * SECOND + number * 431 * SECOND
        batch = Part(CLICKS, 1, 5, 900, offset=1_000_000 + number * 5)
        world.call(
            OLD,
            "east",
            1,
            at,
            "Produce",
            2,
            parts=(batch,),
            request_bytes=980,
            response_bytes=50,
            acks=1,
            **_timed(random),
        )
        world.call(
            OLD,
            "east",
            1,
            at + SECOND,
            "Fetch",
            3,
            parts=(Part(CLICKS, 1, 5, 900, offset=number),),
            response_bytes=960,
            max_wait_ms=100,
            **_timed(random),
        )


def _guests(world: World) -> None:
    """Many connections at once, of which some are held; logins that fail."""
    random = Random("guests")
    for hour in (2, 8):
        at = BEGIN + hour * HOUR + 30 * MINUTE
        run = world.run("east", 1, at)
        for number in range(40):
            opened = at + number * 70_000
            visit = world.visit(HOSTILE, run, opened)
            world.on(visit, opened + 3_000, "Metadata", 12, response_bytes=1_900, **_timed(random))
        world.limits += [
            Limited(run, at + second * SECOND, HOSTILE.ip, 3 + second, 10, 11.5 + second, delay_ms=100 * (second + 1))
            for second in range(3)
        ]
        world.limits.append(
            Limited(run, at + 3 * SECOND, HOSTILE.ip, 2, 30, 31.0, "drop", quota="connections", listener="GUEST")
        )
    for number in range(5):
        world.refused(INTRUDER, "east", 2, BEGIN + 3 * HOUR + number * 40 * SECOND)


def _reports(world: World) -> None:
    """In the west: some of it is seen by sidecars that lose it."""
    random = Random("reports")
    for number in range(280):
        at = BEGIN + 15 * SECOND + number * 154 * SECOND
        topic = ("east.orders", "east.payments")[number % 2]
        partition = number // 2 % len(LEADERS[topic])
        broker = LEADERS[topic][partition]
        read = Part(topic, partition, 20, 2_100, offset=number)
        world.call(
            ANALYST,
            "west",
            broker,
            at,
            "Fetch",
            17,
            parts=(read,),
            response_bytes=2_230,
            max_wait_ms=500,
            **_timed(random, wait=random.randrange(300_000)),
        )
        made = Part(REPORTS, 0, 4, 3_000 + random.randrange(800), 0, (55, 0), number * 4, number * 4)
        world.call(
            ANALYST,
            "west",
            1,
            at + 9 * SECOND,
            "Produce",
            11,
            parts=(made,),
            request_bytes=made.bytes + 90,
            response_bytes=80,
            acks=-1,
            **_timed(random),
        )
        world.call(ANALYST, "west", 3, at + 11 * SECOND, "Metadata", 12, response_bytes=700, **_timed(random))
