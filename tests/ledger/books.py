"""One book for each table: from its key to the other columns, as the table must hold them after merging.

Kept from the acts alone, with dicts and integers. A book says what is exact; what a table has besides is not compared.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

from observers.account_events import GapEvent, StatusEvent
from observers.cluster_events import EndOffsetsEvent, GroupEvent, InventoryEvent
from observers.event import Envelope, ThrottleEvent
from tests.ledger.acts import CHANGING, DENIED, SECOND, Act, Call, Change, Run, Told

T = TypeVar("T")

Row = dict[str, Any]
Book = dict[tuple[Any, ...], Row]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def minute(us: int) -> datetime:
    return instant(us - us % 60_000_000)


def hour(us: int) -> datetime:
    return instant(us - us % 3_600_000_000)


def day(us: int) -> date:
    return instant(us).date()


def add(row: Row, **numbers: int) -> None:
    for name, number in numbers.items():
        row[name] = row.get(name, 0) + number


def most(row: Row, **values: Any) -> None:
    for name, value in values.items():
        row[name] = value if row.get(name) is None else max(row[name], value)


def least(row: Row, **values: Any) -> None:
    for name, value in values.items():
        row[name] = value if row.get(name) is None else min(row[name], value)


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
    for run, one in _told(acts, ThrottleEvent):
        row = book[
            day(one.ts_first), minute(one.ts_first), run.cluster, run.broker, one.listener, one.client_ip, one.scope,
            None, one.quota, one.action,
        ]  # fmt: skip
        add(row, count=one.count)
        most(row, quota_limit=one.limit, observed=one.observed, delay_ms=one.delay_ms, last_at=instant(one.ts_last))
        least(row, first_at=instant(one.ts_first))
    return dict(book)


def inventory(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for run, one in _told(acts, InventoryEvent):
        for topic in one.inventory:
            row = book[day(one.ts), hour(one.ts), run.cluster, topic.topic]
            row |= {"topic_id": topic.topic_id, "partitions": topic.partitions, "internal": topic.internal}
            add(row, listings=1)
            least(row, first_seen=instant(one.ts))
            most(row, last_seen=instant(one.ts))
    return dict(book)


Details = tuple[str | None, ...]
ERRORS = {0: None, 29: "TOPIC_AUTHORIZATION_FAILED", 36: "TOPIC_ALREADY_EXISTS"}


def changes(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    for call in calls(acts):
        for kind, name, parent_type, parent_name, details, code in dict.fromkeys(_touched(call)):
            run, who = call.visit.run, call.visit.client
            result = "denied" if code == DENIED else "unknown" if code == -1 else "failed" if code else "success"
            row = book[
                day(call.at), minute(call.at), run.cluster, run.broker, who.listener, who.principal, who.client_id,
                who.ip, call.api, call.operation, kind, name, parent_type, parent_name, *details, result, code,
                "UNKNOWN_SERVER_ERROR" if code == -1 else ERRORS[code], call.validate_only,
            ]  # fmt: skip
            add(row, requests=1, resources_not_listed=0)
            least(row, first_at=instant(call.at))
            most(row, last_at=instant(call.at), connection_id=call.visit.id)
    return dict(book)


def _touched(call: Call) -> Iterable[tuple[str | None, str | None, str | None, str | None, Details, int]]:
    """Type, name and parent of what a call changed or was denied, how, and the error code."""
    for one in call.about:
        code = one.error_code if call.answered else -1
        if call.operation in CHANGING or code == DENIED:
            details = (
                one.op_type, one.mechanism, one.acl_permission_type, one.acl_operation, one.acl_host,
                one.acl_pattern_type,
            )  # fmt: skip
            yield one.resource_type, one.resource_name, one.parent_type, one.parent_name, details, code
    for part in call.parts:
        if part.error == DENIED:
            yield "topic", part.topic, None, None, (None,) * 6, DENIED


def _told(acts: Iterable[Act], kind: type[T]) -> list[tuple[Run, T]]:
    return [(act.run, act.event) for act in acts if isinstance(act, Told) and isinstance(act.event, kind)]


def group_members(acts: Iterable[Act]) -> Book:
    book: Book = defaultdict(dict)
    known: dict[tuple[Any, ...], dict[str, tuple[int, Any]]] = defaultdict(dict)
    for run, did in _told(acts, GroupEvent):
        topics: dict[str | None, int | None] = {None: None, **dict.fromkeys(did.fetched)}
        for one in did.committed:
            topics[one.topic] = max(one.ts, topics.get(one.topic) or 0)
        for topic, committed_at in topics.items():
            key = (
                day(did.ts_last), run.cluster, run.broker, did.listener, did.group_id, topic, did.member_id,
                did.group_instance_id, did.principal, did.client_id, did.client_ip,
            )  # fmt: skip
            row = book[key]
            whole = topic is None
            add(row, requests=did.requests * whole, commits=did.commits * whole, offsets_not_listed=0)
            least(row, first_seen=instant(did.ts_first))
            most(row, last_seen=instant(did.ts_last))
            row.setdefault("committed_at", None)
            if committed_at is not None:
                most(row, committed_at=instant(committed_at))
            for name, value in (("group_type", did.group_type), ("generation_id", did.generation_id)):
                if value is not None and value != -1:
                    known[key][name] = max((did.ts_last, value), known[key].get(name, (0, value)))
                row[name] = known[key][name][1] if name in known[key] else None
    return dict(book)


def committed_offsets(acts: Iterable[Act]) -> Book:
    book: Book = {}
    taken = [(one, run, did) for run, did in _told(acts, GroupEvent) for one in did.committed]
    for one, run, did in sorted(taken, key=lambda each: (each[0].ts, each[0].offset)):
        key = (day(one.ts), minute(one.ts), run.cluster, did.group_id, one.topic, one.partition)
        book[key] = {
            "committed_offset": one.offset, "transactional": one.transactional, "committed_at": instant(one.ts),
        }  # fmt: skip
    return book


def end_offsets(acts: Iterable[Act]) -> Book:
    """The newest second counts, and within it the highest offset."""
    book: Book = {}
    seen = [(end.ts - end.ts % SECOND, end.offset, run.cluster, end.topic, end.partition)
            for run, event in _told(acts, EndOffsetsEvent) for end in event.end_offsets]  # fmt: skip
    for at, offset, cluster, topic, partition in sorted(seen):
        book[day(at), minute(at), cluster, topic, partition] = {"end_offset": offset, "end_offset_at": instant(at)}
    return book


def completeness(envelopes: Iterable[Envelope]) -> Book:
    book: Book = defaultdict(dict)
    for envelope in envelopes:
        sidecar = (envelope.cluster_id, envelope.broker_id, envelope.boot_id)
        sent = (day(envelope.sent_at), minute(envelope.sent_at))
        row = book[*sent, *sidecar, None, None]
        add(row, envelopes=1, events=len(envelope.events))
        least(row, first_seq=envelope.first_seq)
        most(row, last_seq=envelope.last_seq)
        for event in envelope.events:
            if isinstance(event, GapEvent):
                row = book[*sent, *sidecar[:2], event.lost_boot_id, event.reason, None]
                add(row, lost=event.lost_last_seq - event.lost_first_seq + 1)
                least(row, lost_first_seq=event.lost_first_seq)
                most(row, lost_last_seq=event.lost_last_seq)
            elif isinstance(event, StatusEvent):
                row = book[day(event.ts), minute(event.ts), *sidecar, None, None]
                add(row, statuses=1)
                if "last_status" not in row or row["last_status"] < instant(event.ts):
                    row["waiting"] = event.waiting + event.queued + event.spooled
                most(row, last_status=instant(event.ts), seen=event.seen, emitted=event.emitted,
                     delivered=event.delivered, hidden=event.hidden, partly_hidden=event.partly_hidden,
                     dropped=sum(event.dropped.values()), ended=event.last)  # fmt: skip
                row["started_at"] = instant(event.started_at)
                for name, count in event.hidden_by.items():
                    most(book[day(event.ts), minute(event.ts), *sidecar, None, name], hidden=count)
                for name, count in event.partly_hidden_by.items():
                    most(book[day(event.ts), minute(event.ts), *sidecar, None, name], partly_hidden=count)
    return dict(book)
