# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from proxy.limits.admission_pace cimport AdmissionPace
from proxy.limits.connection_quotas cimport ConnectionQuotas
from proxy.limits.principal_quotas cimport PrincipalQuotas

@cython.final
cdef class AdmissionControl:
    cdef object _handler, _on_unblocked, _loop
    cdef ConnectionQuotas _quotas
    cdef PrincipalQuotas _principals
    cdef AdmissionPace _pace
    cdef object _timer, _timer_at
    cdef public int64_t last_number
    cdef set _inherited
    cdef object _on_ended
    cdef dict _open
    cdef object _throttles
    cdef double _next_report_at, _next_full_log_at
    cdef dict _summaries, _next_log_at
    cdef bint _closing

    @cython.locals(now=int64_t, quota_key=str, name=str)
    cpdef submit(self, listener, sock, str host, int port)
    cpdef bint is_blocked(self, str listener) except -1
    cdef _arm_timer(self, int64_t now)

@cython.locals(now=int64_t)
cdef int64_t _now_ms() except? -1
cdef _earlier(one, other)
