# Part of session.pyx: what observers are told of one session, and what is read and kept of its bodies, once a chunk has
# been forwarded.
#
# While the session reads a chunk it leaves pieces here; ``walk`` takes them in order when the chunk has gone on. So
# exchanges are recorded in the order in which they end, each after its last byte was handed on.

cdef int64_t MAX_LEARNED = session.MAX_LEARNED
cdef int KEPT_ROOM = 2  # pieces that a connection keeps room for, from chunk to chunk

cdef struct Piece:  # part of a body to read after its chunk has been forwarded; owns its references
    PyObject *exchange  # NULL: a raw SASL token
    PyObject *passing  # NULL: the body is whole, or is not read
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


cdef void drop(Piece *pieces, int count) noexcept:
    for at in range(count):
        Py_XDECREF(pieces[at].exchange)
        Py_XDECREF(pieces[at].passing)
        Py_XDECREF(pieces[at].keep)


@cython.final
cdef class Watching:
    def __cinit__(self, watch):
        self.watch = watch
        self.record, self.note = watch.record, watch.note
        self.table, self.others, self.max_body = watch.interest.table, watch.interest.others, watch.max_body
        if len(self.table) != KEYS * VERSIONS:
            raise ValueError(f"a table of {len(self.table)} bytes, not {KEYS * VERSIONS}")
        PyObject_GetBuffer(watch.observed, &self.observed, PyBUF_SIMPLE | PyBUF_WRITABLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.observed)

    cdef uint8_t flags(self, int key, int version) noexcept:
        """What is wanted of this api and version; 0 where it is not to be told of."""
        cdef uint8_t flags = self.others
        if 0 <= key < KEYS and 0 <= version < VERSIONS:
            flags = PyBytes_AS_STRING(self.table)[key * VERSIONS + version]
        return flags if flags & TOLD else 0

    cdef void count(self) noexcept:
        """One more was told."""
        (<int64_t *>self.observed.buf)[0] += 1


cdef Watching latest = None


cdef Watching watching_of(watch):
    """The same for all sessions of a watch: a process has one."""
    global latest
    if latest is None or latest.watch is not watch:
        latest = Watching(watch)
    return latest


@cython.final
@cython.no_gc
cdef class Direction:
    def __cinit__(self):
        self.carry = bytearray()


@cython.final
@cython.no_gc
cdef class Passing:
    pass


cdef Passing new_passing(int64_t length, bint raw, bint learnt):
    cdef Passing passing = Passing.__new__(Passing)
    passing.length, passing.raw, passing.learnt = length, raw, learnt
    return passing


