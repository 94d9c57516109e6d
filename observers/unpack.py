"""Decompresses gzip, snappy and LZ4 as message sets of Kafka before 0.11 are compressed, block after block.

Only whoever counts records reads the blocks, so no checksum is checked, and nothing is kept but what later blocks refer
back to. A decoder takes the compressed bytes and a Budget, and raises Unreadable for anything that is wrong with them
or too much. Sources: RFC 1952, snappy's format_description.txt and snappy-java's SnappyOutputStream ("xerial"
framing), lz4_Frame_format.md and lz4_Block_format.md, ``Lz4BlockInputStream`` and ``Lz4BlockOutputStream`` of Kafka.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

MAX_OUTPUT = 64 << 20
"""Bytes that one record set may unpack to."""

MAX_RATIO = 100
"""Bytes that one record set may unpack to for each of its own."""

MAX_STEPS = 1_000_000
"""Records, and parts of compressed data, that are read of one record set: about half a second of CPU."""

BLOCK = 65536
"""Bytes of output at a time, where the decoder decides."""

XERIAL = b"\x82SNAPPY\0"
XERIAL_HEADER = 16
"""Bytes of ``XERIAL`` and the two versions after it."""

LZ4 = b"\x04\x22\x4d\x18"
LZ4_BLOCKS = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
"""Largest block in bytes by what the header says."""

LZ4_WINDOW = 65535
"""How far back a match can refer."""

LZ4_KEPT = 4 * LZ4_WINDOW
"""Bytes of output that are kept at most, so that small blocks do not move the window again and again."""


class Unreadable(Exception):
    """Compressed data that is none, or that unpacks to more than is allowed."""


class Budget:
    """What unpacking one record set of ``size`` bytes may still cost. Running out of it raises Unreadable."""

    __slots__ = ("room", "steps")

    def __init__(self, size: int) -> None:
        self.room = min(MAX_RATIO * size, MAX_OUTPUT)
        self.steps = MAX_STEPS

    def give(self, size: int) -> None:
        """So many bytes were unpacked."""
        self.room -= size
        if self.room < 0:
            raise Unreadable

    def step(self, steps: int) -> None:
        """So many records or parts were read."""
        self.steps -= steps
        if self.steps < 0:
            raise Unreadable


Decoder = Callable[[bytes, Budget], Iterator[bytes | bytearray]]


def gzip(data: bytes, budget: Budget) -> Iterator[bytes]:
    """Unpack one gzip member."""
    member = zlib.decompressobj(wbits=31)
    for start in range(0, len(data), BLOCK):
        budget.step(1)
        if member.eof:
            raise Unreadable
        rest, block = data[start : start + BLOCK], b""
        while not member.eof and (rest or len(block) == BLOCK):  # at its end the tail stays what it was
            budget.step(1)
            try:
                block = member.decompress(rest, BLOCK)
            except zlib.error:
                raise Unreadable from None
            rest = member.unconsumed_tail
            budget.give(len(block))
            yield block
    if not member.eof or member.unused_data:
        raise Unreadable


def snappy(data: bytes, budget: Budget) -> Iterator[bytearray]:
    """Unpack snappy, in xerial framing or raw."""
    if not data.startswith(XERIAL):
        yield _snappy_block(data, budget)
        return
    pos, end = 0, len(data)
    while pos < end:
        if data.startswith(XERIAL, pos):  # again where streams were joined
            pos += XERIAL_HEADER
            budget.step(1)
            continue
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if pos + size > end:
            raise Unreadable
        yield _snappy_block(data[pos : pos + size], budget)
        pos += size
    if pos != end:
        raise Unreadable


def _snappy_block(data: bytes, budget: Budget) -> bytearray:
    out = bytearray()
    end = len(data)
    try:
        size, pos = _varint(data)
        budget.give(size)
        while pos < end:
            budget.step(1)
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
                    raise Unreadable
                out += data[pos : pos + length]
                pos += length
            elif kind == 1:
                _repeat(out, (tag & 0xE0) << 3 | data[pos + 1], (tag >> 2 & 7) + 4)
                pos += 2
            else:
                wide = 2 if kind == 2 else 4
                _repeat(out, int.from_bytes(data[pos + 1 : pos + 1 + wide], "little"), (tag >> 2) + 1)
                pos += 1 + wide
            if len(out) > size:
                raise Unreadable
    except IndexError:
        raise Unreadable from None
    if pos != end or len(out) != size:
        raise Unreadable
    return out


def _varint(data: bytes) -> tuple[int, int]:
    value = 0
    for at in range(5):
        value |= (data[at] & 127) << 7 * at
        if data[at] < 128:
            return value, at + 1
    raise Unreadable


def lz4(data: bytes, budget: Budget) -> Iterator[bytearray]:
    """Unpack one LZ4 frame. Checksums are passed over, so that of magic 0, which is wrong by design, is fine."""
    if len(data) < 7 or not data.startswith(LZ4) or data[4] >> 6 != 1 or data[4] & 1:  # with a dictionary
        raise Unreadable
    flags, largest = data[4], LZ4_BLOCKS.get(data[5] >> 4 & 7)
    if largest is None:
        raise Unreadable
    pos, end = 15 if flags & 8 else 7, len(data)
    out = bytearray()
    while True:
        budget.step(1)
        if pos + 4 > end:
            raise Unreadable
        size = int.from_bytes(data[pos : pos + 4], "little")
        pos += 4
        if not size:
            break
        plain, size = size >> 31, size & 0x7FFFFFFF
        if size > largest or pos + size > end:
            raise Unreadable
        start = len(out)
        block = data[pos : pos + size]
        pos += size + (4 if flags & 16 else 0)
        if plain:
            out += block
        else:
            _lz4_block(block, out, start + largest, budget)
        budget.give(len(out) - start)
        yield out[start:]
        if flags & 32:  # no block refers to those before it
            out.clear()
        elif len(out) > LZ4_KEPT:
            del out[:-LZ4_WINDOW]
    if pos + (4 if flags & 4 else 0) != end:
        raise Unreadable


def _lz4_block(data: bytes, out: bytearray, limit: int, budget: Budget) -> None:
    """Unpack a block at the end of ``out``, which grows to at most ``limit`` bytes."""
    pos, end = 0, len(data)
    try:
        while True:
            budget.step(1)
            token = data[pos]
            length, pos = _lz4_length(data, pos + 1, token >> 4)
            if pos + length > end or len(out) + length > limit:
                raise Unreadable
            out += data[pos : pos + length]
            pos += length
            if pos == end:
                return
            offset = data[pos] | data[pos + 1] << 8
            length, pos = _lz4_length(data, pos + 2, token & 15)
            if len(out) + length + 4 > limit:
                raise Unreadable
            _repeat(out, offset, length + 4)
    except IndexError:
        raise Unreadable from None


def _lz4_length(data: bytes, pos: int, length: int) -> tuple[int, int]:
    if length == 15:
        while data[pos] == 255:
            length += 255
            pos += 1
        length += data[pos]
        pos += 1
    return length, pos


def _repeat(out: bytearray, offset: int, length: int) -> None:
    """Add ``length`` bytes as they stand ``offset`` before the end, and those added where that is less."""
    start = len(out) - offset
    if offset == 0 or start < 0:
        raise Unreadable
    if offset >= length:
        out += out[start : start + length]
    else:
        out += (out[start:] * (length // offset + 1))[:length]


DECODERS: Mapping[int, Decoder] = MappingProxyType({1: gzip, 2: snappy, 3: lz4})
"""By the codec in a record's attributes; others (zstd) need magic 2, whose header tells the number of records."""
