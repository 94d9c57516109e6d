# A part of walk.pyx: steps of ShareFetchRequest and ShareFetchResponse (KIP-932), versions 0–2 (the JSON files of these
# names).
#
# Version 0 is the early access of Kafka 3.9 and 4.0; all versions are flexible and carry topic ids. Their facts are
# those of Fetch, without what a share group does not have. Topics that are forgotten: fetch.pxi.

cdef int share_request_head(Walk *walk) except -1:
    """Group, member, share session epoch, max wait, min bytes, max bytes, most records and batch size (v1+), how to
    acquire and whether acknowledgements renew (v2+), topics."""
    cdef Body *body = walk.body
    cdef const uint8_t *start
    cdef const uint8_t *fixed
    cdef const uint8_t *group
    cdef int64_t size, group_size
    if not text(walk, &group, &group_size) or not text(walk, &start, &size):
        return 0
    fixed = walk.data + walk.pos
    walk.pos += 16 + (8 if walk.version >= 1 else 0) + (2 if walk.version >= 2 else 0)
    if walk.pos > walk.size or not count_topics(walk):
        return 0
    if group_size > 0:
        body.group_id = PyBytes_FromStringAndSize(<const char *>group, group_size)
        body.names += NAME + group_size
    body.session_epoch = int32_at(fixed)
    body.max_wait_ms = int32_at(fixed + 4)
    body.min_bytes = int32_at(fixed + 8)
    return 1


cdef int share_wanted_partition(Walk *walk) except -1:
    """Partition, the most bytes wanted (v0), acknowledged ranges."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef int64_t batches
    walk.pos += 4 if walk.version >= 1 else 8
    if walk.pos > walk.size or not length(walk, &batches):
        return 0
    if batches < 0:
        return refuse_count(walk, batches)
    partition(walk, fixed).offset = -1
    walk.elements = batches
    walk.step = ACKNOWLEDGED
    return 1


cdef int acknowledged(Walk *walk) except -1:
    """First and last offset of a range, and its acknowledge types, a byte each."""
    cdef int64_t types
    if not walk.elements:
        pass_tags(walk, PARTITION)
        return 1
    walk.pos += 16
    if not length(walk, &types):
        return 0
    if types < 0:
        return refuse_count(walk, types)
    walk.pos += types
    walk.elements -= 1
    pass_tags(walk, ACKNOWLEDGED)
    return 1


cdef int share_response_head(Walk *walk) except -1:
    """Throttle time, error code, message, how long acquired records are locked (v1+), topics."""
    cdef Body *body = walk.body
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef const uint8_t *start
    cdef int64_t size
    walk.pos += 6
    if not text(walk, &start, &size):
        return 0
    walk.pos += 4 if walk.version >= 1 else 0
    if walk.pos > walk.size or not count_topics(walk):
        return 0
    body.throttle_ms = int32_at(fixed)
    body.error_code = int16_at(fixed + 4)
    return 1


cdef int share_fetched_partition(Walk *walk) except -1:
    """Partition, error code, its message, error code of acknowledging, its message, current leader and its epoch."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef const uint8_t *start
    cdef int64_t size
    cdef Part *part
    walk.pos += 6
    if not text(walk, &start, &size):
        return 0
    walk.pos += 2
    if not text(walk, &start, &size):
        return 0
    part = partition(walk, fixed)
    part.error_code = int16_at(fixed + 4)
    part.offset = -1
    walk.pos += 8
    pass_tags(walk, RECORDS)
    return 1


cdef int count_acquired(Walk *walk) except -1:
    """Number of ranges of acquired records."""
    if not length(walk, &walk.elements):
        return 0
    if walk.elements < 0:
        return refuse_count(walk, walk.elements)
    walk.step = ACQUIRED
    return 1


cdef int acquired(Walk *walk) except -1:
    """First and last offset, number of deliveries."""
    if not walk.elements:
        pass_tags(walk, PARTITION)
        return 1
    walk.pos += 18
    walk.elements -= 1
    pass_tags(walk, ACQUIRED)
    return 1


cdef int count_endpoints(Walk *walk) except -1:
    """Number of leaders whose addresses the response contains."""
    if not length(walk, &walk.elements):
        return 0
    if walk.elements < 0:
        return refuse_count(walk, walk.elements)
    walk.step = ENDPOINT
    return 1


cdef int endpoint(Walk *walk) except -1:
    """Node id, host, port, rack."""
    cdef const uint8_t *start
    cdef int64_t size
    if not walk.elements:
        pass_tags(walk, END)
        return 1
    walk.pos += 4  # node id
    if not text(walk, &start, &size):  # host
        return 0
    walk.pos += 4  # port
    if not text(walk, &start, &size):  # rack
        return 0
    walk.elements -= 1
    pass_tags(walk, ENDPOINT)
    return 1
