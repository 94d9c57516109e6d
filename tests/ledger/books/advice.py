"""``quota_advice``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from observers.account_events import StatusEvent
from observers.event import Envelope
from tests.ledger.acts import SECOND, Act, Change, Limited, Run, Visit
from tests.ledger.books import Book, instant

FOREVER = 1 << 62


class Life(NamedTuple):
    """One connection, as far as was reported."""

    visit: Visit
    opened: int
    ended: int


Group = tuple[Any, ...]
"""Cluster, scope, listener, address, broker: connections that one limit counts together."""


def quota_advice(acts: Sequence[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Book:
    """Keyed by cluster, scope, listener, quota, broker."""
    together: dict[Group, list[Life]] = defaultdict(list)
    for life in _lives(acts, envelopes):
        run, client = life.visit.run, life.visit.client
        for scope, listener, ip in (
            ("broker", None, None),
            ("listener", client.listener, None),
            ("ip", None, client.ip),
        ):
            together[run.cluster, scope, listener, ip, run.broker].append(life)
    seen: dict[tuple[Any, ...], list[tuple[Fraction, list[int]]]] = defaultdict(list)
    for (cluster, scope, listener, _, broker), lives in together.items():
        for quota, values in (("connection_creation_rate", _rates(lives)), ("connections", _numbers(lives))):
            for of in (broker, None):
                seen[cluster, scope, listener, quota, of] += values
    book: Book = {}
    for key, values in seen.items():
        ordered = sorted(value for value, _ in values)
        opened = [at for _, some in values for at in some]
        book[key] = {
            "observations": len(opened),
            "since": instant(min(opened)),
            "until": instant(max(opened)),
            "p99": float(ordered[ceil(len(ordered) * Fraction(99, 100)) - 1]),
            "peak": float(ordered[-1]),
            "advice": max(1, ceil(ordered[-1] * 3 / 2)),
            "throttled": sum(_met(act, key, min(opened), max(opened)) for act in acts),
        }
    return book


def _met(act: Act, key: tuple[Any, ...], since: int, until: int) -> int:
    cluster, scope, listener, quota, broker = key
    if not isinstance(act, Limited) or (act.run.cluster, act.scope, act.quota) != (cluster, scope, quota):
        return 0
    if act.at > until or act.at + SECOND // 2 < since:
        return 0
    return act.count if broker in (None, act.run.broker) and listener in (None, act.listener) else 0


def _lives(acts: Iterable[Act], envelopes: Iterable[tuple[Run, Envelope]]) -> Iterator[Life]:
    last: dict[Run, int] = {}
    for run, envelope in envelopes:
        statuses = [event.ts for event in envelope.events if isinstance(event, StatusEvent)]
        last[run] = max([last.get(run, 0), *statuses])
    changes = [act for act in acts if isinstance(act, Change)]
    opened = {change.visit: change.at for change in changes if change.what == "opened"}
    closed = {change.visit: change.at for change in changes if change.what == "closed"}
    for visit in {change.visit: None for change in changes}:
        at = opened.get(visit)
        if at is None and visit in closed:
            at = closed[visit] - (closed[visit] - visit.opened) // 1000 * 1000
        if at is not None:
            yield Life(visit, at, closed.get(visit, FOREVER if visit.run.lives else max(last[visit.run], at + 1)))


def _rates(lives: Iterable[Life]) -> list[tuple[Fraction, list[int]]]:
    """Of each second in which a connection was opened: those of 11 s by 10, and when those of it were."""
    seconds: dict[int, list[int]] = defaultdict(list)
    for life in lives:
        seconds[life.opened // SECOND].append(life.opened)
    return [
        (Fraction(sum(len(seconds.get(before, ())) for before in range(second - 10, second + 1)), 10), opened)
        for second, opened in seconds.items()
    ]


def _numbers(lives: Sequence[Life]) -> list[tuple[Fraction, list[int]]]:
    """Of each second in which a connection was opened: the most that were open right after one of it."""
    seconds: dict[int, list[int]] = defaultdict(list)
    for life in lives:
        seconds[life.opened // SECOND].append(life.opened)
    return [
        (Fraction(max(sum(one.opened <= at < one.ended for one in lives) for at in opened)), opened)
        for opened in seconds.values()
    ]
