# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""From exchanges to encoded audit events, many at a time: no IO, no clock.

Two steps for each chunk of events. With the GIL every exchange becomes a row: numbers, and where the texts are that
repeat (what a connection, a kind of request or a topic adds to an event is encoded once, by msgspec). Without the GIL
the rows are written. So the thread of the loop is held up for some microseconds at a time.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.math cimport isfinite, llrint
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, strlen

from proxy.compiled.exchange cimport (
    ANSWERED,
    CONNECTION_LOST,
    FULL,
    MALFORMED,
    NO_RESPONSE,
    NOT_KEPT,
    UNSUPPORTED,
    Body,
    DecodeCode,
    Exchange,
    OutcomeCode,
    Part,
    RecordSums,
)

from observers.event_blocks import Chunk, EncodedEvents
from observers.event import clip, encoder
from observers.requests import MAX_EVENT, UNKNOWN_RESULT, report_failure, room_of

cdef enum:
    CHUNK = 100  # events written without taking the GIL; 2 chunks fill a record
    CHUNK_ROOM = 262_144  # bytes after which a chunk ends early; an event of more has a chunk of its own
    CLIENTS = 1024  # connections whose texts are kept, a power of two
    LABELS = 20_000  # topics whose texts are kept
    LONG = 256  # longer texts that a client chose are not kept, lest hostile ones fill the memory
    ROW_ROOM = 720  # bytes of an event besides its texts and partitions, more than there can be

include "exchanges.pxi"


class _TooLarge(Exception):
    """The partitions of an event may need more bytes than it may have."""


# ---- what repeats ---------------------------------------------------------------------------------------------------

cdef class Client:
    """What a connection adds to each of its events. It never changes: what is learned of a client makes a new one."""

    cdef object connection, client_id
    cdef bytes who, whence, software, source
    cdef bint hidden  # by its principal
    cdef bint own  # the sidecar's, by its client id
    cdef double due  # when its polled topics may be told again

    cdef bint is_long(self):
        connection = self.connection
        for text in (
            self.client_id, connection.principal, connection.client_software_name, connection.client_software_version,
        ):
            if text is not None and len(text) > LONG:
                return True
        return False


cdef Client _client(object connection, object client_id, object audit_filter):
    cdef Client client = Client.__new__(Client)
    client.connection = connection
    client.client_id = client_id
    client.hidden = audit_filter.hides_principal(connection.principal)
    client.own = audit_filter.is_own_client_id(client_id)
    if client.hidden:
        return client
    client.who = b',"listener":%b,"connection_id":%b,"correlation_id":' % (
        encoder.encode(connection.listener), encoder.encode(connection.id),
    )
    client.whence = b',"principal":%b,"client_ip":%b,"ts_request":' % (
        encoder.encode(clip(connection.principal)), encoder.encode(connection.client_ip),
    )
    client.software = (
        _optional(b"client_id", client_id)
        + _optional(b"client_software_name", connection.client_software_name)
        + _optional(b"client_software_version", connection.client_software_version)
    )
    source = connection.principal_source
    client.source = b"" if source == "anonymous" else _optional(b"principal_source", source)
    return client


cdef bytes _optional(bytes name, object text):
    return b"" if text is None else b',"%b":%b' % (name, encoder.encode(clip(text)))


cdef class Label:
    """What a topic adds to each of its partitions."""

    cdef bytes name, topic_id
    cdef Py_ssize_t room  # bytes that each of them can need at most
    cdef bint hidden


include "rows.pxi"


