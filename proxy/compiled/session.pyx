# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Twin of ``proxy.core.session``: the same steps over C buffers. What each step is for is told there."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from proxy.compiled.exchange cimport (
    ANSWERED, CONNECTION_LOST, FETCH_REQUEST, FULL, MALFORMED, NO_RESPONSE, NO_WALKER, NONE, OPEN, PRODUCE_REQUEST,
    SHARE_FETCH_REQUEST, UNSUPPORTED, Body, Exchange, Kind, free_body, new_exchange,
)
from proxy.compiled.header cimport INCOMPLETE, acks_at, skip_tags
from proxy.compiled.walk cimport Feed, kind_of, new_feed, walk_body
from proxy.compiled.wire cimport int16_at, int32_at

from proxy.core import apis, session
from proxy.errors import PeerError

cdef int MIN_FRAME = session.MIN_FRAME
cdef int MAX_TOKEN = session.MAX_TOKEN
cdef int MAX_PREFIX = session.MAX_PREFIX
cdef int CARRY_STEP = session.CARRY_STEP
cdef int MAX_IN_FLIGHT = session.MAX_IN_FLIGHT
cdef tuple SIDES = ("client", "broker")
cdef int KEPT_ROOM = 2  # pieces that a connection keeps room for, from chunk to chunk
cdef int FLEXIBLE_PRODUCE = apis.APIS[0].flexible_since
cdef int FLEXIBLE_FETCH = apis.APIS[1].flexible_since
cdef int FLEXIBLE_SHARE_FETCH = apis.APIS[78].flexible_since

cdef enum:
    REQUEST_AGAIN = -5

cdef enum ApiKey:
    PRODUCE = 0
    FETCH = 1
    SHARE_FETCH = 78
    SASL_HANDSHAKE = 17

cdef struct Piece:  # part of a body to read after its chunk has been forwarded; owns its references
    PyObject *exchange
    PyObject *feed  # NULL: the body is whole, or is not read
    PyObject *keep  # holds the bytes, where the chunk does not
    const uint8_t *data
    Py_ssize_t size
    Kind kind
    bint response
    bint last


cdef inline int count(object counts, object key) except -1:
    cdef PyObject *had = PyDict_GetItem(counts, key)
    PyDict_SetItem(counts, key, 1 if had == NULL else <object>had + 1)
    return 0


cdef inline int flexible_since(int16_t key) noexcept:
    """Of the apis that are walked: the first version that is flexible."""
    return FLEXIBLE_PRODUCE if key == PRODUCE else FLEXIBLE_FETCH if key == FETCH else FLEXIBLE_SHARE_FETCH


cdef void drop(Piece *pieces, int count) noexcept:
    for at in range(count):
        Py_XDECREF(pieces[at].exchange)
        Py_XDECREF(pieces[at].feed)
        Py_XDECREF(pieces[at].keep)


@cython.final
@cython.no_gc
cdef class Direction:
    def __cinit__(self):
        self.carry = bytearray()


