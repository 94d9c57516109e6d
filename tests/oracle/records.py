"""Sums over the record batches of one record set, as a part of a walker."""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from proxy.core.bodies import MAX_ABORTED_TRANSACTIONS
from proxy.core.exchange import RecordSet
from proxy.core.records import BATCH_HEADER, COMPRESSION, CONTROL, ENTRY_HEADER, SHORTEST, TRANSACTIONAL
from proxy.core.wire import TRUNCATED, Buffer, DecodeError

# base offset, magic, attributes, last offset delta, producer id, count
_header = struct.Struct(">q8xb4xhi16xq6xi").unpack_from
# base offset, length, magic, attributes, producer id, epoch, base sequence, count
_batch = struct.Struct(">qi4xb4xh20xqhii").unpack_from
# length, magic, attributes, count
_sums = struct.Struct(">8xi4xb4xh34xi").unpack_from
# base offset; producer id, epoch, base sequence
_origin = struct.Struct(">q35xqhi").unpack_from
# length, magic, attributes
_entry = struct.Struct(">8xi4xbb").unpack_from
_offset = struct.Struct(">q").unpack_from


class Batch(NamedTuple):
    """What the header of one batch says; an entry of magic 0 or 1 counts as one record."""

    base_offset: int
    magic: int
    attributes: int
    last_offset_delta: int
    producer_id: int
    count: int


def given_records(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Return records of the first batch that a client is given, its last offset delta, and the aborted records.

    A batch is aborted if the last aborted transaction of its producer that began up to its last offset has not ended
    with a marker yet. ``aborted``: producer ids and first offsets.
    """
    known = len(aborted) <= MAX_ABORTED_TRANSACTIONS
    ended: set[tuple[int, int]] = set()
    first = (0, 0)
    left_out = 0
    for number, batch in enumerate(batches):
        given = 0 if batch.attributes & CONTROL else batch.count
        last_offset = batch.base_offset + max(batch.last_offset_delta, 0)
        begun = [one for one in aborted if one[0] == batch.producer_id and one[1] <= last_offset]
        if batch.magic == 2 and known and begun and batch.count and max(begun) not in ended:
            if batch.attributes & CONTROL:
                ended.add(max(begun))
            elif batch.attributes & TRANSACTIONAL:
                left_out += batch.count
                given = 0
        if not number:
            first = given, batch.last_offset_delta
    return *first, left_out if known else -1


def batches_of(record_set_bytes: bytes | None) -> list[Batch]:
    """Return the whole batches of a record set."""
    found: list[Batch] = []
    for _ in record_set(record_set_bytes or b"", 0, len(record_set_bytes or b""), found):
        raise AssertionError("it is all there")
    return found


def one_batch(buf: Buffer, pos: int, size: int) -> RecordSet | None:
    """Read a record set that is one magic 2 batch of data, the usual case; None if it is anything else.

    ``size`` ≥ ``BATCH_HEADER``. Raises struct.error while the header is not all there.
    """
    base_offset, length, magic, attributes, producer_id, epoch, sequence, count = _batch(buf, pos)
    if magic != 2 or length + 12 != size or attributes & CONTROL or count < 0:
        return None
    return RecordSet(size, 1, count, 2, producer_id, epoch, sequence, base_offset)


def record_set(
    buf: Buffer, pos: int, size: int, batches_read: list[Batch]
) -> Generator[int, tuple[bytes, int], tuple[RecordSet, Buffer, int]]:
    """Walk any record set of ``size`` bytes at ``pos``, as a part of a walker (see ``walk``).

    Adds its batches to ``batches_read``. Returns the sums, and the buffer and position after the set. The last batch
    may be cut: brokers end a fetch anywhere. Raises DecodeError for a magic or a length that no batch has.
    """
    left = size
    batches = records = 0
    claimed = False
    origin = (-1, -1, -1, -1)
    first_magic = -1
    while left >= ENTRY_HEADER:
        try:
            if left >= BATCH_HEADER:
                length, magic, attributes, count = _sums(buf, pos)
            else:
                length, magic, attributes = _entry(buf, pos)
                count = 0
            if magic != 2:
                attributes = buf[pos + 17]
        except TRUNCATED:
            buf, pos = yield pos
            continue
        if length < SHORTEST.get(magic, length + 1):
            raise DecodeError(f"a record batch of magic {magic} and length {length}")
        if length + 12 > left:
            break
        if magic != 2:
            claimed = claimed or attributes & COMPRESSION != 0
            records += 1
        elif count < 0:
            raise DecodeError(f"a record batch of {count} records")
        elif not attributes & CONTROL:
            records += count
        batches_read.append(Batch(*_header(buf, pos)) if magic == 2 else Batch(0, magic, 0, 0, -1, 1))
        if not batches:
            first_magic = magic
            if magic == 2:
                base_offset, *producer = _origin(buf, pos)
                origin = (*producer, base_offset)
            else:
                origin = (-1, -1, -1, _offset(buf, pos)[0])
        batches += 1
        pos += length + 12
        left -= length + 12
    return RecordSet(size, batches, records, first_magic, *origin, claimed), buf, pos + left
