"""The tables ``traffic``, ``latency`` and ``clients``: sums of requests and rollups by minute and client. Pure.

Single requests and rollups give the same rows. This is most of the work of a job, so it is plain code over plain
integers, and rows are made only when the sums are complete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

from spark_jobs.events import DAY_US, MAX_SUM, MINUTE_US, PRODUCE
from spark_jobs.kafka_errors import PROTOCOL_ERRORS, RETRIABLE_ERRORS
from spark_jobs.kafka_versions import LOWEST_VERSIONS
from spark_jobs.partial_rows import MAX_BIGINT, PARTIAL_TABLES, Key, PartialRows, bounded
from spark_jobs.schemas.traffic import LATENCY_BUCKETS_US

FETCH_API_KEYS = (1, 78)
"""Api keys of Fetch and ShareFetch: the broker lets them wait for data for a time that the client chooses."""

NO_FAILURES = frozenset((0, *RETRIABLE_ERRORS, *PROTOCOL_ERRORS))
"""Error codes that are no failure of a request."""

API_VERSIONS, UNSUPPORTED_VERSION = 18, 35
"""An ApiVersions that was too new for the broker: the client asks again with the version in the response (KIP-511)."""

HISTOGRAM_LENGTH = len(LATENCY_BUCKETS_US) + 1
"""Counts of a histogram, one for each bucket."""

SERVICE_LATENCIES, UPSTREAM_LATENCIES = HISTOGRAM_LENGTH, 2 * HISTOGRAM_LENGTH
"""Where these begin in a list of all histograms of a row. One list is nearer to a CPU than three."""

WHOLE_SUMS = (
    "requests", "request_bytes", "response_bytes", "errors", "retriable", "protocol", "connection_lost", "idle",
)  # fmt: skip
"""Sums of whole requests that a rollup has, too."""

TOPIC_SUMS = (
    "topic_requests", "errors", "records", "bytes", "unconfirmed_records", "unconfirmed_bytes", "rejected_records",
    "rejected_bytes", "estimated_records",
)  # fmt: skip
"""Sums of a topic's part of requests that a rollup has, too."""

_VALUES = [column.name for column in PARTIAL_TABLES["traffic"].values]
_OF_WHOLE = _VALUES[: _VALUES.index("topic_requests")]
_OF_TOPIC = _VALUES[len(_OF_WHOLE) :]
_NO_WHOLE, _NO_TOPIC = [0] * len(_OF_WHOLE), [0] * len(_OF_TOPIC)
_whole_values = attrgetter(*_OF_WHOLE)
_topic_values = attrgetter(*("errors" if name == "topic_errors" else name for name in _OF_TOPIC))

_TABLE_SIZE = 1 << 17
_BUCKETS = bytes(bisect_left(LATENCY_BUCKETS_US, time) for time in range(_TABLE_SIZE))


def bucket_index(time: int) -> int:
    """Return the index of the bucket that contains ``time``, in µs; 0 also for negative times."""
    if time < _TABLE_SIZE:
        return _BUCKETS[time] if time > 0 else 0
    return bisect_left(LATENCY_BUCKETS_US, time)


class RequestSums:
    """The sums of requests that are alike, but for their topics."""

    __slots__ = (*WHOLE_SUMS, "histograms", "throttle_ms", "topics")

    def __init__(self) -> None:
        self.requests = self.request_bytes = self.response_bytes = self.errors = self.retriable = self.protocol = 0
        self.connection_lost = self.throttle_ms = self.idle = 0
        self.histograms = [0] * (3 * HISTOGRAM_LENGTH)
        self.topics: dict[str, TopicMeasures] = {}

    def topic(self, name: str) -> TopicMeasures:
        """Return the sums of a topic."""
        return self.topics.get(name) or self.topics.setdefault(name, TopicMeasures())


class TopicMeasures:
    """The sums of one topic of requests that are alike."""

    __slots__ = (*TOPIC_SUMS, "failed_in", "histograms", "polled", "seen_in")

    def __init__(self) -> None:
        self.topic_requests = self.errors = self.records = self.bytes = self.unconfirmed_records = 0
        self.unconfirmed_bytes = self.rejected_records = self.rejected_bytes = self.polled = self.estimated_records = 0
        self.histograms = [0] * (2 * HISTOGRAM_LENGTH)
        # Numbers of the last request that touched the topic, and of the last one in which it had a failure: each
        # counts once.
        self.seen_in = self.failed_in = 0


