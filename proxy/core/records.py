"""Record batches as their headers describe them, and sums over those of one record set; no record is touched.

Sources: ``DefaultRecordBatch`` (magic 2), ``LegacyRecord`` and ``AbstractLegacyRecordBatch`` (magic 0 and 1).
"""

from __future__ import annotations

import struct

from proxy.core.exchange import RecordSet
from proxy.core.wire import DecodeError

BATCH_HEADER = 61
"""Bytes of a magic 2 header: from the base offset to the number of records."""

ENTRY_HEADER = 18
"""Bytes of a magic 0 or 1 entry up to its attributes; with fewer bytes left not even the magic is there."""

SHORTEST = {0: 14, 1: 22, 2: 49}
"""Smallest value of the length field by magic; the field does not count itself and the offset before it (12 bytes)."""

CONTROL = 0x20
"""Attribute of a magic 2 batch that holds a transaction marker instead of data."""

TRANSACTIONAL = 0x10
"""Attribute of a magic 2 batch that is part of a transaction."""

COMPRESSION = 0x07
"""Attributes of a magic 0 or 1 entry whose value holds further entries."""

# base offset, length, magic, attributes of magic 0 and 1
_entry = struct.Struct(">qi4xbb").unpack_from
# attributes, producer id, epoch, base sequence, count of magic 2
_batch = struct.Struct(">21xh20xqhii").unpack_from


def sums_of(record_set: bytes | memoryview) -> RecordSet:
    """Sum up a whole record set. Its last batch may be cut: brokers end a fetch anywhere.

    Raises DecodeError for a magic or a length that no batch has.
    """
    pos, size = 0, len(record_set)
    batches = records = 0
    claimed = False
    first = (-1, -1, -1, -1, -1)
    while size - pos >= ENTRY_HEADER:
        base_offset, length, magic, attributes = _entry(record_set, pos)
        if length < SHORTEST.get(magic, length + 1):
            raise DecodeError(f"a record batch of magic {magic} and length {length}")
        if length + 12 > size - pos:
            break
        origin = (magic, -1, -1, -1, base_offset)
        if magic == 2:
            attributes, producer_id, epoch, sequence, count = _batch(record_set, pos)
            if count < 0:
                raise DecodeError(f"a record batch of {count} records")
            records += 0 if attributes & CONTROL else count
            origin = (magic, producer_id, epoch, sequence, base_offset)
        else:
            claimed = claimed or attributes & COMPRESSION != 0
            records += 1
        if not batches:
            first = origin
        batches += 1
        pos += length + 12
    return RecordSet(size, batches, records, *first, claimed)
