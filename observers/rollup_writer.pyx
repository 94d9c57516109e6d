# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Sums many requests into one event. A rollup equals the sum of the events of its requests. No IO, no clock."""

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.object cimport PyObject
from libc.math cimport isfinite, llrint
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from proxy.compiled.exchange cimport ANSWERED, CONNECTION_LOST, Body, Exchange, Part

from observers.event import (
    ROLLUP_BUCKETS,
    RollupEvent,
    RollupTopic,
    encoder,
)
from proxy.core.names import clip, clip_optional
from observers.request_events import UNKNOWN_ERROR_CODE, log_event_failure
from observers.rollup import MAX_ROLLUPS, MAX_ROLLUP_TOPICS, RollupProgress, trim_trailing_zeros, split_rollup
from proxy.core.request_resources import CHANGES, OPERATIONS
from proxy.core.response_errors import AUTHORIZATION_ERRORS, severity as severity_of

include "exchanges.pxi"
include "measures.pxi"

cdef enum:
    CACHED_CONNECTIONS = 1024  # connections of which is kept where they are summed up, a power of two
    MAX_CACHED_TOPICS = 20_000  # topics whose names are kept
    MAX_CACHED_TEXT = 256  # longer texts that a client chose are not kept
    MINUTE_US = 60_000_000
    MAX_FAILED_KEYS = 10_000  # pairs of connection and api of which failed requests are counted
    MAX_FAILED_ALONE = 100  # failed requests of such a pair and a minute that are events of their own


cdef class TopicSums:
    """Sums of one topic, as ``RollupTopic`` has them."""

    cdef object name
    cdef int64_t latest  # number of the last request that touched it
    cdef int64_t latest_failed  # number of the last request that touched it and had an error
    cdef int64_t errors
    cdef int64_t requests, records, size
    cdef int64_t unconfirmed_records, unconfirmed_size
    cdef int64_t rejected_records, rejected_size
    cdef int64_t estimated_records
    cdef uint32_t latencies[BUCKETS]
    cdef uint32_t service_latencies[BUCKETS]

    cdef object to_rollup_topic(self):
        return RollupTopic(
            self.name, self.requests, self.records, self.size, self.unconfirmed_records, self.unconfirmed_size,
            self.rejected_records, self.rejected_size, _counts(self.latencies),
            _service_counts(self.latencies, self.service_latencies), self.errors,
            self.estimated_records,
        )


cdef uint8_t _CHANGES[128]  # by api key: the request changes something
memset(_CHANGES, 0, sizeof(_CHANGES))
for _key, _operation in OPERATIONS.items():
    _CHANGES[<int>_key] = _operation in CHANGES

cdef uint8_t _DENIALS[128]  # by error code
memset(_DENIALS, 0, sizeof(_DENIALS))
for _code in AUTHORIZATION_ERRORS:
    _DENIALS[<int>_code] = True


cdef class ExchangeDivider:
    """Finds the exchanges that are events of their own: what changes something but records and offsets, and what the
    broker denied. An auditor asks for each of them. Not thread-safe.

    Of those that failed, the first ``MAX_FAILED_ALONE`` of each connection, api and minute are events of their own. The
    others are added to rollups: a client that repeats a denied request for ever must not make an event of each.
    """

    cdef dict _failed  # how many of this minute, by connection and api
    cdef int64_t _minute

    def __init__(self):
        self._failed = {}

    def divide(self, exchanges):
        """Return runs of consecutive ``exchanges``, with whether each of the run is an event of its own. There is at
        least one run."""
        cdef Exchange exchange
        cdef Py_ssize_t at, begin = 0
        cdef bint alone, before = False
        cdef list runs = []
        for at, exchange in enumerate(exchanges):
            alone = self._stands_alone(exchange)
            if alone != before and at > begin:
                runs.append((before, exchanges[begin:at]))
                begin = at
            before = alone
        runs.append((before, exchanges[begin:] if begin else exchanges))
        return runs

    cdef bint _stands_alone(self, Exchange exchange) except -1:
        cdef bint changes = 0 <= exchange.api_key < 128 and _CHANGES[exchange.api_key]
        cdef int64_t minute
        if not changes and not _has_denial(exchange):
            return False
        if changes and _may_have_changed(exchange):
            return True
        minute = <int64_t>(exchange.received_at / 60) if isfinite(exchange.received_at) else 0
        if minute != self._minute or PyDict_Size(self._failed) >= MAX_FAILED_KEYS:
            self._failed.clear()
            self._minute = minute
        key = (exchange.connection.id, exchange.api_key)
        count = self._failed.get(key, 0)
        self._failed[key] = count + 1
        return count < MAX_FAILED_ALONE


