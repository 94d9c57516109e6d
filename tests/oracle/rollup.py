"""Many requests in one event: what ``observers.rollup_writer`` gathers, as the sum of the events of its requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.event import ROLLUP_BUCKETS, RequestEvent, RollupEvent, RollupTopic, encoder
from observers.fetch_sessions import FETCH_API_KEYS
from observers.request_events import log_event_failure
from observers.rollup import MAX_ROLLUP_TOPICS, MAX_ROLLUPS, RollupProgress, split_rollup, trim_trailing_zeros
from observers.topic_names import TopicNames
from proxy.core.response_errors import FAILURE, RETRY, STEP, severity
from tests.oracle.translate import PRODUCE, Translator, muted_us

BUCKETS = len(ROLLUP_BUCKETS) + 1

MINUTE = 60_000_000
"""Microseconds."""

NO_BOUND = 1 << 62


class Gathered(Struct):
    """One rollup that requests are added to."""

    event: RollupEvent
    topics: dict[str, RollupTopic] = {}
    latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    upstream_latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    service_latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    topic_latencies: dict[str, tuple[list[int], list[int]]] = {}
    """As of all of it: latencies and service latencies."""
    polled: dict[str, None] = {}


class Rollup:
    """Gathers exchanges of any session. Not thread-safe."""

    def __init__(
        self,
        api_names: Mapping[int, str],
        names: TopicNames,
        audit_filter: AuditFilter,
        *,
        max_rollups: int = MAX_ROLLUPS,
        max_topics: int = MAX_ROLLUP_TOPICS,
    ) -> None:
        self._request_encoder = Translator(api_names, names, audit_filter, max_event=NO_BOUND, lists_items=False)
        self._filter = audit_filter
        self._max_rollups = max_rollups
        self._max_topics = max_topics
        self._gathered: dict[tuple[Any, ...], Gathered] = {}
        self._topics = 0
        self.requests = 0
        """Requests gathered and not taken."""

    @property
    def full(self) -> bool:
        """Whether no more exchanges are added before ``drain``."""
        return len(self._gathered) >= self._max_rollups or self._topics >= self._max_topics

    def add_exchanges(self, exchanges: Sequence[ObservedExchange], start: int, wall_offset: float) -> RollupProgress:
        """Add ``exchanges`` from the place ``start`` on, until it is ``full``; ``wall_offset`` as of ``Translator``."""
        hidden = failed = not_encodable = 0
        while start < len(exchanges) and not self.full:
            exchange = exchanges[start]
            start += 1
            self._filter.left_out.clear()
            try:
                muted = muted_us(self._filter, exchange)
                if self._filter.record_and_check_hidden(exchange):
                    hidden += 1
                else:
                    event = self._request_encoder.event(exchange, wall_offset)
                    event.muted_us = muted
                    event.topics = self._request_encoder.topics(exchange) or ()
                    self._add(event)
                    if self._filter.left_out:
                        self._filter.count_partly_hidden()
            except UnicodeError:
                not_encodable += 1
            except Exception:
                log_event_failure(exchange)
                failed += 1
        return RollupProgress(start, hidden, failed, not_encodable)

    def drain(self) -> list[RollupEvent]:
        """Return what was gathered, without numbers (``seq`` 0), and begin anew."""
        taken, self._gathered = self._gathered, {}
        self._topics = self.requests = 0
        return [event for gathered in taken.values() for event in rolled(gathered)]

    def _add(self, event: RequestEvent) -> None:
        gathered = self._gathered_of(event)
        sums = gathered.event
        answered = event.outcome == "answered"
        idle = answered and event.api_key in FETCH_API_KEYS and not (event.topics or event.error_code)
        measured = answered and not idle
        bucket = service = bisect_left(ROLLUP_BUCKETS, event.latency_us)
        if event.muted_us or event.max_wait_ms:
            service = bisect_left(ROLLUP_BUCKETS, service_us(event))
        worst = severity(event.api_key, event.error_code)
        if event.item_protocol:
            worst = max(worst, STEP)
        if event.item_retriable:
            worst = max(worst, RETRY)
        if event.item_failures:
            worst = FAILURE
        touched: dict[str, bool] = {}  # topics, and whether any partition of them has a failure
        for part in event.topics:
            name = part.topic
            topic = gathered.topics.get(name)
            if topic is None:
                topic = gathered.topics[name] = RollupTopic(topic=name)
                gathered.topic_latencies[name] = ([0] * BUCKETS, [0] * BUCKETS)
                self._topics += 1
            worst = max(worst, severity(event.api_key, part.error_code))
            touched[name] = severity(event.api_key, part.error_code) == FAILURE or touched.get(name, False)
            if part.error_code:
                if event.api_key == PRODUCE:
                    topic.rejected_records += part.records
                    topic.rejected_bytes += part.bytes
            elif answered:
                topic.records += part.records
                topic.estimated_records += part.records if part.claimed or part.upper_bound else 0
                topic.bytes += part.bytes
            elif event.api_key == PRODUCE:
                topic.unconfirmed_records += part.records
                topic.unconfirmed_bytes += part.bytes
        self.requests += 1
        sums.requests += 1
        sums.request_bytes += event.request_bytes
        sums.response_bytes += event.response_bytes
        sums.errors += worst == FAILURE
        sums.retriable += worst == RETRY
        sums.protocol += worst == STEP
        sums.connection_lost += event.outcome == "connection_lost"
        sums.throttle_ms += max(event.throttle_ms, 0)
        sums.idle += idle
        if measured:
            gathered.latencies[bucket] += 1
            gathered.service_latencies[service] += 1
            gathered.upstream_latencies[bisect_left(ROLLUP_BUCKETS, event.upstream_us)] += 1
        for name, failed in touched.items():
            topic = gathered.topics[name]
            topic.topic_requests += 1
            topic.errors += failed
            if measured:
                latencies, service_latencies = gathered.topic_latencies[name]
                latencies[bucket] += 1
                service_latencies[service] += 1
        for name in event.polled:
            if name not in gathered.polled:
                gathered.polled[name] = None
                self._topics += 1

    def _gathered_of(self, event: RequestEvent) -> Gathered:
        minute = event.ts_request - event.ts_request % MINUTE
        key = (
            minute,
            event.api_key,
            event.api_version,
            event.listener,
            event.principal,
            event.principal_source,
            event.client_id,
            event.client_ip,
            event.client_software_name,
            event.client_software_version,
        )
        gathered = self._gathered.get(key)
        if gathered is None:
            encoder.encode(key)  # raises for what is no text
            gathered = self._gathered[key] = Gathered(
                RollupEvent(
                    seq=0,
                    minute=minute,
                    listener=event.listener,
                    api_key=event.api_key,
                    api=event.api,
                    principal=event.principal,
                    client_ip=event.client_ip,
                    requests=0,
                    request_bytes=0,
                    client_id=event.client_id,
                    principal_source=event.principal_source,
                    api_version=event.api_version,
                    client_software_name=event.client_software_name,
                    client_software_version=event.client_software_version,
                )
            )
        return gathered


def service_us(event: RequestEvent) -> int:
    """Return how long ``event`` took of what neither the client nor a quota asked for, in µs."""
    wanted_us = max(event.max_wait_ms, 0) * 1000  # 0 but of Fetch and ShareFetch
    return max(event.latency_us - event.muted_us - wanted_us, 0)


def rolled(gathered: Gathered) -> list[RollupEvent]:
    """Return the events, mostly one, with what was gathered."""
    first = gathered.event
    first.latencies, first.upstream_latencies = (
        trim_trailing_zeros(gathered.latencies),
        trim_trailing_zeros(gathered.upstream_latencies),
    )
    first.service_latencies = unless(gathered.latencies, gathered.service_latencies)
    for name, topic in gathered.topics.items():
        latencies, service_latencies = gathered.topic_latencies[name]
        topic.latencies, topic.service_latencies = trim_trailing_zeros(latencies), unless(latencies, service_latencies)
    return split_rollup(first, list(gathered.topics.values()), list(gathered.polled))


def unless(same: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return ``trim_trailing_zeros(counts)``, or nothing where they are the ``same``."""
    return () if counts == same else trim_trailing_zeros(counts)
