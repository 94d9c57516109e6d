# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Twin of ``observers.translate.Translator`` for the exchanges of a compiled session: the same events, byte for byte.

Two steps for each chunk of events. With the GIL every exchange becomes a row: numbers, and where the texts are that
repeat (what a connection, a kind of request or a topic adds to an event is encoded once, by msgspec). Without the GIL
the rows are written. So the thread of the loop is held up for some microseconds at a time.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
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
    UNSUPPORTED,
    Body,
    DecodeCode,
    Exchange,
    OutcomeCode,
    Part,
    RecordSums,
)

from observers.batch import Chunk, Translation
from observers.event import clip, encoder
from observers.translate import Translator as PureTranslator
from observers.translate import UNKNOWN_RESULT, report_failure

cdef enum:
    PRODUCE = 0
    FETCH = 1
    CHUNK = 100  # events written without taking the GIL; 2 chunks fill a record
    CHUNK_ROOM = 262_144  # bytes after which a chunk ends early
    CLIENTS = 1024  # connections whose texts are kept, a power of two
    LABELS = 20_000  # topics whose texts are kept
    LONG = 256  # longer texts that a client chose are not kept, lest hostile ones fill the memory
    FEW = 8  # answers up to which one is found by looking at each
    ROW_ROOM = 640  # bytes of an event besides its texts and partitions, more than there can be
    PART_ROOM = 320  # and of a partition

cdef int16_t _UNKNOWN_RESULT = UNKNOWN_RESULT


def weight_of(exchanges):
    """Twin of ``observers.lane.weight_of``; of any exchanges."""
    cdef Exchange exchange
    cdef Py_ssize_t weight = len(exchanges)
    for one in exchanges:
        if type(one) is Exchange:
            exchange = <Exchange>one
            if exchange.request_body != NULL:
                weight += exchange.request_body.count
            if exchange.response_body != NULL:
                weight += exchange.response_body.count
        else:
            weight += sum([len(facts.partitions) for facts in (one.request, one.response) if facts is not None])
    return weight


# ---- what repeats ---------------------------------------------------------------------------------------------------

cdef class Client:
    """What a connection adds to each of its events, as long as the identity it was made of stays."""

    cdef object connection, principal, software_name, software_version, client_id
    cdef bytes who, whence, software
    cdef bint hidden  # by its principal
    cdef bint own  # the sidecar's, by its client id
    cdef uint64_t checked  # the batch that saw last that the identity is still this

    cdef bint still(self):
        connection = self.connection
        return (
            connection.principal is self.principal
            and connection.client_software_name is self.software_name
            and connection.client_software_version is self.software_version
        )


cdef Client _client(object connection, object client_id, object scope):
    cdef Client client = Client.__new__(Client)
    client.connection = connection
    client.client_id = client_id
    client.principal = principal = connection.principal
    client.software_name = connection.client_software_name
    client.software_version = connection.client_software_version
    client.hidden = scope.hides_principal(principal)
    client.own = scope.is_own(client_id)
    if client.hidden:
        return client
    client.who = b',"listener":%b,"connection_id":%b,"correlation_id":' % (
        encoder.encode(connection.listener), encoder.encode(connection.id),
    )
    client.whence = b',"principal":%b,"client_ip":%b,"ts_request":' % (
        encoder.encode(clip(principal)), encoder.encode(connection.client_ip),
    )
    client.software = (
        _optional(b"client_id", client_id)
        + _optional(b"client_software_name", client.software_name)
        + _optional(b"client_software_version", client.software_version)
    )
    return client


cdef bytes _optional(bytes name, object text):
    return b"" if text is None else b',"%b":%b' % (name, encoder.encode(clip(text)))


cdef bint _is_long(object text):
    return text is not None and len(text) > LONG


cdef class Label:
    """What a topic adds to each of its partitions."""

    cdef bytes name, topic_id
    cdef bint hidden


# ---- rows -----------------------------------------------------------------------------------------------------------

