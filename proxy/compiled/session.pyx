# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The protocol state of one client connection: bytes of both directions in, exchanges out.

Two rules. Everything that decides which response belongs to which request lives here; nothing here knows a socket, a
clock or a thread.

For each chunk the caller does three things: ``read`` reads frame sizes and headers and may refuse the chunk by raising;
then the chunk is forwarded; then ``read_bodies`` reads the bodies that somebody asked for and records what ended
(passing.pxi). So nothing that goes wrong inside a body can hold back a byte.

Responses belong to requests by position, as in Kafka: correlation ids are chosen by the client and may repeat. A
Produce with ``acks=0`` takes no place in the queue, because its response does not exist.

``data`` is the chunk at hand, of ``end`` bytes, and stays where it is until its bodies are read; ``p`` is the current
frame as far as it is known, in ``data`` or in what was carried.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_SetItem
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from proxy.compiled.exchange cimport (
    ANSWERED, CONNECTION_LOST, FULL, MALFORMED, NO_RESPONSE, NO_WALKER, NONE, NOT_KEPT, OPEN, UNSUPPORTED, Body,
    Exchange, Kind, free_body, new_exchange, size_of,
)
from proxy.compiled.header cimport BAD, INCOMPLETE, acks_at, least_header, skip_tags, uvarint
from proxy.compiled.walk cimport Feed, kind_of, new_feed, walk_body
from proxy.compiled.wire cimport int16_at, int32_at

from proxy.core import apis, budget, intercept, protected, session, watch, wire
from proxy.core.answers import Answers
from proxy.core.budget import Budget
from proxy.core.intercept import Request
from proxy.errors import PeerError

cdef int MIN_FRAME = session.MIN_FRAME, MAX_PREFIX = session.MAX_PREFIX, CARRY_STEP = session.CARRY_STEP
cdef int MAX_IN_FLIGHT = session.MAX_IN_FLIGHT
cdef int TURN = session.TURN, ANSWER_COST = session.ANSWER_COST
cdef int FIRST_TOPIC = protected.FIRST_TOPIC
cdef object NOBODY = watch.NOBODY
cdef tuple SIDES = ("client", "broker")

include "header.pxi"
include "account.pxi"
include "passing.pxi"
include "answers.pxi"
include "protected.pxi"
include "tokens.pxi"


