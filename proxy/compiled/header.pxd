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
