# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from proxy.number_array cimport NumberArray, add_number, number_at

cdef int free_bytes, open_bytes, recorded_bytes, limit_bytes, optional_bytes

@cython.final
@cython.no_gc
cdef class Account:
    cdef readonly object budget
    cdef readonly int64_t held
    cdef NumberArray counts

    @cython.locals(counts=NumberArray)
    cpdef bint is_scarce(self) noexcept
    cpdef bint is_full(self) noexcept
    cpdef int charge(self, int64_t size) except -1
    @cython.locals(counts=NumberArray, charged=int64_t)
    cpdef bint try_charge(self, int64_t size) noexcept
    cpdef int record(self, int64_t size) except -1
    cpdef int close(self) except -1
