# A part of walk.pyx: sums over the record batches of one record set, from their headers alone. What these headers are
# is described in ``proxy.core.records``, what the sums mean with ``proxy.core.exchange.RecordSet``.

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
    cdef Part *part = &walk.body.parts[walk.body.count - 1]
    cdef RecordSums *sums = &part.records
    cdef const uint8_t *at = walk.data + walk.pos
    cdef int64_t whole
    cdef int32_t count = 1  # records in it
    cdef int32_t given  # of them to a client
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
    else:
        count = int32_at(at + 57)
        if count < 0:
            return malformed(walk.body.kind, f"a record batch of {count} records")
        if int16_at(at + 21) & CONTROL:
            if walk.aborted_count and count:
                is_aborted(walk, at, True)
            count = 0
    sums.records += count
    given = count
    if walk.aborted_count and magic == 2 and count and int16_at(at + 21) & TRANSACTIONAL and is_aborted(walk, at, False):
        part.aborted_records += count
        given = 0
    if not sums.batches:
        part.first_batch_records = given
        sums.magic = magic
        sums.base_offset = int64_at(at)
        if magic == 2:
            part.last_offset_delta = int32_at(at + 23)
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


# ---- aborted transactions -------------------------------------------------------------------------------------------
# A record of an aborted transaction is left out as the Java client does (``CompletedFetch.nextFetchedRecord``): a
# transaction spans the batches of its producer from its first offset to the producer's next marker.

cdef int add_aborted(Walk *walk, int64_t producer_id, int64_t first_offset) except -1:
    """Add one of the current partition. With more than ``MAX_ABORTED_TRANSACTIONS``, none is used."""
    cdef Part *part = &walk.body.parts[walk.body.count - 1]
    cdef AbortedTransaction *grown
    cdef Py_ssize_t capacity
    if part.aborted_records < 0:
        return 0
    if walk.aborted_count == MAX_ABORTED_TRANSACTIONS:
        part.aborted_records = -1
        walk.aborted_count = 0
        return 0
    if walk.aborted_count == walk.aborted_capacity:
        capacity = max(GROWN_ABORTED, 2 * walk.aborted_capacity)
        grown = <AbortedTransaction *>PyMem_Realloc(walk.aborted, capacity * sizeof(AbortedTransaction))
        if grown == NULL:
            raise MemoryError
        walk.aborted, walk.aborted_capacity = grown, capacity
    walk.aborted[walk.aborted_count] = AbortedTransaction(producer_id, first_offset, False)
    walk.aborted_count += 1
    return 0


cdef void sort_aborted(Walk *walk) noexcept:
    if walk.aborted_count > 1:
        qsort(walk.aborted, walk.aborted_count, sizeof(AbortedTransaction), compare_aborted)


cdef int compare_aborted(const void *one, const void *other) noexcept nogil:
    cdef const AbortedTransaction *a = <const AbortedTransaction *>one
    cdef const AbortedTransaction *b = <const AbortedTransaction *>other
    if a.producer_id != b.producer_id:
        return 1 if a.producer_id > b.producer_id else -1
    return (a.first_offset > b.first_offset) - (a.first_offset < b.first_offset)


cdef bint is_aborted(Walk *walk, const uint8_t *at, bint ends) noexcept:
    """Whether the batch at ``at`` is of a transaction that is aborted and not ended. ``ends``: it is a marker."""
    cdef int64_t producer_id = int64_at(at + 43)
    cdef int64_t base_offset = int64_at(at)
    cdef uint64_t delta = max(int32_at(at + 23), 0)
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = walk.aborted_count
    cdef Py_ssize_t middle
    cdef AbortedTransaction *one
    while low < high:  # the last one of the producer that began up to here
        middle = (low + high) // 2
        one = &walk.aborted[middle]
        if one.producer_id < producer_id or one.producer_id == producer_id and (
            one.first_offset <= base_offset or <uint64_t>one.first_offset - <uint64_t>base_offset <= delta
        ):
            low = middle + 1
        else:
            high = middle
    if not low or walk.aborted[low - 1].producer_id != producer_id or walk.aborted[low - 1].ended:
        return False
    walk.aborted[low - 1].ended = ends
    return True