cdef bint _may_have_changed(Exchange exchange) except -1:
    """Whether not all of its resources have an error."""
    if exchange.error_code:
        return False
    if exchange.item_errors is None or exchange.resources is None:
        return True
    cdef Py_ssize_t unlisted = exchange.resources.count - len(exchange.resources.items)
    cdef Py_ssize_t resources = unlisted + sum([1 for one in exchange.resources.items if one.parent_type is None])
    return exchange.item_errors.failures + exchange.item_errors.retriable + exchange.item_errors.protocol < resources


cdef bint _has_denial(Exchange exchange) except -1:
    cdef Body *body = exchange.response_body
    cdef Py_ssize_t at
    if _is_denial(exchange.error_code):
        return True
    if body != NULL:
        for at in range(body.count):
            if _is_denial(body.parts[at].error_code):
                return True
    if exchange.item_errors is not None:
        for error in exchange.item_errors.items:
            if _is_denial(error.error_code):
                return True
    return False


cdef inline bint _is_denial(int16_t code) noexcept:
    return 0 < code < 128 and _DENIALS[code]


cdef class RollupSums:
    """One rollup that requests are added to, as ``RollupEvent`` has it."""

    cdef object listener, api, principal, principal_source, client_id, client_ip, software_name, software_version
    cdef int64_t minute
    cdef int16_t api_key, api_version
    cdef int64_t requests, request_bytes, response_bytes, errors, retriable, protocol, connection_lost, throttle_ms, idle
    cdef uint32_t latencies[BUCKETS]
    cdef uint32_t upstream_latencies[BUCKETS]
    cdef uint32_t service_latencies[BUCKETS]
    cdef dict topics, polled

    cdef list to_events(self):
        cdef TopicSums topic
        event = RollupEvent(
            seq=0,
            minute=self.minute,
            listener=self.listener,
            api_key=self.api_key,
            api=self.api,
            principal=self.principal,
            client_ip=self.client_ip,
            requests=self.requests,
            request_bytes=self.request_bytes,
            client_id=self.client_id,
            principal_source=self.principal_source,
            api_version=self.api_version,
            client_software_name=self.software_name,
            client_software_version=self.software_version,
            response_bytes=self.response_bytes,
            errors=self.errors,
            retriable=self.retriable,
            protocol=self.protocol,
            connection_lost=self.connection_lost,
            throttle_ms=self.throttle_ms,
            idle=self.idle,
            latencies=_counts(self.latencies),
            upstream_latencies=_counts(self.upstream_latencies),
            service_latencies=_service_counts(self.latencies, self.service_latencies),
        )
        topics = []
        for topic in self.topics.values():
            topics.append(topic.to_rollup_topic())
        return split_rollup(event, topics, list(self.polled))


cdef class ConnectionRollups:
    """The rollups of one connection in this epoch and minute, by api key and version in one number.

    An epoch ends with each ``drain``.
    """

    cdef object connection, client_id
    cdef bint hidden, own
    cdef uint64_t epoch
    cdef int64_t minute
    cdef dict sums_by_api
    cdef double next_poll_at  # when its polled topics are listed again