cdef struct PartRow:
    PyObject *name  # bytes; what holds these objects: `Translator._keep`, its caches, or the batch
    PyObject *topic_id
    const RecordSums *records
    int64_t base_offset
    int32_t partition
    int16_t error_code
    bint produced

cdef struct Row:
    PyObject *who
    PyObject *api
    PyObject *whence
    PyObject *software
    int64_t seq
    int64_t ts_request
    int64_t latency_us
    int64_t request_bytes
    int64_t response_bytes
    Py_ssize_t parts
    int32_t correlation_id
    int32_t throttle_ms
    int32_t max_wait_ms
    int16_t api_version
    int16_t acks
    int16_t error_code
    bint has_acks
    OutcomeCode outcome
    DecodeCode decode


cdef class Translator:
    """Same door as the pure one, which it asks for batches of other exchanges, and about what is hidden."""

    cdef object _pure, _names, _scope
    cdef dict _apis, _sessions
    cdef dict _name_labels, _id_labels
    cdef list _clients
    cdef list _keep  # what the rows of this chunk refer to and the caches may have let go
    cdef uint64_t _batch
    cdef Row *_rows
    cdef Py_ssize_t _row_count
    cdef PartRow *_parts
    cdef Py_ssize_t _part_count, _part_capacity
    cdef Py_ssize_t _room  # bytes that the rows can need at most
    cdef char *_out
    cdef Py_ssize_t _out_capacity

    def __cinit__(self):
        self._rows = <Row *>PyMem_Malloc(CHUNK * sizeof(Row))
        if self._rows == NULL:
            raise MemoryError

    def __init__(self, api_names, names, scope):
        self._pure = PureTranslator(api_names, names, scope)
        self._names = names
        self._scope = scope
        self._sessions = scope.sessions
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
        """See the pure one."""
        cdef Exchange exchange
        cdef int64_t last = first - 1
        for one in exchanges:
            if type(one) is not Exchange:
                return self._pure.translate(exchanges, first, wall_offset)
        made = Translation(last=last)
        self._batch += 1
        self._start_chunk()
        for one in exchanges:
            exchange = <Exchange>one
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
        cdef Row *row = &self._rows[self._row_count]
        cdef Body *request = exchange.request_body
        cdef Body *response = exchange.response_body
        cdef int16_t key = exchange.api_key
        cdef bytes api
        cdef double ts_request, latency
        try:
            client = self._client_of(exchange)
        except UnicodeError:
            if self._scope.hides(exchange):
                return False
            raise
        if client.hidden:
            return False
        api = self._api_of(key)
        row.throttle_ms = row.max_wait_ms = row.acks = row.error_code = 0
        row.has_acks = False
        if response != NULL:
            row.throttle_ms = response.throttle_ms
        try:
            if key == PRODUCE:
                if request != NULL:
                    row.acks = request.acks
                    row.has_acks = True
                    self._add_produced(request, response, exchange.outcome_code)
            elif key == FETCH:
                if request != NULL:
                    row.max_wait_ms = request.max_wait_ms
                if response != NULL:
                    row.error_code = response.error_code
                    self._add_fetched(response)
            if self._part_count > parts:  # on a topic that is not hidden
                if key == FETCH and request != NULL and len(self._sessions):
                    self._scope.forget_session(request.session_id)
            elif client.own if request == NULL and response == NULL else self._scope.hides(exchange):
                return False
            ts_request = (exchange.received_at + wall_offset) * 1e6
            latency = (exchange.answered_at - exchange.received_at) * 1e6 if exchange.outcome_code == ANSWERED else 0.0
            if not (isfinite(ts_request) and isfinite(latency)):
                raise ValueError("a time that is no number")
        except BaseException:
            self._part_count, self._room = parts, room
            raise
        row.who = <PyObject *>client.who
        row.api = <PyObject *>api
        row.whence = <PyObject *>client.whence
        row.software = <PyObject *>client.software
        row.seq = seq
        row.ts_request = llrint(ts_request)
        row.latency_us = max(<int64_t>0, <int64_t>llrint(latency))
        row.request_bytes = exchange.request_bytes
        row.response_bytes = exchange.response_bytes
        row.parts = self._part_count - parts
        row.correlation_id = exchange.correlation_id
        row.api_version = exchange.api_version
        row.outcome = exchange.outcome_code
        row.decode = exchange.decode_code
        self._room += ROW_ROOM + _size(row.who) + _size(row.api) + _size(row.whence) + _size(row.software)
        self._row_count += 1
        return True

    cdef Client _client_of(self, Exchange exchange):
        cdef size_t slot = (<size_t><PyObject *>exchange.connection >> 4) & (CLIENTS - 1)
        cdef object held = self._clients[slot]
        cdef Client client
        if held is not None:
            client = <Client>held
            if client.connection is exchange.connection and client.client_id == exchange.client_id:
                if client.checked == self._batch:
                    return client
                if client.still():
                    client.checked = self._batch
                    return client
            self._keep.append(held)
        client = _client(exchange.connection, exchange.client_id, self._scope)
        client.checked = self._batch
        self._keep.append(client)
        if not (_is_long(client.client_id) or _is_long(client.software_name) or _is_long(client.software_version)):
            self._clients[slot] = client
        return client

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
        name, topic_id = self._names.label(<object>topic, is_id)
        label = Label.__new__(Label)
        label.hidden = self._scope.hides_topic(name)
        label.name = b'{"topic":%b,"partition":' % encoder.encode(name)
        label.topic_id = _optional(b"topic_id", topic_id)
        self._keep.append(label)
        if _size(topic) > LONG or (is_id and name == f"id:{topic_id}"):
            return label  # the cluster may tell the name of this id later
        if len(labels) >= LABELS:
            self._keep.append(labels.copy())
            labels.clear()
        labels[<object>topic] = label
        return label

    cdef PartRow *_new_part(self, Label label) except NULL:
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
        self._part_count += 1
        self._room += PART_ROOM + _size(parts.name) + _size(parts.topic_id)
        return parts

    cdef int _add_produced(self, Body *request, Body *response, OutcomeCode outcome) except -1:
        """Every partition sent, joined with its answer by (topic, partition)."""
        cdef Py_ssize_t at
        cdef Part *sent
        cdef Part *answer
        cdef PartRow *row
        cdef Label label
        cdef dict answers = None
        if response != NULL and response.count > FEW:
            answers = {
                (<object>response.parts[at].topic, response.parts[at].partition): at for at in range(response.count)
            }
        for at in range(request.count):
            sent = &request.parts[at]
            label = self._label_of(sent.topic, request.topics_are_ids)
            if label.hidden:
                continue
            row = self._new_part(label)
            row.partition = sent.partition
            row.records = &sent.records
            row.produced = True
            answer = NULL if response == NULL else _answer(response, answers, sent)
            if answer != NULL:
                row.error_code, row.base_offset = answer.error_code, answer.offset
            else:
                row.error_code, row.base_offset = (_UNKNOWN_RESULT if outcome == ANSWERED else 0), -1
        return 0

    cdef int _add_fetched(self, Body *response) except -1:
        """Every partition that returned records or an error."""
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
            row = self._new_part(label)
            row.partition = got.partition
            row.records = &got.records
            row.produced = False
            row.error_code, row.base_offset = got.error_code, got.records.base_offset
        return 0

    # ---- without it: rows to JSON -----------------------------------------------------------------------------------

    cdef int _end_chunk(self, made) except -1:
        """Write the rows, if there are any."""
        cdef char *end
        cdef Py_ssize_t count = self._row_count
        if not count:
            return 0
        if self._room > self._out_capacity or self._out_capacity > 4 * CHUNK_ROOM:
            PyMem_Free(self._out)
            self._out_capacity = 0
            self._out = <char *>PyMem_Malloc(max(self._room, <Py_ssize_t>CHUNK_ROOM))
            if self._out == NULL:
                raise MemoryError
            self._out_capacity = max(self._room, <Py_ssize_t>CHUNK_ROOM)
        with nogil:
            end = _write(self._out, self._rows, count, self._parts)
        made.chunks.append(
            Chunk(self._rows[0].seq, count, PyBytes_FromStringAndSize(self._out, end - self._out))
        )
        self._start_chunk()
        return 0

    cdef void _start_chunk(self):
        self._row_count = self._part_count = self._room = 0
        self._keep.clear()


