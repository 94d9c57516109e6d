# A part of walk.pyx: steps of FetchRequest and FetchResponse, versions 0–18 (FetchRequest.json, FetchResponse.json).

cdef int fetch_request_head(Walk *walk) except -1:
    """Replica id (until v14), max wait, min bytes, max bytes (v3+), isolation level (v4+), session id and epoch (v7+),
    topics."""
    cdef Body *body = walk.body
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef int replica = 4 if walk.version < 15 else 0
    cdef int session = replica + 8 + (4 if walk.version >= 3 else 0) + (1 if walk.version >= 4 else 0)
    walk.pos += session + (8 if walk.version >= 7 else 0)
    if walk.pos > walk.size or not count_topics(walk):
        return 0
    if replica:
        body.replica_id = int32_at(fixed)
    body.max_wait_ms = int32_at(fixed + replica)
    body.min_bytes = int32_at(fixed + replica + 4)
    if walk.version >= 4:
        body.isolation_level = <signed char>fixed[session - 1]
    if walk.version >= 7:
        body.session_id = int32_at(fixed + session)
        body.session_epoch = int32_at(fixed + session + 4)
    return 1


cdef int wanted_partition(Walk *walk) except -1:
    """Partition, leader epoch (v9+), fetch offset, epoch last fetched (v12+), log start offset (v5+), the most bytes
    wanted."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef int epoch = 4 if walk.version >= 9 else 0
    walk.pos += 16 + epoch + (4 if walk.version >= 12 else 0) + (8 if walk.version >= 5 else 0)
    if walk.pos > walk.size:
        return 0
    partition(walk, fixed).offset = int64_at(fixed + 4 + epoch)
    pass_tags(walk, PARTITION)
    return 1


cdef int count_forgotten(Walk *walk) except -1:
    """Number of topics that leave the fetch session (v7+), or the share session."""
    walk.elements = 0
    if (walk.version >= 7 or walk.body.kind == SHARE_FETCH_REQUEST) and not length(walk, &walk.elements):
        return 0
    if walk.elements < 0:
        return refuse_count(walk, walk.elements)
    walk.step = FORGOTTEN
    return 1


cdef int forgotten_topic(Walk *walk) except -1:
    """One of these topics, and how many of its partitions leave."""
    cdef const uint8_t *start
    cdef int64_t size
    cdef int64_t count
    if not walk.elements:
        walk.step = RACK
        return 1
    if not name(walk, &start, &size) or not length(walk, &count):
        return 0
    if size < 0:
        return malformed(walk.body.kind, "a topic without a name")
    if count < 0 or walk.body.count + walk.body.forgotten + count > MAX_PARTITIONS:
        return refuse_count(walk, count)
    if count:
        walk.body.names += NAME + size
    keep_topic(walk, start, size)
    walk.elements -= 1
    walk.partitions = count
    walk.step = FORGOTTEN_PARTITION
    return 1


cdef int forgotten_partition(Walk *walk) except -1:
    cdef const uint8_t *number = walk.data + walk.pos
    cdef Part *part
    if not walk.partitions:
        pass_tags(walk, FORGOTTEN)
        return 1
    walk.pos += 4
    if walk.pos > walk.size:
        return 0
    part = add_forgotten(walk.body)
    Py_INCREF(<object>walk.topic)
    part.topic = walk.topic
    part.partition = int32_at(number)
    walk.partitions -= 1
    return 1


cdef int rack(Walk *walk) except -1:
    """Rack (v11+)."""
    cdef const uint8_t *start
    cdef int64_t size
    if walk.version >= 11 and not text(walk, &start, &size):
        return 0
    pass_tags(walk, END)
    return 1


cdef int fetch_response_head(Walk *walk) except -1:
    """Throttle time (v1+), error code and session id (v7+), topics."""
    cdef Body *body = walk.body
    cdef const uint8_t *fixed = walk.data + walk.pos
    walk.pos += 10 if walk.version >= 7 else 4 if walk.version >= 1 else 0
    if walk.pos > walk.size or not count_topics(walk):
        return 0
    if walk.version >= 1:
        body.throttle_ms = int32_at(fixed)
    if walk.version >= 7:
        body.error_code = int16_at(fixed + 4)
        body.session_id = int32_at(fixed + 6)
    return 1


cdef int fetched_partition(Walk *walk) except -1:
    """Partition, error code, high watermark, last stable offset (v4+), log start offset (v5+), aborted transactions
    (v4+), which may be null."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    cdef Part *part
    cdef int64_t aborted = 0
    walk.pos += 14 + (8 if walk.version >= 4 else 0) + (8 if walk.version >= 5 else 0)
    if walk.pos > walk.size or walk.version >= 4 and not length(walk, &aborted):
        return 0
    part = partition(walk, fixed)
    part.error_code = int16_at(fixed + 4)
    part.offset = int64_at(fixed + 6)
    walk.elements = max(aborted, 0)
    walk.aborted_count = 0
    walk.step = ABORTED if walk.elements else RECORDS
    return 1


cdef int aborted_transaction(Walk *walk) except -1:
    """Producer id and first offset."""
    cdef const uint8_t *fixed = walk.data + walk.pos
    if not walk.elements:
        sort_aborted(walk)
        walk.step = RECORDS
        return 1
    walk.pos += 16
    if walk.pos > walk.size:
        return 0
    add_aborted(walk, int64_at(fixed), int64_at(fixed + 8))
    walk.elements -= 1
    pass_tags(walk, ABORTED)
    return 1
