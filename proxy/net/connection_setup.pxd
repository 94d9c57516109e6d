# cython: language_level=3
cimport cython

@cython.final
cdef class SetupDeadlines:
    cdef public int timeout_ms
    cdef object _clock, _has_unread_bytes, _started_at
    cdef double _uptime, _tick_at

    cpdef start(self, relay)
    cpdef cancel(self, relay)
    cdef double _current_uptime(self) except? -1