cdef bytes _api(key, name):
    return b',"api_key":%d,"api":%b,"api_version":' % (key, encoder.encode(name or f"ApiKey({key})"))


cdef Part *_answer(Body *response, dict answers, const Part *sent) except? NULL:
    """The last answer for the partition ``sent``, or NULL."""
    cdef Py_ssize_t at
    cdef Part *part
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


cdef extern from "Python.h" nogil:  # the macros, without the GIL: a bytes object never changes
    const char *_text "PyBytes_AS_STRING"(PyObject *text)
    Py_ssize_t _size "PyBytes_GET_SIZE"(PyObject *text)


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
    at = _put_text(at, row.who)
    at = _put_int(at, row.correlation_id)
    at = _put_text(at, row.api)
    at = _put_int(at, row.api_version)
    at = _put_text(at, row.whence)
    at = _put_int(at, row.ts_request)
    at = _put_int(_put(at, b',"latency_us":'), row.latency_us)
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
    at = _put_text(at, row.software)
    if row.throttle_ms:
        at = _put_int(_put(at, b',"throttle_ms":'), row.throttle_ms)
    if row.max_wait_ms:
        at = _put_int(_put(at, b',"max_wait_ms":'), row.max_wait_ms)
    if row.has_acks:
        at = _put_int(_put(at, b',"acks":'), row.acks)
    if row.error_code:
        at = _put_int(_put(at, b',"error_code":'), row.error_code)
    if row.parts:
        at = _put(at, b',"topics":[')
        for n in range(row.parts):
            if n:
                at = _put(at, b",")
            at = _write_part(at, &parts[n])
        at = _put(at, b"]")
    return _put(at, b"}")


