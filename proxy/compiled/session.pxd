# cython: language_level=3
"""What session.pyx declares, and what of it the compiled relay calls; what it promises is told there."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int64_t, uint8_t

from proxy.compiled.exchange cimport Exchange, Kind
from proxy.compiled.walk cimport Feed

cdef struct Piece  # part of a body to read, see passing.pxi

# What reads the topics of a Produce, see protected.pxi.

cdef enum:
    ROOM = 272  # bytes of the longest element: a topic's name and its length, or two numbers

cdef enum ScanStep:
    HEAD
    TOPIC
    COUNT
    PARTITION
    PARTITION_TAGS
    TOPIC_TAGS
    TAG
    SCANNED

cdef struct Scan:
    int version
    ScanStep step
    ScanStep after  # the step after a section of tagged fields
    int64_t left  # topics, partitions, tagged fields still to come
    int64_t in_topic
    int64_t tags
    int64_t skip  # bytes to come that are passed over
    int carried
    bint found
    bint named
    uint8_t carry[ROOM]  # an element that is not complete; never together with a skip

cdef class Watching:
    """A Watch as C reads it; one for all sessions."""
    cdef object watch
    cdef object record
    cdef object note
    cdef bytes table
    cdef uint8_t others
    cdef int64_t max_body
    cdef Py_buffer observed

    cdef uint8_t flags(self, int key, int version) noexcept
    cdef void count(self) noexcept

cdef enum:  # places in the counts of a budget
    OPEN_BYTES = 0
    RECORDED = 1
    LIMIT = 2
    OPTIONAL = 3

cdef class Account:
    """What one session holds of the budget."""
    cdef readonly object budget
    cdef int64_t[::1] counts
    cdef readonly int64_t held  # bytes that it is charged with

    cdef bint is_scarce(self) noexcept
    cpdef bint is_full(self) noexcept
    cpdef int charge(self, int64_t size) except -1
    cpdef bint take(self, int64_t size) noexcept
    cpdef void record(self, int64_t size) noexcept
    cpdef void close(self) noexcept

cdef class Passing:
    """One body that somebody wants, while it passes."""
    cdef Feed feed  # reads it as it comes
    cdef bytearray gathered  # grows with what comes: a declared length allocates nothing
    cdef int64_t charged  # bytes, for what the feed keeps
    cdef int64_t length
    cdef bint raw  # the exchange is to have its bytes
    cdef bint learnt  # whoever learns the client's identity is to have them

cdef class Told:
    """What observers are told of one session."""
    cdef object connection  # as it is known now
    cdef object identity
    cdef object decoded  # a dict of the tally
    cdef Watching watching
    cdef Piece *pieces
    cdef int count
    cdef int room  # pieces that there is room for
    cdef Account account
    cdef bint undecided  # only the broker's answer to something else shows that the client is through its login

    cdef Passing passing(self, bint response, int key, uint8_t flags, int64_t length, bint learnt)
    cdef int piece(self, bint response, Exchange exchange, Kind kind, Passing passing, bytes keep, const uint8_t *data, Py_ssize_t size, bint last) except -1
    cdef int walk(self, double now) except -1
    cdef int ended(self, list exchanges, double now) except -1
    cdef int read_piece(self, Piece *piece, double now) except -1
    cdef int read(self, Piece *piece, Exchange exchange, Passing passing) except -1
    cdef int gather(self, Piece *piece, Exchange exchange, Passing passing, double now) except -1
    cdef int learn(self, str method, tuple told) except -1
    cdef int lost(self, Exchange exchange) except -1
    cdef int record(self, Exchange exchange) except -1
    cdef bint hold(self, Exchange exchange, int64_t size) noexcept
    cdef void forget(self, Exchange exchange, Passing passing) noexcept
    cdef void give_back(self, Exchange exchange, int64_t size) noexcept

cdef class Scanning:
    cdef Scan scan

cdef class Protected:
    """The topics that a Produce is checked for."""
    cdef object topics
    cdef object names
    cdef object ids
    cdef bytes first
    cdef bytes second

    cdef bint has(self, const uint8_t *name, Py_ssize_t size) except -1
    cdef bint has_id(self, const uint8_t *topic_id) except -1

cdef class Direction:
    """How far one direction has got inside its current frame."""
    cdef int64_t left  # bytes of the current frame still to come, once its prefix is read
    cdef bytearray carry  # what came of a frame whose prefix is not complete
    cdef int64_t enough  # bytes of it below which it cannot be complete
    cdef Exchange exchange  # what the current frame belongs to
    cdef Passing passing  # what is wanted of the current frame's body
    cdef object frame  # what the current frame passes, of proxy.core.answers; None: it goes on as it comes
    cdef Scanning scanning  # reads the topics of the current frame

cdef class Session:
    cdef readonly Account account
    cdef object known_as  # the connection where nobody observes
    cdef Told told  # None: nobody observes
    cdef object asked  # dicts of the tally
    cdef object answered
    cdef object decoded
    cdef int64_t max_frame
    cdef Direction client
    cdef Direction broker
    cdef Exchange first  # requests that wait for their response, linked in their order
    cdef Exchange last
    cdef int open
    cdef bytes client_id_raw
    cdef readonly object client_id  # str or None
    cdef bint tokens
    cdef object held  # the chunk of a Python caller, until ``walk``
    cdef readonly int64_t requests
    cdef readonly Py_ssize_t clean
    cdef readonly object answers  # of proxy.core.answers; None where there are no rules
    cdef bytearray ruled  # the table of the rules
    cdef Protected protected  # None where no Produce is checked
    cdef bytes whole  # the chunk at hand, once it is of use as an object
    cdef bint touched  # the answers were told of something in this chunk
    cdef readonly bint diverted
    cdef bint waits  # as the answers have them
    cdef bint full
    cdef bint closing
    cdef bint resting  # the answers have a rest
    cdef int64_t decided  # requests in a row, up to the last one

    cdef int read(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1
    cdef int read_bodies(self, double now) except -1
    cdef Py_ssize_t read_frames(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1
    cdef int enqueue(self, Exchange exchange) noexcept
    cdef bint is_between_requests(self) noexcept
    cdef bint is_saturated(self) noexcept
    cdef bint is_to_wait(self, bint response) except -1
    cdef void close_exchange(self, Exchange exchange) noexcept
    cdef int end_all(self, double now) except -1

    cdef Py_ssize_t start_request(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t start_response(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t begin(self, bint response, Exchange exchange, object frame, Kind kind, Passing passing, const uint8_t *p, Py_ssize_t body, int64_t length, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t go_on(self, bint response, Direction state, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef int finish_frame(self, bint response, Exchange exchange, const uint8_t *data, Py_ssize_t end, Py_ssize_t stop, double now) except -1
    cdef int check_size(self, int64_t size) except -1
