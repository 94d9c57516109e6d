# Part of session.pyx: what reads the topics of a Produce as it comes, from its ``acks`` on, up to the first protected
# one (``proxy.core.protected``). ``found``: there is one. ``named``: the first topic was read, or there is none.

cdef int MAX_NAME = protected.MAX_NAME
cdef int MAX_STRING = wire.MAX_STRING
cdef int WITH_IDS = protected.WITH_IDS
cdef int64_t INT32_MAX = protected.INT32_MAX
cdef int FLEXIBLE_SINCE = 9

@cython.final
@cython.no_gc
cdef class Scanning:
    """A scan of the current frame, which has not ended."""


@cython.final
@cython.no_gc
cdef class Protected:
    """The topics of ``proxy.core.protected.ProtectedTopics`` as C reads them."""

    def __cinit__(self, topics):
        self.topics, self.names, self.ids = topics, topics.names, topics.ids
        self.first, self.second = protected.PREFIXES

    cdef bint has(self, const uint8_t *name, Py_ssize_t size) except -1:
        if size >= 11 and not memcmp(name, <const char *>self.first, 11):
            return True
        if size >= 13 and not memcmp(name, <const char *>self.second, 13):
            return True
        return bool(self.names) and PyBytes_FromStringAndSize(<const char *>name, size) in self.names

    cdef bint has_id(self, const uint8_t *topic_id) except -1:
        return bool(self.ids) and PyBytes_FromStringAndSize(<const char *>topic_id, 16) in self.ids


cdef Protected latest_topics = None


cdef Protected protected_of(topics):
    """The same for all sessions of a listener, which mostly follow each other."""
    global latest_topics
    if latest_topics is None or latest_topics.topics is not topics:
        latest_topics = Protected(topics)
    return latest_topics


cdef inline void begin_scan(Scan *scan, int version) noexcept:
    scan.version, scan.step, scan.after = version, HEAD, SCANNED
    scan.left = scan.in_topic = scan.tags = scan.skip = 0
    scan.carried = 0
    scan.found = scan.named = False


cdef Scanning scanning_of(Scan *scan):
    cdef Scanning scanning = Scanning.__new__(Scanning)
    scanning.scan = scan[0]
    return scanning


cdef int read_topics(Scan *scan, Protected topics, const uint8_t *data, Py_ssize_t size) except -1:
    """Take the next bytes. Raises PeerError for bytes that a broker refuses too."""
    cdef Py_ssize_t pos, had, taken, done = 0
    if size <= 0 or scan.found:
        return 0
    if size <= scan.skip:
        scan.skip -= size
        return 0
    pos = scan.skip
    scan.skip = 0
    while scan.carried and scan.step != SCANNED and not scan.found:
        had = scan.carried
        taken = ROOM - had
        if taken > size - pos:
            taken = size - pos
        memcpy(&scan.carry[had], data + pos, taken)
        done = next_element(scan, topics, scan.carry, 0, had + taken)
        if done == INCOMPLETE:
            if had + taken == ROOM:
                raise PeerError("client", "invalid_request", "an element of a Produce that has no end")
            scan.carried = had + taken
            return 0
        scan.carried = 0
        pos += done - had  # an element ends in what is new: it was not complete before
    while pos < size and scan.step != SCANNED and not scan.found:
        done = next_element(scan, topics, data, pos, size)
        if done == INCOMPLETE:
            scan.carried = size - pos
            memcpy(scan.carry, data + pos, size - pos)
            return 0
        pos = done
    if pos > size:
        scan.skip = pos - size
    return 0


