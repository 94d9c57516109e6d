# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from proxy.number_array cimport NumberArray, number_at, set_number

cdef Py_ssize_t newest_start, newest_last, newest_sum, oldest_start, oldest_last, oldest_sum

@cython.final
@cython.no_gc  # refers to numbers alone
cdef class SampledRate:
    cdef int64_t _window_ms, _max_age_ms, _min_elapsed_ms, _count
    cdef NumberArray _samples

    @cython.locals(kept=NumberArray, end=Py_ssize_t)
    cpdef record(self, int64_t value, int64_t now)
    @cython.locals(kept=NumberArray, elapsed=int64_t)
    cpdef tuple measure(self, int64_t now)
    @cython.locals(kept=NumberArray, expired=int64_t)
    cdef _drop_expired(self, int64_t now)

cpdef bint exceeds(int64_t count, int64_t window, int64_t limit) noexcept
cpdef int64_t throttle_time(int64_t count, int64_t window, int64_t limit) except? -1
cpdef int64_t throttle_time_rounded_up(int64_t count, int64_t window, int64_t limit) except? -1
