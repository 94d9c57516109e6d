"""Who changes what, and who is denied what."""

from __future__ import annotations

from observers.event import Resource
from tests.ledger.acts import DENIED, HOUR, SECOND, Part
from tests.ledger.cast import BEGIN, CLICKS, INTRUDER, OPERATOR, ORDERS
from tests.ledger.world import World


def administers(world: World) -> None:
    """Topics are made, one of them twice; a setting is changed; access is given. Broker 3 rolls up."""
    for hour in range(4):
        topic = Resource("topic", f"project-{hour // 2}", error_code=36 * (hour % 2))  # TOPIC_ALREADY_EXISTS
        setting = Resource("config", "retention.ms", None, "topic", topic.resource_name, topic.error_code)
        world.call(OPERATOR, "east", 1 + 2 * (hour % 2), BEGIN + hour * HOUR + 300 * SECOND, "CreateTopics", 7,
                   operation="Create", about=(topic, setting), response_bytes=80, latency_us=9_000)  # fmt: skip
    world.call(OPERATOR, "east", 1, BEGIN + 5 * HOUR, "IncrementalAlterConfigs", 1, operation="AlterConfigs",
               about=(Resource("topic", ORDERS),), validate_only=True, response_bytes=60, latency_us=5_000)  # fmt: skip
    world.call(OPERATOR, "west", 1, BEGIN + 5 * HOUR + SECOND, "CreateAcls", 3, operation="Alter",
               about=(Resource("topic", ORDERS, error_code=-1),
                      Resource("user", "User:analyst", None, "topic", ORDERS, -1)),
               outcome="connection_lost")  # fmt: skip


def is_denied(world: World) -> None:
    """A client without rights tries again and again."""
    for minute in range(3):
        for number in range(4):
            at = BEGIN + 7 * HOUR + minute * 60 * SECOND + number * 10 * SECOND
            world.call(INTRUDER, "east", 1, at, "Metadata", 12, operation="Describe", response_bytes=90,
                       about=(Resource("topic", ORDERS, error_code=DENIED), Resource("topic", CLICKS)),
                       failures=1, latency_us=700)  # fmt: skip
            world.call(INTRUDER, "east", 3, at + SECOND, "Fetch", 12, parts=(Part(CLICKS, 0, error=DENIED),),
                       response_bytes=70, latency_us=900)  # fmt: skip
