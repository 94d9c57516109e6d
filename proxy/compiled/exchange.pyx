# cython: language_level=3, boundscheck=False, wraparound=False
"""One request and its response, as a session emits it; facts of bodies are C structs, and become those of
``proxy.core.exchange`` when Python asks for them. What each field means is described in exchange.pyi."""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.string cimport memcpy, memset

from proxy.core import budget
from proxy.core.exchange import (
    EMPTY_RECORD_SET,
    AnsweredPartition,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)

OUTCOMES = ("open", "answered", "no_response", "connection_lost")  # by OutcomeCode
DECODES = ("none", "full", "malformed", "unsupported", "not_kept")  # by DecodeCode

FIELDS = (
    "connection", "api_key", "api_version", "correlation_id", "client_id", "received_at", "request_bytes",
    "answered_at", "response_bytes", "outcome", "decode", "request", "response", "forwarded_at", "responded_at",
    "throttle_ms", "error_code", "request_raw", "response_raw", "synthesized", "charged",
    "item_errors",
    "resources",
)

cdef int64_t BODY = budget.BODY
cdef int64_t PARTITION = budget.PARTITION
cdef Py_ssize_t GROWN = 8  # partitions that a body has room for once it has more than one


# ---- bodies ---------------------------------------------------------------------------------------------------------

cdef Body *new_body(Kind kind, int version) except NULL:
    cdef Body *body = <Body *>PyMem_Malloc(sizeof(Body))
    if body == NULL:
        raise MemoryError
    memset(body, 0, sizeof(Body) - sizeof(Part))  # all but `first`, which `add_part` fills
    body.kind = kind
    body.topics_are_ids = version >= 13 or kind == SHARE_FETCH_REQUEST or kind == SHARE_FETCH_RESPONSE
    if kind == FETCH_REQUEST or kind == SHARE_FETCH_REQUEST:
        body.replica_id = -1
        body.session_epoch = -1
    body.capacity = 1
    body.parts = &body.first
    return body


cdef Part *add_part(Body *body) except NULL:
    cdef Part *part
    if body.count + body.forgotten == body.capacity:
        _grow(body)
    part = &body.parts[body.count + body.forgotten]
    part.topic = NULL  # each field by itself: a memset of this size is slow
    part.partition = 0
    part.error_code = 0
    part.offset = 0
    part.records.size = 0
    part.records.records = 0
    part.records.batches = 0
    part.records.claimed = False
    part.aborted_records = 0
    part.first_batch_records = 0
    part.last_offset_delta = 0
    part.records.producer_id = -1
    part.records.base_offset = -1
    part.records.base_sequence = -1
    part.records.producer_epoch = -1
    part.records.magic = -1
    body.count += 1
    return part


cdef Part *add_forgotten(Body *body) except NULL:
    cdef Part *part = add_part(body)
    body.count -= 1
    body.forgotten += 1
    return part


cdef int _grow(Body *body) except -1:
    cdef Py_ssize_t capacity = max(GROWN, 2 * body.capacity)
    cdef bint inside = body.parts == &body.first
    cdef Part *parts = <Part *>PyMem_Realloc(NULL if inside else body.parts, capacity * sizeof(Part))
    if parts == NULL:
        raise MemoryError
    if inside:
        memcpy(parts, &body.first, sizeof(Part))
    body.parts = parts
    body.capacity = capacity
    return 0


cdef void free_body(Body *body) noexcept:
    cdef Py_ssize_t at
    if body == NULL:
        return
    for at in range(body.count + body.forgotten):
        Py_XDECREF(body.parts[at].topic)
    if body.parts != &body.first:
        PyMem_Free(body.parts)
    Py_XDECREF(body.transactional_id)
    Py_XDECREF(body.group_id)
    PyMem_Free(body)


cdef int64_t size_of(const Body *body) noexcept:
    return BODY + PARTITION * (body.count + body.forgotten) + body.names


# ---- facts of bodies, and bodies of facts ---------------------------------------------------------------------------

