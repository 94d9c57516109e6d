"""Who changes what, and who is denied what."""

from __future__ import annotations

from observers.event import Resource
from tests.ledger.acts import DENIED, HOUR, SECOND, Part
from tests.ledger.cast import BEGIN, CLICKS, INTRUDER, OPERATOR, ORDERS
from tests.ledger.world import World

READ = {"acl_permission_type": "ALLOW", "acl_operation": "Read", "acl_host": "*", "acl_pattern_type": "LITERAL"}
WRITE = READ | {"acl_operation": "Write", "acl_host": "10.5.0.9"}
ANYTHING = {"acl_permission_type": "ANY", "acl_operation": "Write", "acl_pattern_type": "MATCH"}


def administers(world: World) -> None:
    """Topics are made, one of them twice; settings are changed; access is given and taken away. Broker 3 rolls up."""
    for hour in range(4):
        topic = Resource("topic", f"project-{hour // 2}", error_code=36 * (hour % 2))  # TOPIC_ALREADY_EXISTS
        setting = Resource("config", "retention.ms", None, "topic", topic.resource_name, topic.error_code)
        world.call(OPERATOR, "east", 1 + 2 * (hour % 2), BEGIN + hour * HOUR + 300 * SECOND, "CreateTopics", 7,
                   operation="Create", about=(topic, setting), response_bytes=80, latency_us=9_000)  # fmt: skip
    world.call(OPERATOR, "east", 1, BEGIN + 5 * HOUR, "IncrementalAlterConfigs", 1, operation="AlterConfigs",
               about=(Resource("topic", ORDERS),), validate_only=True, response_bytes=60, latency_us=5_000)  # fmt: skip
    world.call(OPERATOR, "west", 1, BEGIN + 5 * HOUR + SECOND, "CreateAcls", 3, operation="Alter",
               about=(Resource("topic", ORDERS, error_code=-1),
                      Resource("user", "User:analyst", None, "topic", ORDERS, -1, **READ)),
               outcome="connection_lost")  # fmt: skip
    world.call(OPERATOR, "west", 1, BEGIN + 5 * HOUR + 2 * SECOND, "CreateAcls", 3, operation="Alter",
               about=(Resource("topic", ORDERS), Resource("user", "User:analyst", None, "topic", ORDERS, **READ),
                      Resource("topic", ORDERS), Resource("user", "User:analyst", None, "topic", ORDERS, **WRITE)),
               response_bytes=40, latency_us=6_000)  # fmt: skip
    world.call(OPERATOR, "west", 1, BEGIN + 5 * HOUR + 3 * SECOND, "DeleteAcls", 3, operation="Alter",
               about=(Resource("topic", ORDERS), Resource("user", "User:analyst", None, "topic", ORDERS, **ANYTHING),
                      Resource("user", "User:analyst", None, "topic", ORDERS, op_type="DELETE", **WRITE)),
               response_bytes=90, latency_us=6_000)  # fmt: skip
    world.call(OPERATOR, "west", 1, BEGIN + 5 * HOUR + 4 * SECOND, "IncrementalAlterConfigs", 1,
               operation="AlterConfigs", response_bytes=60, latency_us=5_000,
               about=(Resource("topic", ORDERS),
                      Resource("config", "retention.ms", None, "topic", ORDERS, op_type="DELETE")))  # fmt: skip


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
