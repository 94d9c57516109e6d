"""``connections``, ``throttles``, ``inventory`` and ``produced``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from tests.ledger.acts import SECOND, Act, Change, Limited, Listing
from tests.ledger.books import Book, Row, add, day, hour, instant, least, minute, most
from tests.ledger.books.traffic import calls


def connections(acts: Iterable[Act]) -> Book:
    book: Book = {}
    for change in acts:
        if not isinstance(change, Change):
            continue
        visit, client = change.visit, change.visit.client
        key = (visit.run.cluster, visit.run.broker, visit.run.boot, visit.id)
        row: Row = book.setdefault(
            key,
            {
                "listener": client.listener, "client_ip": client.ip, "client_port": visit.port, "sasl_mechanism": None,
                "tls_version": None, "tls_cipher": None, "client_id": None, "opened_at": None, "authenticated_at": None,
                "closed_at": None, "authentications": 0, "authentication_failures": 0, "duration_ms": None,
                "requests": None, "received_bytes": None, "sent_bytes": None,
            },
        )  # fmt: skip
        most(row, day=day(change.at))
        if change.what == "opened":
            row["opened_at"] = instant(change.at)
            row["principal"] = row.get("principal", "User:ANONYMOUS")
        else:
            row["principal"] = client.principal
            row["tls_version"], row["tls_cipher"] = client.tls
        if change.what == "authenticated":
            add(row, authentications=1)
            row["authenticated_at"] = instant(change.at)
            row["sasl_mechanism"] = client.mechanism
        if change.what == "authentication_failed":
            add(row, authentication_failures=1)
        if change.what == "closed":
            row |= {
                "closed_at": instant(change.at), "client_id": client.client_id if visit.calls else None,
                "sasl_mechanism": client.mechanism, "duration_ms": (change.at - visit.opened) // 1000,
                "requests": len(visit.calls), "received_bytes": sum(call.request_bytes for call in visit.calls),
                "sent_bytes": sum(call.response_bytes for call in visit.calls),
            }  # fmt: skip
    return book


def throttles(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for one in acts:
        if isinstance(one, Limited):
            row = book[
                day(one.at), minute(one.at), one.run.cluster, one.run.broker, one.listener, one.ip, one.scope, None,
                one.quota, one.action,
            ]  # fmt: skip
            add(row, count=one.count)
            most(row, quota_limit=one.limit, observed=one.observed, delay_ms=one.delay_ms)
            least(row, first_at=instant(one.at))
            most(row, last_at=instant(one.at + SECOND // 2))
    return dict(book)


def inventory(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for one in acts:
        if isinstance(one, Listing):
            for topic in (topic for part in one.parts for topic in part):
                row = book[day(one.at), hour(one.at), one.run.cluster, topic.name]
                row |= {"topic_id": topic.id, "partitions": topic.partitions, "internal": topic.internal}
                add(row, listings=1)
                least(row, first_seen=instant(one.at))
                most(row, last_seen=instant(one.at))
    return dict(book)


def produced(acts: Iterable[Act], topics: Collection[tuple[str, str]]) -> list[Row]:
    """Rows of those topics, (cluster, name), of sidecars with an event for each request."""
    return [
        {
            "day": day(call.at), "at": instant(call.at), "cluster_id": call.visit.run.cluster,
            "broker_id": call.visit.run.broker, "topic": part.topic, "partition": part.partition,
            "principal": call.visit.client.principal, "client_id": call.visit.client.client_id,
            "producer_id": part.producer[0], "producer_epoch": part.producer[1], "base_sequence": part.sequence,
            "base_offset": part.offset,
            "outcome": "rejected" if part.error else "acknowledged" if call.answered else "unconfirmed",
            "records": part.records,
            "bytes": part.bytes,
        }
        for call in calls(acts)
        if call.api == "Produce" and not call.visit.run.rolls_up
        for part in call.parts
        if (call.visit.run.cluster, part.topic) in topics
    ]  # fmt: skip
