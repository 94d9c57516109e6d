# cython: language_level=3
cimport cython

from proxy.limits.rate_sensors cimport KeyedRates

@cython.final
cdef class PrincipalQuotas:
    cdef readonly object limits, throttled
    cdef readonly KeyedRates rates
    cdef readonly dict open_by_principal, holds
    cdef readonly dict _principals
    cdef dict _held
    cdef list _hold_ends
    cdef object _hold, _resume, _close, _on_throttle

    cpdef next_timer(self)
    cpdef release(self, number)
