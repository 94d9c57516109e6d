# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Counts requests by api, principal, topic and group. No IO, no clock. Not thread-safe."""

from bisect import bisect_left

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.object cimport PyObject
from libc.math cimport isfinite, llrint
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcmp

from proxy.compiled.exchange cimport ANSWERED, Body, Exchange, Part

from observers.event import ROLLUP_BUCKETS
from proxy.core.names import clip
from observers.request_events import UNKNOWN_ERROR_CODE
from observers.request_metrics_stats import (
    MAX_CANDIDATES,
    MAX_LABELS,
    NATIVE_FIRST,
    NATIVE_LAST,
    NATIVE_SCHEMA,
    OTHER,
    PUBLISH_MARGIN,
    ApiStats,
    Durations,
    Exemplar,
    LabelStats,
)
from proxy.core.response_errors import severity as severity_of

include "exchanges.pxi"
include "measures.pxi"

cdef enum:
    KEYS = 128  # api keys with counts of their own; the others share one
    MAX_CACHED_TEXT = 256  # longer texts that a client chose are not kept
    MAX_CACHED_TOPICS = 10_000  # topics whose names are kept
    NATIVE_BUCKETS = 256
    LOG2_MAX = 32  # of the first µs that are too many for a bucket of their own
    SLOTS = 16 * (LOG2_MAX - 3)

# A slot has the durations from one 16th of a power of two to the next, or one alone below 16 µs: no more than two native
# buckets, as each of them is wider than that.
cdef int _FIRST_NATIVE[SLOTS]  # the bucket of its shortest duration, counted from NATIVE_FIRST
cdef int64_t _FIRST_END[SLOTS]  # µs, the end of that bucket

