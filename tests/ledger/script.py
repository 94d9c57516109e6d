"""Twelve hours of two clusters of three brokers, from an evening over midnight to a morning.

``east`` is watched without a break; ``west`` has a mirror of its topics, a sidecar that was killed, one that was away,
and one that lost events. Sidecars of broker 3 roll up: in the east always, in the west from midnight on.
"""

from datetime import UTC, datetime
from random import Random
from typing import Any

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent, InventoryTopic
from observers.event import Resource, ThrottleEvent
from tests.ledger.acts import DAY, DENIED, HOUR, MINUTE, SECOND, Client, Part, Run, Told, World, timed

BEGIN = int(datetime(2026, 9, 21, 18, tzinfo=UTC).timestamp()) * SECOND
MIDNIGHT = BEGIN + 6 * HOUR
END = BEGIN + 12 * HOUR
"""Two seconds before, all that happened has been reported."""

ORDERS, PAYMENTS, CLICKS, TELEMETRY = "orders", "payments", "clicks", "telemetry"
QUIET, LEGACY, EXPORTS, REPORTS, ARCHIVE = "quiet", "legacy", "exports", "reports", "archive"

LEADERS = {
    ORDERS: (1, 2), PAYMENTS: (1, 2, 3), CLICKS: (3, 1), TELEMETRY: (2, 3), QUIET: (1,), LEGACY: (2,), EXPORTS: (1,),
    "east.orders": (1, 2), "east.payments": (1, 2, 3), REPORTS: (1,), ARCHIVE: (1, 2),
}  # fmt: skip
"""Brokers by partition."""

EAST_TOPICS = [
    InventoryTopic(name, f"east-{name:-<17}"[:22], len(LEADERS[name]))
    for name in (CLICKS, EXPORTS, LEGACY, ORDERS, PAYMENTS, QUIET, TELEMETRY)
] + [InventoryTopic("__consumer_offsets", "east-consumer-offsets-", 50, internal=True)]
WEST_TOPICS = [
    InventoryTopic(name, f"west-{name:-<17}"[:22], len(LEADERS[name]))
    for name in (ARCHIVE, "east.orders", "east.payments", REPORTS)
]

SHOP = Client("User:shop", "orders-service", "10.1.0.7")
BILLING = Client("User:billing", "billing", "10.1.0.8", ("apache-kafka-java", "4.1.0"))
PAYER = Client("User:billing", "payments-service", "10.2.0.9", ("aiokafka", "0.14.0"))
WEB = Client("User:web", "clickstream", "10.3.0.4", ("apache-kafka-java", "4.1.0"))
SENSORS = Client("User:iot", "sensors", "10.3.0.5")
OLD = Client("User:legacy", None, "10.9.0.2", None)
WATCHER = Client("User:shop", "quiet-watcher", "10.1.0.9")
BATCH = Client("User:batch", "nightly-export", "10.2.0.3", ("apache-kafka-java", "3.9.1"))
HOSTILE = Client("User:ANONYMOUS", "<script>alert(1)</script>", "10.66.6.6", ("evil", "0"), "GUEST", None)
INTRUDER = Client("User:shop", "orders-service", "10.66.6.7")
MIRROR = Client("User:mirror", "mirror-east-west", "10.4.0.1", ("apache-kafka-java", "4.1.0"))
OPERATOR = Client("User:operator", "adminclient-1", "10.5.0.2", ("apache-kafka-java", "4.1.0"))
ANALYST = Client("User:analyst", "reports", "10.5.0.1", ("apache-kafka-java", "4.1.0"))

STAYING = (SHOP, WATCHER, MIRROR)
"""Clients whose last connections are open when the script ends."""

DROPPED = (31, 77, 118, 203, 290, 355, 471)
"""Batches of ``orders`` of which the mirror loses a record: 7 of 10,000."""


def runs() -> list[Run]:
    at = BEGIN
    return [
        Run(
            "east", 1, "e1", at, END, lives=True, hides={"principal User:monitoring": 2, "topic scratch": 3},
            leaves_out={"topic scratch": 4, "topic tmp": 1},
        ),
        Run("east", 2, "e2", at, at + 5 * HOUR),
        Run("east", 2, "e2-again", at + 5 * HOUR + 5 * SECOND, END, lives=True),
        Run("east", 3, "e3", at, END, rolls_up=True, lives=True, outage=(at + 3 * HOUR, at + 4 * HOUR)),
        Run("west", 1, "w1", at, at + 7 * HOUR + 30 * SECOND, killed=True),
        Run("west", 1, "w1-again", at + 7 * HOUR + 40 * SECOND, END, lives=True),
        Run("west", 2, "w2", at, at + 8 * HOUR),
        Run("west", 2, "w2-again", at + 8 * HOUR + 12 * MINUTE, END, lives=True),
        Run("west", 3, "w3", at, MIDNIGHT, overrun=(at + 2 * HOUR, at + 2 * HOUR + 2 * MINUTE)),
        Run("west", 3, "w3-again", MIDNIGHT + 3 * SECOND, END, rolls_up=True, lives=True),
    ]  # fmt: skip


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
        met: list[tuple[Any, ...]] = [("CLIENT", "connection_creation_rate", "hold", 3 + second, 10, 11.5 + second)
                                      for second in range(3)]  # fmt: skip
        for second, (listener, quota, action, *counts) in enumerate(
            [*met, ("GUEST", "connections", "drop", 2, 30, 31.0)]
        ):
            ts = at + second * SECOND
            limit = ThrottleEvent(0, listener, HOSTILE.ip, "ip", quota, action, *counts, ts, ts + SECOND // 2,
                                  100 * (second + 1) * (action == "hold"))  # fmt: skip
            world.told.append(Told(run, ts + SECOND, limit))
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


