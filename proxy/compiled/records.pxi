# A part of walk.pyx: sums over the record batches of one record set, from their headers alone. What these headers are
# is told in ``proxy.core.records``, what the sums mean with ``proxy.core.exchange.RecordSet``.

cdef int record_set(Walk *walk) except -1:
    """Preferred read replica (Fetch v11+); size of a record set."""
    if walk.body.kind == FETCH_RESPONSE and walk.version >= 11:
        walk.pos += 4  # the preferred read replica
    if not length(walk, &walk.left):
        return 0
    if walk.left > 0:
        walk.body.parts[walk.body.count - 1].records.size = walk.left
        walk.step = BATCH
    else:
        after_records(walk)
    return 1


cdef int batch(Walk *walk) except -1:
    """Pass one record batch of the last partition, or what is left of the set: its last batch may be cut, for brokers
    end a fetch anywhere.

    A header of magic 2: base offset (8 bytes), length (4), leader epoch (4), magic (1), CRC (4), attributes (2), last
    offset delta (4), two timestamps (16), producer id (8), producer epoch (2), base sequence (4), number of records
    (4). An entry of magic 0 or 1 has its attributes (1) after the magic, and counts as one record.
    """
    cdef RecordSums *sums = &walk.body.parts[walk.body.count - 1].records
    cdef const uint8_t *at = walk.data + walk.pos
    cdef int64_t whole
    cdef int32_t count = 0
    cdef int magic
    if walk.left < ENTRY_HEADER:
        return end_of_records(walk)
    if walk.pos + (BATCH_HEADER if walk.left >= BATCH_HEADER else ENTRY_HEADER) > walk.size:
        return 0
    whole = <int64_t>int32_at(at + 8) + 12
    magic = <signed char>at[16]
    if not 0 <= magic <= 2 or whole - 12 < SHORTEST[magic]:
        return malformed(walk.body.kind, f"a record batch of magic {magic} and length {whole - 12}")
    if whole > walk.left:
        return end_of_records(walk)
    if magic != 2:
        if at[17] & COMPRESSION:
            sums.claimed = True
        sums.records += 1
    else:
        count = int32_at(at + 57)
        if count < 0:
            return malformed(walk.body.kind, f"a record batch of {count} records")
        if not int16_at(at + 21) & CONTROL:
            sums.records += count
    if not sums.batches:
        sums.magic = magic
        sums.base_offset = int64_at(at)
        if magic == 2:
            sums.producer_id = int64_at(at + 43)
            sums.producer_epoch = int16_at(at + 51)
            sums.base_sequence = int32_at(at + 53)
    sums.batches += 1
    walk.pos += whole
    walk.left -= whole
    return 1


cdef inline int end_of_records(Walk *walk) noexcept:
    walk.pos += walk.left
    after_records(walk)
    return 1


cdef inline void after_records(Walk *walk) noexcept:
    if walk.body.kind == SHARE_FETCH_RESPONSE:
        walk.step = COUNT_ACQUIRED
    else:
        pass_tags(walk, PARTITION)
