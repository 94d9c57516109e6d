# cython: language_level=3
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_GetItem, PyDict_SetItem, PyDict_Size
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy


cdef inline int16_t int16_at(const uint8_t *data, int64_t at) noexcept nogil:
    return <int16_t>(<uint16_t>data[at] << 8 | data[at + 1])


cdef inline int32_t int32_at(const uint8_t *data, int64_t at) noexcept nogil:
    return <int32_t>(
        <uint32_t>data[at] << 24 | <uint32_t>data[at + 1] << 16 | <uint32_t>data[at + 2] << 8 | data[at + 3]
    )


cdef inline bytes sliced(const uint8_t *data, int64_t start, int64_t end):
    return PyBytes_FromStringAndSize(<const char *>data + start, end - start)


cdef inline bint equals(bytes text, const uint8_t *data, int64_t start, int64_t size) noexcept:
    return PyBytes_GET_SIZE(text) == size and not memcmp(PyBytes_AS_STRING(text), data + start, size)


cdef inline bytes with_head(bytes head, bytes body):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head), length = PyBytes_GET_SIZE(body)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, size + length)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(frame)
    memcpy(at, PyBytes_AS_STRING(head), size)
    memcpy(at + size, PyBytes_AS_STRING(body), length)
    size += length - 4
    at[0], at[1], at[2], at[3] = size >> 24 & 255, size >> 16 & 255, size >> 8 & 255, size & 255
    return frame


cdef inline int count_api(object counts, int key) except -1:
    if not 0 <= key < 128 and PyDict_Size(counts) >= 256 and not PyDict_Contains(counts, key):
        key = -1
    return count(counts, key)


cdef inline int count(object counts, object key) except -1:
    cdef PyObject *had = PyDict_GetItem(counts, key)
    PyDict_SetItem(counts, key, 1 if had == NULL else <object>had + 1)
    return 0
