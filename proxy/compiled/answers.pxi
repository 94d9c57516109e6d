# Part of session.pyx: what a session with rules does otherwise than to let bytes pass. The work itself is done by
# ``proxy.core.answers``, in Python, for little is not forwarded as it came. What C has to know of it for each frame is
# in the session; ``look`` brings it up to date.

cdef int read_ruled(Session self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1:
    """Read ``data`` by the rules: put together what goes on, where that is not the chunk as it is."""
    cdef Direction state = self.broker if response else self.client
    cdef Py_ssize_t upto = 0
    if self.diverted:
        self.answers.begin()
        self.diverted = False
    self.touched = False
    self.whole = None
    self.clean = 0
    if not response and self.resting:
        self.answers.keep(b"")
        self.resting = False
    try:
        if response or not self.closing:
            upto = self.read_frames(response, data, end, now)
    except PeerError:
        settle(self, response, data, end, self.clean)
        raise
    if not response and upto < end and not self.closing:
        self.answers.keep(chunk(self, data, end)[upto:])
        self.resting = True
    elif PyByteArray_GET_SIZE(state.carry):
        upto = self.clean
    return settle(self, response, data, end, upto)


cdef int settle(Session self, bint response, const uint8_t *data, Py_ssize_t end, Py_ssize_t upto) except -1:
    """``data`` was read up to there."""
    if not response and self.waits and not self.broker.left and not PyByteArray_GET_SIZE(self.broker.carry):
        answer(self, None, 0)
    if self.touched or upto < end:
        self.answers.end(chunk(self, data, end), upto)
        look(self)
        self.diverted = self.answers.diverted
    self.whole = None
    return 0


cdef bytes chunk(Session self, const uint8_t *data, Py_ssize_t end):
    """The chunk at hand."""
    if self.whole is None:
        self.whole = PyBytes_FromStringAndSize(<const char *>data, end)
    return self.whole


cdef int look(Session self) except -1:
    """The answers have been told of something: see what they have become."""
    self.touched = True
    self.waits = bool(self.answers.waiting)
    self.full, self.closing = self.answers.full, self.answers.closing
    return 0


cdef uint8_t ruling(Session self, int key, int version) except? 255:
    """The flags that the rules have for this api key and version."""
    if 0 <= key < KEYS and 0 <= version < VERSIONS:
        return PyByteArray_AS_STRING(self.ruled)[key * VERSIONS + version]
    return self.answers.rules.of(key, version)


cdef int answer(Session self, bytes data, Py_ssize_t at) except -1:
    """Between two frames of the broker, which are in its chunk ``data`` at ``at``: say what is to be said now."""
    cdef Exchange exchange = self.first
    cdef bytes said
    cdef Kind kind
    cdef Py_ssize_t body
    while self.waits and exchange is not None and exchange.synthesized:
        if exchange is self.client.exchange and not self.closing:
            return 0  # its request has not ended yet
        said = self.answers.answer(data, at)
        look(self)
        if not said:
            return 0
        self.first = exchange.next
        exchange.next = None
        if self.first is None:
            self.last = None
        self.open -= 1
        exchange.response_bytes = PyBytes_GET_SIZE(said)
        exchange.outcome_code = ANSWERED
        count(self.answered, exchange.api_key)
        self.close_exchange(exchange)
        if self.told is not None:
            kind, body = NO_WALKER, 8 + apis.response_header_is_flexible(exchange.api_key, exchange.api_version)
            if exchange.wanted & WALKED and PyBytes_GET_SIZE(said) > body:
                kind = kind_of(exchange.api_key, exchange.api_version, True)
            self.told.piece(
                True, exchange, kind, None, said, <const uint8_t *>PyBytes_AS_STRING(said) + body,
                PyBytes_GET_SIZE(said) - body, True,
            )
        exchange = self.first
    return 0