HALF = 30 * SECOND
"""After which sidecars report offsets."""


def commits(world: World) -> None:
    """``invoicing`` commits with every third turn, is set back once, and joins anew at midnight; one of it falls silent
    after five hours. It has another member, that commits in transactions."""
    for number in range(140):
        at = BEGIN + 3 * MINUTE + number * 5 * MINUTE
        took = [
            CommittedPartition(topic, partition, 30 * number + partition, at - partition * SECOND)
            for topic in (ORDERS, PAYMENTS)
            for partition in range(len(LEADERS[topic]))
            if topic == ORDERS or number < 60
        ]
        taken = tuple(took) if number % 3 == 0 else ()
        world.member(
            "east", 1, BILLING, "invoicing", at - HALF, at, f"billing-{number // 72}", group_type="classic",
            generation_id=1 + number // 72, requests=9 + len(taken), commits=int(bool(taken)), committed=taken,
        )  # fmt: skip
        if number % 10 == 4:
            offset = CommittedPartition(ORDERS, 0, 100 * number, at + SECOND, transactional=True)
            world.member(
                "east", 3, PAYER, "settling", at, at + SECOND, "payer-1", group_instance_id="static-1",
                generation_id=7, commits=1, committed=(offset,), fetched=(ORDERS, CLICKS),
            )  # fmt: skip
    at = BEGIN + 2 * HOUR + 7 * SECOND
    reset = tuple(CommittedPartition(ORDERS, partition, 5, at) for partition in range(2))
    world.member("east", 1, OPERATOR, "invoicing", at, at, commits=1, committed=reset)


def joins(world: World) -> None:
    """Members of which no committed offset is seen: one in two groups, one that reads in the west, one that reads
    nothing."""
    for number in range(24):
        at = BEGIN + MINUTE + number * HOUR // 2
        for group, kind in (("watching", "consumer"), ("also-watching", "share")):
            world.member("east", 2, WATCHER, group, at - HALF, at, f"{group}-1", group_type=kind, generation_id=number)
        world.member("west", 1 + number % 3, ANALYST, "reporting", at, at, "analyst-1", group_type="classic",
                     generation_id=3, requests=11, commits=number % 2)  # fmt: skip
    at = BEGIN + DAY // 3
    world.member("east", 1, BILLING, "billing-too", at, at, "billing-x", group_type="classic", generation_id=0)


def ends(world: World) -> None:
    """What leaders see of what they lead; nobody reads nor writes ``quiet``, but once.

    Now and then a fetch that the broker completed between two appends says less, a little later in the same second.
    """
    for cluster, topics in (("east", (ORDERS, PAYMENTS, CLICKS, QUIET)), ("west", (f"east.{ORDERS}",))):
        for number in range(72):
            at = BEGIN + 2 * MINUTE + number * 10 * MINUTE
            for broker in (1, 2, 3):
                seen = [
                    (topic, partition, 100 + 90 * number + partition, at - partition * 1_000)
                    for topic in topics
                    for partition, leader in enumerate(LEADERS[topic])
                    if leader == broker and (topic != QUIET or number == 3)
                ]
                older = [(topic, partition, end - 40, when + 53) for topic, partition, end, when in seen]
                for found in (seen, older if number % 12 == 0 else []):
                    event = EndOffsetsEvent(0, at + HALF, tuple(EndOffset(*one) for one in found))
                    world.told += [Told(world.run(cluster, broker, at), at + HALF, event)] if found else []


def happened() -> World:
    world = World(runs())
    for act in (
        orders, payments, clicks, telemetry, exports, reads, watches, old, guests, reports, administers, is_denied,
    ):  # fmt: skip
        act(world)
    for hour in range(12):
        for cluster, topics in (("east", EAST_TOPICS), ("west", WEST_TOPICS)):
            at = BEGIN + hour * HOUR + 90 * SECOND
            # The east's ``legacy`` is listed to the end, ``exports`` is deleted in the ninth hour.
            there = [topic for topic in topics if topic.topic != EXPORTS or hour < 9]
            world.list_topics(cluster, at, there, parts=2 if cluster == "east" and hour % 4 == 1 else 1)
    for act in (commits, joins, ends):
        act(world)
    world.close(STAYING)
    return world
