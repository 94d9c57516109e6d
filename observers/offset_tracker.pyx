# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""End offsets that produces and fetches show, until they are taken; what is of a group goes to ``GroupActivity``.
No IO, no clock."""

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.object cimport PyObject
from libc.math cimport isfinite, llrint
from libc.stdint cimport int16_t, int32_t, int64_t, uint64_t
from libc.string cimport memcmp

from proxy.compiled.exchange cimport ANSWERED, Body, Exchange, Part

from observers.cluster_events import EndOffset, EndOffsetsEvent
from observers.group_activity import MEMBER_APIS, GroupActivity
from observers.request_events import UNKNOWN_ERROR_CODE, log_event_failure

include "exchanges.pxi"

cdef enum:
    MAX_PARTITIONS = 50_000  # partitions of one interval, about 0.3 KiB each
    OFFSETS_PER_EVENT = 1_000
    SECOND_US = 1_000_000


cdef class PartitionEnd:
    """The end of a partition, and when it was: µs since 1970."""

    cdef int64_t offset, at


cdef class OffsetTracker:
    """Offsets of one process. Not thread-safe.

    The end offset of a partition is the high watermark of the last fetch that returned the partition, or what follows
    the records of the last acknowledged produce, by the second of the response. Within a second the highest holds: a
    broker may complete a fetch between its appends of one produce, and answer the produce first.
    """

    cdef object _names, _filter, _groups
    cdef dict _by_name, _by_id  # by topic, by partition: PartitionEnd
    cdef Py_ssize_t _count, _left_out

    def __init__(self, names, audit_filter):
        self._names = names
        self._filter = audit_filter
        self._groups = GroupActivity(names, audit_filter)
        self._by_name = {}
        self._by_id = {}
        self._count = self._left_out = 0

    @property
    def left_out(self):
        """Requests and ends of partitions since the last call of ``drain`` that are beyond the bounds, and in no event."""
        return self._left_out + self._groups.left_out

    def record_exchanges(self, exchanges, double wall_offset):
        """Record ``exchanges``. ``wall_offset``: seconds to add to their times to get seconds since the epoch.

        Never raises for an exchange: one that it cannot work with is logged and left out.
        """
        cdef Exchange exchange
        for one in exchanges:
            exchange = <Exchange?>one
            try:
                self._record(exchange, wall_offset)
            except Exception:
                log_event_failure(exchange)

    def drain(self, int64_t ts):
        """Return the events of all that was recorded since the last call, and forget it. ``ts``: now, in µs."""
        cdef PartitionEnd end
        offsets = []
        for topics, are_ids in ((self._by_name, False), (self._by_id, True)):
            for topic, partitions in topics.items():
                name = self._names.label_of(topic, are_ids)[0]
                if not self._filter.hides_topic(name):
                    for partition, end in partitions.items():
                        offsets.append(EndOffset(name, partition, end.offset, end.at))
        self._by_name = {}
        self._by_id = {}
        self._count = self._left_out = 0
        ends = [
            EndOffsetsEvent(seq=0, ts=ts, end_offsets=tuple(offsets[at : at + OFFSETS_PER_EVENT]))
            for at in range(0, len(offsets), OFFSETS_PER_EVENT)
        ]
        return self._groups.drain() + ends

    cdef int _record(self, Exchange exchange, double wall_offset) except -1:
        cdef double at
        if exchange.outcome_code != ANSWERED:
            return 0
        at = (exchange.responded_at + wall_offset) * 1e6
        if not isfinite(at) or at < 0:
            raise ValueError("a time that is no number")
        if exchange.api_key == PRODUCE:
            if exchange.request_body != NULL and exchange.response_body != NULL:
                self._record_produce(exchange, llrint(at))
        elif exchange.api_key == FETCH:
            if exchange.response_body != NULL:
                self._record_fetch(exchange.response_body, llrint(at))
            if exchange.connection.id in self._groups.connections:
                self._groups.record_fetch(exchange, <int64_t>llrint(at))
        elif exchange.resources is not None and exchange.resources.group_id is not None:
            if exchange.api_key in MEMBER_APIS:
                self._groups.record_request(exchange, <int64_t>llrint(at))
        return 0

    cdef int _record_produce(self, Exchange exchange, int64_t at) except -1:
        cdef Body *request = exchange.request_body
        cdef Part *part
        cdef Part *answer
        cdef Py_ssize_t index
        cdef dict places = _places_of(exchange.response_body)
        for index in range(request.count):
            part = &request.parts[index]
            answer = _find_part(exchange.response_body, places, part)
            if answer != NULL and not answer.error_code and answer.offset >= 0 and part.records.magic == 2:
                self._set(part, request.topics_are_ids, answer.offset + part.records.records, at)
        return 0

    cdef int _record_fetch(self, Body *response, int64_t at) except -1:
        cdef Part *part
        cdef Py_ssize_t index
        for index in range(response.count):
            part = &response.parts[index]
            if not part.error_code and part.offset >= 0:
                self._set(part, response.topics_are_ids, part.offset, at)
        return 0

    cdef int _set(self, Part *part, bint is_id, int64_t offset, int64_t at) except -1:
        cdef dict topics = self._by_id if is_id else self._by_name
        cdef PyObject *found = PyDict_GetItemWithError(topics, <object>part.topic)
        cdef dict partitions = None if found == NULL else <dict><object>found
        cdef PartitionEnd held
        cdef int64_t second, held_second
        number = part.partition
        found = NULL if partitions is None else PyDict_GetItemWithError(partitions, number)
        if found != NULL:
            held = <PartitionEnd><object>found
            second, held_second = at // SECOND_US, held.at // SECOND_US
            if held_second > second or (held_second == second and held.offset > offset):
                return 0
        else:
            if self._count >= MAX_PARTITIONS:
                self._left_out += 1
                return 0
            self._count += 1
            if partitions is None:
                partitions = topics[<object>part.topic] = {}
            held = partitions[number] = PartitionEnd.__new__(PartitionEnd)
        held.offset, held.at = offset, at
        return 0
