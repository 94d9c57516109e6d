# cython: language_level=3
"""What a session emits, as C has it. What each field means is described in proxy/core/exchange.py, and of an
exchange in exchange.pyi."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cpdef enum Kind:  # which message a body is of; the last two have no Body of their own
    NO_WALKER = -1
    PRODUCE_REQUEST = 0
    PRODUCE_RESPONSE = 1
    FETCH_REQUEST = 2
    FETCH_RESPONSE = 3
    SHARE_FETCH_REQUEST = 4  # its facts, as those of the next, are of Fetch
    SHARE_FETCH_RESPONSE = 5
    RESPONSE_ERRORS = 6  # of any other api: it has no facts but the errors of its items
    REQUEST_RESOURCES = 7  # of any other api: what it names

cpdef enum OutcomeCode:
    OPEN = 0
    ANSWERED = 1
    NO_RESPONSE = 2
    CONNECTION_LOST = 3

cpdef enum DecodeCode:
    NONE = 0
    FULL = 1
    MALFORMED = 2
    UNSUPPORTED = 3
    NOT_KEPT = 4

cdef struct RecordSums:  # RecordSet
    int64_t size
    int64_t records
    int64_t producer_id
    int64_t base_offset
    int32_t batches
    int32_t base_sequence
    int16_t producer_epoch
    int16_t magic
    bint claimed

cdef struct Part:  # one partition of a body
    PyObject *topic  # bytes; each part owns a reference
    int32_t partition
    int16_t error_code  # of responses
    int64_t offset  # Produce response: base offset. Fetch request: fetch offset. Fetch response: high watermark
    RecordSums records  # of Produce requests and Fetch responses
    int64_t aborted_records  # of Fetch responses, as the next two
    int32_t first_batch_records
    int32_t last_offset_delta

cdef struct Body:  # the facts of one body; fields that its kind does not have stay 0
    Kind kind
    bint topics_are_ids
    int32_t throttle_ms
    int32_t timeout_ms
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t replica_id
    int32_t session_id
    int32_t session_epoch
    int16_t isolation_level
    int16_t error_code
    int16_t acks
    PyObject *transactional_id  # bytes or NULL; owned
    PyObject *group_id  # of ShareFetch requests; likewise
    Py_ssize_t count
    Py_ssize_t forgotten  # of Fetch requests: as many parts after those, with nothing but topic and partition
    int64_t names  # bytes of names, as they are charged
    Py_ssize_t capacity
    Part *parts  # &first until there are more
    Part first

cdef Body *new_body(Kind kind, int version) except NULL
cdef Part *add_part(Body *body) except NULL  # zeroed but for the −1 defaults of RecordSet; may move the others
cdef Part *add_forgotten(Body *body) except NULL  # after all others
cdef void free_body(Body *body) noexcept  # NULL is fine
cdef int64_t size_of(const Body *body) noexcept  # bytes that it is charged with
cdef object facts_of(const Body *body)  # the struct of proxy.core.exchange; None for NULL

cdef class Exchange:
    cdef public object connection  # until its request is read whole
    cdef readonly object client_id  # str or None
    cdef readonly int16_t api_key
    cdef readonly int16_t api_version
    cdef readonly int32_t correlation_id
    cdef public OutcomeCode outcome_code  # Python sees `outcome` and `decode`, too: their names
    cdef public DecodeCode decode_code
    cdef public double received_at
    cdef public double answered_at
    cdef public double forwarded_at
    cdef public double responded_at
    cdef public int32_t throttle_ms
    cdef public int16_t error_code
    cdef public object request_raw  # bytes or None
    cdef public object response_raw
    cdef public object item_errors  # ItemErrors or None
    cdef public object resources  # RequestResources or None
    cdef public int64_t request_bytes
    cdef public int64_t response_bytes
    cdef Body *request_body  # owned; Python sees `request` and `response`: facts, built when asked for
    cdef Body *response_body
    cdef object request_facts  # None until asked for
    cdef object response_facts
    cdef public bint synthesized
    cdef public int64_t charged
    cdef public uint8_t wanted  # flags of proxy.core.observation_interest; 0: it is not observed
    cdef public Exchange next  # of the session that holds it: the one that was asked after it
    cpdef int drop_facts(self, bint response) noexcept  # of its request, or of its response

cpdef Exchange new_exchange(object connection, object client_id, int16_t api_key, int16_t api_version, int32_t correlation_id, double received_at, int64_t request_bytes)