cdef object facts_of(const Body *body):
    if body == NULL:
        return None
    cdef bint ids = body.topics_are_ids
    partitions = tuple([_partition_of(body.kind, &body.parts[at]) for at in range(body.count)])
    if body.kind == PRODUCE_REQUEST:
        transactional_id = <object>body.transactional_id if body.transactional_id != NULL else None
        return ProduceRequest(body.acks, body.timeout_ms, transactional_id, partitions, ids)
    if body.kind == PRODUCE_RESPONSE:
        return ProduceResponse(body.throttle_ms, partitions, ids)
    if body.kind == FETCH_REQUEST or body.kind == SHARE_FETCH_REQUEST:
        forgotten = tuple([
            (<object>body.parts[at].topic, body.parts[at].partition)
            for at in range(body.count, body.count + body.forgotten)
        ])
        return FetchRequest(
            body.replica_id, body.max_wait_ms, body.min_bytes, body.session_id, body.session_epoch, partitions, ids,
            forgotten, body.isolation_level, <object>body.group_id if body.group_id != NULL else None,
        )  # fmt: skip
    return FetchResponse(body.throttle_ms, body.error_code, body.session_id, partitions, ids)


cdef object _partition_of(Kind kind, const Part *part):
    topic = <object>part.topic
    if kind == PRODUCE_REQUEST:
        return ProducedPartition(topic, part.partition, _record_set_of(&part.records))
    if kind == PRODUCE_RESPONSE:
        return AnsweredPartition(topic, part.partition, part.error_code, part.offset)
    if kind == FETCH_REQUEST or kind == SHARE_FETCH_REQUEST:
        return WantedPartition(topic, part.partition, part.offset)
    return FetchedPartition(
        topic, part.partition, part.error_code, part.offset, _record_set_of(&part.records), part.first_batch_records,
        part.last_offset_delta, part.aborted_records,
    )  # fmt: skip


cdef object _record_set_of(const RecordSums *sums):
    if not sums.size:
        return EMPTY_RECORD_SET
    return RecordSet(
        sums.size, sums.batches, sums.records, sums.magic, sums.producer_id, sums.producer_epoch, sums.base_sequence,
        sums.base_offset, sums.claimed,
    )  # fmt: skip


cdef Body *body_of(object facts) except? NULL:
    """The reverse of ``facts_of``; NULL for None."""
    cdef Body *body
    if facts is None:
        return NULL
    body = new_body(_KINDS[type(facts)], 13 if facts.topics_are_ids else 0)
    try:
        _fill(body, facts)
    except BaseException:
        free_body(body)
        raise
    return body


_KINDS = {
    ProduceRequest: PRODUCE_REQUEST,
    ProduceResponse: PRODUCE_RESPONSE,
    FetchRequest: FETCH_REQUEST,
    FetchResponse: FETCH_RESPONSE,
}


cdef int _fill(Body *body, object facts) except -1:
    cdef bytes text
    cdef Part *part
    if body.kind == PRODUCE_REQUEST:
        body.acks, body.timeout_ms = facts.acks, facts.timeout_ms
        if facts.transactional_id is not None:
            text = facts.transactional_id
            Py_INCREF(text)
            body.transactional_id = <PyObject *>text
    elif body.kind == FETCH_REQUEST:
        body.replica_id, body.max_wait_ms, body.min_bytes = facts.replica_id, facts.max_wait_ms, facts.min_bytes
        body.session_id, body.session_epoch = facts.session_id, facts.session_epoch
        body.isolation_level = facts.isolation_level
        if facts.group_id is not None:
            text = facts.group_id
            Py_INCREF(text)
            body.group_id = <PyObject *>text
    else:
        body.throttle_ms = facts.throttle_ms
        if body.kind == FETCH_RESPONSE:
            body.error_code, body.session_id = facts.error_code, facts.session_id
    for one in facts.partitions:
        text = one.topic
        part = add_part(body)
        Py_INCREF(text)
        part.topic = <PyObject *>text
        part.partition = one.partition
        if body.kind == PRODUCE_RESPONSE:
            part.error_code, part.offset = one.error_code, one.base_offset
        elif body.kind == FETCH_REQUEST:
            part.offset = one.fetch_offset
        else:
            if body.kind == FETCH_RESPONSE:
                part.error_code, part.offset = one.error_code, one.high_watermark
                part.first_batch_records, part.last_offset_delta = one.first_batch_records, one.last_offset_delta
                part.aborted_records = one.aborted_records
            part.records = _sums_of(one.records)
    if body.kind == FETCH_REQUEST:
        for text, number in facts.forgotten:
            part = add_forgotten(body)
            Py_INCREF(text)
            part.topic = <PyObject *>text
            part.partition = number
    return 0


