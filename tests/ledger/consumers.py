"""Clients of the script that read, ask, or only come and go."""

from __future__ import annotations

from random import Random

from tests.ledger.acts import HOUR, MINUTE, SECOND, Limited, Part
from tests.ledger.cast import (
    ANALYST,
    BEGIN,
    BILLING,
    CLICKS,
    HOSTILE,
    INTRUDER,
    LEADERS,
    OLD,
    ORDERS,
    PAYMENTS,
    QUIET,
    REPORTS,
    WATCHER,
)
from tests.ledger.world import World, timed


def reads(world: World) -> None:
    """A consumer that is given what there is, waits for more, and has a group."""
    random = Random("reads")
    for number in range(360):
        at = BEGIN + 70 * SECOND + number * 119 * SECOND
        topic = (ORDERS, PAYMENTS)[number % 2]
        partition = number // 2 % len(LEADERS[topic])
        broker = LEADERS[topic][partition]
        read = Part(topic, partition, 20 + random.randrange(9), 2_000 + random.randrange(999), offset=number * 20)
        world.call(
            BILLING, "east", broker, at, "Fetch", 17, parts=(read,), response_bytes=read.bytes + 130, max_wait_ms=500,
            **timed(random, wait=random.randrange(450_000)),
        )  # fmt: skip
        for again in range(3):
            world.call(
                BILLING, "east", broker, at + (again + 1) * 510_000, "Fetch", 17, response_bytes=40, max_wait_ms=500,
                polled=(topic,) if again == 0 else (), **timed(random, wait=500_000),
            )  # fmt: skip
        if number % 30 == 0:
            world.call(
                BILLING, "east", 1, at + 5 * SECOND, "JoinGroup", 9, response_bytes=210, latency_us=3_000_400,
                upstream_us=3_000_300,
            )  # fmt: skip
        if number % 9 == 0:
            error = 27 if number % 45 == 0 else 16 if number % 63 == 0 else 0
            world.call(
                BILLING, "east", 1, at + 6 * SECOND, "OffsetCommit", 9, response_bytes=60, error=error, **timed(random)
            )
        if number % 40 == 7:
            gone = Part(topic, partition, error=1)  # OFFSET_OUT_OF_RANGE
            world.call(
                BILLING, "east", broker, at + 7 * SECOND, "Fetch", 17, parts=(gone,), response_bytes=90,
                **timed(random),
            )  # fmt: skip


def watches(world: World) -> None:
    """Asks for a topic that nobody writes to."""
    random = Random("watches")
    for number in range(700):
        world.call(
            WATCHER, "east", 1, BEGIN + 20 * SECOND + number * 61 * SECOND, "Fetch", 17, response_bytes=40,
            max_wait_ms=500, polled=(QUIET,), **timed(random, wait=500_000),
        )  # fmt: skip


def old(world: World) -> None:
    """Speaks versions that Kafka 4 refuses."""
    random = Random("old")
    for number in range(100):
        at = BEGIN + 80 * SECOND + number * 431 * SECOND
        batch = Part(CLICKS, 1, 5, 900, offset=1_000_000 + number * 5)
        world.call(
            OLD, "east", 1, at, "Produce", 2, parts=(batch,), request_bytes=980, response_bytes=50, acks=1,
            **timed(random),
        )  # fmt: skip
        world.call(
            OLD, "east", 1, at + SECOND, "Fetch", 3, parts=(Part(CLICKS, 1, 5, 900, offset=number),),
            response_bytes=960, max_wait_ms=100, **timed(random),
        )  # fmt: skip


def guests(world: World) -> None:
    """Many connections at once, of which some are held; logins that fail."""
    random = Random("guests")
    for hour in (2, 8):
        at = BEGIN + hour * HOUR + 30 * MINUTE
        run = world.run("east", 1, at)
        for number in range(40):
            opened = at + number * 70_000
            visit = world.visit(HOSTILE, run, opened)
            world.on(visit, opened + 3_000, "Metadata", 12, response_bytes=1_900, **timed(random))
        world.limits += [
            Limited(run, at + second * SECOND, HOSTILE.ip, 3 + second, 10, 11.5 + second, delay_ms=100 * (second + 1))
            for second in range(3)
        ]
        world.limits.append(
            Limited(run, at + 3 * SECOND, HOSTILE.ip, 2, 30, 31.0, "drop", quota="connections", listener="GUEST")
        )
    for number in range(5):
        world.refused(INTRUDER, "east", 2, BEGIN + 3 * HOUR + number * 40 * SECOND)


def reports(world: World) -> None:
    """In the west: some of it is seen by sidecars that lose it."""
    random = Random("reports")
    for number in range(280):
        at = BEGIN + 15 * SECOND + number * 154 * SECOND
        topic = ("east.orders", "east.payments")[number % 2]
        partition = number // 2 % len(LEADERS[topic])
        broker = LEADERS[topic][partition]
        read = Part(topic, partition, 20, 2_100, offset=number)
        world.call(
            ANALYST, "west", broker, at, "Fetch", 17, parts=(read,), response_bytes=2_230, max_wait_ms=500,
            **timed(random, wait=random.randrange(300_000)),
        )  # fmt: skip
        made = Part(REPORTS, 0, 4, 3_000 + random.randrange(800), 0, (55, 0), number * 4, number * 4)
        world.call(
            ANALYST, "west", 1, at + 9 * SECOND, "Produce", 11, parts=(made,), request_bytes=made.bytes + 90,
            response_bytes=80, acks=-1, **timed(random),
        )  # fmt: skip
        world.call(ANALYST, "west", 3, at + 11 * SECOND, "Metadata", 12, response_bytes=700, **timed(random))
