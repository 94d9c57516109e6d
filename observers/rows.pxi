# Part of audit_writer.pyx: what events are written from, and the writing, which needs no GIL.

cdef struct PartRow:
    PyObject *name  # bytes; what holds these objects: `RequestEventEncoder._kept_alive`, its caches, or the batch
    PyObject *topic_id
    const Part *part
    int64_t base_offset
    int64_t records
    int16_t error_code
    bint produced
    bint upper_bound  # of records

cdef struct Row:
    PyObject *connection_json
    PyObject *api_json
    PyObject *principal_json
    PyObject *software_json
    PyObject *source_json
    PyObject *polled_json
    PyObject *items_json
    Basics basics
    int64_t seq
    int64_t muted_us
    int64_t request_bytes
    int64_t response_bytes
    Py_ssize_t parts
    int32_t correlation_id
    int32_t max_wait_ms
    int16_t api_version
    int16_t acks
    bint has_acks
    OutcomeCode outcome
    DecodeCode decode
    bint synthesized


cdef char *_write(char *at, const Row *rows, Py_ssize_t count, const PartRow *parts) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(count):
        if n:
            at[0] = b","
            at += 1
        at = _write_row(at, &rows[n], parts)
        parts += rows[n].parts
    return at


cdef inline char *_write_row(char *at, const Row *row, const PartRow *parts) noexcept nogil:
    cdef Py_ssize_t n
    at = _put(at, b'{"kind":"request","seq":')
    at = _put_int(at, row.seq)
    at = _put_text(at, row.connection_json)
    at = _put_int(at, row.correlation_id)
    at = _put_text(at, row.api_json)
    at = _put_int(at, row.api_version)
    at = _put_text(at, row.principal_json)
    at = _put_int(at, row.basics.ts_request)
    at = _put_int(_put(at, b',"latency_us":'), row.basics.latency_us)
    at = _put_int(_put(at, b',"request_bytes":'), row.request_bytes)
    if row.response_bytes:
        at = _put_int(_put(at, b',"response_bytes":'), row.response_bytes)
    if row.outcome != ANSWERED:
        at = _put(at, b',"outcome":"no_response"' if row.outcome == NO_RESPONSE
                  else b',"outcome":"connection_lost"' if row.outcome == CONNECTION_LOST else b',"outcome":"open"')
    if row.decode == FULL:
        at = _put(at, b',"decode":"full"')
    elif row.decode == MALFORMED:
        at = _put(at, b',"decode":"malformed"')
    elif row.decode == UNSUPPORTED:
        at = _put(at, b',"decode":"unsupported"')
    elif row.decode == NOT_KEPT:
        at = _put(at, b',"decode":"not_kept"')
    at = _put_text(at, row.software_json)
    if row.basics.throttle_ms:
        at = _put_int(_put(at, b',"throttle_ms":'), row.basics.throttle_ms)
    if row.max_wait_ms:
        at = _put_int(_put(at, b',"max_wait_ms":'), row.max_wait_ms)
    if row.has_acks:
        at = _put_int(_put(at, b',"acks":'), row.acks)
    if row.basics.error_code:
        at = _put_int(_put(at, b',"error_code":'), row.basics.error_code)
    if row.parts:
        at = _put(at, b',"topics":[')
        for n in range(row.parts):
            if n:
                at = _put(at, b",")
            at = _write_part(at, &parts[n])
        at = _put(at, b"]")
    if row.basics.upstream_us:
        at = _put_int(_put(at, b',"upstream_us":'), row.basics.upstream_us)
    at = _put_text(at, row.source_json)
    at = _put_text(at, row.polled_json)
    if row.muted_us:
        at = _put_int(_put(at, b',"muted_us":'), row.muted_us)
    if row.synthesized:
        at = _put(at, b',"synthesized":true')
    at = _put_text(at, row.items_json)
    return _put(at, b"}")


cdef inline char *_write_part(char *at, const PartRow *part) noexcept nogil:
    cdef const RecordSums *records = &part.part.records
    at = _put_text(at, part.name)
    at = _put_int(at, part.part.partition)
    at = _put_text(at, part.topic_id)
    if records.size:
        at = _put_int(_put(at, b',"bytes":'), records.size)
    if part.records:
        at = _put_int(_put(at, b',"records":'), part.records)
    if part.error_code:
        at = _put_int(_put(at, b',"error_code":'), part.error_code)
    if part.produced:
        if records.producer_id != -1:
            at = _put_int(_put(at, b',"producer_id":'), records.producer_id)
        if records.producer_epoch != -1:
            at = _put_int(_put(at, b',"producer_epoch":'), records.producer_epoch)
        if records.base_sequence != -1:
            at = _put_int(_put(at, b',"base_sequence":'), records.base_sequence)
    if part.base_offset != -1:
        at = _put_int(_put(at, b',"base_offset":'), part.base_offset)
    if records.claimed:
        at = _put(at, b',"claimed":true')
    if part.upper_bound:
        at = _put(at, b',"upper_bound":true')
    return _put(at, b"}")
