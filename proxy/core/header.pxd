# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t, uint8_t

from proxy.compiled.exchange cimport Exchange
from proxy.core.memory cimport int16_at, int32_at

cdef enum:
    MORE = -2  # -1 is left to exceptions
    BAD = -3

cdef bytes table
cdef int64_t least_frame, most_token
cdef int apis_in_table, never, throttle_first, error_first, error_after_throttle

cdef bint is_known(int key, int version) noexcept
cdef bint is_flexible(int key, int version) noexcept
@cython.locals(shift=int)
cdef int64_t skip_uvarint(const uint8_t *data, int64_t at, int64_t limit) noexcept
@cython.locals(value=int64_t, byte=int64_t, shift=int)
cdef int64_t uvarint_at(const uint8_t *data, int64_t at, int64_t limit) noexcept
@cython.locals(fields=int64_t, size=int64_t)
cdef int64_t skip_tags(const uint8_t *data, int64_t at, int64_t limit) noexcept
cdef int64_t after_client_id(int64_t at, int64_t size, int64_t length) except -1
@cython.locals(length=int64_t)
cdef int64_t acks_at(const uint8_t *data, int64_t at, int64_t limit, int version) noexcept
@cython.locals(left=int64_t, size=int64_t, after=int64_t)
cdef int64_t least_header(const uint8_t *data, int64_t at, int64_t limit, int64_t stop, bint tagged, int produce) noexcept
cdef int64_t least_of(int64_t at, int64_t limit, int64_t stop) noexcept
@cython.locals(need=int)
cdef bint peek(Exchange exchange, int flags, const uint8_t *data, int64_t body, int64_t limit, int64_t stop) noexcept
@cython.locals(size=int64_t)
cdef int64_t token_size(bint response, const uint8_t *data, int64_t at) except -1
