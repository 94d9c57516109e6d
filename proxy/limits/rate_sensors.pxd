# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from proxy.limits.sampled_rate cimport SampledRate, exceeds, throttle_time, throttle_time_rounded_up

@cython.final
cdef class KeyedRates:
    cdef str _scope
    cdef Py_ssize_t _most
    cdef tuple _window
    cdef object _rates

    @cython.locals(sensor=SampledRate, count=int64_t, window=int64_t, wait=int64_t)
    cpdef count(self, str key, quota, int64_t now)

@cython.final
cdef class RateSensors:
    cdef object _limits
    cdef set _protected
    cdef bint _limits_rates
    cdef SampledRate _broker
    cdef dict _listeners
    cdef readonly KeyedRates addresses

    cpdef rate_quota(self, str address)
    @cython.locals(sensor=SampledRate)
    cpdef record(self, str listener, int64_t value, int64_t now)
    cpdef list violations(self, str listener, int64_t now)
    cpdef count_address(self, str address, int64_t now)
    @cython.locals(count=int64_t, window=int64_t, bounded=int64_t)
    cdef _add_violation(self, list found, str scope, SampledRate sensor, quota, int64_t now)
