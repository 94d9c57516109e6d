# cython: language_level=3
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from proxy.core.header cimport BAD, MORE, skip_uvarint, uvarint_at
from proxy.core.memory cimport int16_at, int32_at, sliced

cdef enum:
    ROOM = 272  # bytes of the longest element: a topic's name and its length, or two numbers

cdef enum:
    HEAD
    TOPIC
    COUNT
    PARTITION
    PARTITION_TAGS
    TOPIC_TAGS
    TAG
    END

cdef int64_t max_name, max_string, max_items, int32_max
cdef int with_ids, flexible_since

@cython.final
@cython.no_gc
cdef class ProduceScan:
    cdef object topics, names, ids
    cdef readonly object partitions
    cdef readonly bint found, named
    cdef bint collect
    cdef int version, step, after
    cdef int64_t topics_left, partitions_left, tags_left, collected, skip, value
    cdef bytearray carry

    @cython.locals(at=int64_t, had=int64_t, taken=int64_t, done=int64_t)
    cdef int read(self, const uint8_t *data, int64_t start, int64_t stop) except -1
    cdef bint reads_on(self) noexcept
    @cython.locals(after=int64_t)
    cdef int64_t element(self, const uint8_t *data, int64_t at, int64_t limit) except -1
    @cython.locals(name=bytes)
    cdef int64_t topic(self, const uint8_t *data, int64_t at, int64_t limit) except -1
    cdef int add_partition(self, int32_t index) except -1
    cdef int next_partition(self) noexcept
    cdef int next_topic(self) noexcept
    cdef int after_tags(self) noexcept
    @cython.locals(after=int64_t)
    cdef int64_t number(self, const uint8_t *data, int64_t at, int64_t limit) except -1
    cdef int64_t length(self, const uint8_t *data, int64_t at, int64_t limit, int least) except -1
