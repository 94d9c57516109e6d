# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Writes events as OpenTelemetry log records in OTLP's JSON. No IO, no clock; it works on bytes and needs no GIL.

The fields of an event become attributes in their order: ``brokerside.<field>``, or the name that the semantic
conventions have for it. What follows from several fields (severity, ``error.type``, ``messaging.destination.name``, …)
stands behind them.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

from observers.error_names import ERROR_NAMES
from proxy.core.response_errors import severity

cdef enum:
    MAX_CODES = 256  # error codes with a name
    MAX_RENAMED = 16
    MAX_DEPTH = 16  # of values in values
    KEPT_BYTES = 4_194_304  # a larger buffer is not kept for the next record
    INFO = 9  # SeverityNumber
    WARN = 13

cdef enum:  # as in proxy.core.response_errors
    NONE
    STEP
    RETRY
    FAILURE

cdef enum:  # api keys
    PRODUCE = 0
    FETCH = 1
    OFFSET_COMMIT = 8
    API_VERSIONS = 18
    TXN_OFFSET_COMMIT = 28
    UNSUPPORTED_VERSION = 35  # an error code
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79

include "json_reader.pxi"

cdef struct Facts:  # of one event; a size of 0 where it has no such field
    Text kind
    Text time
    Text seq
    Text api_key
    Text error_code
    Text topics
    Text item_errors
    Text item_failures
    Text errors
    Text outcome
    Text change
    Text action

cdef struct Worst:  # the first of the worst errors of a request
    int severity
    int64_t code

cdef struct Renamed:
    const char *field
    const char *attribute

cdef list _NAMES = [ERROR_NAMES.get(code, "").encode() for code in range(MAX_CODES)]
cdef const char *_NAME_OF[MAX_CODES]
cdef int _SEVERITY_OF[MAX_CODES]
for _code in range(MAX_CODES):
    _NAME_OF[_code] = <bytes>_NAMES[_code]
    _SEVERITY_OF[_code] = severity(-1, _code)


