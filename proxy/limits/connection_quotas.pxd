# cython: language_level=3
cimport cython
from libc.stdint cimport int64_t

from proxy.limits.rate_sensors cimport RateSensors

@cython.final
cdef class PendingConnection:
    cdef public str listener, address
    cdef public object token, held_for
    cdef public int64_t ready_at
    cdef public bint wants_slot

@cython.final
cdef class ConnectionQuotas:
    cdef readonly object limits, throttled
    cdef readonly RateSensors sensors
    cdef readonly int64_t open_total
    cdef readonly dict open_by_listener, open_by_address, admitted, delays, holds, queues
    cdef readonly list held
    cdef bint _paused, _limits_slots, _limits_addresses, _observes_connections
    cdef dict _blocked_ms, _blocked_since, _recheck_clients_until
    cdef int64_t _hold_number
    cdef object _admit, _refuse, _is_disconnected, _evict, _on_throttle

    cpdef submit(self, str listener, str address, token, int64_t now)
    cpdef release(self, str listener, str address, int64_t now)
    cpdef next_timer(self)
    cpdef bint is_blocked(self, str listener) except -1
    cpdef bint has_queued(self) except -1
    cpdef count_open(self, str listener, str address)
    cpdef connection_quota(self, str address)
    cdef _process_all_queues(self, int64_t now)
    @cython.locals(pending=PendingConnection, since=int64_t)
    cdef _process_queue(self, str listener, int64_t now)
    @cython.locals(pending=PendingConnection)
    cpdef restore_pending(self, str listener, str address, token, state)
    @cython.locals(pending=PendingConnection)
    cpdef process_timers(self, int64_t now)
    @cython.locals(one=PendingConnection)
    cpdef list pending(self)
    @cython.locals(pending=PendingConnection)
    cpdef close(self)
    @cython.locals(pending=PendingConnection)
    cdef _change_listeners(self, limits)
    cdef _admit_or_refuse(self, PendingConnection pending)
    cdef _evict_if_too_many(self, str listener)
    cdef int64_t _count_and_delay(self, PendingConnection pending, int64_t now) except? -1
    cdef int64_t _delay(self, PendingConnection pending, list violations) except? -1
    cdef bint _hold_or_refuse(self, PendingConnection pending, int64_t now) except -1
    cdef _hold(self, PendingConnection pending, int64_t until)
    cdef bint _end_hold(self, PendingConnection pending, int64_t now) except -1
    cdef _return_to_queue(self, PendingConnection pending)
    cdef bint _has_slot(self, str listener) except -1
    cdef bint _has_slot_or_report(self, PendingConnection pending) except -1
    cdef bint _address_is_full(self, PendingConnection pending) except -1
    cdef _report_observed_limits(self, PendingConnection pending)
    cdef _report_violation(self, PendingConnection pending, violation, str action)
