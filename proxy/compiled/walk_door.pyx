# cython: language_level=3
"""The walkers as Python calls them, for tests and measurements. ``data`` is any buffer.

A walker is the number of its kind of body; whom a malformed body is blamed on follows from that, whatever ``side`` is.
``walk_whole`` reads the body ``data[start:end]`` at once, ``BodyFeed`` one that comes in pieces.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

from proxy.compiled.exchange cimport (
    FETCH_REQUEST,
    FETCH_RESPONSE,
    NO_WALKER,
    PRODUCE_REQUEST,
    PRODUCE_RESPONSE,
    REQUEST_RESOURCES,
    RESPONSE_ERRORS,
    SHARE_FETCH_REQUEST,
    SHARE_FETCH_RESPONSE,
    Body,
    Exchange,
    Kind,
    facts_of,
    free_body,
)
from proxy.compiled.walk cimport Feed, kind_of, read_whole as read_whole_of, new_feed as new_feed_of, walk_body

produce_request = <int>PRODUCE_REQUEST
produce_response = <int>PRODUCE_RESPONSE
fetch_request = <int>FETCH_REQUEST
fetch_response = <int>FETCH_RESPONSE
share_fetch_request = <int>SHARE_FETCH_REQUEST
share_fetch_response = <int>SHARE_FETCH_RESPONSE


def walker_for_request(int key, int version):
    cdef Kind kind = kind_of(key, version, False)
    return None if kind == NO_WALKER or kind == REQUEST_RESOURCES else <int>kind


def walker_for_response(int key, int version):
    cdef Kind kind = kind_of(key, version, True)
    return None if kind == NO_WALKER or kind == RESPONSE_ERRORS else <int>kind


cdef class _View:
    """``data[start:end]``; holds the buffer."""

    cdef Py_buffer buffer
    cdef const uint8_t *start
    cdef Py_ssize_t size

    def __init__(self, object data, Py_ssize_t start, Py_ssize_t end):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        if not 0 <= start <= end <= self.buffer.len:
            raise IndexError(f"{start}:{end} of {self.buffer.len} bytes")
        self.start = <const uint8_t *>self.buffer.buf + start
        self.size = end - start

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef object _freed(Body *body):
    try:
        return facts_of(body)
    finally:
        free_body(body)


def walk_whole(int walker, object data, Py_ssize_t start, Py_ssize_t end, int version, str side):
    cdef _View view = _View(data, start, end)
    return _freed(walk_body(<Kind>walker, version, view.start, view.size))


def walk_often(int walker, object data, int version, int times):
    """Walk ``data`` that often and build no facts: what a compiled caller pays."""
    cdef _View view = _View(data, 0, len(data))
    for _ in range(times):
        free_body(walk_body(<Kind>walker, version, view.start, view.size))


cdef class BodyFeed:
    cdef Feed feed_
    cdef bint finished

    def __init__(self, int walker, int version, str side, int api_key=0):
        self.feed_ = new_feed_of(<Kind>walker, api_key, version)

    def feed(self, object data, Py_ssize_t start, Py_ssize_t end):
        cdef _View view = _View(data, start, end)
        if self.finished:
            raise ValueError("the body has been handed over")
        self.feed_.feed(view.start, 0, view.size)

    def finish(self):
        if self.finished:
            raise ValueError("the body has been handed over")
        facts = _freed(self.feed_.finish())
        self.finished = True
        return facts

    def size(self):
        return self.feed_.size()

    def finish_into(self, Exchange exchange, bint response):
        self.finished = True
        return self.feed_.finish_into(exchange, response)


def new_feed(int kind, int api_key, int version):
    return BodyFeed(kind, version, "", api_key)


def read_whole(Exchange exchange, int kind, bint response, object data, Py_ssize_t start, Py_ssize_t end):
    cdef _View view = _View(data, start, end)
    return read_whole_of(exchange, <Kind>kind, response, view.start, 0, view.size)
