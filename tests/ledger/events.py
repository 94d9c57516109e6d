"""Acts as events of the audit: one by one, or rolled up."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from observers.cluster_events import (
    CommittedPartition,
    EndOffset,
    EndOffsetsEvent,
    GroupEvent,
    InventoryEvent,
    InventoryTopic,
)
from observers.event import (
    ROLLUP_BUCKETS,
    ConnectionEvent,
    PrincipalSource,
    RequestEvent,
    RollupEvent,
    RollupTopic,
    ThrottleEvent,
    TopicPartition,
)
from tests.ledger.acts import API_KEYS, MINUTE, SECOND, Call, Change, Ends, Limited, Listing, Membership, Visit

INTERVAL = 20 * SECOND
"""After which rollups are emitted."""

Event = RequestEvent | RollupEvent | ConnectionEvent | ThrottleEvent | InventoryEvent | GroupEvent | EndOffsetsEvent


def request(call: Call) -> RequestEvent:
    name, version = call.visit.client.software or (None, None)
    return RequestEvent(
        seq=0, listener=call.visit.client.listener, connection_id=call.visit.id,
        correlation_id=call.visit.calls.index(call) + 1, api_key=API_KEYS[call.api], api=call.api,
        api_version=call.version, principal=call.visit.client.principal, client_ip=call.visit.client.ip,
        ts_request=call.at, latency_us=call.latency_us, request_bytes=call.request_bytes,
        response_bytes=call.response_bytes,
        outcome=call.outcome,  # type: ignore[arg-type]
        decode="full", client_id=call.visit.client.client_id, client_software_name=name,
        client_software_version=version, throttle_ms=call.throttle_ms, max_wait_ms=call.max_wait_ms, acks=call.acks,
        error_code=call.error,
        topics=tuple(
            TopicPartition(
                topic=part.topic, partition=part.partition, bytes=part.bytes, records=part.records,
                error_code=part.error, producer_id=part.producer[0], producer_epoch=part.producer[1],
                base_sequence=part.sequence, base_offset=part.offset,
            )
            for part in call.parts
        ),
        upstream_us=call.upstream_us, principal_source=_source(call.visit), polled=call.polled, muted_us=call.muted_us,
        item_failures=call.failures, operation=call.operation, resources=call.about, resource_count=len(call.about),
        validate_only=call.validate_only,
    )  # fmt: skip


def rollups(calls: Iterable[Call]) -> Iterator[tuple[int, RollupEvent, list[Call]]]:
    """When each rollup is emitted, the rollup, and the calls in it."""
    groups: dict[object, list[Call]] = defaultdict(list)
    for call in calls:
        ends = call.at + call.latency_us
        client = call.visit.client
        groups[ends // INTERVAL, call.at // MINUTE, call.api, call.version, client].append(call)
    for group in groups.values():
        ends = group[0].at + group[0].latency_us
        yield (ends // INTERVAL + 1) * INTERVAL, _rollup(group), group


def _rollup(calls: Sequence[Call]) -> RollupEvent:
    first, client = calls[0], calls[0].visit.client
    name, version = client.software or (None, None)
    topics = dict.fromkeys(topic for call in calls for topic in call.topics)
    latencies, service = _counts(calls, "latency_us"), _counts(calls, "service_us")
    return RollupEvent(
        seq=0, minute=first.at // MINUTE * MINUTE, listener=client.listener, api_key=API_KEYS[first.api], api=first.api,
        principal=client.principal, client_ip=client.ip, requests=len(calls),
        request_bytes=sum(call.request_bytes for call in calls), client_id=client.client_id,
        principal_source=_source(first.visit), api_version=first.version, client_software_name=name,
        client_software_version=version, response_bytes=sum(call.response_bytes for call in calls),
        errors=sum(call.failed for call in calls), retriable=sum(call.retriable for call in calls),
        protocol=sum(call.protocol for call in calls),
        connection_lost=sum(call.outcome == "connection_lost" for call in calls),
        throttle_ms=sum(call.throttle_ms for call in calls), idle=sum(call.idle for call in calls), latencies=latencies,
        upstream_latencies=_counts(calls, "upstream_us"), service_latencies=() if service == latencies else service,
        per_topic=tuple(_of_topic(topic, calls) for topic in topics),
        polled=tuple(dict.fromkeys(topic for call in calls for topic in call.polled)),
    )  # fmt: skip


def _of_topic(topic: str, calls: Sequence[Call]) -> RollupTopic:
    touching = [call for call in calls if topic in call.topics]
    reported = RollupTopic(topic, topic_requests=len(touching), latencies=_counts(touching, "latency_us"))
    service = _counts(touching, "service_us")
    reported.service_latencies = () if service == reported.latencies else service
    for call in touching:
        parts = [part for part in call.parts if part.topic == topic]
        reported.errors += any(part.error for part in parts)
        for part in parts:
            if part.error and call.api == "Produce":
                reported.rejected_records += part.records
                reported.rejected_bytes += part.bytes
            elif not part.error and call.answered:
                reported.records += part.records
                reported.bytes += part.bytes
            elif not part.error and call.api == "Produce":
                reported.unconfirmed_records += part.records
                reported.unconfirmed_bytes += part.bytes
    return reported


def _counts(calls: Iterable[Call], of: str) -> tuple[int, ...]:
    counts = [0] * 40
    for call in calls:
        if call.answered and not call.idle:
            counts[bisect_left(ROLLUP_BUCKETS, getattr(call, of))] += 1
    while counts and not counts[-1]:
        counts.pop()
    return tuple(counts)


def connection(change: Change) -> ConnectionEvent:
    visit, client = change.visit, change.visit.client
    event = ConnectionEvent(
        seq=0,
        change=change.what,  # type: ignore[arg-type]
        ts=change.at, listener=client.listener, connection_id=visit.id,
        principal="User:ANONYMOUS" if change.what == "opened" else client.principal, client_ip=client.ip,
        client_port=visit.port, principal_source="anonymous" if client.mechanism is None else "unauthenticated",
    )  # fmt: skip
    if change.what != "opened":
        event.tls_version, event.tls_cipher = client.tls
    if change.what in ("opened", "authentication_failed"):
        event.error_code = 58 * (change.what != "opened")
        return event
    event.principal_source = _source(visit)
    event.sasl_mechanism = client.mechanism
    if change.what == "closed":
        if client.software and visit.calls:
            event.client_software_name, event.client_software_version = client.software
        event.client_id = client.client_id if visit.calls else None
        event.cause = "client"
        event.duration_ms = (change.at - visit.opened) // 1000
        event.requests = len(visit.calls)
        event.received_bytes = sum(call.request_bytes for call in visit.calls)
        event.sent_bytes = sum(call.response_bytes for call in visit.calls)
    return event


def throttle(limited: Limited) -> ThrottleEvent:
    return ThrottleEvent(
        seq=0, listener=limited.listener, client_ip=limited.ip,
        scope=limited.scope,  # type: ignore[arg-type]
        quota=limited.quota,  # type: ignore[arg-type]
        action=limited.action,  # type: ignore[arg-type]
        count=limited.count, limit=limited.limit, observed=limited.observed, ts_first=limited.at,
        ts_last=limited.at + SECOND // 2, delay_ms=limited.delay_ms,
    )  # fmt: skip


def inventory(listing: Listing) -> Iterator[InventoryEvent]:
    for number, part in enumerate(listing.parts, 1):
        topics = tuple(InventoryTopic(each.name, each.id, each.partitions, each.internal) for each in part)
        yield InventoryEvent(seq=0, ts=listing.at, part=number, parts=len(listing.parts), inventory=topics)


def membership(did: Membership) -> GroupEvent:
    return GroupEvent(
        seq=0, listener=did.client.listener, principal=did.client.principal, client_ip=did.client.ip,
        group_id=did.group, ts_first=did.first, ts_last=did.last, requests=did.requests, client_id=did.client.client_id,
        member_id=did.member, group_instance_id=did.instance, generation_id=did.generation, group_type=did.type,
        commits=did.commits,
        committed=tuple(
            CommittedPartition(one.topic, one.partition, one.offset, one.at, one.transactional) for one in did.committed
        ),
        fetched=did.fetched,
    )  # fmt: skip


def ends(seen: Ends) -> EndOffsetsEvent:
    return EndOffsetsEvent(seq=0, ts=seen.at, end_offsets=tuple(EndOffset(*one) for one in seen.offsets))


def _source(visit: Visit) -> PrincipalSource:
    return "anonymous" if visit.client.mechanism is None else "sasl"