@cython.final
@cython.no_gc  # refers to nothing that refers back
cdef class Session:
    """As ``proxy.core.session.Session``."""

    def __init__(self, connection, tally, watch=None, int64_t max_frame=session.MAX_FRAME):
        self.connection = connection
        self.tally = tally
        self.requests, self.responses, self.decoded = tally.requests, tally.responses, tally.decoded
        self.record = None if watch is None else watch.record
        self.max_frame = max_frame
        self.client, self.broker = Direction(), Direction()
        self.client_id_raw, self.client_id = b"", ""

    def __dealloc__(self):
        drop(self.todo, self.todo_count)
        PyMem_Free(self.todo)

    # ---- for Python ---------------------------------------------------------------------------------------------

    @property
    def saturated(self):
        return self.is_saturated()

    @property
    def between_requests(self):
        return self.is_between_requests()

    @property
    def quiet(self):
        broker = not self.broker.left and not PyByteArray_GET_SIZE(self.broker.carry)
        return broker and not self.open and self.is_between_requests()

    @property
    def in_flight(self):
        cdef Exchange exchange = self.first
        exchanges = []
        while exchange is not None:
            exchanges.append(exchange)
            exchange = exchange.next
        return exchanges

    def client_data(self, const uint8_t[::1] data, double now):
        self.held = data
        return self.read(False, &data[0] if data.shape[0] else NULL, data.shape[0], now) != 0

    def broker_data(self, const uint8_t[::1] data, double now):
        self.held = data
        return self.read(True, &data[0] if data.shape[0] else NULL, data.shape[0], now) != 0

    def walk(self):
        self.read_bodies()

    def lost(self):
        self.end_all()

    cdef bint is_saturated(self) noexcept:
        return self.open >= MAX_IN_FLIGHT

    cdef bint is_between_requests(self) noexcept:
        return not self.client.left and not PyByteArray_GET_SIZE(self.client.carry)

    cdef int read(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1:
        """Take ``data`` frame by frame. Returns whether there are bodies to read. Raises PeerError."""
        cdef Direction state = self.broker if response else self.client
        cdef bytearray carry = state.carry
        cdef Py_ssize_t pos = self.go_on(response, state, data, end, now) if state.left else 0
        cdef Py_ssize_t start, done, had, grown = 0
        cdef const uint8_t *p
        while pos < end:
            had = PyByteArray_GET_SIZE(carry)
            start = pos - had  # of the frame, in coordinates of data
            self.clean = start if start > 0 else 0
            if had:
                # Doubling, so that a long header is not read from its start again and again.
                grown = pos + (had if had > CARRY_STEP else CARRY_STEP)
                if grown > end:
                    grown = end
                carry += data[pos:grown]
                p = <const uint8_t *>PyByteArray_AS_STRING(carry)
                had = PyByteArray_GET_SIZE(carry)
            else:
                p = data + pos
            if response:
                done = self.start_response(p, had or end - pos, start, data, end, now)
            else:
                done = self.start_request(p, had or end - pos, start, data, end, now)
            if done != INCOMPLETE:
                if had:
                    carry.clear()
                pos = done
            elif had:
                pos = grown
                if had > MAX_PREFIX:
                    raise PeerError(SIDES[response], "invalid_header", f"no complete header in {had} bytes")
            else:
                carry += data[pos:end]
                break
        return self.todo_count != 0

    # ---- client to broker ---------------------------------------------------------------------------------------

    cdef Py_ssize_t start_request(
        self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        """Read the prefix of a frame, of which ``p[0:there]`` is known and which begins at ``data[start]``.

        Returns the offset in ``data`` after what it holds of this frame, or INCOMPLETE.
        """
        cdef Py_ssize_t passed, body, at
        cdef int64_t size
        cdef int16_t key, version, id_length
        cdef int32_t correlation_id
        cdef Kind kind = NO_WALKER
        cdef bint responds = True
        cdef Exchange exchange
        if self.tokens:
            passed = self.token(p, there, start, end)
            if passed != REQUEST_AGAIN:
                return passed
        if there < 14:
            if there >= 4:
                self.check_size(int32_at(p))
            return INCOMPLETE
        size = int32_at(p)
        self.check_size(size)
        key, version, correlation_id, id_length = int16_at(p + 4), int16_at(p + 6), int32_at(p + 8), int16_at(p + 12)
        body = 14
        client_id = None
        if id_length > 0:
            body += id_length
            if body > 4 + size:
                raise PeerError("client", "invalid_header", f"client id of {id_length} bytes in a frame of {size}")
            if body > there:
                return INCOMPLETE
            if PyBytes_GET_SIZE(self.client_id_raw) != id_length or memcmp(
                PyBytes_AS_STRING(self.client_id_raw), p + 14, id_length
            ):
                self.client_id_raw = PyBytes_FromStringAndSize(<const char *>p + 14, id_length)
                self.client_id = PyUnicode_DecodeUTF8(<const char *>p + 14, id_length, "replace")
            client_id = self.client_id
        elif id_length == 0:
            client_id = ""
        elif id_length < -1:
            raise PeerError("client", "invalid_header", f"client id length {id_length}")

        if self.record is not None:
            kind = kind_of(key, version, False)
        if key == PRODUCE or kind != NO_WALKER:
            at = body
            if version >= flexible_since(key):
                at = skip_tags(p, at, there)
                if at >= 0:
                    body = at
            if at >= 0 and key == PRODUCE:
                at = acks_at(p, at, there, version)
                if at >= 0:
                    responds = int16_at(p + at) != 0
            if at < 0:
                if there < 4 + size:
                    return INCOMPLETE
                if apis.is_known(key, version):
                    raise PeerError("client", "invalid_header", f"{apis.api_name(key)} v{version}")
                kind = NO_WALKER  # a version of the future: forwarded, and taken to have a response

        exchange = new_exchange(self.connection, client_id, key, version, correlation_id, now, size + 4)
        count(self.requests, key)
        if responds:
            if self.first is None:
                self.first = exchange
            else:
                self.last.next = exchange
            self.last = exchange
            self.open += 1
        else:
            exchange.outcome_code = NO_RESPONSE
        if key == SASL_HANDSHAKE and version == 0:
            self.tokens = True
        if kind == NO_WALKER and self.record is not None and (key == PRODUCE or key == FETCH or key == SHARE_FETCH):
            exchange.decode_code = UNSUPPORTED
            count(self.decoded, "unsupported")
        return self.begin(False, exchange, kind, p, body, there, 4 + size, start, data, end, now)

    cdef int check_size(self, int64_t size) except -1:
        if not MIN_FRAME <= size <= self.max_frame:
            raise PeerError("client", "invalid_size", f"{size} bytes; allowed: {MIN_FRAME} to {self.max_frame}")
        return 0

    cdef Py_ssize_t token(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, Py_ssize_t end) except? -1:
        """A raw SASL token passes; REQUEST_AGAIN where the frame is a request."""
        if there < 4:
            return INCOMPLETE
        cdef int64_t size = token_size(False, p)
        if size >= MIN_FRAME:
            if there < 8:
                return INCOMPLETE
            if apis.is_known(int16_at(p + 4), int16_at(p + 6)):
                self.tokens = False
                return REQUEST_AGAIN
        return self.pass_token(self.client, size, start, end)

    # ---- broker to client ---------------------------------------------------------------------------------------

    cdef Py_ssize_t start_response(
        self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        cdef Exchange exchange = self.first
        cdef int64_t size
        cdef int32_t correlation_id
        cdef Py_ssize_t body = 8, at
        cdef Kind kind = NO_WALKER
        if there < 8 or exchange is None:
            return self.token_reply(p, there, start, end)
        size, correlation_id = int32_at(p), int32_at(p + 4)
        if size < 4:
            raise PeerError("broker", "invalid_size", f"response of {size} bytes")
        if exchange.correlation_id != correlation_id:
            raise PeerError("broker", "out_of_sync", f"correlation id {correlation_id}, not {exchange.correlation_id}")
        if exchange is self.client.exchange and self.client.left:
            raise PeerError("broker", "out_of_sync", "a response before the end of its request")
        if self.record is not None:
            kind = kind_of(exchange.api_key, exchange.api_version, True)
        if kind != NO_WALKER and exchange.api_version >= flexible_since(exchange.api_key):
            at = skip_tags(p, body, there)
            if at >= 0:
                body = at
            elif there < 4 + size:
                return INCOMPLETE
            else:
                kind = NO_WALKER
        self.first = exchange.next
        exchange.next = None
        if self.first is None:
            self.last = None
        self.open -= 1
        exchange.response_bytes = size + 4
        return self.begin(True, exchange, kind, p, body, there, 4 + size, start, data, end, now)

    cdef Py_ssize_t token_reply(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, Py_ssize_t end) except? -1:
        """A frame that answers no request: right only while raw SASL tokens are exchanged."""
        if self.open or there < 4:
            return INCOMPLETE
        if not self.tokens:
            raise PeerError("broker", "out_of_sync", "a response without a request")
        return self.pass_token(self.broker, token_size(True, p), start, end)

    # ---- both directions ----------------------------------------------------------------------------------------

    cdef Py_ssize_t begin(
        self, bint response, Exchange exchange, Kind kind, const uint8_t *p, Py_ssize_t body, Py_ssize_t there,
        int64_t frame, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now,
    ) except? -1:  # fmt: skip
        """The prefix of a frame of ``frame`` bytes is read: pass its body, which starts at ``p[body]``."""
        cdef Direction state = self.broker if response else self.client
        cdef int64_t stop = start + frame  # in coordinates of data, like everything below
        cdef Py_ssize_t upto = stop if stop < end else end
        cdef Py_ssize_t at = start + body
        cdef Feed feed = None
        cdef bytes lead
        cdef const uint8_t *data_of_lead
        if kind != NO_WALKER and (at < 0 or stop > end):
            feed = new_feed(kind, exchange.api_version)
            if at < 0:  # that many bytes of the body came before data
                lead = PyBytes_FromStringAndSize(<const char *>p + body, -at)
                data_of_lead = <const uint8_t *>PyBytes_AS_STRING(lead)
                self.add_piece(response, exchange, NO_WALKER, feed, lead, data_of_lead, -at, False)
                at = 0
            self.add_piece(response, exchange, NO_WALKER, feed, None, data + at, upto - at, stop <= end)
        elif kind != NO_WALKER:
            self.add_piece(response, exchange, kind, None, None, data + at, upto - at, True)
        if stop <= end:
            self.finish_frame(response, exchange, now, kind != NO_WALKER)
            return stop
        state.left, state.exchange, state.feed = stop - end, exchange, feed
        return end

    cdef Py_ssize_t go_on(
        self, bint response, Direction state, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        """Pass more of the current frame's body; return the offset after it."""
        cdef bint last = state.left <= end
        cdef Py_ssize_t take = state.left if last else end
        cdef Exchange exchange = state.exchange
        cdef Feed feed = state.feed
        state.left -= take
        if exchange is None:  # a raw SASL token
            return take
        if feed is not None:
            self.add_piece(response, exchange, NO_WALKER, feed, None, data, take, last)
        if last:
            state.exchange = None
            state.feed = None
            self.finish_frame(response, exchange, now, feed is not None)
        return take

    cdef Py_ssize_t pass_token(self, Direction state, int64_t size, Py_ssize_t start, Py_ssize_t end) noexcept:
        cdef Py_ssize_t stop = start + 4 + size
        state.left = stop - end if stop > end else 0
        return stop if stop < end else end

    cdef int finish_frame(self, bint response, Exchange exchange, double now, bint walked) except -1:
        if response:
            exchange.answered_at = now
            exchange.outcome_code = ANSWERED
            count(self.responses, exchange.api_key)
        else:
            exchange.received_at = now
            if exchange.outcome_code == OPEN:
                return 0
        if not walked and self.record is not None:
            if self.todo_count:  # keep the order: some exchange before this one is finished only by ``walk``
                self.add_piece(response, exchange, NO_WALKER, None, None, NULL, 0, True)
            else:
                self.record(exchange)
        return 0

    # ---- bodies -------------------------------------------------------------------------------------------------

    cdef int add_piece(
        self, bint response, Exchange exchange, Kind kind, Feed feed, bytes keep, const uint8_t *data, Py_ssize_t size,
        bint last,
    ) except -1:  # fmt: skip
        cdef Piece *piece
        cdef Piece *more
        if self.todo_count == self.todo_room:
            more = <Piece *>PyMem_Realloc(self.todo, (2 * self.todo_room + 2) * sizeof(Piece))
            if more == NULL:
                raise MemoryError
            self.todo = more
            self.todo_room = 2 * self.todo_room + 2
        piece = &self.todo[self.todo_count]
        Py_INCREF(exchange)
        piece.exchange = <PyObject *>exchange
        piece.feed = piece.keep = NULL
        if feed is not None:
            Py_INCREF(feed)
            piece.feed = <PyObject *>feed
        if keep is not None:
            Py_INCREF(keep)
            piece.keep = <PyObject *>keep
        piece.data, piece.size, piece.kind, piece.response, piece.last = data, size, kind, response, last
        self.todo_count += 1
        return 0

    cdef int read_bodies(self) except -1:
        """Read the bodies of the last chunk. A bad body is counted, never raised."""
        cdef Piece *todo = self.todo
        cdef int pieces = self.todo_count, room = self.todo_room, at
        self.todo = self.spoilt = NULL
        self.todo_count = self.todo_room = 0
        try:
            for at in range(pieces):
                self.read_piece(&todo[at])
        finally:
            drop(todo, pieces)
            if room <= KEPT_ROOM:
                self.todo, self.todo_room = todo, room
            else:
                PyMem_Free(todo)
            self.held = None
        return 0

    cdef int read_piece(self, Piece *piece) except -1:
        cdef Exchange exchange = <Exchange>piece.exchange
        cdef Feed feed
        cdef Body *body = NULL
        try:
            if piece.kind != NO_WALKER:
                body = walk_body(piece.kind, exchange.api_version, piece.data, piece.size)
            elif piece.feed != NULL and piece.feed != self.spoilt:
                feed = <Feed>piece.feed
                feed.feed(piece.data, piece.size)
                if piece.last:
                    body = feed.finish()
        except Exception:  # whatever it is, it concerns the record of this exchange only
            exchange.decode_code = MALFORMED
            count(self.decoded, "malformed")
            self.spoilt = piece.feed
            if piece.feed != NULL:  # the rest of this body passes unread
                if <PyObject *>self.client.feed == piece.feed:
                    self.client.feed = None
                if <PyObject *>self.broker.feed == piece.feed:
                    self.broker.feed = None
        if body != NULL:
            count(self.decoded, "full")
            if exchange.decode_code == NONE:
                exchange.decode_code = FULL
            if body.kind == PRODUCE_REQUEST or body.kind == FETCH_REQUEST or body.kind == SHARE_FETCH_REQUEST:
                free_body(exchange.request_body)
                exchange.request_body = body
            else:
                free_body(exchange.response_body)
                exchange.response_body = body
        if piece.last and exchange.outcome_code != OPEN and self.record is not None:
            self.record(exchange)
        return 0

    cdef int end_all(self) except -1:
        """The connection ended: every open exchange is finished without a response."""
        cdef Exchange exchange
        ended = self.in_flight
        self.first = self.last = None
        self.open = 0
        if self.broker.exchange is not None:  # its response was on its way
            self.broker.exchange.response_bytes = 0
            ended.insert(0, self.broker.exchange)
            self.broker.exchange = None
        if self.client.exchange is not None:
            if self.client.exchange.outcome_code == NO_RESPONSE:
                ended.append(self.client.exchange)
            self.client.exchange = None
        for exchange in ended:
            exchange.next = None
            exchange.outcome_code = CONNECTION_LOST
            if self.record is not None:
                self.record(exchange)
        return 0


cdef int64_t token_size(bint response, const uint8_t *p) except -1:
    cdef int64_t size = int32_at(p)
    if not 0 <= size <= MAX_TOKEN:
        raise PeerError(SIDES[response], "invalid_size", f"SASL token of {size} bytes; allowed: 0 to {MAX_TOKEN}")
    return size
