"""What happens in the scripted load. Times are µs since 1970, sizes bytes."""

from dataclasses import dataclass, field

from observers.cluster_events import EndOffsetsEvent, GroupEvent, InventoryEvent
from observers.event import Resource, ThrottleEvent

SECOND, MINUTE, HOUR, DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000

API_KEYS = {
    "Produce": 0, "Fetch": 1, "Metadata": 3, "OffsetCommit": 8, "JoinGroup": 11, "ApiVersions": 18, "CreateTopics": 19,
    "CreateAcls": 30, "DeleteAcls": 31, "IncrementalAlterConfigs": 44,
}  # fmt: skip


TLS = {"CLIENT": ("TLSv1.3", "TLS_AES_256_GCM_SHA384")}
"""Version and cipher suite of the listeners that terminate TLS."""


@dataclass(frozen=True)
class Client:
    principal: str
    client_id: str | None
    ip: str
    software: tuple[str, str] | None = ("librdkafka", "2.11.1")
    listener: str = "CLIENT"
    mechanism: str | None = "SCRAM-SHA-512"

    @property
    def tls(self) -> tuple[str | None, str | None]:
        return TLS.get(self.listener, (None, None))


@dataclass(eq=False)
class Run:
    cluster: str
    broker: int
    boot: str
    started: int
    ended: int
    rolls_up: bool = False
    killed: bool = False
    """Whether it ended that way: the next run reports what was lost."""
    lives: bool = False
    """Whether it still runs when the script ends."""
    outage: tuple[int, int] | None = None
    """From when to when the audit's cluster was away: all of it is delivered in the end."""
    overrun: tuple[int, int] | None = None
    """From when to when events were lost, because the queue was full."""
    hides: dict[str, int] = field(default_factory=dict)
    """How many requests its configuration hides from one status to the next, by what hides them."""
    leaves_out: dict[str, int] = field(default_factory=dict)
    """From how many events it leaves out each topic, likewise; all of them lack the first one."""


@dataclass(eq=False)
class Visit:
    run: Run
    id: str
    client: Client
    port: int
    opened: int
    closed: int | None = None
    """None: it is open when the script ends, or its sidecar was killed."""
    calls: list["Call"] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    visit: Visit
    what: str
    """``opened``, ``authenticated``, ``authentication_failed``, ``closed``."""
    at: int


@dataclass(frozen=True)
class Part:
    topic: str
    partition: int
    records: int = 0
    bytes: int = 0
    error: int = 0
    producer: tuple[int, int] = (-1, -1)
    sequence: int = -1
    offset: int = -1


CHANGING = ("Create", "Alter", "AlterConfigs")
DENIED = 29
"""TOPIC_AUTHORIZATION_FAILED."""

NO_FAILURES = {16: "retriable", 27: "protocol"}
"""Errors in the script that are none of the client's or the broker's: NOT_COORDINATOR, REBALANCE_IN_PROGRESS."""


@dataclass(frozen=True)
class Call:
    visit: Visit
    at: int
    api: str
    version: int
    parts: tuple[Part, ...] = ()
    latency_us: int = 0
    upstream_us: int = 0
    request_bytes: int = 200
    response_bytes: int = 0
    outcome: str = "answered"
    error: int = 0
    throttle_ms: int = 0
    max_wait_ms: int = 0
    muted_us: int = 0
    acks: int | None = None
    polled: tuple[str, ...] = ()
    operation: str | None = None
    about: tuple[Resource, ...] = ()
    failures: int = 0
    """Items of the response that failed, but partitions of a Produce or a Fetch."""
    validate_only: bool = False

    @property
    def stands_alone(self) -> bool:
        """Whether it is an event of its own where others are rolled up."""
        codes = {self.error, *(part.error for part in self.parts), *(one.error_code for one in self.about)}
        return self.operation in CHANGING or DENIED in codes

    @property
    def answered(self) -> bool:
        return self.outcome == "answered"

    @property
    def idle(self) -> bool:
        """Whether it is a fetch that waited for data in vain."""
        return self.answered and self.api == "Fetch" and not self.parts and not self.error

    @property
    def service_us(self) -> int:
        """What neither the client nor a quota asked for."""
        return max(0, self.latency_us - self.muted_us - 1000 * self.max_wait_ms)

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(part.topic for part in self.parts))

    @property
    def failed(self) -> bool:
        return bool(self.failures or {self.error, *(part.error for part in self.parts)} - {0, *NO_FAILURES})

    @property
    def retriable(self) -> bool:
        return not self.failed and NO_FAILURES.get(self.error) == "retriable"

    @property
    def protocol(self) -> bool:
        return not self.failed and NO_FAILURES.get(self.error) == "protocol"


@dataclass(frozen=True)
class Told:
    """Anything else that a sidecar reports: limits that were met, topics that there are, members of groups, ends."""

    run: Run
    at: int
    event: ThrottleEvent | InventoryEvent | GroupEvent | EndOffsetsEvent


Act = Call | Change | Told
