# Part of rollup_writer.pyx and request_counter.pyx: how long requests took, by bucket, and how bad their errors are.

cdef enum:
    BUCKETS = 40

cdef enum:  # as in proxy.core.response_errors
    NONE
    STEP
    RETRY
    FAILURE

cdef int64_t _ENDS[BUCKETS - 1]
for _n, _end in enumerate(ROLLUP_BUCKETS):
    _ENDS[<int>_n] = _end


cdef extern from *:
    int __builtin_clzll(unsigned long long) nogil


cdef inline int _log2(int64_t us) noexcept:
    """Of a positive number, rounded down."""
    return 63 - __builtin_clzll(<unsigned long long>us)


cdef inline int _bucket(int64_t us) noexcept:
    """The first whose end is not below ``us``. There are two ends from each power of two to the next, 2 ** 6 first."""
    cdef int at
    if us <= _ENDS[0]:
        return 0
    if us > _ENDS[BUCKETS - 2]:
        return BUCKETS - 1
    at = 2 * (_log2(us) - 6)
    at += us > _ENDS[at]
    return at + (us > _ENDS[at])


cdef inline int64_t _service_us(Exchange exchange, const Basics *basics, int64_t muted_us) noexcept:
    """``service_us`` of its event."""
    cdef int64_t wanted_us = 0
    if _is_fetch(exchange.api_key) and exchange.request_body != NULL:
        wanted_us = max(exchange.request_body.max_wait_ms, 0) * <int64_t>1000
    return max(<int64_t>0, basics.latency_us - muted_us - wanted_us)


cdef inline bint _is_reported(const Part *part, bint fetched) noexcept:
    """Whether an event has this partition."""
    return not fetched or part.records.size != 0 or part.error_code != 0


cdef int _severity(int16_t api_key, int16_t error_code) except -1:
    return NONE if not error_code else severity_of(api_key, error_code)


cdef int _worst_of_whole(Exchange exchange, int16_t error_code) except -1:
    """How bad the worst error is, of the whole response and of its items."""
    cdef int worst = _severity(exchange.api_key, error_code)
    found = exchange.item_errors
    if found is not None:
        worst = max(worst, FAILURE if found.failures else RETRY if found.retriable else STEP if found.protocol else NONE)
    return worst
