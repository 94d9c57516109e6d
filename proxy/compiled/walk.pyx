# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads bodies of Produce, Fetch and ShareFetch, and what other messages are about, in place, whole or in the pieces
they come in; records stay untouched.

The walkers are one state machine over C memory that fills a ``Body``. A step reads one element, whole or not at all. A
step (and each reader of it) returns 1, or 0 where bytes are missing: then the walk stands where it stood and continues
there with more bytes. ``walk.pos`` may lie beyond the bytes that are there, because records are skipped. What is read
of an element stands in the order of the message definitions (``ProduceRequest.json`` and so on), with "(v3+)" where a
field is of that version and later ones.

``walk_body`` and ``Feed`` are the two ways to run one. For whatever bytes, they raise MalformedBody or nothing. Which
versions are read, and what bounds the memory of that, is described in ``proxy.core.bodies``.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int16_t, int32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memmove, memset

from proxy.compiled.exchange cimport (
    FETCH_REQUEST,
    FETCH_RESPONSE,
    NO_WALKER,
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
    REQUEST_RESOURCES,
    RESPONSE_ERRORS,
    SHARE_FETCH_REQUEST,
    SHARE_FETCH_RESPONSE,
    Part,
    RecordSums,
    add_forgotten,
    add_part,
    free_body,
    new_body,
    size_of,
)
from proxy.compiled.wire cimport int16_at, int32_at, int64_at

from proxy.core import bodies, budget, instructions, names, records, request_resources, response_errors, wire
from proxy.core.exchange import Acl, CommittedOffset, ItemErrorFacts, ItemErrors, RequestResource, RequestResources
from proxy.errors import MalformedBody

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *text, Py_ssize_t size) except NULL

cdef int64_t MAX_CARRY = bodies.MAX_CARRY
cdef int64_t NAME = budget.NAME
cdef int64_t PARTITION_BYTES = budget.PARTITION
cdef int64_t MAX_PARTITIONS = bodies.MAX_PARTITIONS
cdef Py_ssize_t MAX_ABORTED_TRANSACTIONS = bodies.MAX_ABORTED_TRANSACTIONS
cdef int64_t MAX_STRING = wire.MAX_STRING
cdef int64_t BATCH_HEADER = records.BATCH_HEADER
cdef int64_t ENTRY_HEADER = records.ENTRY_HEADER
cdef int CONTROL = records.CONTROL
cdef int TRANSACTIONAL = records.TRANSACTIONAL
cdef int COMPRESSION = records.COMPRESSION
cdef int64_t[3] SHORTEST = [records.SHORTEST[0], records.SHORTEST[1], records.SHORTEST[2]]
cdef int PRODUCE_VERSIONS = len(bodies.PRODUCE_VERSIONS)
cdef int FETCH_VERSIONS = len(bodies.FETCH_VERSIONS)
cdef int SHARE_FETCH_VERSIONS = len(bodies.SHARE_FETCH_VERSIONS)

cdef uint64_t REPLICA_STATE = 1  # tag of FetchRequest's ReplicaState (v15+), which begins with the replica id

cdef Py_ssize_t GROWN_ABORTED = 16  # aborted transactions that there is room for first
cdef Py_ssize_t CARRY_STEP = 256  # bytes added to an incomplete element at a time; most are shorter than that


cdef int malformed(Kind kind, str detail) except -1:
    """Raise MalformedBody, of the side that sends bodies of this kind."""
    cdef bint request = (
        kind == PRODUCE_REQUEST or kind == FETCH_REQUEST or kind == SHARE_FETCH_REQUEST or kind == REQUEST_RESOURCES
    )
    raise MalformedBody("client" if request else "broker", detail)


include "readers.pxi"
include "records.pxi"
include "produce.pxi"
include "fetch.pxi"
include "share.pxi"
include "items.pxi"
include "kept_items.pxi"


# ---- steps of all messages ------------------------------------------------------------------------------------------