cdef class Translator:
    """Builds events. Not thread-safe, and neither is its filter."""

    cdef object _names, _filter, _sessions, _muting
    cdef dict _apis, _open_sessions, _muted
    cdef dict _name_labels, _id_labels
    cdef list _clients
    cdef list _keep  # what the rows of this chunk refer to and the caches may have let go
    cdef Row *_rows
    cdef Py_ssize_t _row_count
    cdef PartRow *_parts
    cdef Py_ssize_t _part_count, _part_capacity
    cdef Py_ssize_t _room, _last_room  # bytes that the rows, and the last of them, can need at most
    cdef Py_ssize_t _max_event
    cdef char *_out
    cdef Py_ssize_t _out_capacity

    def __cinit__(self):
        self._rows = <Row *>PyMem_Malloc(CHUNK * sizeof(Row))
        if self._rows == NULL:
            raise MemoryError

    def __init__(self, api_names, names, audit_filter, *, max_event=MAX_EVENT):
        self._max_event = max_event
        self._names = names
        self._filter = audit_filter
        self._sessions = audit_filter.sessions
        self._open_sessions = audit_filter.sessions.open_sessions
        self._muting = audit_filter.muting
        self._muted = audit_filter.muting.spans
        self._apis = {key: _api(key, name) for key, name in api_names.items()}  # few: a client's own keys are not kept
        self._name_labels = {}
        self._id_labels = {}
        self._clients = [None] * CLIENTS
        self._keep = []

    def __dealloc__(self):
        PyMem_Free(self._rows)
        PyMem_Free(self._parts)
        PyMem_Free(self._out)

    def translate(self, exchanges, int64_t first, double wall_offset):
        """Return the events of ``exchanges``, numbered from ``first`` on.

        ``wall_offset``: seconds to add to the exchanges' times to get seconds since the epoch. Never raises for an
        exchange it cannot work with: that one is counted, and its number is missing. TypeError: what is no exchange.
        """
        cdef Exchange exchange
        cdef int64_t last = first - 1
        made = EncodedEvents(last=last)
        self._start_chunk()
        for one in exchanges:
            exchange = <Exchange?>one
            last += 1
            try:
                if self._row_count == CHUNK or self._room >= CHUNK_ROOM:
                    self._end_chunk(made)
                if not self._add(exchange, last, wall_offset):
                    last -= 1
                    made.hidden += 1
            except UnicodeError:
                self._end_chunk(made)
                made.not_encodable += 1
            except _TooLarge:
                self._end_chunk(made)
                made.too_large += 1
            except Exception:
                self._end_chunk(made)
                report_failure(exchange)
                made.failed += 1
        self._end_chunk(made)
        made.last = last
        return made

    # ---- with the GIL: exchanges to rows ----------------------------------------------------------------------------

    cdef bint _add(self, Exchange exchange, int64_t seq, double wall_offset) except -1:
        """Add the row of ``exchange``; return whether it has one. After an exception it has none."""
        cdef Client client
        cdef Py_ssize_t parts = self._part_count, room = self._room
        cdef bint fits = True
        cdef Row *row = &self._rows[self._row_count]
        cdef Body *request = exchange.request_body
        cdef Body *response = exchange.response_body
        cdef int16_t key = exchange.api_key
        cdef bytes api, polled
        row.muted_us = _muted_us(exchange, self._muting, self._muted)
        try:
            client = self._client_of(exchange)
        except UnicodeError:
            if self._filter.record_and_check_hidden(exchange):
                return False
            _read_basics(exchange, wall_offset, &row.basics)
            if _may_be_polled(exchange, 0.0):
                self._filter.take_polled_topics(exchange)
            raise
        if client.hidden:
            return False
        api = self._api_of(key)
        row.max_wait_ms = row.acks = 0
        row.has_acks = False
        try:
            if key == PRODUCE:
                if request != NULL:
                    row.acks = request.acks
                    row.has_acks = True
                    fits = self._add_produced(request, response, exchange.outcome_code, room + self._max_event)
            elif _is_fetch(key):
                if request != NULL:
                    row.max_wait_ms = request.max_wait_ms
                if response != NULL:
                    fits = self._add_fetched(response, room + self._max_event)
            if self._part_count > parts:  # on a topic that is not hidden
                if _is_fetch(key) and request != NULL and _changes_session(exchange, self._open_sessions):
                    self._sessions.record_fetch(exchange)
            elif client.own if request == NULL and response == NULL else self._filter.record_and_check_hidden(exchange):
                return False
            _read_basics(exchange, wall_offset, &row.basics)
            polled = self._polled(exchange, client) if _may_be_polled(exchange, client.due) else b""
            if not fits:
                raise _TooLarge
        except BaseException:
            self._part_count, self._room = parts, room
            raise
        row.who = <PyObject *>client.who
        row.api = <PyObject *>api
        row.whence = <PyObject *>client.whence
        row.software = <PyObject *>client.software
        row.source = <PyObject *>client.source
        row.polled = <PyObject *>polled
        row.seq = seq
        row.request_bytes = exchange.request_bytes
        row.response_bytes = exchange.response_bytes
        row.parts = self._part_count - parts
        row.correlation_id = exchange.correlation_id
        row.api_version = exchange.api_version
        row.outcome = exchange.outcome_code
        row.decode = exchange.decode_code
        row.synthesized = exchange.synthesized
        self._room += ROW_ROOM + _size(row.who) + _size(row.api) + _size(row.whence) + _size(row.software)
        self._room += _size(row.source) + _size(row.polled)
        self._last_room = self._room - room
        self._row_count += 1
        return True

    cdef Client _client_of(self, Exchange exchange):
        cdef size_t slot = (<size_t><PyObject *>exchange.connection >> 4) & (CLIENTS - 1)
        cdef object held = self._clients[slot]
        cdef Client client
        if held is not None:
            client = <Client>held
            if client.connection is exchange.connection and client.client_id == exchange.client_id:
                return client
            self._keep.append(held)
        client = _client(exchange.connection, exchange.client_id, self._filter)
        self._keep.append(client)
        if not client.is_long():
            self._clients[slot] = client
        return client

    cdef bytes _polled(self, Exchange exchange, Client client):
        cdef bytes polled
        names = self._filter.take_polled_topics(exchange)
        client.due = self._sessions.next_poll_at(client.connection.id)
        if not names:
            return b""
        polled = b',"polled":' + encoder.encode(names)
        self._keep.append(polled)
        return polled

    cdef bytes _api_of(self, int16_t key):
        cdef PyObject *found = PyDict_GetItemWithError(self._apis, key)
        cdef bytes api
        if found != NULL:
            return <bytes>found
        api = _api(key, None)
        self._keep.append(api)
        return api

    cdef Label _label_of(self, PyObject *topic, bint is_id):
        cdef dict labels = self._id_labels if is_id else self._name_labels
        cdef PyObject *found = PyDict_GetItemWithError(labels, <object>topic)
        cdef Label label
        if found != NULL:
            return <Label>found
        name, topic_id = self._names.label_of(<object>topic, is_id)
        label = Label.__new__(Label)
        label.hidden = self._filter.hides_topic(name)
        label.name = b'{"topic":%b,"partition":' % encoder.encode(name)
        label.topic_id = _optional(b"topic_id", topic_id)
        label.room = room_of(name, topic_id)
        self._keep.append(label)
        if _size(topic) > LONG or (is_id and name == f"id:{topic_id}"):
            return label  # the cluster may tell the name of this id later
        if len(labels) >= LABELS:
            self._keep.append(labels.copy())
            labels.clear()
        labels[<object>topic] = label
        return label

    cdef PartRow *_new_part(self, Label label, const Part *part) except NULL:
        cdef PartRow *parts
        cdef Py_ssize_t capacity
        if self._part_count == self._part_capacity:
            capacity = max(<Py_ssize_t>CHUNK, 2 * self._part_capacity)
            parts = <PartRow *>PyMem_Realloc(self._parts, capacity * sizeof(PartRow))
            if parts == NULL:
                raise MemoryError
            self._parts, self._part_capacity = parts, capacity
        parts = &self._parts[self._part_count]
        parts.name = <PyObject *>label.name
        parts.topic_id = <PyObject *>label.topic_id
        parts.part = part
        self._part_count += 1
        self._room += label.room
        return parts

    cdef bint _add_produced(self, Body *request, Body *response, OutcomeCode outcome, Py_ssize_t limit) except -1:
        """Every partition sent, joined with its answer by (topic, partition). Return whether the room is in its limit.

        The answers come last: there may be many of them, and too large an event does without.
        """
        cdef Py_ssize_t at, first = self._part_count
        cdef Part *answer
        cdef PartRow *row
        cdef Label label
        cdef dict answers = None
        for at in range(request.count):
            label = self._label_of(request.parts[at].topic, request.topics_are_ids)
            if label.hidden:
                continue
            self._new_part(label, &request.parts[at]).produced = True
            if self._room > limit:
                return False
        if self._part_count > first:
            answers = _answers_of(response)
        for at in range(first, self._part_count):
            row = &self._parts[at]
            answer = _answer(response, answers, row.part)
            if answer != NULL:
                row.error_code, row.base_offset = answer.error_code, answer.offset
            else:
                row.error_code, row.base_offset = (_UNKNOWN_RESULT if outcome == ANSWERED else 0), -1
        return True

    cdef bint _add_fetched(self, Body *response, Py_ssize_t limit) except -1:
        """Every partition that returned records or an error. Return whether the room is in its limit."""
        cdef Py_ssize_t at
        cdef Part *got
        cdef PartRow *row
        cdef Label label
        for at in range(response.count):
            got = &response.parts[at]
            if not got.records.size and not got.error_code:
                continue
            label = self._label_of(got.topic, response.topics_are_ids)
            if label.hidden:
                continue
            row = self._new_part(label, got)
            row.produced = False
            row.error_code, row.base_offset = got.error_code, got.records.base_offset
            if self._room > limit:
                return False
        return True

    # ---- without it: rows to JSON -----------------------------------------------------------------------------------

    cdef int _end_chunk(self, made) except -1:
        """Write the rows, if there are any. A large event, always the last, goes apart: it may be lost on its way."""
        cdef Py_ssize_t count = self._row_count
        cdef Row *last
        if not count:
            self._keep.clear()
            return 0
        if self._room > self._out_capacity or self._out_capacity > 4 * CHUNK_ROOM:
            PyMem_Free(self._out)
            self._out_capacity = 0
            self._out = <char *>PyMem_Malloc(max(self._room, <Py_ssize_t>CHUNK_ROOM))
            if self._out == NULL:
                raise MemoryError
            self._out_capacity = max(self._room, <Py_ssize_t>CHUNK_ROOM)
        if self._last_room > CHUNK_ROOM and count > 1:
            last = &self._rows[count - 1]
            made.chunks += [
                self._chunk(self._rows, count - 1, self._parts),
                self._chunk(last, 1, self._parts + self._part_count - last.parts),
            ]
        else:
            made.chunks.append(self._chunk(self._rows, count, self._parts))
        self._start_chunk()
        return 0

    cdef object _chunk(self, const Row *rows, Py_ssize_t count, const PartRow *parts):
        cdef char *end
        with nogil:
            end = _write(self._out, rows, count, parts)
        return Chunk(rows.seq, count, PyBytes_FromStringAndSize(self._out, end - self._out))

    cdef void _start_chunk(self):
        self._row_count = self._part_count = self._room = 0
        self._keep.clear()


cdef bytes _api(key, name):
    return b',"api_key":%d,"api":%b,"api_version":' % (key, encoder.encode(name or f"ApiKey({key})"))