@cython.final
cdef class LogRecordWriter:
    """Writes the events of one record at a time. Not thread-safe."""

    cdef char *_out
    cdef Py_ssize_t _size, _capacity
    cdef bint _no_memory
    cdef list _kept_alive
    cdef Renamed _renamed[MAX_RENAMED]
    cdef Py_ssize_t _renamed_count

    def __cinit__(self, attributes):
        """``attributes``: names of attributes by field of an event, of those that are not ``brokerside.<field>``."""
        self._kept_alive = [text.encode() for pair in attributes.items() for text in pair]
        if len(attributes) > MAX_RENAMED:
            raise ValueError("too many attributes")
        self._renamed_count = len(attributes)
        for n in range(self._renamed_count):
            self._renamed[n].field = <bytes>self._kept_alive[2 * n]
            self._renamed[n].attribute = <bytes>self._kept_alive[2 * n + 1]

    def __dealloc__(self):
        free(self._out)

    def write_records(self, bytes events, bytes uid_prefix, bytes observed_time):
        """Return log records with commas between them, of a JSON array of events without white space.

        ``uid_prefix``: JSON text before the number in ``log.record.uid``. ``observed_time``: nanoseconds since 1970, in
        digits. Raises ValueError for what is no such array.
        """
        cdef const char *at = events
        cdef const char *end = at + len(events)
        cdef Text uid, observed
        uid.at, uid.size = uid_prefix, len(uid_prefix)
        observed.at, observed.size = observed_time, len(observed_time)
        cdef bint whole
        self._size = 0
        self._no_memory = False
        try:
            with nogil:
                whole = self._write_array(at, end, &uid, &observed)
            if self._no_memory:
                raise MemoryError
            if not whole:
                raise ValueError("is not a JSON array of events")
            return PyBytes_FromStringAndSize(self._out, self._size)
        finally:
            if self._capacity > KEPT_BYTES:
                free(self._out)
                self._out, self._capacity = NULL, 0

    cdef bint _write_array(self, const char *at, const char *end, const Text *uid, const Text *observed) noexcept nogil:
        """Return whether all of it was read."""
        if at >= end or at[0] != b"[":
            return False
        at += 1
        while at < end and at[0] == b"{":
            at = self._write_record(at, end, uid, observed)
            if at == NULL or at >= end:
                return False
            if at[0] == b"]":
                return at + 1 == end
            self._put(b",")
            at += 1
        return False

    cdef const char *_write_record(
        self, const char *at, const char *end, const Text *uid, const Text *observed
    ) noexcept nogil:
        """Write one event. Return the place behind it, or NULL where it is not whole."""
        cdef Facts facts
        cdef Member member
        memset(&facts, 0, sizeof(Facts))
        self._put(b'{"attributes":[')
        while True:  # at { or a comma
            at = _next_member(at + 1, end, &member)
            if at == NULL:
                return NULL
            if not self._is_kept_apart(&member, &facts):
                if not self._write_attribute(&member):
                    return NULL
                self._put(b",")
            if at[0] == b"}":
                break
            if at[0] != b",":
                return NULL
        self._write_derived(&facts, uid)
        self._put(b',"observedTimeUnixNano":"')
        self._put_text(observed)
        if facts.time.size:
            self._put(b'","timeUnixNano":"')
            self._put_text(&facts.time)  # µs
            self._put(b"000")
        self._put(b'","eventName":"brokerside.')
        self._put_content(&facts.kind)
        self._put(b'"}')
        return at + 1

    cdef bint _is_kept_apart(self, const Member *member, Facts *facts) noexcept nogil:
        """Keep what other attributes follow from. Return whether the field itself has no attribute."""
        cdef const Text *key = &member.key
        if _is(key, b"kind"):
            facts.kind = member.value
            return True
        if _is(key, b"ts") or _is(key, b"ts_request") or _is(key, b"ts_last") or _is(key, b"minute"):
            facts.time = member.value
            return True
        if _is(key, b"seq"):
            facts.seq = member.value
        elif _is(key, b"api_key"):
            facts.api_key = member.value
        elif _is(key, b"error_code"):
            facts.error_code = member.value
        elif _is(key, b"topics"):
            facts.topics = member.value
        elif _is(key, b"item_errors"):
            facts.item_errors = member.value
        elif _is(key, b"item_failures"):
            facts.item_failures = member.value
        elif _is(key, b"errors"):
            facts.errors = member.value
        elif _is(key, b"outcome"):
            facts.outcome = member.value
        elif _is(key, b"change"):
            facts.change = member.value
        elif _is(key, b"action"):
            facts.action = member.value
        return False

    cdef bint _write_attribute(self, const Member *member) noexcept nogil:
        cdef Py_ssize_t n
        self._put(b'{"key":"')
        for n in range(self._renamed_count):
            if _is(&member.key, self._renamed[n].field):
                self._put(self._renamed[n].attribute)
                break
        else:
            self._put(b"brokerside.")
            self._put_text(&member.key)
        self._put(b'","value":')
        if not self._write_value(&member.value, 0):
            return False
        self._put(b"}")
        return True

    cdef bint _write_value(self, const Text *value, int depth) noexcept nogil:
        """Write an ``AnyValue``. Return whether the JSON was whole."""
        cdef char first = value.at[0]
        if first == b'"':
            self._put(b'{"stringValue":')
            self._put_text(value)
        elif first == b"t" or first == b"f":
            self._put(b'{"boolValue":')
            self._put_text(value)
        elif first == b"n":
            self._put(b"{")
        elif first == b"[":
            return self._write_values(value, depth)
        elif first == b"{":
            return self._write_members(value, depth)
        elif memchr(value.at, b".", value.size) or memchr(value.at, b"e", value.size):
            self._put(b'{"doubleValue":')
            self._put_text(value)
        else:
            self._put(b'{"intValue":"')
            self._put_text(value)
            self._put(b'"')
        self._put(b"}")
        return True

    cdef bint _write_values(self, const Text *array, int depth) noexcept nogil:
        cdef const char *end = array.at + array.size
        cdef const char *at = array.at + 1
        cdef Text value
        self._put(b'{"arrayValue":{"values":[')
        if depth == MAX_DEPTH:
            return False
        while at[0] != b"]":
            value.at = at
            at = _end_of_value(at, end)
            if at == NULL or at == value.at:
                return False
            value.size = at - value.at
            if not self._write_value(&value, depth + 1):
                return False
            if at[0] == b",":
                self._put(b",")
                at += 1
        self._put(b"]}}")
        return True

    cdef bint _write_members(self, const Text *object, int depth) noexcept nogil:
        cdef const char *end = object.at + object.size
        cdef const char *at = object.at
        cdef Member member
        self._put(b'{"kvlistValue":{"values":[')
        if depth == MAX_DEPTH:
            return False
        if at[1] != b"}":
            while True:  # at { or a comma
                at = _next_member(at + 1, end, &member)
                if at == NULL:
                    return False
                self._put(b'{"key":"')
                self._put_text(&member.key)
                self._put(b'","value":')
                if not self._write_value(&member.value, depth + 1):
                    return False
                self._put(b"}")
                if at[0] != b",":
                    break
                self._put(b",")
        self._put(b"]}}")
        return True

    # ---- what follows from the fields -------------------------------------------------------------------------------

    cdef void _write_derived(self, const Facts *facts, const Text *uid) noexcept nogil:
        """Write the last attributes, the end of their list, and the severity."""
        cdef int64_t api_key = _number(&facts.api_key) if facts.api_key.size else -1
        cdef bint is_request = _is_content(&facts.kind, b"request")
        cdef bint login_failed = _is_content(&facts.change, b"authentication_failed")
        cdef Worst worst
        worst.severity = worst.code = NONE
        if is_request or _is_content(&facts.kind, b"rollup"):
            self._write_operation_type(api_key)
        if is_request or login_failed:
            _add_error(&worst, api_key, &facts.error_code)
        if is_request:
            _add_errors(&worst, api_key, &facts.topics)
            _add_errors(&worst, api_key, &facts.item_errors)
            if facts.item_failures.size:
                worst.severity = FAILURE
            if facts.topics.size:
                self._write_destination(&facts.topics)
        if worst.code:
            self._write_error_type(worst.code)
        elif login_failed:
            self._put(b'{"key":"error.type","value":{"stringValue":"authentication_failed"}},')
        elif _is_content(&facts.outcome, b"connection_lost"):
            self._put(b'{"key":"error.type","value":{"stringValue":"connection_lost"}},')
        if is_request or facts.api_key.size or facts.change.size or _is_content(&facts.kind, b"group"):
            self._put(b'{"key":"messaging.system","value":{"stringValue":"kafka"}},')
        self._put(b'{"key":"log.record.uid","value":{"stringValue":"')
        self._put_text(uid)
        self._put_text(&facts.seq)
        self._put(b'"}}')
        if (
            worst.severity == FAILURE
            or login_failed
            or facts.errors.size
            or _is_content(&facts.action, b"drop")
            or _is_content(&facts.kind, b"gap")
        ):
            self._put(b'],"severityNumber":13,"severityText":"WARN"')
        else:
            self._put(b'],"severityNumber":9,"severityText":"INFO"')

    cdef void _write_operation_type(self, int64_t api_key) noexcept nogil:
        cdef const char *text
        if api_key == PRODUCE:
            text = b"send"
        elif api_key == FETCH or api_key == SHARE_FETCH:
            text = b"receive"
        elif api_key == OFFSET_COMMIT or api_key == TXN_OFFSET_COMMIT or api_key == SHARE_ACKNOWLEDGE:
            text = b"settle"
        else:
            return
        self._put(b'{"key":"messaging.operation.type","value":{"stringValue":"')
        self._put(text)
        self._put(b'"}},')

    cdef void _write_error_type(self, int64_t code) noexcept nogil:
        self._put(b'{"key":"error.type","value":{"stringValue":"')
        if code == -1:
            self._put(b"UNKNOWN_SERVER_ERROR")
        elif 0 < code < MAX_CODES and _NAME_OF[code][0]:
            self._put(_NAME_OF[code])
        else:
            self._put(b"_OTHER")
        self._put(b'"}},')

    cdef void _write_destination(self, const Text *topics) noexcept nogil:
        """Write the topic, if there is one; its partition, if there is one; and the sum of the records."""
        cdef Elements elements
        cdef Member member
        cdef Text topic, partition
        cdef Py_ssize_t count = 0
        cdef bint same = True
        cdef int64_t records = 0
        topic.at = partition.at = NULL
        topic.size = partition.size = 0
        _begin(&elements, topics)
        while _next_element(&elements):
            count += 1
            while _next_field(&elements, &member):
                if _is(&member.key, b"topic"):
                    same = same and (count == 1 or _are_same(&topic, &member.value))
                    topic = member.value
                elif _is(&member.key, b"partition"):
                    partition = member.value
                elif _is(&member.key, b"records"):
                    records += _number(&member.value)
        if count and same and topic.size:
            self._put(b'{"key":"messaging.destination.name","value":{"stringValue":')
            self._put_text(&topic)
            self._put(b"}},")
        if count == 1 and partition.size:
            self._put(b'{"key":"messaging.destination.partition.id","value":{"stringValue":"')
            self._put_text(&partition)
            self._put(b'"}},')
        self._put(b'{"key":"messaging.batch.message_count","value":{"intValue":"')
        self._put_number(max(records, <int64_t>0))
        self._put(b'"}},')

    # ---- the buffer -------------------------------------------------------------------------------------------------

    cdef inline void _put(self, const char *text) noexcept nogil:
        self._put_bytes(text, strlen(text))

    cdef inline void _put_text(self, const Text *text) noexcept nogil:
        self._put_bytes(text.at, text.size)

    cdef inline void _put_content(self, const Text *text) noexcept nogil:
        """Write a string without its quotes."""
        if text.size >= 2:
            self._put_bytes(text.at + 1, text.size - 2)

    cdef void _put_number(self, int64_t number) noexcept nogil:
        """Write a number that is not negative."""
        cdef char digits[20]
        cdef int at = 20
        while True:
            at -= 1
            digits[at] = <char>(48 + number % 10)
            number //= 10
            if not number:
                break
        self._put_bytes(digits + at, 20 - at)

    cdef void _put_bytes(self, const char *text, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t capacity
        cdef char *grown
        if size > self._capacity - self._size:
            capacity = max(2 * self._capacity, self._size + size, <Py_ssize_t>65536)
            grown = <char *>realloc(self._out, capacity)
            if grown == NULL:
                self._no_memory = True
                return
            self._out, self._capacity = grown, capacity
        memcpy(self._out + self._size, text, size)
        self._size += size


# ---- errors ---------------------------------------------------------------------------------------------------------

cdef void _add_errors(Worst *worst, int64_t api_key, const Text *items) noexcept nogil:
    """Add ``error_code`` of every object of an array."""
    cdef Elements elements
    cdef Member member
    if items.size:
        _begin(&elements, items)
        while _next_element(&elements):
            while _next_field(&elements, &member):
                if _is(&member.key, b"error_code"):
                    _add_error(worst, api_key, &member.value)


cdef void _add_error(Worst *worst, int64_t api_key, const Text *error_code) noexcept nogil:
    cdef int64_t code
    cdef int how_bad
    if not error_code.size:
        return
    code = _number(error_code)
    if not code:
        return
    how_bad = FAILURE
    if api_key == API_VERSIONS and code == UNSUPPORTED_VERSION:
        how_bad = STEP
    elif 0 < code < MAX_CODES:
        how_bad = _SEVERITY_OF[code]
    if how_bad > worst.severity:
        worst.severity, worst.code = how_bad, code