cdef int advance(Walk *walk) except -1:
    """Read as far as the bytes go. Returns whether the body ended; ``walk.pos`` is the first byte still needed."""
    cdef int64_t mark
    cdef Kind kind = walk.body.kind
    cdef int done = 1
    if kind == RESPONSE_ERRORS or kind == REQUEST_RESOURCES:
        return advance_items(walk)
    while walk.step != END:
        mark = walk.pos
        if walk.step == BATCH:
            done = batch(walk)
        elif walk.step == PARTITION:
            if not walk.partitions:
                pass_tags(walk, TOPIC)
                continue
            if kind == PRODUCE_REQUEST:
                done = produced_partition(walk)
            elif kind == PRODUCE_RESPONSE:
                done = answered_partition(walk)
            elif kind == FETCH_REQUEST:
                done = wanted_partition(walk)
            elif kind == FETCH_RESPONSE:
                done = fetched_partition(walk)
            elif kind == SHARE_FETCH_REQUEST:
                done = share_wanted_partition(walk)
            else:
                done = share_fetched_partition(walk)
        elif walk.step == RECORDS:
            done = record_set(walk)
        elif walk.step == TOPIC:
            if not walk.topics:
                walk.step = TAIL
                continue
            done = topic(walk)
        elif walk.step == HEAD:
            if kind == PRODUCE_REQUEST:
                done = produce_request_head(walk)
            elif kind == PRODUCE_RESPONSE:
                done = count_topics(walk)
            elif kind == FETCH_REQUEST:
                done = fetch_request_head(walk)
            elif kind == FETCH_RESPONSE:
                done = fetch_response_head(walk)
            elif kind == SHARE_FETCH_REQUEST:
                done = share_request_head(walk)
            else:
                done = share_response_head(walk)
        elif walk.step == TAIL:
            if kind == PRODUCE_RESPONSE:
                done = throttle(walk)
            elif kind == FETCH_REQUEST or kind == SHARE_FETCH_REQUEST:
                done = count_forgotten(walk)
            elif kind == SHARE_FETCH_RESPONSE:
                done = count_endpoints(walk)
            else:
                pass_tags(walk, END)
        elif walk.step == MESSAGE:
            done = message(walk)
        elif walk.step == RECORD_ERROR:
            done = record_error(walk)
        elif walk.step == ABORTED:
            done = aborted_transaction(walk)
        elif walk.step == FORGOTTEN:
            done = forgotten_topic(walk)
        elif walk.step == FORGOTTEN_PARTITION:
            done = forgotten_partition(walk)
        elif walk.step == RACK:
            done = rack(walk)
        elif walk.step == ACKNOWLEDGED:
            done = acknowledged(walk)
        elif walk.step == COUNT_ACQUIRED:
            done = count_acquired(walk)
        elif walk.step == ACQUIRED:
            done = acquired(walk)
        elif walk.step == ENDPOINT:
            done = endpoint(walk)
        elif walk.step == TAGS:
            done = uvarint(walk, <uint64_t *>&walk.tags)
            walk.step = TAG if done else TAGS
        else:
            done = tag(walk)
        if not done:
            walk.pos = mark
            return 0
    return 1


cdef inline int count_topics(Walk *walk) except -1:
    """Number of topics."""
    if not length(walk, &walk.topics):
        return 0
    if walk.topics < 0:
        return refuse_count(walk, walk.topics)
    walk.step = TOPIC
    return 1


cdef int topic(Walk *walk) except -1:
    """Name or id of a topic, and how many partitions it has."""
    cdef const uint8_t *start
    cdef int64_t size
    cdef int64_t count
    if not name(walk, &start, &size) or not length(walk, &count):
        return 0
    if size < 0:
        return malformed(walk.body.kind, "a topic without a name")
    if count < 0 or walk.body.count + count > MAX_PARTITIONS:
        return refuse_count(walk, count)
    if count:
        walk.body.names += NAME + size
    keep_topic(walk, start, size)
    walk.topics -= 1
    walk.partitions = count
    walk.step = PARTITION
    return 1


cdef inline int keep_topic(Walk *walk, const uint8_t *start, int64_t size) except -1:
    """Make it the current topic."""
    Py_XDECREF(walk.topic)
    walk.topic = NULL
    walk.topic = PyBytes_FromStringAndSize(<const char *>start, size)
    return 0