@cython.final
@cython.no_gc  # refers to nothing that refers back
cdef class Told:
    def __init__(self, connection, tally, watch, identity, Account account):
        self.connection, self.identity, self.account = connection, identity, account
        self.decoded = tally.decoded
        self.watching = watching_of(watch)

    def __dealloc__(self):
        drop(self.pieces, self.count)
        PyMem_Free(self.pieces)

    cdef Passing passing(self, bint response, int key, uint8_t flags, int64_t length, bint learnt):
        """Return what gathers a body of ``length`` bytes for those who want it; None where nobody does."""
        cdef bint raw = False
        # What proves who a client is goes nowhere but to its session's identity.
        if flags & (KEEP_RESPONSE if response else KEEP_REQUEST) and key != SASL_AUTHENTICATE:
            raw = length <= self.watching.max_body
            if not raw:
                count(self.decoded, "not_kept")
        return new_passing(length, raw, learnt) if raw or learnt else None

    cdef int piece(
        self, bint response, Exchange exchange, Kind kind, Passing passing, bytes keep, const uint8_t *data,
        Py_ssize_t size, bint last,
    ) except -1:  # fmt: skip
        """Take a piece until ``walk``. ``kind``: of what reads it whole; ``passing``: what gathers or reads it with
        others. ``last``: the frame ends with it."""
        cdef Piece *piece
        cdef Piece *more
        if self.count == self.room:
            more = <Piece *>PyMem_Realloc(self.pieces, (2 * self.room + 2) * sizeof(Piece))
            if more == NULL:
                raise MemoryError
            self.pieces = more
            self.room = 2 * self.room + 2
        piece = &self.pieces[self.count]
        piece.exchange = piece.passing = piece.keep = NULL
        if exchange is not None:
            Py_INCREF(exchange)
            piece.exchange = <PyObject *>exchange
        if passing is not None:
            Py_INCREF(passing)
            piece.passing = <PyObject *>passing
        if keep is not None:
            Py_INCREF(keep)
            piece.keep = <PyObject *>keep
        piece.data, piece.size, piece.kind, piece.response, piece.last = data, size, kind, response, last
        self.count += 1
        return 0

    cdef int walk(self, double now) except -1:
        """Read the bodies of the last chunk that somebody asked for, and record what ended in it; it was handed on at
        ``now``. A bad body is counted, never raised."""
        cdef Piece *pieces = self.pieces
        cdef int there = self.count, room = self.room, at
        self.pieces = NULL
        self.count = self.room = 0
        try:
            for at in range(there):
                self.read_piece(&pieces[at], now)
        finally:
            drop(pieces, there)
            if room <= KEPT_ROOM:
                self.pieces, self.room = pieces, room
            else:
                PyMem_Free(pieces)
        return 0

    cdef int read_piece(self, Piece *piece, double now) except -1:
        cdef Exchange exchange = None
        cdef Passing passing = None
        if piece.passing != NULL:
            passing = <Passing>piece.passing
        if piece.exchange != NULL:
            exchange = <Exchange>piece.exchange
            if piece.kind != NO_WALKER or passing is not None and passing.feed is not None:
                self.read(piece, exchange, passing)
        if passing is not None and (passing.raw or passing.learnt):
            self.gather(piece, exchange, passing, now)
        if not piece.last or exchange is None:
            return 0
        if piece.response:
            exchange.answered_at = now
            if self.undecided and not is_learnt(False, exchange.api_key) and not exchange.synthesized:
                self.learn("passed", (now,))
                exchange.connection = self.connection  # this answer is what shows it
            self.record(exchange)
        else:
            exchange.connection = self.connection
            if not exchange.synthesized:
                exchange.forwarded_at = now
            if exchange.outcome_code == NO_RESPONSE:
                self.record(exchange)
        return 0

    cdef int read(self, Piece *piece, Exchange exchange, Passing passing) except -1:
        """Walk a body, or more of one that comes in pieces."""
        cdef Body *body = NULL
        cdef bint fits = True
        cdef int64_t more
        try:
            if piece.kind != NO_WALKER:
                body = walk_body(piece.kind, exchange.api_version, piece.data, piece.size)
                fits = self.hold(exchange, size_of(body))
            else:
                passing.feed.feed(piece.data, piece.size)
                more = passing.feed.size() - passing.charged
                if piece.last:
                    body = passing.feed.finish()
                    more = size_of(body) - passing.charged
                fits = self.hold(exchange, more)
                passing.charged += more if fits else 0
        except Exception:  # whatever it is, it concerns the record of this exchange only
            exchange.decode_code = MALFORMED
            count(self.decoded, "malformed")
            self.forget(exchange, passing)
        if not fits:
            free_body(body)
            if exchange.decode_code != MALFORMED:
                exchange.decode_code = NOT_KEPT
            self.forget(exchange, passing)
            return count(self.decoded, "not_kept")
        if body == NULL:
            return 0
        if piece.response:
            free_body(exchange.response_body)
            exchange.response_body = body
        else:
            free_body(exchange.request_body)
            exchange.request_body = body
        if exchange.decode_code == NONE:
            exchange.decode_code = FULL
        return count(self.decoded, "full")

    cdef bint hold(self, Exchange exchange, int64_t size) noexcept:
        """Charge ``size`` bytes more for ``exchange``; False where there is no room for them."""
        cdef bint fits = self.account.take(size)
        if fits:
            exchange.charged += size
        return fits

    cdef void forget(self, Exchange exchange, Passing passing) noexcept:
        """The rest of this body passes unread, and what was read of it is not kept."""
        if passing is not None:
            self.give_back(exchange, passing.charged)
            passing.feed = None
            passing.charged = 0

    cdef void give_back(self, Exchange exchange, int64_t size) noexcept:
        exchange.charged -= size
        self.account.charge(-size)

    cdef int gather(self, Piece *piece, Exchange exchange, Passing passing, double now) except -1:
        """Keep the bytes of a body for its exchange, and give them to the identity that learns from them, once it is
        whole; ``exchange``: None for a raw SASL token. What the identity alone wants is charged to the session until
        then."""
        cdef bint short = passing.length <= MAX_LEARNED
        cdef Py_ssize_t had = 0 if passing.gathered is None else PyByteArray_GET_SIZE(passing.gathered)
        cdef bytes body = None
        if passing.raw and not self.hold(exchange, piece.size):
            passing.raw = False
            self.give_back(exchange, had)
            count(self.decoded, "not_kept")
            if passing.learnt and short:
                self.account.charge(had)
            else:
                passing.gathered = None
        if not passing.raw and passing.learnt and short:
            self.account.charge(-had if piece.last else piece.size)
        if piece.last and passing.gathered is None:
            if passing.raw or (passing.learnt and short):
                body = PyBytes_FromStringAndSize(<const char *>piece.data, piece.size)
        elif passing.raw or (passing.learnt and short):
            if passing.gathered is None:
                passing.gathered = bytearray()
            PyByteArray_Resize(passing.gathered, had + piece.size)
            memcpy(PyByteArray_AS_STRING(passing.gathered) + had, piece.data, piece.size)
            if piece.last:
                body = bytes(passing.gathered)
        if not piece.last:
            return 0
        if passing.raw and piece.response:
            exchange.response_raw = body
        elif passing.raw:
            exchange.request_raw = body
        if not passing.learnt:
            return 0
        if not short:
            body = None
        if piece.response:
            if exchange is None:
                return self.learn("token_reply", (body, now))
            return self.learn("response", (exchange.api_key, body, now))
        if exchange is None:
            return self.learn("token", (body,))
        return self.learn("request", (exchange.api_version, exchange.api_key, body))

    cdef int learn(self, str method, tuple told) except -1:
        """Tell the identity, and observers what has changed by that."""
        if self.identity is None:
            return 0
        change = None
        try:
            change = getattr(self.identity, method)(*told)
            self.connection, self.undecided = self.identity.connection, self.identity.undecided
        except Exception:  # a mistake of ours: it costs the name, not the connection
            self.identity = None
            self.undecided = False
        if change is not None:
            self.watching.count()
            self.watching.note(change)
        return 0

    cdef int ended(self, list exchanges, double now) except -1:
        """The connection ended with ``exchanges`` open. What ended in its last chunk was not handed on."""
        cdef Piece *pieces = self.pieces
        cdef int there = self.count, at
        cdef Exchange exchange
        self.pieces = NULL
        self.count = self.room = 0
        try:
            for at in range(there):
                if pieces[at].last and pieces[at].exchange != NULL:
                    exchange = <Exchange>pieces[at].exchange
                    if pieces[at].response or exchange.outcome_code == NO_RESPONSE:
                        self.lost(exchange)
            for exchange in exchanges:
                self.lost(exchange)
        finally:
            drop(pieces, there)
            PyMem_Free(pieces)
        return self.learn("closed", (now,))

    cdef int lost(self, Exchange exchange) except -1:
        exchange.outcome_code = CONNECTION_LOST
        exchange.response_bytes = 0
        return self.record(exchange)

    cdef int record(self, Exchange exchange) except -1:
        """It is complete: give it to those who observe, where they want it."""
        cdef int64_t charged = exchange.charged
        exchange.charged = 0
        if not exchange.wanted:
            return self.account.charge(-charged)
        self.account.record(charged)
        self.watching.count()
        self.watching.record(exchange)
        return 0


cdef inline bint is_learnt(bint response, int key) noexcept:
    """Whether bodies of this api say who the client is."""
    return key == SASL_HANDSHAKE or key == SASL_AUTHENTICATE or key == API_VERSIONS and not response


cdef int end_session(Session self, double now) except -1:
    """The connection ended: every open exchange is finished without a response."""
    cdef Exchange exchange
    cdef list ended = self.in_flight
    for exchange in ended:
        exchange.next = None
    self.first = self.last = None
    self.open = 0
    if self.broker.exchange is not None:  # its response was on its way
        ended.insert(0, self.broker.exchange)
        self.broker.exchange = None
    if self.client.exchange is not None:
        if self.client.exchange.outcome_code == NO_RESPONSE:
            ended.append(self.client.exchange)
        self.client.exchange = None
    self.client.passing = self.broker.passing = None
    self.client.frame = self.broker.frame = None
    try:
        if self.told is not None:
            self.told.ended(ended, now)
    finally:
        self.account.close()
    return 0
