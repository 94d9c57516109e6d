# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t, uint8_t

from proxy.compiled.exchange cimport Exchange
from proxy.core.last_rewritten cimport LastRewritten
from proxy.core.memory cimport count, with_head

cdef int versions

@cython.final
@cython.no_gc  # what it calls refers to nothing that refers back
cdef class HeldFrame:
    cdef object _account, _then
    cdef bytearray _frame

    cpdef bytes feed(self, bytes piece, bint last)

@cython.final
cdef class Interception:
    cdef readonly object interceptors, counters
    cdef readonly object responses, failure
    cdef readonly bint closing, ending, full, diverted, replied
    cdef readonly str cause
    cdef readonly bytes rest, replacement, replies
    cdef object _account
    cdef int64_t _charged_responses, _deferred_bytes, _sent
    cdef bytearray _out, _replies

    cpdef start_chunk(self)
    cpdef release_chunk(self)
    cpdef finish_chunk(self, bytes data, int64_t upto)
    cpdef begin_frame(self, frame, bytes lead, bytes data, int64_t at, int64_t upto, bint ended)
    cpdef replace(self, bytes piece, bytes data, int64_t at, int64_t upto)
    cpdef bytes take_response(self, bytes data, int64_t at)
    cpdef store_rest(self, bytes rest)
    cpdef record_failure(self, error)
    cpdef frame_of_request(self, int flags, request, exchange, int64_t body)
    cpdef frame_of_response(self, int flags, exchange, int64_t header, int64_t size)
    @cython.locals(kept=LastRewritten)
    cdef bytes last_rewritten(self, int key, int version, const uint8_t *data, int64_t at, int64_t stop, double now)
    cdef replace_body(self, Exchange exchange, bytes head, bytes body, bytes data, int64_t at, int64_t stop)
    @cython.locals(edited=bytes)
    cdef bytes _edited(self, exchange, bytes head, bytes body)
    cdef _charge_responses(self, int64_t more)
