# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

@cython.final
@cython.no_gc  # refers to numbers alone
cdef class Pace:
    cdef int64_t unit_us, step_cost, due_us, step, used

@cython.final
cdef class AdmissionPace:
    cdef dict _paces

    @cython.locals(pace=Pace, earliest=int64_t)
    cpdef record(self, str listener, int64_t cost, int64_t now)
    @cython.locals(pace=Pace, even=int64_t)
    cpdef int64_t next_at(self, str listener) except? -1
    @cython.locals(at=int64_t)
    cpdef next_timer(self, int64_t now)
