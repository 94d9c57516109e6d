"""``traffic``, ``latency`` and ``clients``."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.ledger.acts import Act, Call
from tests.ledger.books import Book, add, day, least, minute, most

ENDS = [int(64 * 2 ** (number / 2)) for number in range(39)]
"""Of the latency buckets but the last, µs."""

COLUMNS = (
    "requests", "request_bytes", "response_bytes", "errors", "retriable", "protocol", "connection_lost", "throttle_ms",
    "topic_requests",
    "topic_errors", "records", "bytes", "unconfirmed_records", "unconfirmed_bytes", "rejected_records",
    "rejected_bytes", "polled", "estimated_records",
)  # fmt: skip

REFUSED = {("Produce", 2): "4.0", ("Fetch", 3): "4.0"}
"""Versions in the script that KIP-896 removed."""


def calls(acts: Iterable[Act]) -> Iterator[Call]:
    return (act for act in acts if isinstance(act, Call))


def traffic(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(lambda: dict.fromkeys(COLUMNS, 0))

    def row(call: Call, topic: str | None) -> dict[str, int]:
        run, who = call.visit.run, call.visit.client
        return book[
            day(call.at), minute(call.at), run.cluster, run.broker, who.listener, call.api, topic, who.principal,
            who.client_id, who.ip,
        ]  # fmt: skip

    for call in calls(acts):
        add(
            row(call, None), requests=1, request_bytes=call.request_bytes, response_bytes=call.response_bytes,
            errors=call.failed, retriable=call.retriable, protocol=call.protocol,
            connection_lost=call.outcome == "connection_lost", throttle_ms=call.throttle_ms,
        )  # fmt: skip
        for topic in call.topics:
            failed = any(part.error for part in call.parts if part.topic == topic)
            add(row(call, topic), topic_requests=1, topic_errors=failed)
        for part in call.parts:
            if part.error:
                kind = "rejected_" if call.api == "Produce" else None
            elif call.answered:
                kind = ""
            else:
                kind = "unconfirmed_" if call.api == "Produce" else None
            if kind is not None:
                add(row(call, part.topic), **{f"{kind}records": part.records, f"{kind}bytes": part.bytes})
        for topic in call.polled:
            row(call, topic)["polled"] = 1
    return dict(book)


def latency(acts: Iterable[Act]) -> Book:
    """Without rows of calls that nobody answered. ``upstream_latencies`` are 0 on rows of a topic, not NULL."""
    book: Book = defaultdict(lambda: {"requests": 0, "idle": 0, "latencies": [0] * 40, "upstream_latencies": [0] * 40,
                                      "service_latencies": [0] * 40})  # fmt: skip
    for call in calls(acts):
        if not call.answered:
            continue
        run, who = call.visit.run, call.visit.client
        for topic in (None, *call.topics):
            row = book[day(call.at), minute(call.at), run.cluster, run.broker, who.listener, call.api, topic,
                       who.principal, who.client_id]  # fmt: skip
            if call.idle:
                row["idle"] += 1
                continue
            row["requests"] += 1
            row["latencies"][bisect_left(ENDS, call.latency_us)] += 1
            row["service_latencies"][bisect_left(ENDS, call.service_us)] += 1
            if topic is None:
                row["upstream_latencies"][bisect_left(ENDS, call.upstream_us)] += 1
    return dict(book)


def clients(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for call in calls(acts):
        who = call.visit.client
        row = book[
            day(call.at), call.visit.run.cluster, who.principal, who.client_id, who.ip, *(who.software or (None, None)),
            call.api, call.version,
        ]  # fmt: skip
        add(row, requests=1)
        least(row, first_seen=minute(call.at))
        most(row, last_seen=minute(call.at))
        row["refused_since"] = REFUSED.get((call.api, call.version))
    return dict(book)
