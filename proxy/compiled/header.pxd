# cython: language_level=3
"""What a session reads of a frame before its body: tagged fields of the header, the ``acks`` of a Produce.

Each returns an offset in ``p``, or one of the results below; bytes from ``limit`` on are not there.
"""

from libc.stdint cimport int64_t, uint8_t

from proxy.compiled.wire cimport int16_at

cdef enum:
    INCOMPLETE = -2  # more bytes may mend that; −1 is left to exceptions
    BAD = -3  # bytes that can never become right


cdef inline Py_ssize_t uvarint(const uint8_t *p, Py_ssize_t pos, Py_ssize_t limit, int64_t *value) noexcept nogil:
    """Read an unsigned varint at ``p[pos]``; return the offset after it, INCOMPLETE or BAD."""
    cdef int shift = 0
    value[0] = 0
    while shift < 35:
        if pos >= limit:
            return INCOMPLETE
        value[0] |= <int64_t>(p[pos] & 127) << shift
        pos += 1
        if p[pos - 1] < 128:
            return pos
        shift += 7
    return BAD


cdef inline Py_ssize_t skip_tags(const uint8_t *p, Py_ssize_t pos, Py_ssize_t limit) noexcept nogil:
    """Return the offset after a section of tagged fields, INCOMPLETE or BAD."""
    cdef int64_t fields, value
    pos = uvarint(p, pos, limit, &fields)
    while pos >= 0 and fields > 0:
        fields -= 1
        pos = uvarint(p, pos, limit, &value)
        if pos >= 0:
            pos = uvarint(p, pos, limit, &value)
            if pos >= 0:
                pos += value
    return INCOMPLETE if pos > limit else pos


cdef inline Py_ssize_t acks_at(const uint8_t *p, Py_ssize_t pos, Py_ssize_t limit, int version) noexcept nogil:
    """Return the offset of ``acks`` in the ProduceRequest whose body starts at ``p[pos]``, INCOMPLETE or BAD."""
    cdef int64_t length
    if version >= 9:
        pos = uvarint(p, pos, limit, &length)
        if pos < 0:
            return pos
        pos += length - 1 if length > 1 else 0
    elif version >= 3:
        if pos + 2 > limit:
            return INCOMPLETE
        length = int16_at(p + pos)
        pos += 2 + (length if length > 0 else 0)
    return INCOMPLETE if pos + 2 > limit else pos


cdef inline int64_t least_header(
    const uint8_t *p, int64_t pos, Py_ssize_t there, int64_t frame, bint tagged, int produce
) noexcept nogil:
    """Return how much of a frame of ``frame`` bytes, of which ``p[0:there]`` is known, its header takes at least, so
    that one that comes byte by byte is not read from its start for each of them.

    ``pos``: after the client id, where tagged fields begin if it is ``tagged``. ``produce``: the version of a
    ProduceRequest, of which all is needed up to its ``acks``; else −1."""
    cdef int64_t left, size
    cdef Py_ssize_t after
    if tagged:
        after = uvarint(p, pos, there, &left)
        if after < 0:
            return there + 1 if after == INCOMPLETE else frame
        pos = after
        while left > 0:
            after = uvarint(p, pos, there, &size)
            if after >= 0:
                after = uvarint(p, after, there, &size)
            if after < 0:
                pos = pos + 2 * left if after == INCOMPLETE else frame  # a field takes two bytes or more
                return there + 1 if pos <= there else pos if pos < frame else frame
            pos = after + size
            left -= 1
    if produce >= 9:
        after = uvarint(p, pos, there, &size)
        if after == BAD:
            return frame
        if after >= 0:
            pos = after + (size - 1 if size > 1 else 0) + 2
    elif produce >= 3 and pos + 2 <= there:
        size = int16_at(p + pos)
        pos += 2 + (size if size > 0 else 0) + 2
    return there + 1 if pos <= there else pos if pos < frame else frame
