"""Members of groups, what they commit, and ends of partitions."""

from __future__ import annotations

from tests.ledger.acts import DAY, HOUR, MINUTE, SECOND, Committed, Ends, Membership
from tests.ledger.cast import (
    ANALYST,
    BEGIN,
    BILLING,
    CLICKS,
    LEADERS,
    OPERATOR,
    ORDERS,
    PAYER,
    PAYMENTS,
    QUIET,
    WATCHER,
)
from tests.ledger.world import World

HALF = 30 * SECOND
"""After which sidecars report offsets."""


def commits(world: World) -> None:
    """``invoicing`` commits with every third turn, is set back once, and joins anew at midnight; one of it falls silent
    after five hours. It has another member, that commits in transactions."""
    for number in range(140):
        at = BEGIN + 3 * MINUTE + number * 5 * MINUTE
        took = [
            Committed(topic, partition, 30 * number + partition, at - partition * SECOND)
            for topic in (ORDERS, PAYMENTS)
            for partition in range(len(LEADERS[topic]))
            if topic == ORDERS or number < 60
        ]
        taken = tuple(took) if number % 3 == 0 else ()
        world.memberships.append(
            Membership(world.run("east", 1, at), BILLING, "invoicing", at - HALF, at, f"billing-{number // 72}", None,
                       "classic", 1 + number // 72, 9 + len(taken), int(bool(taken)), taken)
        )  # fmt: skip
        if number % 10 == 4:
            offset = Committed(ORDERS, 0, 100 * number, at + SECOND, transactional=True)
            world.memberships.append(
                Membership(world.run("east", 3, at), PAYER, "settling", at, at + SECOND, "payer-1", "static-1",
                           None, 7, 1, 1, (offset,), (ORDERS, CLICKS))
            )  # fmt: skip
    at = BEGIN + 2 * HOUR + 7 * SECOND
    reset = tuple(Committed(ORDERS, partition, 5, at) for partition in range(2))
    world.memberships.append(
        Membership(world.run("east", 1, at), OPERATOR, "invoicing", at, at, commits=1, committed=reset)
    )


def joins(world: World) -> None:
    """Members of which no committed offset is seen: one in two groups, one that reads in the west, one that reads
    nothing."""
    for number in range(24):
        at = BEGIN + MINUTE + number * HOUR // 2
        for group, kind in (("watching", "consumer"), ("also-watching", "share")):
            world.memberships.append(
                Membership(world.run("east", 2, at), WATCHER, group, at - HALF, at, f"{group}-1", None, kind, number)
            )
        world.memberships.append(
            Membership(world.run("west", 1 + number % 3, at), ANALYST, "reporting", at, at, "analyst-1", None,
                       "classic", 3, 11, commits=number % 2)
        )  # fmt: skip
    at = BEGIN + DAY // 3
    world.memberships.append(
        Membership(world.run("east", 1, at), BILLING, "billing-too", at, at, "billing-x", None, "classic", 0, 1)
    )


def ends(world: World) -> None:
    """What leaders see of what they lead; nobody reads nor writes ``quiet``, but once.

    Now and then a fetch that the broker completed between two appends says less, a little later in the same second.
    """
    for cluster, topics in (("east", (ORDERS, PAYMENTS, CLICKS, QUIET)), ("west", (f"east.{ORDERS}",))):
        for number in range(72):
            at = BEGIN + 2 * MINUTE + number * 10 * MINUTE
            for broker in (1, 2, 3):
                seen = tuple(
                    (topic, partition, 100 + 90 * number + partition, at - partition * 1_000)
                    for topic in topics
                    for partition, leader in enumerate(LEADERS[topic])
                    if leader == broker and (topic != QUIET or number == 3)
                )
                if seen:
                    world.ends.append(Ends(world.run(cluster, broker, at), at + HALF, seen))
                if seen and number % 12 == 0:
                    older = tuple((topic, partition, end - 40, when + 53) for topic, partition, end, when in seen)
                    world.ends.append(Ends(world.run(cluster, broker, at), at + HALF, older))
