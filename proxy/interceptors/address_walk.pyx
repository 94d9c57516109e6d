# cython: language_level=3
"""Passes over the fields of a response, and replaces the broker addresses among them.

In every message an address is: node id (int32), host (string), port (int32). A response may hold one for each of 20,000
keys that a client asks for, so it is read without an object for each of them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from functools import cache

from proxy.compiled.wire cimport int16_at, int32_at

from proxy.core import wire
from proxy.core.schema import SIZES
from proxy.core.wire import DecodeError

cdef enum Op:
    SKIP  # as many bytes as the argument says
    TEXT  # a string
    SIZED  # a length, and as many times the bytes of the argument
    ARRAY  # a length; where it is 0 or null, continue at the argument, else with the first element
    NEXT  # the next element, as often as there are more
    TAGS  # a section of tagged fields
    ADDRESS
    END

cdef enum:
    MAX_DEPTH = 8  # arrays in each other

cdef int64_t MAX_STRING = wire.MAX_STRING

cdef struct Instruction:
    Op op
    int64_t argument


cdef class AddressProgram:
    """How to walk over some fields of a message: instructions made from its layout, once."""

    cdef Instruction *code
    cdef bint flexible

    def __cinit__(self, list rows, bint flexible):
        cdef Py_ssize_t at
        self.flexible = flexible
        self.code = <Instruction *>PyMem_Malloc(len(rows) * sizeof(Instruction))
        if self.code == NULL:
            raise MemoryError
        for at in range(len(rows)):
            self.code[at].op, self.code[at].argument = rows[at]

    def __dealloc__(self):
        PyMem_Free(self.code)


@cache
def program_of(message, int end):
    """Return the program of the first ``end`` fields of ``message``, and of the addresses among them."""
    rows = []
    _add_fields(rows, message, end, 0)
    rows.append((END, 0))
    return AddressProgram(rows, message.flexible)


@cache
def program_of_array(element, bint flexible):
    """Return the program of an array of structs with the layout ``element``, and of their addresses."""
    rows = []
    _add_array(rows, element, flexible, 0)
    rows.append((END, 0))
    return AddressProgram(rows, flexible)


def _add_array(rows, element, flexible, depth):
    assert depth < MAX_DEPTH
    at = len(rows)
    rows.append((ARRAY, 0))
    _add_fields(rows, element, len(element.ordered), depth + 1)
    if flexible:
        rows.append((TAGS, 0))
    rows.append((NEXT, 0))
    rows[at] = (ARRAY, len(rows))


def _add_fields(rows, made, end, depth):
    host = made.named["host"].index if "host" in made.named else -1
    for field in made.ordered[:end]:
        if host >= 0 and host - 1 <= field.index <= host + 1:  # node id, host, port
            if field.index == host:
                rows.append((ADDRESS, 0))
        elif field.array and field.layout is not None:
            _add_array(rows, field.layout, made.flexible, depth)
        elif field.array:
            rows.append((SIZED, SIZES[field.type]))
        elif field.layout is not None:
            assert not field.nullable, field.name
            _add_fields(rows, field.layout, len(field.layout.ordered), depth)
            if made.flexible:
                rows.append((TAGS, 0))
        elif field.type == "string":
            rows.append((TEXT, 0))
        elif field.type in SIZES:
            if rows and rows[-1][0] == SKIP:
                rows[-1] = (SKIP, rows[-1][1] + SIZES[field.type])
            else:
                rows.append((SKIP, SIZES[field.type]))
        else:
            rows.append((SIZED, 1))


cdef class AddressWalk:
    """One walk over the bytes of one message."""

    cdef AddressProgram _program
    cdef int _at, _depth
    cdef int64_t _left[MAX_DEPTH]  # elements of the arrays around the field at hand
    cdef int _start[MAX_DEPTH]  # instructions of their elements
    cdef uint64_t _tags  # left of the section at hand
    cdef bint _in_tags
    cdef const uint8_t *_data
    cdef int64_t _size, _pos
    cdef object _lookup
    cdef dict _encoded  # host and port as they are written, by node id
    cdef uint8_t *_out
    cdef int64_t _written, _room, _copied  # ``_copied``: offset up to which ``_out`` replaces the bytes

    def __cinit__(self, AddressProgram program not None):
        self._program = program

    def __dealloc__(self):
        PyMem_Free(self._out)

    def skip(self, bytes buf not None, int64_t pos):
        """Pass over the fields, as far as they are in ``buf``, from ``pos`` on.

        Return whether all were passed, and the offset after them, or else of the first byte that is still needed. It may
        lie beyond the end. With the next call comes that byte, wherever it is then. Raises DecodeError.
        """
        self._data = <const uint8_t *>PyBytes_AS_STRING(buf)
        self._size = PyBytes_GET_SIZE(buf)
        self._pos = pos
        done = self._advance()
        return bool(done), self._pos

    def replace(self, bytes body not None, int64_t pos, lookup):
        """Return what replaces the fields at ``pos``, and the offset after them. ``lookup(node_id)``: host and port.

        An address without a host stays: the node then has an error instead. Raises IndexError where bytes are missing,
        and DecodeError.
        """
        self._lookup = lookup
        self._encoded = {}
        self._data = <const uint8_t *>PyBytes_AS_STRING(body)
        self._size = PyBytes_GET_SIZE(body)
        self._pos = self._copied = pos
        if not self._advance() or self._pos > self._size:
            raise IndexError
        self._write(self._data + self._copied, self._pos - self._copied)
        return PyBytes_FromStringAndSize(<char *>self._out, self._written), self._pos

    cdef int _advance(self) except -1:
        """Return 1 at the end, 0 where bytes are missing; ``_pos`` is then that of the first one that is needed."""
        cdef const Instruction *now
        cdef int64_t mark, count
        while True:
            now = &self._program.code[self._at]
            mark = self._pos
            if now.op == SKIP:
                self._pos += now.argument
            elif now.op == TEXT or now.op == SIZED:
                if not self._length(now.op == TEXT, &count):
                    self._pos = mark
                    return 0
                if count > 0:
                    self._pos += count if now.op == TEXT else count * now.argument
            elif now.op == ARRAY:
                if not self._length(False, &count):
                    self._pos = mark
                    return 0
                if count <= 0:
                    self._at = <int>now.argument
                    continue
                self._left[self._depth] = count
                self._start[self._depth] = self._at + 1
                self._depth += 1
            elif now.op == NEXT:
                self._left[self._depth - 1] -= 1
                if self._left[self._depth - 1]:
                    self._at = self._start[self._depth - 1]
                    if self._pos > self._size:  # a declared number of elements costs nothing before their bytes come
                        return 0
                    continue
                self._depth -= 1
            elif now.op == TAGS:
                if not self._pass_tags():
                    return 0
            elif now.op == ADDRESS:
                if not self._replace_address():
                    self._pos = mark
                    return 0
            else:
                return 1
            self._at += 1

    cdef int _uvarint(self, uint64_t *value) except -1:
        """Unsigned varint of at most five bytes. Returns 0 where bytes are missing; ``_pos`` may have moved then."""
        cdef int shift
        cdef uint64_t byte
        value[0] = 0
        for shift in range(0, 35, 7):
            if self._pos >= self._size:
                return 0
            byte = self._data[self._pos]
            self._pos += 1
            value[0] |= (byte & 127) << shift
            if byte < 128:
                return 1
        raise DecodeError("a varint of more than five bytes")

    cdef int _length(self, bint is_text, int64_t *value) except -1:
        """Length of a string, byte field or array: −1 is null. As ``_uvarint``."""
        cdef uint64_t more
        cdef int width = 2 if is_text else 4
        if self._program.flexible:
            if not self._uvarint(&more):
                return 0
            value[0] = <int64_t>more - 1
            if is_text and value[0] > MAX_STRING:
                raise DecodeError(f"a string of {value[0]} bytes")
            return 1
        if self._pos + width > self._size:
            return 0
        value[0] = int16_at(self._data + self._pos) if is_text else int32_at(self._data + self._pos)
        self._pos += width
        if value[0] < -1:
            raise DecodeError(f"a length of {value[0]}")
        return 1

    cdef int _pass_tags(self) except -1:
        cdef int64_t mark = self._pos
        cdef uint64_t tag, size
        if not self._in_tags:
            if not self._uvarint(&self._tags):
                self._pos = mark
                return 0
            self._in_tags = True
        while self._tags:
            mark = self._pos
            if not self._uvarint(&tag) or not self._uvarint(&size):
                self._pos = mark
                return 0
            self._pos += <int64_t>size
            self._tags -= 1
        self._in_tags = False
        return 1

    cdef int _replace_address(self) except -1:
        """As ``_uvarint``."""
        cdef int64_t start = self._pos + 4, count
        cdef int32_t node_id
        cdef bytes encoded
        if start > self._size:
            return 0
        node_id = int32_at(self._data + self._pos)
        self._pos = start
        if not self._length(True, &count):
            return 0
        self._pos += max(count, <int64_t>0) + 4
        if self._pos > self._size:
            return 0
        if count > 0:
            encoded = self._encoded.get(node_id)
            if encoded is None:
                host, port = self._lookup(node_id)
                encoded = self._encoded[node_id] = self._encode(host, port)
            self._write(self._data + self._copied, start - self._copied)
            self._write(<const uint8_t *>PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
            self._copied = self._pos
        return 1

    cdef bytes _encode(self, str host, int32_t port):
        """Return a string, whose length is compact in flexible versions, and an int32."""
        cdef bytes name = host.encode()
        cdef uint64_t length = PyBytes_GET_SIZE(name)
        cdef uint8_t head[5]
        cdef uint8_t tail[4]
        cdef int at = 0
        if self._program.flexible:
            length += 1
            while length > 127:
                head[at] = length & 127 | 128
                length >>= 7
                at += 1
            head[at] = <uint8_t>length
            at += 1
        else:
            head[0], head[1] = length >> 8 & 255, length & 255
            at = 2
        tail[0], tail[1], tail[2], tail[3] = port >> 24 & 255, port >> 16 & 255, port >> 8 & 255, port & 255
        return (<char *>head)[:at] + name + (<char *>tail)[:4]

    cdef int _write(self, const uint8_t *start, int64_t size) except -1:
        cdef uint8_t *grown
        cdef int64_t room = self._room
        if self._written + size > room:
            room = max(2 * room, self._written + size, self._size + 64)
            grown = <uint8_t *>PyMem_Realloc(self._out, room)
            if grown == NULL:
                raise MemoryError
            self._out = grown
            self._room = room
        if size:
            memcpy(self._out + self._written, start, size)
            self._written += size
        return 0
