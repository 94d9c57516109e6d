# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Encodes changes of connections as audit events, many at a time. No IO, no clock."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.math cimport isfinite, llrint
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, strlen

import structlog

from observers.event import encoder
from observers.event_blocks import Chunk, EncodedEvents
from proxy.core.names import clip

cdef extern from "Python.h" nogil:
    const char *_text "PyBytes_AS_STRING"(PyObject *text)
    Py_ssize_t _size "PyBytes_GET_SIZE"(PyObject *text)

cdef enum:
    CHUNK_EVENTS = 50  # events encoded before another thread may have the GIL; 4 chunks fill a record
    CHUNK_BYTES = 131_072  # bytes after which a chunk ends early

log = structlog.get_logger("observers")

include "json_buffer.pxi"


def encode_connection_changes(changes, int64_t first, double wall_offset, audit_filter):
    cdef JsonBuffer out = JsonBuffer.__new__(JsonBuffer)
    cdef int64_t last = first - 1
    cdef Py_ssize_t count = 0, size
    cdef bint written
    cdef bint hides = bool(audit_filter.excluded_principals)
    muting = audit_filter.muting
    made = EncodedEvents(last)
    for change in changes:
        connection, kind = change.connection, change.change
        if kind == "closed" and muting.spans:
            muting.forget_connection(connection.id)
        if hides and _is_hidden(audit_filter, kind, connection):
            audit_filter.count_hidden_by_principal(connection.principal)
            made.hidden += 1
            continue
        last += 1
        size, written = out.size, False
        try:
            _write_change(out, b'{"kind":"connection","seq":' if not count else b',{"kind":"connection","seq":', last,
                          change, kind, connection, wall_offset)
            written = True
        except UnicodeError:
            made.not_encodable += 1
        except Exception:
            log.exception("audit_event_failed", of=type(change).__name__)
            made.failed += 1
        if written:
            count += 1
        else:
            out.size = size
        if not written or count == CHUNK_EVENTS or out.size >= CHUNK_BYTES:
            _end_chunk(made, out, last - count + written, count)
            count = 0
    _end_chunk(made, out, last - count + 1, count)
    made.last = last
    return made


cdef int _end_chunk(made, JsonBuffer out, int64_t first, Py_ssize_t count) except -1:
    if count:
        made.chunks.append(Chunk(first, count, out.taken()))
        with nogil:  # the event loop has its turn, if it waits for the GIL
            pass
    return 0


cdef bint _is_hidden(audit_filter, kind, connection) except -1:
    """Whether a change gives no event. An unauthenticated principal hides nothing, since any client can claim it."""
    if kind == "authentication_failed" or connection.principal_source == "unauthenticated":
        return False
    return audit_filter.hides_principal(connection.principal)


cdef int _write_change(
    JsonBuffer out, const char *begin, int64_t seq, change, str kind, connection, double wall_offset
) except -1:
    cdef double at = change.at
    cdef double ts = (at + wall_offset) * 1e6
    cdef double duration
    if not isfinite(ts):
        raise ValueError("a time that is no number")
    out.put_number(begin, seq)
    out.put_string(b',"change":', kind)
    out.put_number(b',"ts":', llrint(ts))
    out.put_string(b',"listener":', connection.listener)
    out.put_string(b',"connection_id":', connection.id)
    out.put_clipped(b',"principal":', connection.principal)
    out.put_string(b',"client_ip":', connection.client_ip)
    out.put_number(b',"client_port":', connection.client_port)
    source = connection.principal_source
    if source != "anonymous":
        out.put_string(b',"principal_source":', source)
    out.put_clipped(b',"sasl_mechanism":', connection.sasl_mechanism)
    out.put_string(b',"tls_version":', connection.tls_version)
    out.put_string(b',"tls_cipher":', connection.tls_cipher)
    out.put_clipped(b',"tls_client_serial":', connection.tls_client_serial)
    if kind == "closed":
        out.put_clipped(b',"client_id":', change.client_id)
    out.put_clipped(b',"client_software_name":', connection.client_software_name)
    out.put_clipped(b',"client_software_version":', connection.client_software_version)
    if kind == "closed":
        duration = (at - <double>connection.opened_at) * 1e3
        if not isfinite(duration):
            raise ValueError("a time that is no number")
        out.put_string(b',"cause":', change.cause)
        _put_positive(out, b',"duration_ms":', llrint(duration))
        _put_positive(out, b',"requests":', change.requests)
        _put_positive(out, b',"received_bytes":', change.received_bytes)
        _put_positive(out, b',"sent_bytes":', change.sent_bytes)
    elif kind != "opened":
        if change.error_code:
            out.put_number(b',"error_code":', change.error_code)
        _put_positive(out, b',"session_lifetime_ms":', change.session_lifetime_ms)
    return out.put_literal(b"}")


cdef inline int _put_positive(JsonBuffer out, const char *name, int64_t value) except -1:
    if value > 0:
        out.put_number(name, value)
    return 0
