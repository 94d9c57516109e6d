"""Twelve hours of two clusters of three brokers, from an evening over midnight to a morning.

``east`` is watched without a break; ``west`` has a mirror of its topics, a sidecar that was killed, one that was away,
and one that lost events. Sidecars of broker 3 roll up: in the east always, in the west from midnight on.
"""

from __future__ import annotations

from tests.ledger.acts import HOUR, SECOND
from tests.ledger.admins import administers, is_denied
from tests.ledger.cast import BEGIN, EAST_TOPICS, EXPORTS, STAYING, WEST_TOPICS, runs
from tests.ledger.consumers import guests, old, reads, reports, watches
from tests.ledger.groups import commits, ends, joins
from tests.ledger.producers import clicks, exports, orders, payments, telemetry
from tests.ledger.world import World


def happened() -> World:
    """The whole script."""
    world = World(runs())
    for act in (
        orders,
        payments,
        clicks,
        telemetry,
        exports,
        reads,
        watches,
        old,
        guests,
        reports,
        administers,
        is_denied,
        commits,
        joins,
        ends,
    ):
        act(world)
    for hour in range(12):
        for cluster, topics in (("east", EAST_TOPICS), ("west", WEST_TOPICS)):
            at = BEGIN + hour * HOUR + 90 * SECOND
            # The east's ``legacy`` is listed to the end, ``exports`` is deleted in the ninth hour.
            there = [topic for topic in topics if topic.name != EXPORTS or hour < 9]
            world.list_topics(cluster, at, there, parts=2 if cluster == "east" and hour % 4 == 1 else 1)
    world.close(STAYING)
    return world
