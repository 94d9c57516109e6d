# cython: language_level=3
"""What walk.pyx declares, and what of it compiled callers use: ``kind_of``, ``walk_body`` and ``Feed``."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t

from proxy.compiled.exchange cimport Body, Exchange, Kind

cdef enum Step:  # the element that comes next
    HEAD
    TOPIC
    PARTITION
    RECORD_ERROR  # of Produce responses
    MESSAGE  # of Produce responses
    ABORTED  # transactions, of Fetch responses
    ACKNOWLEDGED  # records, of ShareFetch requests
    RECORDS
    BATCH
    COUNT_ACQUIRED  # records, of ShareFetch responses
    ACQUIRED
    TAIL
    FORGOTTEN  # topics, of Fetch requests
    FORGOTTEN_PARTITION
    ENDPOINT  # of ShareFetch responses
    RACK  # of Fetch requests
    TAGS
    TAG
    END

cdef struct AbortedTransaction:
    int64_t producer_id
    int64_t first_offset
    bint ended  # its marker was read

cdef enum:
    MAX_NAME = 256
    MAX_DEPTH = 8
    MAX_FIELDS = 4
    MAX_ACL_TEXTS = 2
    MAX_ACL_NUMBERS = 3

cdef struct Instruction:
    int32_t op
    int32_t argument
    int32_t target

cdef struct Level:  # one element of an array; the first is the message itself
    int64_t left  # elements still to come, this one included
    int64_t index
    int32_t start  # its first instruction
    int32_t kind  # its resource type, by place in RESOURCE_TYPES
    int32_t partition
    int64_t offset  # committed
    int32_t name_size  # -1: none
    int32_t op_type  # place in OP_TYPES; -1: none
    int32_t mechanism  # place in MECHANISMS; -1: none
    int16_t error_code
    bint has_partition
    bint has_id
    uint8_t topic_id[16]
    uint8_t name[MAX_NAME]

cdef struct ItemWalk:
    const Instruction *program
    int32_t at
    int32_t depth
    bint in_tags
    int16_t error_code  # of the whole response
    uint64_t tags
    bint validate_only
    int32_t generation
    int64_t resources  # kept or not, as the next
    int64_t most  # resources that are kept
    int64_t commits
    int64_t counts[3]  # of errors, by class
    int64_t kept[3]
    PyObject *found  # list of errors or resources, or NULL; owned
    PyObject *found_commits
    PyObject *fields[MAX_FIELDS]  # bytes or NULL; owned
    bint repeated[MAX_FIELDS]  # with more than one value
    PyObject *acl_texts[MAX_ACL_TEXTS]  # of the current ACL: bytes or NULL; owned
    uint8_t acl_numbers[MAX_ACL_NUMBERS]
    int64_t acls  # kept, in resources or as the next
    int64_t matching_acls  # of a response, kept or not
    PyObject *found_acls
    Level levels[MAX_DEPTH]

cdef struct Walk:  # how far a walker has got
    const uint8_t *data
    int64_t size
    int64_t pos  # in data; beyond size where bytes to come are skipped
    Body *body
    int version
    bint flexible
    Step step
    Step after  # what follows the section of tags
    int64_t topics  # still to come, and so on
    int64_t partitions  # of the current topic, forgotten ones too
    int64_t elements  # of the current array within
    int64_t tags
    int64_t left  # bytes of the current record set
    PyObject *topic  # bytes or NULL; owned
    AbortedTransaction *aborted  # of the current partition, sorted once all are read; owned
    Py_ssize_t aborted_count
    Py_ssize_t aborted_capacity
    ItemWalk *items  # of REQUEST_RESOURCES and RESPONSE_ERRORS, else NULL; owned

cpdef Kind kind_of(int api_key, int version, bint response) noexcept  # NO_WALKER where there is none

cdef Body *walk_body(Kind kind, int version, const uint8_t *data, Py_ssize_t size) except NULL
"""The body data[0:size], whole. The caller owns what it gets. Raises MalformedBody."""

cdef int64_t read_whole(Exchange exchange, Kind kind, bint response, const uint8_t *data, int64_t start, int64_t end) except -1
"""The body data[start:end], whole, becomes the exchange's. Returns the bytes that it is charged with. Raises
MalformedBody."""

cdef class Feed:
    """One body that comes in pieces. After MalformedBody it must not be used again."""
    cdef Body *body  # owned until `finish`
    cdef Walk walk
    cdef uint8_t *carry  # what came of an element that is not complete; never together with a skip
    cdef Py_ssize_t carried
    cdef Py_ssize_t room
    cdef int64_t skip  # bytes to come that nobody needs
    cdef int _read(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int _keep(self, const uint8_t *data, Py_ssize_t size) except -1
    cdef int _check_carry(self) except -1
    cdef int feed(self, const uint8_t *data, int64_t start, int64_t end) except -1
    cdef int64_t size(self) noexcept  # bytes that it is charged with, until `finish`
    cdef Body *finish(self) except NULL  # hands the body to the caller. Raises MalformedBody if that was not all of it
    cdef int64_t finish_into(self, Exchange exchange, bint response) except -1  # the same as the exchange's; its bytes

cdef Feed new_feed(Kind kind, int api_key, int version)
