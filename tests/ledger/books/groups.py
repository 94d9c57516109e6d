"""``group_members``, ``committed_offsets``, ``end_offsets``, ``groups``, ``lag``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from tests.ledger.acts import SECOND, Act, Client, Ends, Membership
from tests.ledger.books import Book, add, day, instant, least, minute, most
from tests.ledger.books.traffic import calls

Identity = tuple[Any, ...]


def _memberships(acts: Iterable[Act]) -> list[Membership]:
    return [act for act in acts if isinstance(act, Membership)]


def _identity(who: Client) -> Identity:
    return who.principal, who.client_id, who.ip


def group_members(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    known: dict[Identity, dict[str, tuple[int, Any]]] = defaultdict(dict)
    for did in _memberships(acts):
        who, run = did.client, did.run
        topics: dict[str | None, int | None] = {None: None, **dict.fromkeys(did.fetched)}
        for one in did.committed:
            topics[one.topic] = max(one.at, topics.get(one.topic) or 0)
        for topic, committed_at in topics.items():
            key = (
                day(did.last), run.cluster, run.broker, who.listener, did.group, topic, did.member, did.instance,
                *_identity(who),
            )  # fmt: skip
            row = book[key]
            whole = topic is None
            add(row, requests=did.requests * whole, commits=did.commits * whole, offsets_not_listed=0)
            least(row, first_seen=instant(did.first))
            most(row, last_seen=instant(did.last))
            row.setdefault("committed_at", None)
            if committed_at is not None:
                most(row, committed_at=instant(committed_at))
            for name, value in (("group_type", did.type), ("generation_id", did.generation)):
                if value is not None and value != -1:
                    known[key][name] = max((did.last, value), known[key].get(name, (0, value)))
                row[name] = known[key][name][1] if name in known[key] else None
    return dict(book)


def committed_offsets(acts: Iterable[Act]) -> Book:
    book: Book = {}
    taken = [(one, did) for did in _memberships(acts) for one in did.committed]
    for one, did in sorted(taken, key=lambda each: (each[0].at, each[0].offset)):
        key = (day(one.at), minute(one.at), did.run.cluster, did.group, one.topic, one.partition)
        book[key] = {
            "committed_offset": one.offset,
            "transactional": one.transactional,
            "committed_at": instant(one.at),
        }
    return book


def end_offsets(acts: Iterable[Act]) -> Book:
    """The newest second counts, and within it the highest offset."""
    book: Book = {}
    seen = [(at - at % SECOND, offset, act.run.cluster, topic, partition) for act in acts if isinstance(act, Ends)
            for topic, partition, offset, at in act.offsets]  # fmt: skip
    for at, offset, cluster, topic, partition in sorted(seen):
        book[day(at), minute(at), cluster, topic, partition] = {"end_offset": offset, "end_offset_at": instant(at)}
    return book


def groups(acts: Iterable[Act]) -> Book:
    acts = list(acts)
    members: Book = defaultdict(dict)
    topics: dict[Identity, dict[str | None, Any]] = defaultdict(dict)
    groups_of: dict[Identity, set[str]] = defaultdict(set)
    for did in _memberships(acts):
        client = (day(did.last), did.run.cluster, *_identity(did.client))
        key = (*client, did.group, did.member, did.instance)
        groups_of[client].add(did.group)
        row = members[key]
        add(row, requests=did.requests, commits=did.commits)
        least(row, first_seen=instant(did.first))
        most(row, last_seen=instant(did.last))
        for one in did.committed:
            topics[key][one.topic] = max(instant(one.at), topics[key].get(one.topic) or instant(0))
        for topic in did.fetched:
            topics[key].setdefault(topic, None)
    read = defaultdict(set)
    for call in calls(acts):
        if call.api == "Fetch" and call.answered:
            client = (day(call.at), call.visit.run.cluster, *_identity(call.visit.client))
            read[client] |= {part.topic for part in call.parts if not part.error and part.records}
    book: Book = {}
    for key, row in members.items():
        client, member = key[:5], key[6]
        found = {topic: ("connection" if at is None else "commit", at) for topic, at in topics.get(key, {}).items()}
        sure = "client" if len(groups_of[client]) == 1 else "shared_client"
        for topic in read[client] if member is not None else ():
            found.setdefault(topic, (sure, None))
        for topic, (source, at) in (found or {None: (None, None)}).items():
            book[*key, topic] = row | {"topic_source": source, "committed_at": at}
    return book


def lag(committed: Book, ends: Book) -> Book:
    """Of every minute in which something is new, one after another."""
    book: Book = {}
    readers = {(key[2], *key[3:]) for key in committed}
    for cluster, group, topic, partition in readers:
        offsets = {key[1]: row for key, row in committed.items() if key[2:] == (cluster, group, topic, partition)}
        seen = {key[1]: row for key, row in ends.items() if key[2:] == (cluster, topic, partition)}
        state: dict[str, Any] = {"committed_offset": None, "end_offset": None, "end_offset_at": None}
        for at in sorted({*offsets, *seen}):
            state = state | offsets.get(at, {}) | seen.get(at, {})
            if state["committed_offset"] is None or at.date() > state["committed_at"].date() + timedelta(days=7):
                continue
            end = state["end_offset"]
            behind = None if end is None else max(0, end - state["committed_offset"])
            book[at.date(), at, cluster, group, topic, partition] = state | {"lag": behind}
    return book
