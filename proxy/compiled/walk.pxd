# cython: language_level=3
"""The walkers' door for compiled callers; what they read, and where they stop, is in proxy/core/walk.py."""

from libc.stdint cimport uint8_t

from proxy.compiled.exchange cimport Body, Kind

cdef Kind kind_of(int api_key, int version, bint response) noexcept  # NO_WALKER where there is none

cdef Body *walk_body(Kind kind, int version, const uint8_t *data, Py_ssize_t size) except NULL
"""The body data[0:size], whole. The caller owns what it gets. Raises MalformedBody."""

cdef class Feed:
    """One body that comes in pieces. After MalformedBody it must not be used again."""
    cdef Body *body  # owned until `finish`
    cdef int feed(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef Body *finish(self) except NULL  # hands the body to the caller. Raises MalformedBody if that was not all of it

cdef Feed new_feed(Kind kind, int version)
