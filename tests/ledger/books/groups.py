"""``group_members``, ``committed_offsets``, ``end_offsets``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.ledger.acts import SECOND, Act, Client, Ends, Membership
from tests.ledger.books import Book, add, day, instant, least, minute, most

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
            "committed_offset": one.offset, "transactional": one.transactional, "committed_at": instant(one.at),
        }  # fmt: skip
    return book


def end_offsets(acts: Iterable[Act]) -> Book:
    """The newest second counts, and within it the highest offset."""
    book: Book = {}
    seen = [(at - at % SECOND, offset, act.run.cluster, topic, partition) for act in acts if isinstance(act, Ends)
            for topic, partition, offset, at in act.offsets]  # fmt: skip
    for at, offset, cluster, topic, partition in sorted(seen):
        book[day(at), minute(at), cluster, topic, partition] = {"end_offset": offset, "end_offset_at": instant(at)}
    return book
