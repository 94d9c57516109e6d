"""Decompresses gzip, snappy and LZ4 as message sets of Kafka before 0.11 are compressed, block after block.

Its only use is to count records, so no checksum is checked, and no output is kept but what later blocks refer to. A
decoder takes the compressed bytes and a DecompressionBudget. It raises DecompressionError where they are malformed or
cost more than the budget. Sources: RFC 1952, snappy's format_description.txt and snappy-java's SnappyOutputStream
("xerial" framing), lz4_Frame_format.md and lz4_Block_format.md, ``Lz4BlockInputStream`` and ``Lz4BlockOutputStream``
of Kafka.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

MAX_OUTPUT_BYTES = 64 << 20
"""Bytes that one record set may decompress to."""

MAX_COMPRESSION_RATIO = 100
"""Bytes that one record set may decompress to for each of its own."""

MAX_DECOMPRESSION_STEPS = 1_000_000
"""Records, and parts of compressed data, that are read of one record set: about half a second of CPU."""

OUTPUT_BLOCK_BYTES = 65536
"""Bytes of output at a time, where the decoder decides."""

XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER_BYTES = 16
"""Bytes of ``XERIAL_MAGIC`` and the two versions after it."""

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_BLOCK_BYTES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
"""Largest block in bytes, by its code in the header."""

LZ4_WINDOW_BYTES = 65535
"""How far back a match can refer."""

LZ4_MAX_KEPT_BYTES = 4 * LZ4_WINDOW_BYTES
"""Bytes of output that are kept at most, so that small blocks do not move the window again and again."""


class DecompressionError(Exception):
    """Bytes that are not compressed data, or whose output is larger than is allowed."""


class DecompressionBudget:
    """What decompressing one record set of ``size`` bytes may still cost. Raises when it is used up."""

    __slots__ = ("room", "steps")

    def __init__(self, size: int) -> None:
        self.room = min(MAX_COMPRESSION_RATIO * size, MAX_OUTPUT_BYTES)
        self.steps = MAX_DECOMPRESSION_STEPS

    def charge_output(self, size: int) -> None:
        """Charge ``size`` bytes of output."""
        self.room -= size
        if self.room < 0:
            raise DecompressionError

    def charge_steps(self, steps: int) -> None:
        """Charge ``steps`` records or parts of compressed data that were read."""
        self.steps -= steps
        if self.steps < 0:
            raise DecompressionError


Decoder = Callable[[bytes, DecompressionBudget], Iterator[bytes | bytearray]]


def gzip(data: bytes, budget: DecompressionBudget) -> Iterator[bytes]:
    """Decompress one gzip member."""
    member = zlib.decompressobj(wbits=31)
    for start in range(0, len(data), OUTPUT_BLOCK_BYTES):
        budget.charge_steps(1)
        if member.eof:
            raise DecompressionError
        rest, block = data[start : start + OUTPUT_BLOCK_BYTES], b""
        while not member.eof and (rest or len(block) == OUTPUT_BLOCK_BYTES):  # at its end the tail stays what it was
            budget.charge_steps(1)
            try:
                block = member.decompress(rest, OUTPUT_BLOCK_BYTES)
            except zlib.error:
                raise DecompressionError from None
            rest = member.unconsumed_tail
            budget.charge_output(len(block))
            yield block
    if not member.eof or member.unused_data:
        raise DecompressionError


def snappy(data: bytes, budget: DecompressionBudget) -> Iterator[bytearray]:
    """Decompress snappy, in xerial framing or raw."""
    if not data.startswith(XERIAL_MAGIC):
        yield _decompress_snappy_block(data, budget)
        return
    pos, end = 0, len(data)
    while pos < end:
        if data.startswith(XERIAL_MAGIC, pos):  # again where streams were joined
            pos += XERIAL_HEADER_BYTES
            budget.charge_steps(1)
            continue
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if pos + size > end:
            raise DecompressionError
        yield _decompress_snappy_block(data[pos : pos + size], budget)
        pos += size
    if pos != end:
        raise DecompressionError


def _decompress_snappy_block(data: bytes, budget: DecompressionBudget) -> bytearray:
    out = bytearray()
    end = len(data)
    try:
        size, pos = _read_varint(data)
        budget.charge_output(size)
        while pos < end:
            budget.charge_steps(1)
            tag = data[pos]
            kind = tag & 3
            if kind == 0:
                length = (tag >> 2) + 1
                pos += 1
                if length > 60:
                    wide = length - 60
                    length = int.from_bytes(data[pos : pos + wide], "little") + 1
                    pos += wide
                if pos + length > end:
                    raise DecompressionError
                out += data[pos : pos + length]
                pos += length
            elif kind == 1:
                _copy_match(out, (tag & 0xE0) << 3 | data[pos + 1], (tag >> 2 & 7) + 4)
                pos += 2
            else:
                wide = 2 if kind == 2 else 4
                _copy_match(out, int.from_bytes(data[pos + 1 : pos + 1 + wide], "little"), (tag >> 2) + 1)
                pos += 1 + wide
            if len(out) > size:
                raise DecompressionError
    except IndexError:
        raise DecompressionError from None
    if pos != end or len(out) != size:
        raise DecompressionError
    return out


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for at in range(5):
        value |= (data[at] & 127) << 7 * at
        if data[at] < 128:
            return value, at + 1
    raise DecompressionError


def lz4(data: bytes, budget: DecompressionBudget) -> Iterator[bytearray]:
    """Decompress one LZ4 frame. Checksums are passed over, so that of magic 0, which is wrong by design, is fine."""
    if len(data) < 7 or not data.startswith(LZ4_MAGIC) or data[4] >> 6 != 1 or data[4] & 1:  # with a dictionary
        raise DecompressionError
    flags, largest = data[4], LZ4_BLOCK_BYTES.get(data[5] >> 4 & 7)
    if largest is None:
        raise DecompressionError
    pos, end = 15 if flags & 8 else 7, len(data)
    out = bytearray()
    while True:
        budget.charge_steps(1)
        if pos + 4 > end:
            raise DecompressionError
        size = int.from_bytes(data[pos : pos + 4], "little")
        pos += 4
        if not size:
            break
        plain, size = size >> 31, size & 0x7FFFFFFF
        if size > largest or pos + size > end:
            raise DecompressionError
        start = len(out)
        block = data[pos : pos + size]
        pos += size + (4 if flags & 16 else 0)
        if plain:
            out += block
        else:
            _decompress_lz4_block(block, out, start + largest, budget)
        budget.charge_output(len(out) - start)
        yield out[start:]
        if flags & 32:  # no block refers to those before it
            out.clear()
        elif len(out) > LZ4_MAX_KEPT_BYTES:
            del out[:-LZ4_WINDOW_BYTES]
    if pos + (4 if flags & 4 else 0) != end:
        raise DecompressionError


def _decompress_lz4_block(data: bytes, out: bytearray, limit: int, budget: DecompressionBudget) -> None:
    """Decompress a block at the end of ``out``, which grows to at most ``limit`` bytes."""
    pos, end = 0, len(data)
    try:
        while True:
            budget.charge_steps(1)
            token = data[pos]
            length, pos = _read_lz4_length(data, pos + 1, token >> 4)
            if pos + length > end or len(out) + length > limit:
                raise DecompressionError
            out += data[pos : pos + length]
            pos += length
            if pos == end:
                return
            offset = data[pos] | data[pos + 1] << 8
            length, pos = _read_lz4_length(data, pos + 2, token & 15)
            if len(out) + length + 4 > limit:
                raise DecompressionError
            _copy_match(out, offset, length + 4)
    except IndexError:
        raise DecompressionError from None


def _read_lz4_length(data: bytes, pos: int, length: int) -> tuple[int, int]:
    if length == 15:
        while data[pos] == 255:
            length += 255
            pos += 1
        length += data[pos]
        pos += 1
    return length, pos


def _copy_match(out: bytearray, offset: int, length: int) -> None:
    """Add ``length`` bytes as they stand ``offset`` before the end, and those added where that is less."""
    start = len(out) - offset
    if offset == 0 or start < 0:
        raise DecompressionError
    if offset >= length:
        out += out[start : start + length]
    else:
        out += (out[start:] * (length // offset + 1))[:length]


DECODERS: Mapping[int, Decoder] = MappingProxyType({1: gzip, 2: snappy, 3: lz4})
"""By the codec in a record's attributes; others (zstd) need magic 2, whose header has the number of records."""
