# A part of walk.pyx: steps of ProduceRequest and ProduceResponse, versions 0–13 (ProduceRequest.json,
# ProduceResponse.json).

cdef int produce_request_head(Walk *walk) except -1:
    """Transactional id (v3+), acks, timeout, topics."""
    cdef const uint8_t *start = NULL
    cdef const uint8_t *fixed
    cdef int64_t size = -1
    if walk.version >= 3 and not text(walk, &start, &size):
        return 0
    fixed = walk.data + walk.pos
    walk.pos += 6
    if walk.pos > walk.size or not count_topics(walk):
        return 0
    if size >= 0:
        walk.body.transactional_id = PyBytes_FromStringAndSize(<const char *>start, size)
        walk.body.names += NAME + size if size else 0
    walk.body.acks = int16_at(fixed)
    walk.body.timeout_ms = int32_at(fixed + 2)
    return 1


cdef int produced_partition(Walk *walk) except -1:
    """Partition, and the size of its record set, which may be null."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef int64_t size
    walk.pos += 4
    if walk.pos > walk.size or not length(walk, &size):
        return 0
    partition(walk, fixed).records.size = max(size, 0)
    walk.left = size
    if size > 0:
        walk.step = BATCH
    else:
        pass_tags(walk, PARTITION)
    return 1


cdef int answered_partition(Walk *walk) except -1:
    """Partition, error code, base offset, log append time (v2+), log start offset (v5+), record errors (v8+)."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef Part *part
    cdef int64_t errors = 0
    walk.pos += 14 + (8 if walk.version >= 2 else 0) + (8 if walk.version >= 5 else 0)
    if walk.pos > walk.size or walk.version >= 8 and not length(walk, &errors):
        return 0
    if errors < 0:
        return refuse_count(walk, errors)
    part = partition(walk, fixed)
    part.error_code = int16_at(fixed + 4)
    part.offset = int64_at(fixed + 6)
    walk.elements = errors
    if walk.version >= 8:
        walk.step = RECORD_ERROR if errors else MESSAGE
    return 1


cdef int record_error(Walk *walk) except -1:
    """Index in the batch, and a message."""
    cdef const uint8_t *start
    cdef int64_t size
    if not walk.elements:
        walk.step = MESSAGE
        return 1
    walk.pos += 4
    if not text(walk, &start, &size):
        return 0
    walk.elements -= 1
    pass_tags(walk, RECORD_ERROR)
    return 1


cdef int message(Walk *walk) except -1:
    """The partition's error message (v8+)."""
    cdef const uint8_t *start
    cdef int64_t size
    if not text(walk, &start, &size):
        return 0
    pass_tags(walk, PARTITION)
    return 1


cdef int throttle(Walk *walk) except -1:
    """Throttle time (v1+)."""
    if walk.version >= 1:
        if walk.pos + 4 > walk.size:
            return 0
        walk.body.throttle_ms = int32_at(walk.data + walk.pos)
        walk.pos += 4
    pass_tags(walk, END)
    return 1
