# cython: language_level=3
from cpython.array cimport array as NumberArray
from libc.stdint cimport int64_t


cdef inline int64_t number_at(NumberArray numbers, Py_ssize_t at) noexcept:
    return numbers.data.as_longlongs[at]


cdef inline int set_number(NumberArray numbers, Py_ssize_t at, int64_t value) noexcept:
    numbers.data.as_longlongs[at] = value
    return 0


cdef inline int add_number(NumberArray numbers, Py_ssize_t at, int64_t more) noexcept:
    numbers.data.as_longlongs[at] += more
    return 0