@cython.final
@cython.no_gc  # refers to nothing that refers back
cdef class Session:
    """One per connection. What its parameters and members mean to callers is told in session.pyi."""

    def __init__(self, connection, tally, watch=None, int64_t max_frame=session.MAX_FRAME, identity=None, rules=None,
                 budget=None):
        self.known_as = connection
        self.account = Account(budget or Budget())
        if rules is not None:
            if len(rules.table) != KEYS * VERSIONS:
                raise ValueError(f"a table of {len(rules.table)} bytes, not {KEYS * VERSIONS}")
            self.answers, self.ruled = Answers(rules, tally, self.account), rules.table
            self.protected = None if rules.topics is None else protected_of(rules.topics)
            if watch is None and identity is not None:
                watch = NOBODY
        self.told = None if watch is None else Told(connection, tally, watch, identity, self.account)
        self.asked, self.answered, self.decoded = tally.requests, tally.responses, tally.decoded
        self.max_frame = max_frame
        self.client, self.broker = Direction(), Direction()
        self.client_id_raw = b""

    # ---- for Python ---------------------------------------------------------------------------------------------

    @property
    def connection(self):
        return self.known_as if self.told is None else self.told.connection

    @property
    def saturated(self):
        return self.is_saturated()

    def must_wait(self, side):
        return self.is_to_wait(side == "broker")

    @property
    def rest(self):
        return b"" if self.answers is None else self.answers.rest

    @property
    def untouched(self):
        held = (
            self.client.frame is not None or self.broker.frame is not None
            or PyByteArray_GET_SIZE(self.client.carry) or PyByteArray_GET_SIZE(self.broker.carry)
        )
        return self.answers is None or (self.answers.untouched and not held)

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

    def walk(self, double now):
        self.read_bodies(now)

    def lost(self, double now):
        self.end_all(now)

    cdef bint is_saturated(self) noexcept:
        return self.open >= MAX_IN_FLIGHT or self.closing

    cdef bint is_to_wait(self, bint response) except -1:
        if not self.account.is_full():
            return False
        return not response or self.broker.frame is not None and self.broker.frame.holds

    cdef bint is_between_requests(self) noexcept:
        return not self.client.left and not PyByteArray_GET_SIZE(self.client.carry) and not self.resting

    cdef int read(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1:
        """Take ``data``. Returns whether there are bodies to read. Raises PeerError."""
        cdef Direction state = self.broker if response else self.client
        cdef Py_ssize_t had = PyByteArray_GET_SIZE(state.carry)
        if self.answers is None:
            self.read_frames(response, data, end, now)
        else:
            read_ruled(self, response, data, end, now)
        had = PyByteArray_GET_SIZE(state.carry) - had
        if had:
            self.account.charge(had)
        return self.told is not None and self.told.count != 0

    cdef Py_ssize_t read_frames(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1:
        """Take ``data`` frame by frame. Returns up to where: all of it, but of a client with rules one turn at most."""
        cdef Direction state = self.broker if response else self.client
        cdef bytearray carry = state.carry
        cdef Py_ssize_t pos = self.go_on(response, state, data, end, now) if state.left else 0
        cdef Py_ssize_t start, done, had, grown = 0, frames = 0
        cdef const uint8_t *p
        while pos < end:
            if not response and (frames >= TURN or self.full or self.closing) and self.answers is not None:
                return pos
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
            if had and had < state.enough:
                done = INCOMPLETE
            elif response:
                done = self.start_response(p, had or end - pos, start, data, end, now)
            else:
                done = self.start_request(p, had or end - pos, start, data, end, now)
            if done != INCOMPLETE:
                if had:
                    carry.clear()
                    state.enough = 0
                frames += ANSWER_COST if (self.touched or self.waits) and not self.answers.untouched else 1
                pos = done
            elif had:
                pos = grown
                if had > MAX_PREFIX:
                    raise PeerError(SIDES[response], "invalid_header", f"no complete header in {had} bytes")
            else:
                carry += data[pos:end]
                break
        return end

    # ---- client to broker ---------------------------------------------------------------------------------------

    cdef Py_ssize_t start_request(
        self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        """Read the prefix of a frame, of which ``p[0:there]`` is known and which begins at ``data[start]`` (< 0: before
        it), up to what decides what becomes of the frame.

        Returns the offset in ``data`` after what it holds of this frame, or INCOMPLETE.
        """
        cdef Told told = self.told
        cdef Py_ssize_t passed, body, at, limit, tags, ahead = 0, done
        cdef int64_t size
        cdef int16_t key, version, id_length
        cdef int32_t correlation_id
        cdef uint8_t flags = 0, wanted = 0
        cdef Kind kind = NO_WALKER
        cdef Passing passing = None
        cdef bint responds = True, learnt = False
        cdef Exchange exchange
        cdef object frame = None
        cdef Scan scan
        if self.tokens:
            passed = token(self, p, there, start, data, end, now)
            if passed != REQUEST_AGAIN:
                return passed
        if there < 14:
            if there >= 4:
                self.check_size(int32_at(p))
            return INCOMPLETE
        size = int32_at(p)
        self.check_size(size)
        key, version, correlation_id, id_length = int16_at(p + 4), int16_at(p + 6), int32_at(p + 8), int16_at(p + 12)
        body = after_client_id(size, id_length)
        if body > there:
            self.client.enough = body
            return INCOMPLETE
        if id_length <= 0:
            self.client_id_raw, self.client_id = b"", None if id_length else ""
        elif PyBytes_GET_SIZE(self.client_id_raw) != id_length or memcmp(
            PyBytes_AS_STRING(self.client_id_raw), p + 14, id_length
        ):
            self.client_id_raw = PyBytes_FromStringAndSize(<const char *>p + 14, id_length)
            self.client_id = PyUnicode_DecodeUTF8(<const char *>p + 14, id_length, "replace")

        if told is not None:
            flags = told.watching.flags(key, version)
            learnt = told.identity is not None and is_learnt(False, key)
            if flags & WALKED:
                kind = kind_of(key, version, False)
        if self.answers is not None:
            wanted = ruling(self, key, version) & (DECIDED | ASKED | CHECKED)
            if wanted & ASKED and size > (most := self.answers.rules.max_asked(key, version)):
                raise PeerError("client", "invalid_size", f"{size} bytes; allowed here: up to {most}")
        limit = there if there < 4 + size else 4 + size
        if key == PRODUCE or kind != NO_WALKER or flags & KEEP_REQUEST or learnt or wanted & ASKED:
            at = tags = body
            if is_flexible(key, version):
                at = skip_tags(p, at, limit)
                if at >= 0:
                    body = at
            if at >= 0 and key == PRODUCE:
                at = acks_at(p, at, limit, version)
                if at >= 0:
                    ahead = at
                    responds = int16_at(p + at) != 0
            if at < 0:
                if there < 4 + size:
                    at = version if key == PRODUCE else -1
                    self.client.enough = least_header(p, tags, there, 4 + size, is_flexible(key, version), at)
                    return INCOMPLETE
                if is_known(key, version):
                    raise PeerError("client", "invalid_header", f"{apis.api_name(key)} v{version}")
                kind = NO_WALKER  # a version of the future: forwarded, and taken to have a response

        scan.found = False
        if wanted & CHECKED:
            begin_scan(&scan, version)
            read_topics(&scan, self.protected, p + ahead, limit - ahead)
            if limit < 4 + size and not scan.named:
                self.client.enough = min(ahead + FIRST_TOPIC, 4 + size)
                return INCOMPLETE
            at = start + limit  # from here on the frame is in ``data`` alone
            read_topics(&scan, self.protected, data + at, min(start + 4 + size, end) - at)

        connection = self.known_as if told is None else told.connection
        exchange = new_exchange(connection, self.client_id, key, version, correlation_id, now, size + 4)
        exchange.wanted = flags
        exchange.charged = EXCHANGE + CLIENT_ID * id_length
        self.account.charge(exchange.charged)
        count(self.asked, key)
        self.requests += 1
        self.decided = self.decided + 1 if wanted & DECIDED else 0
        if wanted & ~CHECKED or scan.found:
            asked = Request(connection, key, version, self.client_id, responds, self.decided)
            frame = self.answers.request(wanted, asked, exchange, body)
            if scan.found and frame is None:
                frame = self.answers.deny(asked, exchange, ahead)
            look(self)
        if responds or exchange.synthesized:
            self.enqueue(exchange)
        else:
            exchange.outcome_code = NO_RESPONSE
        if key == SASL_HANDSHAKE and version == 0 and not exchange.synthesized:
            self.tokens = True
        if flags and not is_known(key, version):
            exchange.decode_code = UNSUPPORTED
            count(self.decoded, "unsupported")
        learnt = learnt and not exchange.synthesized  # the broker will not answer it
        if learnt or flags & KEEP_REQUEST:
            passing = told.passing(False, key, flags, 4 + size - body, learnt)
        done = self.begin(False, exchange, frame, kind, passing, p, body, 4 + size, start, data, end, now)
        if wanted & CHECKED and self.client.left and not scan.found:
            self.client.scanning = scanning_of(&scan)
        return done

    cdef int enqueue(self, Exchange exchange) noexcept:
        if self.first is None:
            self.first = exchange
        else:
            self.last.next = exchange
        self.last = exchange
        self.open += 1
        return 0

    cdef int check_size(self, int64_t size) except -1:
        if not MIN_FRAME <= size <= self.max_frame:
            raise PeerError("client", "invalid_size", f"{size} bytes; allowed: {MIN_FRAME} to {self.max_frame}")
        return 0

    # ---- broker to client ---------------------------------------------------------------------------------------

    cdef Py_ssize_t start_response(
        self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        """Read the prefix of a response: as ``start_request``."""
        cdef Exchange exchange = self.first
        cdef int64_t size
        cdef int32_t correlation_id
        cdef Told told = self.told
        cdef Py_ssize_t body = 8, at
        cdef uint8_t flags, wanted = 0
        cdef object frame = None
        cdef Kind kind = NO_WALKER
        cdef Passing passing = None
        cdef bint learnt
        if there < 8 or exchange is None:
            return token_reply(self, p, there, start, data, end, now)
        size, correlation_id = int32_at(p), int32_at(p + 4)
        if size < 4:
            raise PeerError("broker", "invalid_size", f"response of {size} bytes")
        if exchange.correlation_id != correlation_id:
            raise PeerError("broker", "out_of_sync", f"correlation id {correlation_id}, not {exchange.correlation_id}")
        if exchange is self.client.exchange and self.client.left:
            raise PeerError("broker", "out_of_sync", "a response before the end of its request")
        if exchange.synthesized:
            raise PeerError("broker", "out_of_sync", "a response to what it was not asked")
        flags = exchange.wanted
        if flags & WALKED:
            kind = kind_of(exchange.api_key, exchange.api_version, True)
        learnt = told is not None and told.identity is not None and is_learnt(True, exchange.api_key)
        if self.answers is not None:
            wanted = ruling(self, exchange.api_key, exchange.api_version) & (EDITED | LED | STREAMED)
        if (
            (flags & ~TOLD or learnt or wanted)
            and exchange.api_key != API_VERSIONS  # its header has no tags, whatever its body is (KIP-511)
            and is_flexible(exchange.api_key, exchange.api_version)
        ):
            at = skip_tags(p, body, there if there < 4 + size else 4 + size)
            if at >= 0:
                body = at
            elif there < 4 + size:
                self.broker.enough = least_header(p, body, there, 4 + size, True, -1)
                return INCOMPLETE
            else:
                kind, flags = NO_WALKER, flags & ~PEEKED
                if wanted:
                    self.answers.failed(ValueError("the response's header cannot be read"))
                    look(self)
                    wanted = 0
        if flags & PEEKED and not peek(exchange, flags, p, body, there, 4 + size):
            return INCOMPLETE
        self.first = exchange.next
        exchange.next = None
        if self.first is None:
            self.last = None
        self.open -= 1
        exchange.response_bytes = size + 4
        if learnt or flags & KEEP_RESPONSE:
            passing = told.passing(True, exchange.api_key, flags, 4 + size - body, learnt)
        if wanted:
            frame = self.answers.response(wanted, exchange, body, 4 + size)
            look(self)
        return self.begin(True, exchange, frame, kind, passing, p, body, 4 + size, start, data, end, now)

    # ---- both directions ----------------------------------------------------------------------------------------

    cdef Py_ssize_t begin(
        self, bint response, Exchange exchange, object frame, Kind kind, Passing passing, const uint8_t *p,
        Py_ssize_t body, int64_t length, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now,
    ) except? -1:  # fmt: skip
        """The prefix of a frame of ``length`` bytes is read: pass its body, which starts at ``p[body]``, as far as
        ``data`` holds it. ``exchange``: None for a raw SASL token."""
        cdef Direction state = self.broker if response else self.client
        cdef Told told = self.told
        cdef int64_t stop = start + length  # in coordinates of data, like everything below
        cdef Py_ssize_t upto = stop if stop < end else end
        cdef Py_ssize_t at = start + body
        cdef bytes lead
        if self.answers is not None and (start < 0 or frame is not None):
            lead = PyBytes_FromStringAndSize(<const char *>p, -start) if start < 0 else b""
            self.answers.open(frame, lead, chunk(self, data, end), start if start > 0 else 0, upto, stop <= end)
            look(self)
        if kind != NO_WALKER and (at < 0 or stop > end):
            if passing is None:
                passing = new_passing(length - body, False, False)
            passing.feed = new_feed(kind, exchange.api_version)
            kind = NO_WALKER
        if kind != NO_WALKER or passing is not None:
            if at < 0:  # that many bytes of the body came before data
                lead = PyBytes_FromStringAndSize(<const char *>p + body, -at)
                told.piece(
                    response, exchange, kind, passing, lead, <const uint8_t *>PyBytes_AS_STRING(lead), -at, False
                )
                at = 0
            told.piece(response, exchange, kind, passing, None, data + at, upto - at, stop <= end)
        elif told is not None and stop <= end:
            told.piece(response, exchange, NO_WALKER, None, None, NULL, 0, True)
        if stop > end:
            state.left, state.exchange, state.passing, state.frame = stop - end, exchange, passing, frame
            return end
        self.finish_frame(response, exchange, data, end, stop, now)
        return stop

    cdef Py_ssize_t go_on(
        self, bint response, Direction state, const uint8_t *data, Py_ssize_t end, double now
    ) except? -1:
        """Pass more of the current frame's body; return the offset after it."""
        cdef bint last = state.left <= end
        cdef Py_ssize_t take = state.left if last else end
        cdef Exchange exchange = state.exchange
        cdef Passing passing = state.passing
        state.left -= take
        if state.scanning is not None:
            check(self, state, exchange, data, take)
        if state.frame is not None:
            whole = chunk(self, data, end)
            self.answers.put(state.frame.take(whole[:take], last), whole, 0, take)
            look(self)
        if self.told is not None and (last or passing is not None):
            self.told.piece(response, exchange, NO_WALKER, passing, None, data, take, last)
        if last:
            state.exchange = None
            state.passing = None
            state.frame = None
            state.scanning = None
            self.finish_frame(response, exchange, data, end, take, now)
        return take

    cdef int finish_frame(
        self, bint response, Exchange exchange, const uint8_t *data, Py_ssize_t end, Py_ssize_t stop, double now
    ) except -1:
        """A frame is complete, in ``data`` up to ``stop``; ``exchange``: None for a raw SASL token."""
        if not response:
            if exchange is not None:
                exchange.received_at = now
                if exchange.outcome_code == NO_RESPONSE and not exchange.synthesized:
                    self.close_exchange(exchange)
                await_end(self, exchange)
            return 0
        if exchange is not None:
            exchange.responded_at = now
            exchange.outcome_code = ANSWERED
            count(self.answered, exchange.api_key)
            self.close_exchange(exchange)
        if self.waits:
            answer(self, chunk(self, data, end), stop)
        return 0

    cdef void close_exchange(self, Exchange exchange) noexcept:
        """It is not open any more; where somebody observes, it is recorded first."""
        if self.told is None:
            self.account.charge(-exchange.charged)

    cdef int read_bodies(self, double now) except -1:
        """Read the bodies of the last chunk and record what ended in it. A bad body is counted, never raised."""
        try:
            if self.told is not None:
                self.told.walk(now)
        finally:
            self.held = None
        return 0

    cdef int end_all(self, double now) except -1:
        return end_session(self, now)
