"""``topics``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from observers.account_events import StatusEvent
from observers.event import Envelope
from tests.ledger.acts import MINUTE, Act, Listing, Run
from tests.ledger.books import Book, Row, instant, minute, most
from tests.ledger.books.traffic import calls


def topics(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Book:
    acts = list(acts)
    seen = _seen(envelopes)
    book: Book = {}

    def row(cluster: str, topic: str) -> Row:
        nothing: dict[str, Any] = dict.fromkeys(("last_produced", "last_consumed", "last_polled"))
        empty = {"producers": set(), "consumers": set(), "produced_bytes": 0, "consumed_bytes": 0}
        return book.setdefault((cluster, topic), nothing | empty | seen[cluster])

    newest: dict[str, Listing] = {}
    for act in acts:
        if isinstance(act, Listing):
            if act.run.cluster not in newest or newest[act.run.cluster].at < act.at:
                newest[act.run.cluster] = act
            for topic in (topic for part in act.parts for topic in part):
                row(act.run.cluster, topic.name).update(
                    topic_id=topic.id, partitions=topic.partitions, internal=topic.internal
                )
    for call in calls(acts):
        cluster, who, at = call.visit.run.cluster, call.visit.client.principal, minute(call.at)
        for part in call.parts:
            if part.error or not part.records:
                continue
            of = row(cluster, part.topic)
            if call.api == "Produce":
                most(of, last_produced=at)
                of["producers"].add(who)
                of["produced_bytes"] += part.bytes if call.answered else 0
            elif call.answered:
                most(of, last_consumed=at)
                of["consumers"].add(who)
                of["consumed_bytes"] += part.bytes
        for name in call.polled:
            most(row(cluster, name), last_polled=at)
    for (cluster, name), of in book.items():
        of["producers"], of["consumers"] = sorted(of["producers"]), sorted(of["consumers"])
        of["present"] = any(topic.name == name for part in newest[cluster].parts for topic in part)
        used = of["last_produced"] or of["last_consumed"]
        unused = "unknown" if of.get("internal") else "polled_only" if of["last_polled"] else "unused"
        of["state"] = "used" if used else unused
    return book


def _seen(envelopes: Iterable[tuple[Run, Envelope]]) -> dict[str, dict[str, Any]]:
    """What is said of a cluster as a whole, by cluster."""
    reported: dict[str, dict[int, list[StatusEvent]]] = {}
    for run, envelope in envelopes:
        of_broker = reported.setdefault(run.cluster, {}).setdefault(run.broker, [])
        of_broker += [event for event in envelope.events if isinstance(event, StatusEvent)]
    seen = {}
    for cluster, brokers in reported.items():
        away: dict[int, int] = {}
        for broker, statuses in brokers.items():
            statuses.sort(key=lambda status: status.ts)
            for before, after in pairwise(statuses):
                back = after.started_at if after.started_at > before.ts else after.ts
                if back - before.ts >= MINUTE:
                    away[broker] = away.get(broker, 0) + back - before.ts
        every = [status for statuses in brokers.values() for status in statuses]
        since, as_of = min(status.started_at for status in every), max(status.ts for status in every)
        seen[cluster] = {
            "since": instant(since),
            "coverage": 1 - sum(away.values()) / len(brokers) / (as_of - since),
            "uncovered_brokers": sorted(away),
        }
    return seen