cdef RecordSums _sums_of(object records) except *:
    cdef RecordSums sums
    sums.size, sums.batches, sums.records, sums.magic = records.size, records.batches, records.records, records.magic
    sums.producer_id, sums.producer_epoch = records.producer_id, records.producer_epoch
    sums.base_sequence, sums.base_offset = records.base_sequence, records.base_offset
    sums.claimed = records.claimed
    return sums


# ---- exchanges ------------------------------------------------------------------------------------------------------

@cython.final
@cython.freelist(256)
@cython.no_gc  # refers to nothing that could refer back
cdef class Exchange:
    def __init__(
        self,
        object connection,
        int16_t api_key,
        int16_t api_version,
        int32_t correlation_id,
        object client_id,
        double received_at,
        int64_t request_bytes,
        double answered_at=0.0,
        int64_t response_bytes=0,
        str outcome="open",
        str decode="none",
        object request=None,
        object response=None,
        double forwarded_at=0.0,
        double responded_at=0.0,
        int32_t throttle_ms=0,
        int16_t error_code=0,
        object request_raw=None,
        object response_raw=None,
        bint synthesized=False,
        int64_t charged=0,
        object item_errors=None,
        object resources=None,
    ):
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.received_at = received_at
        self.request_bytes = request_bytes
        self.answered_at = answered_at
        self.response_bytes = response_bytes
        self.outcome_code = <OutcomeCode><int>OUTCOMES.index(outcome)
        self.decode_code = <DecodeCode><int>DECODES.index(decode)
        self.forwarded_at = forwarded_at
        self.responded_at = responded_at
        self.throttle_ms = throttle_ms
        self.error_code = error_code
        self.request_raw = request_raw
        self.response_raw = response_raw
        self.synthesized = synthesized
        self.charged = charged
        self.item_errors = item_errors
        self.resources = resources
        free_body(self.request_body)
        self.request_body = NULL
        self.request_body = body_of(request)
        free_body(self.response_body)
        self.response_body = NULL
        self.response_body = body_of(response)

    def __dealloc__(self):
        free_body(self.request_body)
        free_body(self.response_body)

    @property
    def outcome(self):
        return OUTCOMES[<int>self.outcome_code]

    @property
    def decode(self):
        return DECODES[<int>self.decode_code]

    @property
    def request(self):
        if self.request_facts is None:
            self.request_facts = facts_of(self.request_body)
        return self.request_facts

    @property
    def response(self):
        if self.response_facts is None:
            self.response_facts = facts_of(self.response_body)
        return self.response_facts

    cpdef int drop_facts(self, bint response) noexcept:
        if response:
            free_body(self.response_body)
            self.response_body = NULL
            self.item_errors = None
        else:
            free_body(self.request_body)
            self.request_body = NULL
            self.resources = None
        return 0

    def __eq__(self, other):
        if not isinstance(other, Exchange):
            return NotImplemented
        return all([getattr(self, name) == getattr(other, name) for name in FIELDS])

    __hash__ = None

    def __repr__(self):
        return f"Exchange({', '.join([f'{name}={getattr(self, name)!r}' for name in FIELDS])})"


cpdef Exchange new_exchange(object connection, object client_id, int16_t api_key, int16_t api_version, int32_t correlation_id, double received_at, int64_t request_bytes):
    cdef Exchange exchange = Exchange.__new__(Exchange)
    exchange.connection = connection
    exchange.client_id = client_id
    exchange.api_key = api_key
    exchange.api_version = api_version
    exchange.correlation_id = correlation_id
    exchange.received_at = received_at
    exchange.request_bytes = request_bytes
    return exchange
