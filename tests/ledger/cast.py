"""Who and what there is in the script: times, topics, clients, runs of sidecars."""

from datetime import UTC, datetime

from observers.cluster_events import InventoryTopic
from tests.ledger.acts import HOUR, MINUTE, SECOND, Client, Run

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