cdef Py_ssize_t next_element(
    Scan *scan, Protected topics, const uint8_t *p, Py_ssize_t pos, Py_ssize_t end
) except? -1:
    """Read the element at ``p[pos]``; return the offset after it, or INCOMPLETE, and then nothing has changed."""
    cdef int64_t value
    cdef bint found = False
    if scan.step == PARTITION:
        pos = scanned_length(scan, p, pos + 4, end, -1, &value)
        if pos == INCOMPLETE:
            return INCOMPLETE
        if scan.version >= FLEXIBLE_SINCE:
            scan.step = PARTITION_TAGS
        else:
            next_partition(scan)
        return pos + (value if value > 0 else 0)
    if scan.step == PARTITION_TAGS or scan.step == TOPIC_TAGS:
        pos = scanned_number(p, pos, end, &value)
        if pos == INCOMPLETE:
            return INCOMPLETE
        scan.tags, scan.after = value, scan.step
        if value:
            scan.step = TAG
        else:
            tagged(scan)
        return pos
    if scan.step == TAG:
        pos = scanned_number(p, pos, end, &value)
        if pos != INCOMPLETE:
            pos = scanned_number(p, pos, end, &value)
        if pos == INCOMPLETE:
            return INCOMPLETE
        scan.tags -= 1
        if not scan.tags:
            tagged(scan)
        return pos + value
    if scan.step == COUNT:
        pos = scanned_length(scan, p, pos, end, 0, &value)
        if pos == INCOMPLETE:
            return INCOMPLETE
        scan.in_topic = value + 1
        next_partition(scan)
        return pos
    if scan.step == HEAD:
        pos = scanned_length(scan, p, pos + 6, end, 0, &value)
        if pos == INCOMPLETE:
            return INCOMPLETE
        scan.left = value + 1
        next_topic(scan)
        return pos
    if scan.version >= WITH_IDS:
        if pos + 16 > end:
            return INCOMPLETE
        found = topics.has_id(p + pos)
        pos += 16
    else:
        if scan.version >= FLEXIBLE_SINCE:
            pos = scanned_length(scan, p, pos, end, 0, &value)
            if pos == INCOMPLETE:
                return INCOMPLETE
        elif pos + 2 > end:
            return INCOMPLETE
        else:
            value = p[pos] << 8 | p[pos + 1]
            pos += 2
        if value > MAX_STRING:
            raise PeerError("client", "invalid_request", f"a topic's name of {value} bytes")
        if value <= MAX_NAME:
            if pos + value > end:
                return INCOMPLETE
            found = topics.has(p + pos, value)
        pos += value
    scan.found |= found
    scan.named = True
    scan.step = COUNT
    return pos


cdef inline void next_partition(Scan *scan) noexcept:
    scan.in_topic -= 1
    if scan.in_topic:
        scan.step = PARTITION
    elif scan.version >= FLEXIBLE_SINCE:
        scan.step = TOPIC_TAGS
    else:
        next_topic(scan)


cdef inline void next_topic(Scan *scan) noexcept:
    scan.left -= 1
    if scan.left:
        scan.step = TOPIC
    else:
        scan.named = True
        scan.step = SCANNED


cdef inline void tagged(Scan *scan) noexcept:
    """After a section of tagged fields."""
    if scan.after == PARTITION_TAGS:
        next_partition(scan)
    else:
        next_topic(scan)


cdef inline Py_ssize_t scanned_number(const uint8_t *p, Py_ssize_t pos, Py_ssize_t end, int64_t *value) except? -1:
    """A varint; brokers take a larger one modulo 2^32, so that it would be another number there."""
    if pos < end and p[pos] < 128:
        value[0] = p[pos]
        return pos + 1
    pos = uvarint(p, pos, end, value)
    if pos == BAD:
        raise PeerError("client", "invalid_request", "a varint of more than five bytes")
    if pos != INCOMPLETE and value[0] > INT32_MAX:
        raise PeerError("client", "invalid_request", f"a number of {value[0]}")
    return pos


cdef inline Py_ssize_t scanned_length(
    Scan *scan, const uint8_t *p, Py_ssize_t pos, Py_ssize_t end, int least, int64_t *value
) except? -1:
    if scan.version >= FLEXIBLE_SINCE:
        pos = scanned_number(p, pos, end, value)
        value[0] -= 1
    elif pos + 4 > end:
        return INCOMPLETE
    else:
        value[0] = int32_at(p + pos)
        pos += 4
    if pos != INCOMPLETE and value[0] < least:
        raise PeerError("client", "invalid_request", f"a length of {value[0]} in a Produce")
    return pos


cdef int check(Session self, Direction state, Exchange exchange, const uint8_t *data, Py_ssize_t take) except -1:
    """Read the topics in the next piece: from the piece with a protected one on, nothing of the frame is forwarded."""
    cdef Scanning scanning = state.scanning
    read_topics(&scanning.scan, self.protected, data, take)
    if not scanning.scan.found:
        return 0
    state.scanning, state.frame = None, self.answers.cut(exchange)
    look(self)
    return await_end(self, exchange)


cdef int await_end(Session self, Exchange exchange) noexcept:
    """The place of a refused request without a response among the others says when the connection ends."""
    if exchange.synthesized and exchange.outcome_code == NO_RESPONSE:
        exchange.outcome_code = OPEN
        self.enqueue(exchange)
    return 0
