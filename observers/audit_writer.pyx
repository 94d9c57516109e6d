# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Encodes exchanges as audit events, many at a time. No IO, no clock.

Each chunk of events takes two steps. With the GIL every exchange becomes a row of numbers and pointers to texts; msgspec
encodes the texts of a connection, an api and a topic once. Without the GIL the rows are written as JSON. So the event
loop waits for the GIL for some microseconds at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Size
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.math cimport isfinite, llrint
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
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
from observers.event import encoder
from proxy.core.names import clip
from observers.item_errors import item_errors_of
from observers.request_resources import resource_fields
from observers.request_events import MAX_EVENT_BYTES, UNKNOWN_ERROR_CODE, log_event_failure, max_partition_bytes

cdef enum:
    CHUNK_EVENTS = 100  # events written without taking the GIL; 2 chunks fill a record
    CHUNK_BYTES = 262_144  # bytes after which a chunk ends early; an event of more has a chunk of its own
    CACHED_CONNECTIONS = 1024  # connections whose texts are kept, a power of two
    MAX_CACHED_RESOURCES = 4_000
    MAX_KEPT_RESOURCES_TEXT = 1_000  # longer texts are not kept
    MAX_CACHED_TOPICS = 20_000  # topics whose texts are kept
    MAX_CACHED_TEXT = 256  # longer texts that a client chose are not kept, lest hostile ones fill the memory
    MAX_ROW_BYTES = 720  # upper bound in bytes of an event without its texts and partitions

include "exchanges.pxi"
include "json_buffer.pxi"


class _EventTooLarge(Exception):
    """The partitions of an event may need more bytes than it may have."""


# ---- texts that repeat ----------------------------------------------------------------------------------------------

cdef class ConnectionTexts:
    """The JSON of a connection in each of its events. Immutable: a change of the connection makes a new one."""

    cdef object connection, client_id
    cdef bytes connection_json, principal_json, software_json, source_json
    cdef bint hidden  # by its principal
    cdef double next_poll_at  # when its polled topics are listed again

    cdef bint has_long_text  # that a client chose; the name of its software has at most 255 bytes


cdef ConnectionTexts _make_connection_texts(object connection, object client_id, object audit_filter, JsonBuffer out):
    cdef ConnectionTexts client = ConnectionTexts.__new__(ConnectionTexts)
    cdef str principal = connection.principal
    client.connection = connection
    client.client_id = client_id
    client.hidden = audit_filter.hides_principal(principal)
    if client.hidden:
        client.has_long_text = len(principal) > MAX_CACHED_TEXT
        return client
    out.size = 0  # of one that raised
    out.put_string(b',"listener":', connection.listener)
    out.put_string(b',"connection_id":', connection.id)
    out.put_literal(b',"correlation_id":')
    client.connection_json = out.taken()
    out.put_clipped(b',"principal":', principal)
    out.put_string(b',"client_ip":', connection.client_ip)
    out.put_literal(b',"ts_request":')
    client.principal_json = out.taken()
    out.put_clipped(b',"client_id":', client_id)
    out.put_clipped(b',"client_software_name":', connection.client_software_name)
    out.put_clipped(b',"client_software_version":', connection.client_software_version)
    client.software_json = out.taken()
    source = connection.principal_source
    client.source_json = b"" if source == "anonymous" else _optional(b"principal_source", source)
    client.has_long_text = (
        len(principal) > MAX_CACHED_TEXT or (client_id is not None and len(<str>client_id) > MAX_CACHED_TEXT)
    )
    return client


cdef bytes _optional(bytes name, object text):
    return b"" if text is None else b',"%b":%b' % (name, encoder.encode(clip(text)))


cdef class TopicTexts:
    """The JSON of a topic in each of its partitions."""

    cdef bytes name, topic_id
    cdef Py_ssize_t room  # upper bound in bytes of a partition
    cdef str hidden  # its name, where it is excluded


include "rows.pxi"


