# Part of compiled.pyx and rolled.pyx: what both read from an exchange beside its partitions.

cdef extern from "Python.h" nogil:  # the macros, without the GIL: a bytes object never changes
    const char *_text "PyBytes_AS_STRING"(PyObject *text)
    Py_ssize_t _size "PyBytes_GET_SIZE"(PyObject *text)

cdef enum:
    PRODUCE = 0
    FETCH = 1
    SHARE_FETCH = 78
    FEW = 8  # answers up to which one is found by looking at each

cdef int16_t _UNKNOWN_RESULT = UNKNOWN_RESULT


cdef struct Basics:
    int64_t ts_request
    int64_t latency_us
    int64_t upstream_us
    int32_t throttle_ms
    int16_t error_code


cdef inline int _read_basics(Exchange exchange, double wall_offset, Basics *basics) except -1:
    """Fill ``basics`` as an event has them. Raises ValueError for a time that is no number."""
    cdef Body *response = exchange.response_body
    cdef double ts_request = (exchange.received_at + wall_offset) * 1e6
    cdef double latency = 0.0, upstream = 0.0
    if exchange.outcome_code == ANSWERED:
        latency = (exchange.answered_at - exchange.received_at) * 1e6
        if exchange.forwarded_at and exchange.responded_at:
            upstream = (exchange.responded_at - exchange.forwarded_at) * 1e6
    if not (isfinite(ts_request) and isfinite(latency) and isfinite(upstream)):
        raise ValueError("a time that is no number")
    basics.ts_request = llrint(ts_request)
    basics.latency_us = max(<int64_t>0, <int64_t>llrint(latency))
    basics.upstream_us = max(<int64_t>0, <int64_t>llrint(upstream))
    basics.throttle_ms = exchange.throttle_ms if response == NULL else response.throttle_ms
    if response != NULL and (exchange.api_key == FETCH or exchange.api_key == SHARE_FETCH):
        basics.error_code = response.error_code
    else:
        basics.error_code = exchange.error_code
    return 0


cdef inline dict _answers_of(Body *response):
    """Places of the answers by topic and partition, where they are so many that this finds one sooner."""
    cdef Py_ssize_t at
    if response == NULL or response.count <= FEW:
        return None
    return {(<object>response.parts[at].topic, response.parts[at].partition): at for at in range(response.count)}


cdef inline Part *_answer(Body *response, dict answers, const Part *sent) except? NULL:
    """The last answer for the partition ``sent``, or NULL."""
    cdef Py_ssize_t at
    cdef Part *part
    if response == NULL:
        return NULL
    if answers is not None:
        found = answers.get((<object>sent.topic, sent.partition))
        return NULL if found is None else &response.parts[<Py_ssize_t>found]
    at = response.count
    while at:
        at -= 1
        part = &response.parts[at]
        if part.partition == sent.partition and _same(part.topic, sent.topic):
            return part
    return NULL


cdef inline bint _same(PyObject *one, PyObject *other) noexcept:
    return one == other or (
        _size(one) == _size(other) and not memcmp(_text(one), _text(other), _size(one))
    )
