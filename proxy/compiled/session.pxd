# cython: language_level=3
"""The session's door for the compiled relay; what it promises is in proxy/core/session.py."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t

from proxy.compiled.exchange cimport Exchange, Kind
from proxy.compiled.walk cimport Feed

cdef struct Piece  # part of a body to read, see session.pyx

cdef class Direction:
    """How far one direction has got inside its current frame."""
    cdef int64_t left  # bytes of the current frame still to come, once its prefix is read
    cdef bytearray carry  # what came of a frame whose prefix is not complete
    cdef Exchange exchange  # what the current frame belongs to
    cdef Feed feed  # reads the current frame's body as it comes

cdef class Session:
    cdef object connection
    cdef object record  # None: nobody observes
    cdef object tally
    cdef object requests  # dicts of the tally
    cdef object responses
    cdef object decoded
    cdef int64_t max_frame
    cdef Direction client
    cdef Direction broker
    cdef Exchange first  # requests that wait for their response, linked in their order
    cdef Exchange last
    cdef int open
    cdef bytes client_id_raw
    cdef object client_id
    cdef bint tokens
    cdef Piece *todo
    cdef int todo_count
    cdef int todo_room
    cdef PyObject *spoilt  # the feed whose last piece was bad, while pieces of one chunk are read; borrowed
    cdef object held  # the chunk of a Python caller, until ``walk``
    cdef readonly Py_ssize_t clean

    cdef int read(self, bint response, const uint8_t *data, Py_ssize_t end, double now) except -1
    cdef int read_bodies(self) except -1
    cdef bint is_between_requests(self) noexcept
    cdef bint is_saturated(self) noexcept
    cdef int end_all(self) except -1

    cdef Py_ssize_t start_request(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t start_response(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t token(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, Py_ssize_t end) except? -1
    cdef Py_ssize_t token_reply(self, const uint8_t *p, Py_ssize_t there, Py_ssize_t start, Py_ssize_t end) except? -1
    cdef Py_ssize_t pass_token(self, Direction state, int64_t size, Py_ssize_t start, Py_ssize_t end) noexcept
    cdef Py_ssize_t begin(self, bint response, Exchange exchange, Kind kind, const uint8_t *p, Py_ssize_t body, Py_ssize_t there, int64_t frame, Py_ssize_t start, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef Py_ssize_t go_on(self, bint response, Direction state, const uint8_t *data, Py_ssize_t end, double now) except? -1
    cdef int finish_frame(self, bint response, Exchange exchange, double now, bint walked) except -1
    cdef int check_size(self, int64_t size) except -1
    cdef int add_piece(self, bint response, Exchange exchange, Kind kind, Feed feed, bytes keep, const uint8_t *data, Py_ssize_t size, bint last) except -1
    cdef int read_piece(self, Piece *piece) except -1