cdef class RequestEventEncoder:
    """Builds events. Not thread-safe, and neither is its filter."""

    cdef object _names, _filter, _sessions, _muting
    cdef dict _apis, _open_sessions, _muted
    cdef dict _name_labels, _id_labels
    cdef list _clients
    cdef dict _resource_texts  # JSON of what requests are about, by all that it follows from
    cdef set _left_out  # excluded topics that the current event does without; of the filter
    cdef JsonBuffer _texts
    cdef list _kept_alive  # objects that rows of this chunk point to and caches may have dropped
    cdef Row *_rows
    cdef Py_ssize_t _row_count
    cdef PartRow *_parts
    cdef Py_ssize_t _part_count, _part_capacity
    cdef Py_ssize_t _max_bytes, _last_max_bytes  # bytes that the rows, and the last of them, can need at most
    cdef Py_ssize_t _max_event
    cdef char *_out
    cdef Py_ssize_t _out_capacity

    def __cinit__(self):
        self._rows = <Row *>PyMem_Malloc(CHUNK_EVENTS * sizeof(Row))
        if self._rows == NULL:
            raise MemoryError

    def __init__(self, api_names, names, audit_filter, *, max_event=MAX_EVENT_BYTES):
        self._max_event = max_event
        self._names = names
        self._filter = audit_filter
        self._sessions = audit_filter.sessions
        self._open_sessions = audit_filter.sessions.open_sessions
        self._left_out = audit_filter.left_out
        self._muting = audit_filter.muting
        self._muted = audit_filter.muting.spans
        self._apis = {key: _api(key, name) for key, name in api_names.items()}  # few: a client's own keys are not kept
        self._name_labels = {}
        self._id_labels = {}
        self._clients = [None] * CACHED_CONNECTIONS
        self._kept_alive = []
        self._texts = JsonBuffer()
        self._resource_texts = {}

    def __dealloc__(self):
        PyMem_Free(self._rows)
        PyMem_Free(self._parts)
        PyMem_Free(self._out)

    def encode_exchanges(self, exchanges, int64_t first, double wall_offset):
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
                if self._row_count == CHUNK_EVENTS or self._max_bytes >= CHUNK_BYTES:
                    self._end_chunk(made)
                if not self._add_row(exchange, last, wall_offset):
                    last -= 1
                    made.hidden += 1
            except UnicodeError:
                self._end_chunk(made)
                made.not_encodable += 1
            except _EventTooLarge:
                self._end_chunk(made)
                made.too_large += 1
            except Exception:
                self._end_chunk(made)
                log_event_failure(exchange)
                made.failed += 1
        self._end_chunk(made)
        made.last = last
        return made

    # ---- with the GIL: exchanges to rows ----------------------------------------------------------------------------

    cdef bint _add_row(self, Exchange exchange, int64_t seq, double wall_offset) except -1:
        """Add the row of ``exchange``; return whether it has one. After an exception it has none."""
        cdef ConnectionTexts client
        cdef Py_ssize_t parts = self._part_count, room = self._max_bytes
        cdef bint fits = True
        cdef Row *row = &self._rows[self._row_count]
        cdef Body *request = exchange.request_body
        cdef Body *response = exchange.response_body
        cdef int16_t key = exchange.api_key
        cdef bytes api, polled, items
        if self._left_out:
            self._left_out.clear()
        row.muted_us = _muted_us(exchange, self._muting, self._muted)
        try:
            client = self._connection_texts(exchange)
        except UnicodeError:
            if self._filter.record_and_check_hidden(exchange):
                return False
            _read_basics(exchange, wall_offset, &row.basics)
            if _may_be_polled(exchange, 0.0):
                self._filter.take_polled_topics(exchange)
            raise
        if client.hidden:
            self._filter.count_hidden_by_principal(exchange.connection.principal)
            return False
        api = self._api_text(key)
        row.max_wait_ms = row.acks = 0
        row.has_acks = False
        try:
            if key == PRODUCE:
                if request != NULL:
                    row.acks = request.acks
                    row.has_acks = True
                    fits = self._add_produced_rows(request, response, exchange.outcome_code, room + self._max_event)
            elif _is_fetch(key):
                if request != NULL:
                    row.max_wait_ms = request.max_wait_ms
                if response != NULL:
                    fits = self._add_fetched_rows(response, room + self._max_event)
            if self._part_count > parts:  # on a topic that is not hidden
                if _is_fetch(key) and request != NULL and _changes_session(exchange, self._open_sessions):
                    self._sessions.record_fetch(exchange)
                if key != PRODUCE:
                    self._count_fetched_records(exchange, parts)
            elif (request != NULL or response != NULL) and self._filter.record_and_check_hidden(exchange):
                return False
            _read_basics(exchange, wall_offset, &row.basics)
            polled = self._polled_text(exchange, client) if _may_be_polled(exchange, client.next_poll_at) else b""
            items = b""
            if exchange.item_errors is not None or exchange.resources is not None:
                items = self._items_text(exchange)
            if key == PRODUCE and request != NULL and request.transactional_id != NULL:
                items += self._transaction_text(request)
                self._kept_alive.append(items)
            elif key == SHARE_FETCH and request != NULL and request.group_id != NULL:
                items += _optional(b"group_id", (<bytes>request.group_id).decode("utf-8", "replace"))
                self._kept_alive.append(items)
            if not fits:
                raise _EventTooLarge
        except BaseException:
            self._part_count, self._max_bytes = parts, room
            raise
        row.connection_json = <PyObject *>client.connection_json
        row.api_json = <PyObject *>api
        row.principal_json = <PyObject *>client.principal_json
        row.software_json = <PyObject *>client.software_json
        row.source_json = <PyObject *>client.source_json
        row.polled_json = <PyObject *>polled
        row.items_json = <PyObject *>items
        row.seq = seq
        row.request_bytes = exchange.request_bytes
        row.response_bytes = exchange.response_bytes
        row.parts = self._part_count - parts
        row.correlation_id = exchange.correlation_id
        row.api_version = exchange.api_version
        row.outcome = exchange.outcome_code
        row.decode = exchange.decode_code
        row.synthesized = exchange.synthesized
        self._max_bytes += MAX_ROW_BYTES + _size(row.connection_json) + _size(row.api_json) + _size(row.principal_json) + _size(row.software_json)
        self._max_bytes += _size(row.source_json) + _size(row.polled_json) + _size(row.items_json)
        self._last_max_bytes = self._max_bytes - room
        self._row_count += 1
        if self._left_out:
            self._filter.count_partly_hidden()
        return True

    cdef ConnectionTexts _connection_texts(self, Exchange exchange):
        cdef size_t slot = (<size_t><PyObject *>exchange.connection >> 4) & (CACHED_CONNECTIONS - 1)
        cdef object held = self._clients[slot]
        cdef ConnectionTexts client
        if held is not None:
            client = <ConnectionTexts>held
            if client.connection is exchange.connection and client.client_id == exchange.client_id:
                return client
            self._kept_alive.append(held)
        client = _make_connection_texts(exchange.connection, exchange.client_id, self._filter, self._texts)
        self._kept_alive.append(client)
        if not client.has_long_text:
            self._clients[slot] = client
        return client

    cdef bytes _polled_text(self, Exchange exchange, ConnectionTexts client):
        cdef bytes polled
        names = self._filter.take_polled_topics(exchange)
        client.next_poll_at = self._sessions.next_poll_at(client.connection.id)
        if not names:
            return b""
        polled = b',"polled":' + encoder.encode(names)
        self._kept_alive.append(polled)
        return polled

    cdef bytes _items_text(self, Exchange exchange):
        """What the request is about, and the errors of single items of its response."""
        cdef bytes items = b""
        errors = exchange.item_errors
        if errors is not None:
            listed = item_errors_of(errors, self._names, self._filter)
            if listed:
                items = b',"item_errors":' + encoder.encode(listed)
            for name, count in (
                (b"failures", errors.failures), (b"retriable", errors.retriable), (b"protocol", errors.protocol),
            ):
                if count:
                    items += b',"item_%b":%d' % (name, count)
        if exchange.resources is not None:
            items += self._resources_text(exchange)
        self._kept_alive.append(items)
        return items

    cdef bytes _resources_text(self, Exchange exchange):
        """What the request is about. Heartbeats and the like say the same again and again, so their texts are kept; not
        those that the sidecar answered, whose results follow from the size of the answer, too."""
        cdef bytes fields
        found = exchange.resources
        key = None
        if exchange.outcome_code == ANSWERED and not (exchange.error_code or exchange.synthesized) and exchange.item_errors is None:
            key = (
                exchange.api_key, exchange.decode_code, found.items, found.count, found.group_id, found.member_id,
                found.group_instance_id, found.generation_id, found.transactional_id, found.validate_only,
            )
            kept = self._resource_texts.get(key)
            if kept is not None:
                return <bytes>kept
        fields = encoder.encode(resource_fields(exchange, self._names, self._filter))
        fields = b"" if fields == b"{}" else b"," + fields[1 : len(fields) - 1]
        if key is not None and not self._left_out and len(fields) <= MAX_KEPT_RESOURCES_TEXT and not any([one.topic_id for one in found.items]):
            if len(self._resource_texts) >= MAX_CACHED_RESOURCES:
                self._resource_texts.clear()
            self._resource_texts[key] = fields
        return fields

    cdef bytes _transaction_text(self, Body *request):
        return _optional(b"transactional_id", (<bytes>request.transactional_id).decode("utf-8", "replace"))

    cdef bytes _api_text(self, int16_t key):
        cdef PyObject *found = PyDict_GetItemWithError(self._apis, key)
        cdef bytes api
        if found != NULL:
            return <bytes>found
        api = _api(key, None)
        self._kept_alive.append(api)
        return api

    cdef TopicTexts _topic_texts(self, PyObject *topic, bint is_id):
        cdef dict labels = self._id_labels if is_id else self._name_labels
        cdef PyObject *found = PyDict_GetItemWithError(labels, <object>topic)
        cdef TopicTexts label
        if found != NULL:
            return <TopicTexts>found
        name, topic_id = self._names.label_of(<object>topic, is_id)
        label = TopicTexts.__new__(TopicTexts)
        label.hidden = name if self._filter.hides_topic(name) else None
        label.name = b'{"topic":%b,"partition":' % encoder.encode(name)
        label.topic_id = _optional(b"topic_id", topic_id)
        label.room = max_partition_bytes(name, topic_id)
        self._kept_alive.append(label)
        if _size(topic) > MAX_CACHED_TEXT or (is_id and name == f"id:{topic_id}"):
            return label  # the name of this id may become known later
        if len(labels) >= MAX_CACHED_TOPICS:
            self._kept_alive.append(labels.copy())
            labels.clear()
        labels[<object>topic] = label
        return label

    cdef PartRow *_new_part(self, TopicTexts label, const Part *part) except NULL:
        cdef PartRow *parts
        cdef Py_ssize_t capacity
        if self._part_count == self._part_capacity:
            capacity = max(<Py_ssize_t>CHUNK_EVENTS, 2 * self._part_capacity)
            parts = <PartRow *>PyMem_Realloc(self._parts, capacity * sizeof(PartRow))
            if parts == NULL:
                raise MemoryError
            self._parts, self._part_capacity = parts, capacity
        parts = &self._parts[self._part_count]
        parts.name = <PyObject *>label.name
        parts.topic_id = <PyObject *>label.topic_id
        parts.part = part
        self._part_count += 1
        self._max_bytes += label.room
        return parts

    cdef bint _add_produced_rows(self, Body *request, Body *response, OutcomeCode outcome, Py_ssize_t limit) except -1:
        """Every partition sent, joined with its answer by (topic, partition). Return whether the room is in its limit.

        The answers come last: there may be many of them, and too large an event does without.
        """
        cdef Py_ssize_t at, first = self._part_count
        cdef Part *answer
        cdef PartRow *row
        cdef TopicTexts label
        cdef dict answers = None
        for at in range(request.count):
            label = self._topic_texts(request.parts[at].topic, request.topics_are_ids)
            if label.hidden is not None:
                self._left_out.add(label.hidden)
                continue
            row = self._new_part(label, &request.parts[at])
            row.produced, row.records, row.upper_bound = True, row.part.records.records, False
            if self._max_bytes > limit:
                return False
        if self._part_count > first:
            answers = _places_of(response)
        for at in range(first, self._part_count):
            row = &self._parts[at]
            answer = _find_part(response, answers, row.part)
            if answer != NULL:
                row.error_code, row.base_offset = answer.error_code, answer.offset
            else:
                row.error_code, row.base_offset = (_UNKNOWN_ERROR_CODE if outcome == ANSWERED else 0), -1
        return True

    cdef bint _add_fetched_rows(self, Body *response, Py_ssize_t limit) except -1:
        """Every partition that returned records or an error. Return whether the room is in its limit."""
        cdef Py_ssize_t at
        cdef Part *got
        cdef PartRow *row
        cdef TopicTexts label
        for at in range(response.count):
            got = &response.parts[at]
            if not got.records.size and not got.error_code:
                continue
            label = self._topic_texts(got.topic, response.topics_are_ids)
            if label.hidden is not None:
                self._left_out.add(label.hidden)
                continue
            row = self._new_part(label, got)
            row.produced = False
            row.error_code, row.base_offset = got.error_code, got.records.base_offset
            if self._max_bytes > limit:
                return False
        return True

    cdef int _count_fetched_records(self, Exchange exchange, Py_ssize_t first) except -1:
        """Set the number of records of the rows from ``first`` on, once their fetch session is up to date."""
        cdef Py_ssize_t at
        cdef PartRow *row
        cdef dict places = _wanted_places_of(exchange)
        for at in range(first, self._part_count):
            row = &self._parts[at]
            row.upper_bound = _count_consumed(exchange, row.part, places, self._open_sessions, &row.records)
        return 0

    # ---- without the GIL: rows to JSON ----------------------------------------------------------------------------

    cdef int _end_chunk(self, made) except -1:
        """Write the rows, if there are any. A large event, always the last, goes apart: it may be lost on its way."""
        cdef Py_ssize_t count = self._row_count
        cdef Row *last
        if not count:
            self._kept_alive.clear()
            return 0
        if self._max_bytes > self._out_capacity or self._out_capacity > 4 * CHUNK_BYTES:
            PyMem_Free(self._out)
            self._out_capacity = 0
            self._out = <char *>PyMem_Malloc(max(self._max_bytes, <Py_ssize_t>CHUNK_BYTES))
            if self._out == NULL:
                raise MemoryError
            self._out_capacity = max(self._max_bytes, <Py_ssize_t>CHUNK_BYTES)
        if self._last_max_bytes > CHUNK_BYTES and count > 1:
            last = &self._rows[count - 1]
            made.chunks += [
                self._encode_chunk(self._rows, count - 1, self._parts),
                self._encode_chunk(last, 1, self._parts + self._part_count - last.parts),
            ]
        else:
            made.chunks.append(self._encode_chunk(self._rows, count, self._parts))
        self._start_chunk()
        return 0

    cdef object _encode_chunk(self, const Row *rows, Py_ssize_t count, const PartRow *parts):
        cdef char *end
        with nogil:
            end = _write(self._out, rows, count, parts)
        return Chunk(rows.seq, count, PyBytes_FromStringAndSize(self._out, end - self._out))

    cdef void _start_chunk(self):
        self._row_count = self._part_count = self._max_bytes = 0
        self._kept_alive.clear()


cdef bytes _api(key, name):
    return b',"api_key":%d,"api":%b,"api_version":' % (key, encoder.encode(name or f"ApiKey({key})"))