class RequestMeasures:
    """The sums of all requests and rollups."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], dict[tuple[Any, ...], RequestSums]] = {}
        self._of_sidecar: dict[tuple[Any, ...], RequestSums] = {}
        self._requests = 0
        # Parts of keys: many keys have the same strings, which are here once.
        self._shared: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Return the number of rows of ``traffic`` that these sums make."""
        return sum(1 + len(sums.topics) for of_sidecar in self._sums.values() for sums in of_sidecar.values())

    def select_sidecar(self, cluster_id: str, broker_id: int) -> None:
        """Choose the sidecar whose events are added next."""
        self._of_sidecar = self._sums.setdefault((cluster_id, broker_id), {})

    def add_request(self, event: Any) -> bool:
        """Add a request. Return whether it, or a part of it, has an error code."""
        at, api_key, code, topics = event.ts_request, event.api_key, event.error_code, event.topics
        key = (
            at - at % MINUTE_US, event.listener, event.api, event.principal, event.client_id, event.client_ip, api_key,
            event.api_version, event.client_software_name, event.client_software_version,
        )  # fmt: skip
        sums = self._of_sidecar.get(key) or self._new_sums(key)
        number = self._requests = self._requests + 1
        sums.requests += 1
        sums.request_bytes += event.request_bytes
        sums.response_bytes += event.response_bytes
        throttle_ms = event.throttle_ms
        if throttle_ms > 0:  # the value comes from a broker, so it is bounded
            sums.throttle_ms += min(throttle_ms, MAX_SUM)
        answered = event.outcome == "answered"
        timed = False
        if answered:
            if not topics and not code and api_key in FETCH_API_KEYS:
                sums.idle += 1
            else:
                timed = True
                latency, max_wait_ms = event.latency_us, event.max_wait_ms
                # Without the wait that the client asked for and the time of a quota.
                service = latency - event.muted_us - (1000 * max_wait_ms if max_wait_ms > 0 else 0)
                in_latencies, in_service_latencies = bucket_index(latency), SERVICE_LATENCIES + bucket_index(service)
                histograms = sums.histograms
                histograms[in_latencies] += 1
                histograms[in_service_latencies] += 1
                histograms[UPSTREAM_LATENCIES + bucket_index(event.upstream_us)] += 1
        elif event.outcome == "connection_lost":
            sums.connection_lost += 1
        codes: list[int] | None = None
        for part in topics:
            name = part.topic
            of_topic = sums.topics.get(name)
            if of_topic is None:
                of_topic = sums.topics[name] = TopicMeasures()
            if of_topic.seen_in != number:
                of_topic.seen_in = number
                of_topic.topic_requests += 1
                if timed:
                    histograms = of_topic.histograms
                    histograms[in_latencies] += 1
                    histograms[in_service_latencies] += 1
            part_code = part.error_code
            if part_code:
                codes = [part_code] if codes is None else [*codes, part_code]
                if api_key == PRODUCE:
                    of_topic.rejected_records += part.records
                    of_topic.rejected_bytes += part.bytes
                if part_code not in NO_FAILURES and of_topic.failed_in != number:
                    of_topic.failed_in = number
                    of_topic.errors += 1
            elif answered:
                of_topic.records += part.records
                of_topic.bytes += part.bytes
                if part.claimed or part.upper_bound:
                    of_topic.estimated_records += part.records
            elif api_key == PRODUCE:
                of_topic.unconfirmed_records += part.records
                of_topic.unconfirmed_bytes += part.bytes
        for name in event.polled:
            sums.topic(name).polled = 1
        if codes or code or event.item_failures or event.item_retriable or event.item_protocol:
            _count_error(sums, event, codes or ())
            return True
        return False

    def add_rollup(self, event: Any) -> None:
        """Add the sums of many requests."""
        key = (
            event.minute - event.minute % MINUTE_US, event.listener, event.api, event.principal, event.client_id,
            event.client_ip, event.api_key, event.api_version, event.client_software_name,
            event.client_software_version,
        )  # fmt: skip
        sums = self._of_sidecar.get(key) or self._new_sums(key)
        for name in WHOLE_SUMS:
            setattr(sums, name, getattr(sums, name) + getattr(event, name))
        sums.throttle_ms += min(max(event.throttle_ms, 0), MAX_SUM)
        _add_counts(sums.histograms, 0, event.latencies)
        _add_counts(sums.histograms, SERVICE_LATENCIES, event.service_latencies or event.latencies)
        _add_counts(sums.histograms, UPSTREAM_LATENCIES, event.upstream_latencies)
        for part in event.per_topic:
            of_topic = sums.topic(part.topic)
            for name in TOPIC_SUMS:
                setattr(of_topic, name, getattr(of_topic, name) + getattr(part, name))
            _add_counts(of_topic.histograms, 0, part.latencies)
            _add_counts(of_topic.histograms, SERVICE_LATENCIES, part.service_latencies or part.latencies)
        for name in event.polled:
            sums.topic(name).polled = 1

    def take(self, rows: PartialRows) -> None:
        """Add all sums to ``rows``, and forget them."""
        for sidecar, of_sidecar in self._sums.items():
            for key, sums in of_sidecar.items():
                _add_rows(rows, sidecar, key, sums)
        self._sums.clear()
        self._shared.clear()

    def _new_sums(self, key: tuple[Any, ...]) -> RequestSums:
        shared = self._shared
        sums = self._of_sidecar[tuple(shared.setdefault(part, part) for part in key)] = RequestSums()
        return sums


