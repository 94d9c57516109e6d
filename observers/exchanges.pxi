# Part of audit_writer.pyx, rollup_writer.pyx and offset_tracker.pyx: what they read from an exchange beside its partitions.

cdef extern from "Python.h" nogil:  # the macros, without the GIL: a bytes object never changes
    const char *_text "PyBytes_AS_STRING"(PyObject *text)
    Py_ssize_t _size "PyBytes_GET_SIZE"(PyObject *text)

cdef enum:
    PRODUCE = 0
    FETCH = 1
    SHARE_FETCH = 78
    MAX_SCANNED_PARTS = 8  # partitions up to which one is found by looking at each

cdef int16_t _UNKNOWN_ERROR_CODE = UNKNOWN_ERROR_CODE


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
    basics.throttle_ms = _throttle_ms(exchange)
    if response != NULL and _is_fetch(exchange.api_key):
        basics.error_code = response.error_code
    else:
        basics.error_code = exchange.error_code
    return 0


cdef inline int32_t _throttle_ms(Exchange exchange) noexcept:
    return exchange.throttle_ms if exchange.response_body == NULL else exchange.response_body.throttle_ms


cdef inline int64_t _muted_us(Exchange exchange, object muting, dict spans) except -1:
    """Return an event's ``muted_us``. Asked once for each exchange, in order, before anything else.

    ``spans``: those of ``muting``.
    """
    cdef int32_t throttle_ms = _throttle_ms(exchange)
    if throttle_ms > 0 or (PyDict_Size(spans) and exchange.connection.id in spans):
        return muting.record_exchange(exchange, throttle_ms)
    return 0


cdef inline bint _is_fetch(int16_t api_key) noexcept:
    return api_key == FETCH or api_key == SHARE_FETCH


cdef inline bint _may_be_polled(Exchange exchange, double next_poll_at) noexcept:
    """Whether ``AuditFilter.take_polled_topics`` of this exchange, which is not hidden, may be anything else than nothing."""
    return (
        _is_fetch(exchange.api_key)
        and exchange.outcome_code == ANSWERED
        and exchange.request_body != NULL
        and exchange.response_body != NULL
        and not exchange.response_body.error_code
        and exchange.answered_at >= next_poll_at
    )


cdef inline bint _changes_session(Exchange exchange, dict sessions) except -1:
    """Store the fetch offsets of partitions that their session has; return whether ``FetchSessions.record_fetch`` is
    needed, of a Fetch whose request was read."""
    cdef Body *request = exchange.request_body
    cdef Body *response = exchange.response_body
    cdef Part *part
    cdef PyObject *topic = NULL
    cdef Py_ssize_t at
    cdef bint shares = exchange.api_key == SHARE_FETCH
    cdef dict held = None
    if request.session_epoch <= 0:
        return shares or request.session_id != 0 or (response != NULL and response.session_id != 0)
    if request.forgotten or response != NULL and response.error_code:
        return True
    if not request.count:
        return False
    session = sessions.get(exchange.connection.id if shares else request.session_id)
    if session is None:
        return False
    partitions = session.partitions
    for at in range(request.count):
        part = &request.parts[at]
        if part.topic != topic:  # mostly it is: partitions come by topic
            topic = part.topic
            held = partitions.get(<object>topic)
        number = part.partition
        if held is None or number not in held:
            return True
        held[number] = part.offset
    return False


cdef inline dict _places_of(Body *body):
    """Places of the parts by topic and partition, where they are so many that this finds one sooner."""
    cdef Py_ssize_t at
    if body == NULL or body.count <= MAX_SCANNED_PARTS:
        return None
    return {(<object>body.parts[at].topic, body.parts[at].partition): at for at in range(body.count)}


cdef inline Part *_find_part(Body *body, dict places, const Part *other) except? NULL:
    """The last part of ``body`` with the topic and partition of ``other``, or NULL."""
    cdef Py_ssize_t at
    cdef Part *part
    if body == NULL:
        return NULL
    if places is not None:
        found = places.get((<object>other.topic, other.partition))
        return NULL if found is None else &body.parts[<Py_ssize_t>found]
    at = body.count
    while at:
        at -= 1
        part = &body.parts[at]
        if part.partition == other.partition and _same(part.topic, other.topic):
            return part
    return NULL


cdef inline dict _wanted_places_of(Exchange exchange):
    """``places`` for ``_count_consumed``."""
    return None if exchange.response_body.count <= MAX_SCANNED_PARTS else _places_of(exchange.request_body)


cdef inline bint _count_consumed(Exchange exchange, const Part *got, dict places, dict sessions, int64_t *records) except -1:
    """Set ``records`` to those that a client takes of a fetched partition; return whether that is an upper bound.

    What of the first batch is before the fetch offset is not taken. Without gaps in its offsets that is known exactly.
    """
    cdef int64_t first = got.first_batch_records
    cdef int64_t delta = got.last_offset_delta
    cdef int64_t taken, offset
    cdef uint64_t skipped
    records[0] = got.records.records
    if exchange.api_key == SHARE_FETCH:  # any record of its batches may be acquired by another consumer
        return records[0] != 0
    if got.aborted_records > 0:
        records[0] -= got.aborted_records
    if first and delta:
        if not _find_fetch_offset(exchange, got, places, sessions, &offset):
            return True
        if offset > got.records.base_offset:
            skipped = min(<uint64_t>offset - <uint64_t>got.records.base_offset, <uint64_t>1 << 32)
            taken = max(<int64_t>0, first - <int64_t>skipped)
            records[0] -= first - max(taken, min(first, delta + 1 - <int64_t>skipped))
            return got.aborted_records < 0 or taken < min(first, delta + 1 - <int64_t>skipped)
    return got.aborted_records < 0


cdef inline bint _find_fetch_offset(Exchange exchange, const Part *got, dict places, dict sessions, int64_t *offset) except -1:
    """Set ``offset`` to where the fetch of a partition began, from its request or the fetch session; return whether it
    is known."""
    cdef Body *request = exchange.request_body
    cdef Part *part = _find_part(request, places, got)
    if part != NULL:
        offset[0] = part.offset
        return True
    if request == NULL or request.session_epoch <= 0:
        return False
    session = sessions.get(request.session_id)
    held = None if session is None else session.partitions.get(<object>got.topic)
    found = None if held is None else held.get(got.partition)
    if found is None:
        return False
    offset[0] = found
    return True


cdef inline bint _same(PyObject *one, PyObject *other) noexcept:
    return one == other or (
        _size(one) == _size(other) and not memcmp(_text(one), _text(other), _size(one))
    )
