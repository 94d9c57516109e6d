# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t, uint8_t

from proxy.compiled.exchange cimport DecodeCode, Exchange, Kind, OutcomeCode
from proxy.compiled.walk cimport Feed, new_feed, read_whole
from proxy.core.account cimport Account
from proxy.core.memory cimport count, sliced

cdef int64_t max_learned
cdef int handshake, authenticate, api_versions, keys, versions, want_exchange, want_request_body, want_response_body

cdef bint identifies(bint response, int key) noexcept

@cython.final
cdef class Subscribers:
    cdef object sink, record, record_change
    cdef bytes table, private
    cdef int others, private_base, private_keys
    cdef int64_t max_body
    cdef int64_t[::1] observed

    cdef int add_change(self, change) except -1
    @cython.locals(flags=int)
    cdef int flags(self, int key, int version) noexcept

cdef Subscribers latest
cdef Subscribers subscribers_of(sink)

@cython.final
@cython.no_gc
cdef class BodyCapture:
    cdef Feed feed
    cdef bytearray gathered
    cdef int64_t length, charged
    cdef bint raw, learnt, only_items

@cython.final
@cython.no_gc
cdef class BodyPiece:
    cdef Exchange exchange
    cdef BodyCapture capture
    cdef object keep
    cdef const uint8_t *data
    cdef int64_t start, end
    cdef Kind kind
    cdef bint response, last

@cython.final
@cython.no_gc  # refers to nothing that refers back
cdef class Observation:
    cdef object connection, principal_tracker, membership
    cdef object decoded
    cdef Subscribers subscribers
    cdef list pieces
    cdef Account account
    cdef bint undecided

    @cython.locals(raw=bint)
    cdef BodyCapture capture(self, bint response, int key, int flags, int64_t length, bint learnt)
    @cython.locals(piece=BodyPiece)
    cdef int add_piece(self, bint response, Exchange exchange, Kind kind, BodyCapture capture, bytes keep, const uint8_t *data, int64_t start, int64_t end, bint last) except -1
    @cython.locals(pieces=list, piece=BodyPiece)
    cdef int read_bodies(self, double now) except -1
    @cython.locals(exchange=Exchange, capture=BodyCapture)
    cdef int read_piece(self, BodyPiece piece, double now) except -1
    @cython.locals(fits=bint, complete=bint, size=int64_t)
    cdef int read_facts(self, BodyPiece piece, Exchange exchange, BodyCapture capture) except -1
    @cython.locals(fits=bint)
    cdef bint try_charge(self, Exchange exchange, int64_t size) noexcept
    cdef int drop_body(self, Exchange exchange, BodyCapture capture) except -1
    cdef int uncharge(self, Exchange exchange, int64_t size) except -1
    @cython.locals(size=int64_t, short=bint, wanted=bint, had=int64_t, body=bytes)
    cdef int collect(self, BodyPiece piece, Exchange exchange, BodyCapture capture, double now) except -1
    cdef int track_principal(self, str method, tuple arguments) except -1
    @cython.locals(pieces=list, piece=BodyPiece, exchange=Exchange)
    cdef int end(self, list exchanges, double now) except -1
    cdef int record_lost(self, Exchange exchange) except -1
    @cython.locals(charged=int64_t)
    cdef int record(self, Exchange exchange) except -1
    cdef int learn_membership(self, object found) except -1
