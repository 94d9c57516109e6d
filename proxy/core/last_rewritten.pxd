# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t, uint8_t

from proxy.core.memory cimport equals

cdef double max_reuse

@cython.final
@cython.no_gc  # refers to bytes alone
cdef class LastRewritten:
    cdef bytes body, rewritten
    cdef double used_since

    cdef bytes replacement_of(self, const uint8_t *data, int64_t at, int64_t stop, double now)