cdef inline char *_write_part(char *at, const PartRow *part) noexcept nogil:
    cdef const RecordSums *records = part.records
    at = _put_text(at, part.name)
    at = _put_int(at, part.partition)
    at = _put_text(at, part.topic_id)
    if records.size:
        at = _put_int(_put(at, b',"bytes":'), records.size)
    if records.records:
        at = _put_int(_put(at, b',"records":'), records.records)
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
    return _put(at, b"}")


cdef inline char *_put(char *at, const char *literal) noexcept nogil:
    cdef size_t size = strlen(literal)  # known to the compiler
    memcpy(at, literal, size)
    return at + size


cdef inline char *_put_text(char *at, PyObject *text) noexcept nogil:
    cdef Py_ssize_t size = _size(text)
    memcpy(at, _text(text), size)
    return at + size


cdef inline char *_put_int(char *at, int64_t value) noexcept nogil:
    cdef char digits[20]
    cdef char *first = digits + 20
    cdef uint64_t left = <uint64_t>value
    cdef uint32_t pair
    if value < 0:
        at[0] = b"-"
        at += 1
        left = 0 - left
    while left >= 100:
        pair = <uint32_t>(left % 100)
        left = left // 100
        first -= 2
        memcpy(first, PAIRS + 2 * pair, 2)
    if left >= 10:
        first -= 2
        memcpy(first, PAIRS + 2 * left, 2)
    else:
        first -= 1
        first[0] = <char>(48 + left)
    memcpy(at, first, digits + 20 - first)
    return at + (digits + 20 - first)


cdef const char *PAIRS = (
    b"00010203040506070809" b"10111213141516171819" b"20212223242526272829" b"30313233343536373839"
    b"40414243444546474849" b"50515253545556575859" b"60616263646566676869" b"70717273747576777879"
    b"80818283848586878889" b"90919293949596979899"
)
