"""Reads the building blocks of Kafka's protocol in place: lengths, strings, tagged fields.

Convention: ``reader(buf, pos) -> (value, next)``, or just ``next`` where the value is of no interest. A reader that
runs out of bytes raises one of ``TRUNCATED``: more bytes may mend that. Bytes that can never become right raise
``DecodeError``. Nothing is allocated from a declared length.
"""

from __future__ import annotations

import struct

from proxy.errors import MalformedBody

Buffer = bytes | bytearray

TRUNCATED = (IndexError, struct.error)
"""What a reader raises at the end of the buffer."""

MAX_STRING = 32767
"""Longest string in bytes; Kafka's own readers refuse longer ones in every encoding."""

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from


def tls_hint(size: int, advice: str) -> str:
    """Return ``advice`` in parentheses if the four bytes of a frame's size are those of a TLS record (RFC 8446, 5.1).

    A record begins with its type (20 to 23), the version 3.0 to 3.4, and the first byte of its length. So TLS where
    Kafka's protocol is expected looks like a frame of 352518912 bytes (an alert) or 369295617 (a handshake).
    """
    kind, major, minor = size >> 24, size >> 16 & 255, size >> 8 & 255
    is_record = 20 <= kind <= 23 and major == 3 and minor <= 4
    return f" (these bytes begin a TLS record: {advice})" if is_record else ""


def refused_size(size: int, least: int, most: int) -> str:
    """Return why a request of ``size`` bytes is refused."""
    return f"{size} bytes; allowed: {least} to {most}{tls_hint(size, CLIENT_USES_TLS)}"


CLIENT_USES_TLS = "the client uses TLS, and this listener does not"
BROKER_USES_TLS = "this port of the broker uses TLS: a listener needs upstream.tls, other settings security.protocol"


class DecodeError(MalformedBody):
    """Bytes that no message definition allows. A reader does not know its peer: whoever does, replaces ``side``."""

    def __init__(self, detail: str) -> None:
        super().__init__("client", detail)


def uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Unsigned varint of at most five bytes, as in ``ByteUtils.readUnsignedVarint``."""
    value = buf[pos]
    pos += 1
    if value < 128:
        return value, pos
    value &= 127
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
    raise DecodeError("a varint of more than five bytes")


def uvarint_bytes(value: int) -> bytes:
    """The same, written; ``value`` ≥ 0."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """Length of a compact string, byte field or array: −1 is null."""
    value = buf[pos]
    if value < 128:
        return value - 1, pos + 1
    byte = buf[pos + 1]
    if byte < 128:
        return (value & 127 | byte << 7) - 1, pos + 2
    value, pos = uvarint(buf, pos)
    return value - 1, pos


def int16_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """Length of a string before flexible versions: −1 is null."""
    length: int = _int16(buf, pos)[0]
    if length < -1:
        raise DecodeError(f"a length of {length}")
    return length, pos + 2


def int32_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """Length of a byte field or array before flexible versions: −1 is null."""
    length: int = _int32(buf, pos)[0]
    if length < -1:
        raise DecodeError(f"a length of {length}")
    return length, pos + 4


def compact_string(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    """Compact nullable string, undecoded."""
    end = pos + buf[pos]
    pos += 1
    if pos <= end < pos + 127:
        if end > len(buf):
            raise IndexError
        return bytes(buf[pos:end]), end
    length, pos = compact_length(buf, pos - 1)
    if length > MAX_STRING:
        raise DecodeError(f"a string of {length} bytes")
    return _sliced(buf, pos, length) if length >= 0 else (None, pos)


def string(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    """Nullable string of the versions that are not flexible, undecoded."""
    length, pos = int16_length(buf, pos)
    return _sliced(buf, pos, length) if length >= 0 else (None, pos)


def _sliced(buf: Buffer, pos: int, length: int) -> tuple[bytes, int]:
    end = pos + length
    if end > len(buf):
        raise IndexError
    return bytes(buf[pos:end]), end


def skip_tags(buf: Buffer, pos: int) -> int:
    """Return the offset after a section of tagged fields (KIP-482) that is whole in ``buf``."""
    count, pos = uvarint(buf, pos)
    for _ in range(count):
        _, pos = uvarint(buf, pos)
        size, pos = uvarint(buf, pos)
        pos += size
    if pos > len(buf):
        raise IndexError
    return pos
