# Part of audit_writer.pyx and connection_writer.pyx: JSON in memory of their own.

cdef enum:
    MIN_CAPACITY = 4096
    MAX_DIGITS = 20  # of a number of 64 bits, with its sign
    UNCLIPPED = 64  # characters of a text that ``clip`` leaves as it is, whatever they are

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const uint8_t *_ascii "PyUnicode_1BYTE_DATA"(object text)


@cython.final
cdef class JsonBuffer:
    """JSON that is being written. ``size`` bytes of it are there."""

    cdef char *start
    cdef Py_ssize_t size, capacity

    def __dealloc__(self):
        PyMem_Free(self.start)

    cdef char *reserve(self, Py_ssize_t more) except NULL:
        """Make room for ``more`` bytes, and return where they begin."""
        cdef char *grown
        cdef Py_ssize_t capacity
        if self.size + more > self.capacity:
            capacity = max(self.size + more, 2 * self.capacity, MIN_CAPACITY)
            grown = <char *>PyMem_Realloc(self.start, capacity)
            if grown == NULL:
                raise MemoryError
            self.start, self.capacity = grown, capacity
        return self.start + self.size

    cdef int put_literal(self, const char *literal) except -1:
        self.size = _put(self.reserve(strlen(literal)), literal) - self.start
        return 0

    cdef int put_number(self, const char *name, int64_t value) except -1:
        """Write a number. ``name``: all of the JSON before it."""
        cdef char *at = self.reserve(strlen(name) + MAX_DIGITS)
        self.size = _put_int(_put(at, name), value) - self.start
        return 0

    cdef int put_string(self, const char *name, str text) except -1:
        """Write a text; of None nothing, and no ``name``. UnicodeError: it is no Unicode text."""
        cdef Py_ssize_t n, length
        cdef const uint8_t *characters
        cdef char *at
        cdef bytes encoded
        if text is None:
            return 0
        length = PyUnicode_GET_LENGTH(text)
        at = _put(self.reserve(strlen(name) + length + 2), name)
        if PyUnicode_IS_COMPACT_ASCII(text):
            characters = _ascii(text)
            at[0] = b'"'
            for n in range(length):
                if characters[n] < 32 or characters[n] == b'"' or characters[n] == b"\\":
                    break
                at[n + 1] = characters[n]
            else:
                at[length + 1] = b'"'
                self.size = at + length + 2 - self.start
                return 0
        encoded = encoder.encode(text)
        at = _put(self.reserve(strlen(name) + PyBytes_GET_SIZE(encoded)), name)
        self.size = _put_text(at, <PyObject *>encoded) - self.start
        return 0

    cdef int put_clipped(self, const char *name, str text) except -1:
        """Write a text that a client chose, of any length."""
        return self.put_string(name, text if text is None or PyUnicode_GET_LENGTH(text) <= UNCLIPPED else clip(text))

    cdef bytes taken(self):
        """Return all of the JSON. The buffer is empty then."""
        cdef Py_ssize_t size = self.size
        self.size = 0
        return PyBytes_FromStringAndSize(self.start, size)


cdef inline char *_put(char *at, const char *literal) noexcept nogil:
    cdef size_t size = strlen(literal)  # known to the compiler
    memcpy(at, literal, size)
    return at + size


cdef inline char *_put_text(char *at, PyObject *text) noexcept nogil:
    cdef Py_ssize_t size = _size(text)
    memcpy(at, _text(text), size)
    return at + size


cdef inline char *_put_int(char *at, int64_t value) noexcept nogil:
    cdef char digits[20]
    cdef char *first = digits + 20
    cdef uint64_t left = <uint64_t>value
    cdef uint32_t pair
    if value < 0:
        at[0] = b"-"
        at += 1
        left = 0 - left
    while left >= 100:
        pair = <uint32_t>(left % 100)
        left = left // 100
        first -= 2
        memcpy(first, PAIRS + 2 * pair, 2)
    if left >= 10:
        first -= 2
        memcpy(first, PAIRS + 2 * left, 2)
    else:
        first -= 1
        first[0] = <char>(48 + left)
    memcpy(at, first, digits + 20 - first)
    return at + (digits + 20 - first)


cdef const char *PAIRS = (
    b"00010203040506070809" b"10111213141516171819" b"20212223242526272829" b"30313233343536373839"
    b"40414243444546474849" b"50515253545556575859" b"60616263646566676869" b"70717273747576777879"
    b"80818283848586878889" b"90919293949596979899"
)