cdef inline Part *partition(Walk *walk, const uint8_t *number) except NULL:
    """Add the next partition of the current topic."""
    cdef Part *part = add_part(walk.body)
    Py_INCREF(<object>walk.topic)
    part.topic = walk.topic
    part.partition = int32_at(number)
    walk.partitions -= 1
    return part


cdef int tag(Walk *walk) except -1:
    """One tagged field. All are passed over, but for the replica id that a FetchRequest ends with (v15+)."""
    cdef uint64_t number
    cdef uint64_t size
    if not walk.tags:
        walk.step = walk.after
        return 1
    if not uvarint(walk, &number) or not uvarint(walk, &size):
        return 0
    if number == REPLICA_STATE and walk.after == END and walk.body.kind == FETCH_REQUEST and walk.version >= 15:
        if walk.pos + 4 > walk.size:
            return 0
        if size < 4:
            return malformed(walk.body.kind, f"a replica state of {size} bytes")
        walk.body.replica_id = int32_at(walk.data + walk.pos)
    walk.tags -= 1
    walk.pos += <int64_t>size
    return 1


# ---- the two ways to run a walker -----------------------------------------------------------------------------------

cpdef Kind kind_of(int api_key, int version, bint response) noexcept:
    if api_key == 0 and 0 <= version < PRODUCE_VERSIONS:
        return PRODUCE_RESPONSE if response else PRODUCE_REQUEST
    if api_key == 1 and 0 <= version < FETCH_VERSIONS:
        return FETCH_RESPONSE if response else FETCH_REQUEST
    if api_key == 78 and 0 <= version < SHARE_FETCH_VERSIONS:
        return SHARE_FETCH_RESPONSE if response else SHARE_FETCH_REQUEST
    if not has_program(api_key, version, response):
        return NO_WALKER
    return RESPONSE_ERRORS if response else REQUEST_RESOURCES


cdef inline int begin(Walk *walk, Kind kind, int api_key, int version) except -1:
    """Stand before a body. Flexible are Produce from version 9 on, Fetch from 12 on, and ShareFetch."""
    memset(walk, 0, sizeof(Walk))
    walk.body = new_body(kind, version)
    walk.version = version
    if kind == RESPONSE_ERRORS or kind == REQUEST_RESOURCES:
        walk.items = begin_items(api_key, version, kind == RESPONSE_ERRORS)
        walk.flexible = STATES[place_of(api_key, version, kind == RESPONSE_ERRORS)] == 2
        return 0
    if kind == SHARE_FETCH_REQUEST or kind == SHARE_FETCH_RESPONSE:
        walk.flexible = True
    else:
        walk.flexible = version >= (9 if kind == PRODUCE_REQUEST or kind == PRODUCE_RESPONSE else 12)
    return 0


cdef inline int finish_whole(Walk *walk) except -1:
    """Read the body to its end."""
    if not advance(walk) or walk.pos > walk.size:
        malformed(walk.body.kind, f"the body does not end within its {walk.size} bytes")
    if walk.pos < walk.size:
        malformed(walk.body.kind, f"the body ends at byte {walk.pos} of {walk.size}")
    return 0


cdef int64_t read_items(Exchange exchange, Kind kind, const uint8_t *data, int64_t size) except -1:
    """``read_whole`` of REQUEST_RESOURCES and RESPONSE_ERRORS."""
    cdef Walk walk
    begin(&walk, kind, exchange.api_key, exchange.api_version)
    walk.data = data
    walk.size = size
    try:
        finish_whole(&walk)
        return hand_over(&walk, exchange)
    finally:
        free_items(walk.items)
        free_body(walk.body)


cdef Body *walk_body(Kind kind, int version, const uint8_t *data, Py_ssize_t size) except NULL:
    cdef Walk walk
    begin(&walk, kind, 0, version)
    walk.data = data
    walk.size = size
    try:
        finish_whole(&walk)
    except BaseException:
        free_body(walk.body)
        raise
    finally:
        Py_XDECREF(walk.topic)
        PyMem_Free(walk.aborted)
    return walk.body


