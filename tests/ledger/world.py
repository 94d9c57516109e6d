"""Collects what happens: which run of which sidecar a call passes, and on which connection."""

from collections.abc import Sequence
from random import Random
from typing import Any

from observers.cluster_events import GroupEvent, InventoryEvent, InventoryTopic
from tests.ledger.acts import MINUTE, SECOND, Call, Change, Client, Run, Told, Visit

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
