"""What happens in the scripted load: on which run of which sidecar, and on which connection. Times are µs since 1970,
sizes bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from observers.cluster_events import EndOffsetsEvent, GroupEvent, InventoryEvent, InventoryTopic
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


LOGIN = 20_000
"""From a connection's beginning to its login."""

LEFT = 500_000
"""From the last answer on a connection to its end."""


class World:
    """Everything that happens, in the order in which it was scripted."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.visits: list[Visit] = []
        self.changes: list[Change] = []
        self.told: list[Told] = []
        self._open: dict[tuple[Client, Run], Visit] = {}

    def run(self, cluster: str, broker: int, at: int) -> Run:
        """The first run before this broker that has not ended at ``at``."""
        return next(run for run in self.runs if (run.cluster, run.broker) == (cluster, broker) and at < run.ended)

    def call(self, client: Client, cluster: str, broker: int, at: int, api: str, version: int, **what: Any) -> Call:
        """A call, on the connection that the client has to this broker; later where no sidecar lets it pass."""
        run = self.run(cluster, broker, at)
        at = max(at, run.started + SECOND)
        visit = self._open.get((client, run))
        if visit is None:
            visit = self._open[client, run] = self.visit(client, run, at - 2 * LOGIN)
        return self.on(visit, at, api, version, **what)

    def on(self, visit: Visit, at: int, api: str, version: int, **what: Any) -> Call:
        call = Call(visit, at, api, version, **what)
        visit.calls.append(call)
        if call.outcome == "connection_lost":
            self._open.pop((visit.client, visit.run), None)
            visit.closed = at + call.latency_us + 1
        return call

    def visit(self, client: Client, run: Run, at: int) -> Visit:
        number = len(self.visits) + 1
        visit = Visit(run, f"{run.boot}-{number}", client, 40_000 + number % 20_000, at)
        self.visits.append(visit)
        self.changes.append(Change(visit, "opened", at))
        if client.mechanism is not None:
            self.changes.append(Change(visit, "authenticated", at + LOGIN))
        return visit

    def refused(self, client: Client, cluster: str, broker: int, at: int) -> None:
        visit = self.visit(client, self.run(cluster, broker, at), at)
        self.changes[-1] = Change(visit, "authentication_failed", at + LOGIN)
        visit.closed = at + 2 * LOGIN

    def close(self, staying: Sequence[Client]) -> None:
        """End the connections that are left, but those of ``staying`` that no sidecar's end has cut."""
        for visit in self.visits:
            run = visit.run
            if visit.closed is None and not (visit.client in staying and run.lives):
                last = max((call.at + call.latency_us for call in visit.calls), default=visit.opened + LOGIN)
                ends = min(last + LEFT, run.ended - SECOND)
                visit.closed = None if run.killed and ends > run.ended - MINUTE else ends
            if visit.closed is not None:
                self.changes.append(Change(visit, "closed", visit.closed))

    def list_topics(self, cluster: str, at: int, topics: Sequence[InventoryTopic], parts: int = 1) -> None:
        """All sidecars of the cluster that run at ``at`` list its topics."""
        size = -(-len(topics) // parts)
        for run in self.runs:
            if run.cluster == cluster and run.started <= at < run.ended:
                ts = at + 1000 * run.broker
                for part in range(parts):
                    some = tuple(topics[part * size : (part + 1) * size])
                    self.told.append(Told(run, ts, InventoryEvent(0, ts, part + 1, parts, some)))

    def member(
        self, cluster: str, broker: int, client: Client, group: str, first: int, last: int, member: str | None = None,
        **did: Any,
    ) -> None:  # fmt: skip
        """What a member of a group did from ``first`` to ``last``, before the sidecar of its coordinator."""
        event = GroupEvent(0, client.listener, client.principal, client.ip, group, first, last,
                           **{"requests": 1, "client_id": client.client_id, "member_id": member, **did})  # fmt: skip
        self.told.append(Told(self.run(cluster, broker, last), last + SECOND, event))


def timed(random: Random, least: int = 300, muted: int = 0, wait: int = 0) -> dict[str, Any]:
    upstream = _latency(random, least)
    return {"latency_us": upstream + 40 + random.randrange(60) + muted + wait, "upstream_us": upstream + muted + wait}


def _latency(random: Random, least: int = 300) -> int:
    """µs: most of them short, some a hundred times as long."""
    return int(least * 1.23 ** (random.random() ** 10 * 30)) + random.randrange(least)