@cython.final
@cython.freelist(64)
cdef class Feed:
    def __dealloc__(self):
        free_body(self.body)
        free_items(self.walk.items)
        Py_XDECREF(self.walk.topic)
        PyMem_Free(self.walk.aborted)
        PyMem_Free(self.carry)

    cdef int feed(self, const uint8_t *data, int64_t start, int64_t end) except -1:
        cdef Py_ssize_t size = end - start
        cdef Py_ssize_t before
        cdef Py_ssize_t taken
        if size <= self.skip:
            self.skip -= size
            return 0
        data += start + self.skip
        size -= self.skip
        self.skip = 0
        while self.carried:
            # Elements are short: what is kept grows by a little, and all beyond is read where it lies.
            before = self.carried
            taken = min(size, max(CARRY_STEP, before))
            self._keep(data, taken)
            self._read(self.carry, self.carried)
            if self.walk.pos >= before:
                self.carried = 0
                if self.walk.pos >= before + size:
                    self.skip = self.walk.pos - before - size
                    return 0
                data += self.walk.pos - before
                size -= self.walk.pos - before
            else:
                self.carried -= self.walk.pos
                memmove(self.carry, self.carry + self.walk.pos, self.carried)
                data += taken
                size -= taken
                if not size:
                    return self._check_carry()
        self._read(data, size)
        if self.walk.step == END and self.walk.pos < size:
            return malformed(self.body.kind, "bytes after the end of the body")
        self.skip = max(self.walk.pos - size, 0)
        if self.walk.pos < size:
            self._keep(data + self.walk.pos, size - self.walk.pos)
        return self._check_carry()

    cdef int _check_carry(self) except -1:
        if self.carried > MAX_CARRY:
            return malformed(self.body.kind, f"an element of more than {MAX_CARRY} bytes")
        return 0

    cdef int _read(self, const uint8_t *data, Py_ssize_t size) except -1:
        self.walk.data = data
        self.walk.size = size
        self.walk.pos = 0
        advance(&self.walk)
        return 0

    cdef int _keep(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t room = self.carried + size
        cdef uint8_t *carry
        if room > self.room:
            room = max(room, 2 * self.room)
            carry = <uint8_t *>PyMem_Realloc(self.carry, room)
            if carry == NULL:
                raise MemoryError
            self.carry = carry
            self.room = room
        memcpy(self.carry + self.carried, data, size)
        self.carried += size
        return 0

    cdef int64_t size(self) noexcept:
        if self.walk.items != NULL:
            return size_of_items(self.walk.items)
        return size_of(self.body) + self.walk.aborted_capacity * <int64_t>sizeof(AbortedTransaction)

    cdef Body *finish(self) except NULL:
        cdef Body *body = self.body
        if self.walk.step != END and not self.skip and not self.carried:
            self._read(NULL, 0)  # a body without bytes, or what needs none after the last
            self.skip = self.walk.pos
        if self.walk.step != END or self.skip:
            malformed(body.kind, "the body is cut short")
        self.body = NULL
        return body


    cdef int64_t finish_into(self, Exchange exchange, bint response) except -1:
        cdef Body *body = self.finish()
        if self.walk.items != NULL:
            try:
                return hand_over(&self.walk, exchange)
            finally:
                free_body(body)
        exchange.drop_facts(response)
        if response:
            exchange.response_body = body
        else:
            exchange.request_body = body
        return size_of(body)


cdef int64_t read_whole(
    Exchange exchange, Kind kind, bint response, const uint8_t *data, int64_t start, int64_t end
) except -1:
    if kind == RESPONSE_ERRORS or kind == REQUEST_RESOURCES:
        return read_items(exchange, kind, data + start, end - start)
    cdef Body *body = walk_body(kind, exchange.api_version, data + start, end - start)
    exchange.drop_facts(response)
    if response:
        exchange.response_body = body
    else:
        exchange.request_body = body
    return size_of(body)


cdef Feed new_feed(Kind kind, int api_key, int version):
    cdef Feed feed = Feed.__new__(Feed)
    begin(&feed.walk, kind, api_key, version)
    feed.body = feed.walk.body
    return feed
