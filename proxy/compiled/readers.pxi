# A part of walk.pyx: readers of lengths, strings and tagged fields. Each returns 1 and moves ``walk.pos``, or 0 where
# bytes are missing. Nothing is allocated from a declared length.

cdef int uvarint(Walk *walk, uint64_t *value) except -1:
    """Unsigned varint of at most five bytes, as in ``ByteUtils.readUnsignedVarint``."""
    cdef int shift
    cdef uint64_t byte
    value[0] = 0
    for shift in range(0, 35, 7):
        if walk.pos >= walk.size:
            return 0
        byte = walk.data[walk.pos]
        walk.pos += 1
        value[0] |= (byte & 127) << shift
        if byte < 128:
            return 1
    return malformed(walk.body.kind, "a varint of more than five bytes")


cdef inline int length(Walk *walk, int64_t *value) except -1:
    """Length of a byte field or array: −1 is null. Compact in flexible versions, else an int32."""
    cdef uint64_t more
    if walk.flexible:
        if walk.pos < walk.size and walk.data[walk.pos] < 128:
            value[0] = <int64_t>walk.data[walk.pos] - 1
            walk.pos += 1
            return 1
        if not uvarint(walk, &more):
            return 0
        value[0] = <int64_t>more - 1
        return 1
    if walk.pos + 4 > walk.size:
        return 0
    value[0] = int32_at(walk.data + walk.pos)
    walk.pos += 4
    return 1 if value[0] >= -1 else malformed(walk.body.kind, f"a length of {value[0]}")


cdef inline int text(Walk *walk, const uint8_t **start, int64_t *size) except -1:
    """Nullable string; ``size`` is −1 for null. Its length is compact in flexible versions, else an int16."""
    if walk.flexible:
        if not length(walk, size):
            return 0
        if size[0] > MAX_STRING:
            return malformed(walk.body.kind, f"a string of {size[0]} bytes")
    else:
        if walk.pos + 2 > walk.size:
            return 0
        size[0] = int16_at(walk.data + walk.pos)
        walk.pos += 2
        if size[0] < -1:
            return malformed(walk.body.kind, f"a length of {size[0]}")
    start[0] = walk.data + walk.pos
    if size[0] > 0:
        walk.pos += size[0]
    return walk.pos <= walk.size


cdef inline int name(Walk *walk, const uint8_t **start, int64_t *size) except -1:
    """Name of a topic, or its id of 16 bytes in versions that carry ids."""
    if not walk.body.topics_are_ids:
        return text(walk, start, size)
    start[0] = walk.data + walk.pos
    size[0] = 16
    walk.pos += 16
    return walk.pos <= walk.size


cdef int refuse_count(Walk *walk, int64_t count) except -1:
    """Raise for the length of an array that is null, or longer than ``MAX_PARTITIONS`` allows."""
    if count < 0:
        return malformed(walk.body.kind, "null where an array must be")
    return malformed(walk.body.kind, f"more than {MAX_PARTITIONS} partitions")


cdef inline void pass_tags(Walk *walk, Step after) noexcept:
    """Continue at ``after``, beyond a section of tagged fields where the version has one; nearly all are empty."""
    if not walk.flexible:
        walk.step = after
    elif walk.pos < walk.size and walk.data[walk.pos] == 0:
        walk.pos += 1
        walk.step = after
    else:
        walk.step = TAGS
        walk.after = after