cdef class RollupAggregator:
    """Sums exchanges into rollups. Not thread-safe, and neither is its filter."""

    cdef object _names, _filter, _sessions, _muting
    cdef dict _open_sessions, _muted, _api_names, _sums_by_key, _named, _identified
    cdef list _clients
    cdef set _left_out  # excluded topics that the current request is added without; of the filter
    cdef uint64_t _epoch
    cdef int64_t _requests, _topics, _max_rollups, _max_topics

    def __init__(self, api_names, names, audit_filter, *, max_rollups=MAX_ROLLUPS, max_topics=MAX_ROLLUP_TOPICS):
        self._names = names
        self._filter = audit_filter
        self._sessions = audit_filter.sessions
        self._open_sessions = audit_filter.sessions.open_sessions
        self._left_out = audit_filter.left_out
        self._muting = audit_filter.muting
        self._muted = audit_filter.muting.spans
        self._api_names = dict(api_names)
        self._max_rollups = max_rollups
        self._max_topics = max_topics
        self._clients = [None] * CACHED_CONNECTIONS
        self._reset()

    cdef void _reset(self):
        self._sums_by_key = {}
        self._named = {}
        self._identified = {}
        self._requests = self._topics = 0
        self._epoch += 1

    @property
    def requests(self):
        """Requests added since the last ``drain``."""
        return self._requests

    @property
    def full(self):
        """Whether no more exchanges are added before ``drain``."""
        return self._is_full()

    cdef bint _is_full(self):
        return len(self._sums_by_key) >= self._max_rollups or self._topics >= self._max_topics

    def add_exchanges(self, exchanges, Py_ssize_t start, double wall_offset):
        """Add ``exchanges`` from the place ``start`` on, until it is ``full``; ``wall_offset`` as of ``RequestEventEncoder``.

        TypeError: what is no exchange.
        """
        cdef Exchange exchange
        cdef int64_t hidden = 0, failed = 0, not_encodable = 0
        cdef Py_ssize_t count = len(exchanges)
        while start < count and not self._is_full():
            exchange = <Exchange?>exchanges[start]
            start += 1
            try:
                if not self._add_exchange(exchange, wall_offset):
                    hidden += 1
            except UnicodeError:
                not_encodable += 1
            except Exception:
                log_event_failure(exchange)
                failed += 1
        return RollupProgress(start, hidden, failed, not_encodable)

    def drain(self):
        """Return the events of all rollups, without numbers (``seq`` 0), and remove them."""
        cdef RollupSums sums
        cdef list events = []
        for sums in self._sums_by_key.values():
            events += sums.to_events()
        self._reset()
        return events

    cdef bint _add_exchange(self, Exchange exchange, double wall_offset) except -1:
        """Add ``exchange``; return whether it is not hidden. After an exception nothing of it was added."""
        cdef int64_t muted_us = _muted_us(exchange, self._muting, self._muted), service_us
        cdef ConnectionRollups client = self._client_of(exchange)
        cdef Body *touched = NULL  # its partitions are counted
        cdef Basics basics
        cdef RollupSums sums
        cdef bint answered = exchange.outcome_code == ANSWERED
        cdef bint fetched = _is_fetch(exchange.api_key)
        cdef bint has_events
        cdef int bucket = -1, service = -1, worst
        cdef tuple polled = ()
        if self._left_out:
            self._left_out.clear()
        if client.hidden:
            self._filter.count_hidden_by_principal(client.connection.principal)
            return False
        if exchange.api_key == PRODUCE:
            touched = exchange.request_body
        elif fetched:
            touched = exchange.response_body
        has_events = touched != NULL and self._has_events(touched, fetched)
        if has_events:
            if fetched and exchange.request_body != NULL and _changes_session(exchange, self._open_sessions):
                self._sessions.record_fetch(exchange)
        elif exchange.request_body != NULL or exchange.response_body != NULL:
            if self._filter.record_and_check_hidden(exchange):
                return False
        _read_basics(exchange, wall_offset, &basics)
        if _may_be_polled(exchange, client.next_poll_at):
            polled = self._filter.take_polled_topics(exchange)
            client.next_poll_at = self._sessions.next_poll_at(client.connection.id)
        sums = self._sums_of(client, exchange, basics.ts_request)
        for name in polled:
            if name not in sums.polled:
                sums.polled[name] = None
                self._topics += 1
        self._requests += 1
        sums.requests += 1
        sums.request_bytes += exchange.request_bytes
        sums.response_bytes += exchange.response_bytes
        sums.connection_lost += exchange.outcome_code == CONNECTION_LOST
        if basics.throttle_ms > 0:
            sums.throttle_ms += basics.throttle_ms
        if answered and fetched and not has_events and not basics.error_code:
            sums.idle += 1
        elif answered:
            bucket = _bucket(basics.latency_us)
            service_us = _service_us(exchange, &basics, muted_us)
            service = bucket if service_us == basics.latency_us else _bucket(service_us)
            sums.latencies[bucket] += 1
            sums.service_latencies[service] += 1
            sums.upstream_latencies[_bucket(basics.upstream_us)] += 1
        worst = _worst_of_whole(exchange, basics.error_code)
        if has_events:
            worst = max(worst, self._add_topics(sums, exchange, touched, bucket, service))
        sums.errors += worst == FAILURE
        sums.retriable += worst == RETRY
        sums.protocol += worst == STEP
        if self._left_out:
            self._filter.count_partly_hidden()
        return True

    cdef bint _has_events(self, Body *body, bint fetched) except -1:
        """Whether an event has any of these partitions."""
        cdef Py_ssize_t at
        cdef PyObject *hidden = NULL
        for at in range(body.count):
            if body.parts[at].topic != hidden and _is_reported(&body.parts[at], fetched):
                if self._name_of(&body.parts[at], body) is not None:
                    return True
                hidden = body.parts[at].topic
        return False

    cdef int _add_topics(self, RollupSums sums, Exchange exchange, Body *body, int bucket, int service) except -1:
        """Add what was done to each topic; return how bad the worst error of a partition is."""
        cdef bint produced = exchange.api_key == PRODUCE
        cdef bint answered = exchange.outcome_code == ANSWERED
        cdef int worst = NONE, severity
        cdef Body *response = exchange.response_body
        cdef dict places = _places_of(response) if produced else _wanted_places_of(exchange)
        cdef int64_t records
        cdef bint estimated
        cdef Py_ssize_t at
        cdef Part *part
        cdef Part *answer
        cdef PyObject *before = NULL
        cdef TopicSums topic = None
        cdef int16_t error
        for at in range(body.count):
            part = &body.parts[at]
            if not _is_reported(part, not produced):
                continue
            if part.topic != before:  # mostly it is: partitions come by topic
                before = part.topic
                topic = self._topic_of(sums, self._name_of(part, body))
            if topic is None:
                continue
            if topic.latest != self._requests:
                topic.latest = self._requests
                topic.requests += 1
                if bucket >= 0:
                    topic.latencies[bucket] += 1
                    topic.service_latencies[service] += 1
            if produced:
                answer = _find_part(response, places, part)
                error = answer.error_code if answer != NULL else _UNKNOWN_ERROR_CODE if answered else 0
            else:
                error = part.error_code
            if error:
                severity = _severity(exchange.api_key, error)
                worst = max(worst, severity)
                if severity == FAILURE and topic.latest_failed != self._requests:
                    topic.latest_failed = self._requests
                    topic.errors += 1
                if produced:
                    topic.rejected_records += part.records.records
                    topic.rejected_size += part.records.size
            elif answered:
                records, estimated = part.records.records, False
                if not produced:
                    estimated = _count_consumed(exchange, part, places, self._open_sessions, &records)
                topic.records += records
                if estimated or part.records.claimed:
                    topic.estimated_records += records
                topic.size += part.records.size
            elif produced:
                topic.unconfirmed_records += part.records.records
                topic.unconfirmed_size += part.records.size
        return worst

    cdef object _name_of(self, const Part *part, const Body *body):
        """The name of its topic, or None where that is hidden."""
        cdef dict names = self._identified if body.topics_are_ids else self._named
        cdef PyObject *found = PyDict_GetItemWithError(names, <object>part.topic)
        if found != NULL:
            return <object>found
        name, topic_id = self._names.label_of(<object>part.topic, body.topics_are_ids)
        if self._filter.leaves_out(name):
            return None
        # The name of an id may become known later. No topic has a long name, and such names could fill the memory.
        if name != f"id:{topic_id}" and _size(part.topic) <= MAX_CACHED_TEXT and len(names) < MAX_CACHED_TOPICS:
            names[<object>part.topic] = name
        return name

    cdef TopicSums _topic_of(self, RollupSums sums, object name):
        cdef PyObject *found
        cdef TopicSums topic
        if name is None:
            return None
        found = PyDict_GetItemWithError(sums.topics, name)
        if found != NULL:
            return <TopicSums>found
        topic = TopicSums.__new__(TopicSums)
        topic.name = name
        sums.topics[name] = topic
        self._topics += 1
        return topic

    cdef ConnectionRollups _client_of(self, Exchange exchange):
        cdef size_t slot = (<size_t><PyObject *>exchange.connection >> 4) & (CACHED_CONNECTIONS - 1)
        cdef object held = self._clients[slot]
        cdef ConnectionRollups client
        if held is not None:
            client = <ConnectionRollups>held
            if client.connection is exchange.connection and client.client_id == exchange.client_id:
                return client
        client = ConnectionRollups.__new__(ConnectionRollups)
        client.connection = exchange.connection
        client.client_id = exchange.client_id
        client.hidden = self._filter.hides_principal(client.connection.principal)
        if client.client_id is None or len(client.client_id) <= MAX_CACHED_TEXT:
            self._clients[slot] = client
        return client

    cdef RollupSums _sums_of(self, ConnectionRollups client, Exchange exchange, int64_t ts_request):
        cdef int64_t minute = ts_request - ts_request % MINUTE_US
        cdef int32_t api = <int32_t>exchange.api_key * 65_536 + <uint16_t>exchange.api_version
        cdef PyObject *found
        cdef RollupSums sums
        if client.epoch != self._epoch or client.minute != minute:
            client.epoch, client.minute, client.sums_by_api = self._epoch, minute, {}
        found = PyDict_GetItemWithError(client.sums_by_api, api)
        if found != NULL:
            return <RollupSums>found
        connection = client.connection
        labels = (
            connection.listener,
            clip(connection.principal),
            connection.principal_source,
            clip_optional(client.client_id),
            connection.client_ip,
            clip_optional(connection.client_software_name),
            clip_optional(connection.client_software_version),
        )
        key = (minute, api, labels)
        sums = self._sums_by_key.get(key)
        if sums is None:
            encoder.encode(labels)  # raises for what is no text
            sums = RollupSums.__new__(RollupSums)
            sums.listener, sums.principal, sums.principal_source, sums.client_id = labels[:4]
            sums.client_ip, sums.software_name, sums.software_version = labels[4:]
            sums.minute = minute
            sums.api_key = exchange.api_key
            sums.api_version = exchange.api_version
            sums.api = self._api_names.get(exchange.api_key) or f"ApiKey({exchange.api_key})"
            sums.topics = {}
            sums.polled = {}
            self._sums_by_key[key] = sums
        client.sums_by_api[api] = sums
        return sums


cdef object _service_counts(uint32_t *latencies, uint32_t *service):
    return () if not memcmp(latencies, service, BUCKETS * sizeof(uint32_t)) else _counts(service)


cdef object _counts(const uint32_t *counts):
    cdef int n
    return trim_trailing_zeros([counts[n] for n in range(BUCKETS)])