def _count_error(sums: RequestSums, event: Any, codes: Sequence[int]) -> None:
    """Count a request as a failure, else as one that is asked again, else as a step of a protocol."""
    code = event.error_code
    agreed = event.api_key == API_VERSIONS and code == UNSUPPORTED_VERSION
    if (code not in NO_FAILURES and not agreed) or event.item_failures or not NO_FAILURES.issuperset(codes):
        sums.errors += 1
    elif code in RETRIABLE_ERRORS or event.item_retriable or _any_in(codes, RETRIABLE_ERRORS):
        sums.retriable += 1
    elif agreed or code in PROTOCOL_ERRORS or event.item_protocol or _any_in(codes, PROTOCOL_ERRORS):
        sums.protocol += 1


def _any_in(codes: Sequence[int], wanted: Collection[int]) -> bool:
    return any(code in wanted for code in codes)


def _add_counts(counts: list[int], begin: int, more: Sequence[int]) -> None:
    for index, count in enumerate(more[:HISTOGRAM_LENGTH], begin):
        counts[index] += min(max(count, 0), MAX_SUM)


def _add_rows(rows: PartialRows, sidecar: tuple[str, int], key: tuple[Any, ...], sums: RequestSums) -> None:
    minute, listener, api, principal, client_id, client_ip, api_key, api_version, software, software_version = key
    day = minute // DAY_US
    before, after = (day, minute, *sidecar, listener, api), (principal, client_id)
    rows.add("traffic", (*before, None, *after, client_ip), bounded([*_whole_values(sums), *_NO_TOPIC]))
    _add_latencies(rows, (*before, None, *after), sums.idle, sums.histograms)
    if sums.requests:
        version = None if api_version == -1 else api_version
        client = (day, sidecar[0], *after, client_ip, software, software_version, api, version)
        requests = min(sums.requests, MAX_BIGINT)
        rows.add("clients", client, [requests, minute, minute, refused_since(api_key, version)])
    for name, topic in sums.topics.items():
        rows.add("traffic", (*before, name, *after, client_ip), bounded([*_NO_WHOLE, *_topic_values(topic)]))
        _add_latencies(rows, (*before, name, *after), 0, topic.histograms)


def _add_latencies(rows: PartialRows, key: Key, idle: int, histograms: list[int]) -> None:
    """Add the row of ``latency``, if it counts anything: no count may depend on which events a task has."""
    if idle or any(histograms):
        latencies = histograms[:SERVICE_LATENCIES]
        service = bounded(histograms[SERVICE_LATENCIES:UPSTREAM_LATENCIES])
        upstream = bounded(histograms[UPSTREAM_LATENCIES:]) or None
        counts = bounded([sum(latencies), idle])
        rows.add("latency", key, [*counts, bounded(latencies), upstream, service])


def refused_since(api_key: int, api_version: int | None) -> str | None:
    """Return the first release that rejects the version of the api, None if the newest accepts it."""
    if api_version is None or api_version < 0:
        return None
    return next((release for release, lowest in LOWEST_VERSIONS.items() if api_version < lowest.get(api_key, 0)), None)