_native_ends = [int(1e6 * 2 ** (_n / 2**NATIVE_SCHEMA)) for _n in range(NATIVE_FIRST, NATIVE_LAST + 1)]
assert len(_native_ends) == NATIVE_BUCKETS and _native_ends[NATIVE_BUCKETS - 1] < 2**LOG2_MAX
for _n in range(SLOTS):
    _first = bisect_left(_native_ends, _n if _n < 16 else (16 + _n % 16) << (_n // 16 - 1))
    _FIRST_NATIVE[<int>_n] = min(_first, NATIVE_BUCKETS - 1)
    _FIRST_END[<int>_n] = _native_ends[min(_first, NATIVE_BUCKETS - 1)]


cdef inline int _native_bucket(int64_t us) noexcept:
    """Counted from NATIVE_FIRST. ``us`` is positive."""
    cdef int slot, power
    if us < 16:
        slot = <int>us
    else:
        power = _log2(us)
        if power >= LOG2_MAX:
            return NATIVE_BUCKETS - 1
        slot = 16 * (power - 3) + <int>((us >> (power - 4)) & 15)
    return min(_FIRST_NATIVE[slot] + (us > _FIRST_END[slot]), NATIVE_BUCKETS - 1)


cdef struct Histogram:
    int64_t sum_us, zeros
    int64_t buckets[BUCKETS]
    int64_t native[NATIVE_BUCKETS]


cdef inline int _observe(Histogram *histogram, int64_t us) noexcept:
    """Count a duration; return its bucket."""
    cdef int bucket = _bucket(us)
    histogram.sum_us += us
    histogram.buckets[bucket] += 1
    if us:
        histogram.native[_native_bucket(us)] += 1
    else:
        histogram.zeros += 1
    return bucket


cdef object _durations_of(const Histogram *histogram):
    return Durations(
        histogram.sum_us,
        {n: histogram.buckets[n] for n in range(BUCKETS) if histogram.buckets[n]},
        {n + NATIVE_FIRST: histogram.native[n] for n in range(NATIVE_BUCKETS) if histogram.native[n]},
        histogram.zeros,
    )


cdef class ApiCounts:
    cdef int64_t requests, errors, retriable, protocol, request_bytes, response_bytes
    cdef Histogram latency, upstream, sidecar, service
    cdef list exemplars  # by bucket of latency, the connection of its newest request, or None
    cdef int64_t exemplar_us[BUCKETS]
    cdef double exemplar_at[BUCKETS]

    def __cinit__(self):
        self.exemplars = [None] * BUCKETS

    cdef object stats(self, double wall_offset):
        return ApiStats(
            self.requests, self.errors, self.retriable, self.protocol, self.request_bytes, self.response_bytes,
            _durations_of(&self.latency), _durations_of(&self.upstream), _durations_of(&self.sidecar),
            _durations_of(&self.service),
            {n: Exemplar(connection.id, self.exemplar_us[n], self.exemplar_at[n] + wall_offset)
             for n, connection in enumerate(self.exemplars) if connection is not None},
        )


cdef class LabelCounts:
    """Of one value of a label. ``recent``: requests of late. ``latest`` and ``latest_failed``: numbers of the last request
    that was counted here, and of the last one with a failure."""

    cdef int64_t requests, errors, received, sent, recent, latest, latest_failed
    cdef bint published

    cdef void add(self, LabelCounts other):
        self.requests += other.requests
        self.errors += other.errors
        self.received += other.received
        self.sent += other.sent


cdef class LabelCounter:
    """Counts by the value of one label, of which the busiest are published; ``other`` counts for all others.

    ``recent`` is exact for published values. For the others it is that of the algorithm of Misra and Gries ("Finding
    repeated elements", 1982): never too high, and too low by no more than one in MAX_CANDIDATES of all recent requests,
    however many values there are.
    """

    cdef dict _published, _candidates
    cdef LabelCounts _other

    def __init__(self):
        self._published = {}
        self._candidates = {}
        self._other = LabelCounts()
        self._other.published = True

    cdef LabelCounts of(self, object name):
        """Return the counts of ``name``, which may not be published, or those of all others."""
        cdef PyObject *found = PyDict_GetItemWithError(self._published, name)
        cdef LabelCounts counts
        if found == NULL:
            found = PyDict_GetItemWithError(self._candidates, name)
        if found != NULL:
            return <LabelCounts>found
        if len(name) > MAX_CACHED_TEXT or name == OTHER:
            return self._other
        if PyDict_Size(self._candidates) >= MAX_CANDIDATES:
            self._lower_candidates()
        counts = self._candidates[name] = LabelCounts()
        return counts

    cdef int _lower_candidates(self) except -1:
        """Subtract the lowest ``recent`` from all of them, so that one or more are gone.

        It takes as many requests to bring ``recent`` back as this takes steps.
        """
        cdef LabelCounts counts
        cdef int64_t lowest = min([(<LabelCounts>counts).recent for counts in self._candidates.values()])
        cdef dict left = {}
        for name, counts in self._candidates.items():
            counts.recent -= lowest
            if counts.recent > 0:
                left[name] = counts
        self._candidates = left
        return 0

    cdef int count(self, object name, Exchange exchange, int worst) except -1:
        """Count a request of ``name``."""
        cdef LabelCounts counts = self.of(name)
        counts.recent += 1
        if not counts.published:
            counts = self._other
        counts.requests += 1
        counts.errors += worst == FAILURE
        counts.received += exchange.request_bytes
        counts.sent += exchange.response_bytes
        return 0

    cdef int publish(self) except -1:
        """Publish the busiest of late. One that is more than twice as busy as the least busy of those that are published
        takes its place, whose counts ``other`` gets: so the sum over all values never goes down.

        ``recent`` is halved: a request counts as a half after this, as a quarter after the next time.
        """
        cdef LabelCounts counts
        cdef list held = sorted([((<LabelCounts>counts).recent, name) for name, counts in self._published.items()])
        cdef list busy = sorted([(-(<LabelCounts>counts).recent, name) for name, counts in self._candidates.items()])
        cdef Py_ssize_t displaced = 0
        for recent, name in busy[:MAX_LABELS]:
            if PyDict_Size(self._published) == MAX_LABELS:
                if displaced == len(held) or -recent <= PUBLISH_MARGIN * held[displaced][0]:
                    break
                self._other.add(self._published.pop(held[displaced][1]))
                displaced += 1
            counts = self._published[name] = self._candidates.pop(name)
            counts.published = True
        for counts in self._published.values():
            counts.recent >>= 1
        for name, counts in list(self._candidates.items()):
            counts.recent >>= 1
            if not counts.recent:
                del self._candidates[name]
        return 0

    cdef dict stats(self):
        cdef LabelCounts counts
        cdef dict found = {
            name: LabelStats(counts.requests, counts.errors, counts.received, counts.sent)
            for name, counts in self._published.items()
        }
        found[OTHER] = LabelStats(self._other.requests, self._other.errors, self._other.received, self._other.sent)
        return found


cdef class RequestCounter:
    """``names``: a ``TopicNames``. ``muting``: a ``ChannelMuting``, which this feeds."""

    cdef object _names, _muting
    cdef dict _muted, _listeners, _topic_names
    cdef LabelCounter _principals, _topics, _groups
    cdef int64_t _requests  # as many until now

    def __init__(self, names, muting):
        self._names = names
        self._muting = muting
        self._muted = muting.spans
        self._listeners = {}
        self._topic_names = {}
        self._principals, self._topics, self._groups = LabelCounter(), LabelCounter(), LabelCounter()

    def add_exchanges(self, exchanges):
        """Count ``exchanges``."""
        cdef Exchange exchange
        for exchange in exchanges:
            self._add(exchange)

    def publish(self):
        """Choose which values of labels have counts of their own from now on."""
        self._principals.publish()
        self._topics.publish()
        self._groups.publish()
        self._topic_names.clear()

    def apis(self, double wall_offset=0.0):
        """Return an ``ApiStats`` for each listener and api key. ``wall_offset``: seconds from the clock of the exchanges
        to that of 1970."""
        cdef ApiCounts counts
        return {
            listener: {key: counts.stats(wall_offset) for key, counts in by_key.items()}
            for listener, by_key in self._listeners.items()
        }

    def principals(self):
        """Return a ``LabelStats`` for each principal that is published, and for ``other``."""
        return self._principals.stats()

    def topics(self):
        """The same of topics."""
        return self._topics.stats()

    def groups(self):
        """The same of groups."""
        return self._groups.stats()

    cdef ApiCounts _api_of(self, Exchange exchange):
        cdef dict by_key = self._listeners.get(exchange.connection.listener)
        cdef PyObject *found
        cdef ApiCounts counts
        if by_key is None:
            by_key = self._listeners[exchange.connection.listener] = {}
        key = exchange.api_key
        found = PyDict_GetItemWithError(by_key, key)
        if found != NULL:
            return <ApiCounts>found
        if not 0 <= key < KEYS and len(by_key) > 2 * KEYS:
            key = -1
        counts = by_key.get(key)
        if counts is None:
            counts = by_key[key] = ApiCounts()
        return counts

    cdef int _add(self, Exchange exchange) except -1:
        cdef Basics basics
        cdef ApiCounts api = self._api_of(exchange)
        cdef bint fetched = _is_fetch(exchange.api_key)
        cdef Body *body = exchange.response_body if fetched else exchange.request_body
        cdef int64_t muted_us = _muted_us(exchange, self._muting, self._muted)
        cdef bint answered = exchange.outcome_code == ANSWERED
        cdef bint idle
        cdef int worst, bucket
        self._requests += 1
        _read_basics(exchange, 0.0, &basics)
        worst = _worst_of_whole(exchange, basics.error_code)
        idle = fetched
        if body != NULL and (fetched or exchange.api_key == PRODUCE):
            worst = max(worst, self._add_topics(exchange, body, fetched, &idle))
        idle = idle and answered and not basics.error_code
        api.requests += 1
        api.errors += worst == FAILURE
        api.retriable += worst == RETRY
        api.protocol += worst == STEP
        api.request_bytes += exchange.request_bytes
        api.response_bytes += exchange.response_bytes
        if answered and not idle and not exchange.synthesized:  # a client can choose any api for those
            bucket = _observe(&api.latency, basics.latency_us)
            api.exemplars[bucket] = exchange.connection
            api.exemplar_us[bucket] = basics.latency_us
            api.exemplar_at[bucket] = exchange.answered_at
            _observe(&api.upstream, basics.upstream_us)
            _observe(&api.sidecar, max(<int64_t>0, basics.latency_us - basics.upstream_us))
            _observe(&api.service, _service_us(exchange, &basics, muted_us))
        self._principals.count(exchange.connection.principal, exchange, worst)
        if exchange.resources is not None and exchange.resources.group_id is not None:
            group = exchange.resources.group_id.decode("utf-8", "replace")
            self._groups.count(clip(group), exchange, worst)
        return 0

    cdef int _add_topics(self, Exchange exchange, Body *body, bint fetched, bint *idle) except -1:
        """Count each topic with a partition that an event has; return how bad the worst error of one is."""
        cdef Py_ssize_t at
        cdef Part *part
        cdef PyObject *topic = NULL
        cdef Body *response = exchange.response_body
        cdef bint answered = exchange.outcome_code == ANSWERED
        cdef dict places = None if fetched else _places_of(response)
        cdef Part *answer
        cdef LabelCounts named = None, counts = None
        cdef int worst = NONE, severity
        cdef int16_t error
        for at in range(body.count):
            part = &body.parts[at]
            if not _is_reported(part, fetched):
                continue
            idle[0] = False
            error = part.error_code
            if not fetched:
                answer = _find_part(response, places, part)
                error = answer.error_code if answer != NULL else _UNKNOWN_ERROR_CODE if answered else 0
            severity = _severity(exchange.api_key, error)
            worst = max(worst, severity)
            if named is None or part.topic != topic:  # mostly it is: partitions come by topic
                topic = part.topic
                named = self._topics.of(self._name_of(topic, body.topics_are_ids))
                counts = named if named.published else self._topics._other
            if named.latest != self._requests:
                named.latest = self._requests
                named.recent += 1
                counts.requests += 1
            if severity == FAILURE and named.latest_failed != self._requests:
                named.latest_failed = self._requests
                counts.errors += 1
            if fetched:
                counts.sent += part.records.size
            else:
                counts.received += part.records.size
        return worst

    cdef object _name_of(self, PyObject *topic, bint is_id):
        cdef PyObject *found = PyDict_GetItemWithError(self._topic_names, <object>topic)
        if found != NULL:
            return <object>found
        name = clip(self._names.label_of(<object>topic, is_id)[0])
        if _size(topic) <= MAX_CACHED_TEXT and PyDict_Size(self._topic_names) < MAX_CACHED_TOPICS:
            self._topic_names[<object>topic] = name
        return name

