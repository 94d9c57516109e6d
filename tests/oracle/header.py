"""What a session reads of a frame before its body: sizes, tagged fields of the header, the ``acks`` of a Produce, what
stands first in a response. Each takes the frame as far as it is there."""

from __future__ import annotations

import struct

from proxy.core.header import MAX_TOKEN, MIN_FRAME
from proxy.core.observation_interest import ERROR_AFTER_THROTTLE, ERROR_FIRST, THROTTLE_FIRST
from proxy.core.wire import refused_size, skip_tags, uvarint
from proxy.errors import PeerError, Side
from tests.oracle.exchange import Exchange

NEVER = 1 << 31
"""An offset after every frame."""

PEEKED = THROTTLE_FIRST | ERROR_FIRST | ERROR_AFTER_THROTTLE

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from


def check_size(size: int, most: int) -> None:
    """Raise PeerError for a request of ``size`` bytes where a broker refuses it too."""
    if not MIN_FRAME <= size <= most:
        raise PeerError("client", "invalid_size", refused_size(size, MIN_FRAME, most))


def after_client_id(at: int, size: int, length: int) -> int:
    """Return the offset after the client id of ``length`` bytes, in a frame of ``size`` that begins at ``at``. Raises
    PeerError."""
    if length < -1:
        raise PeerError("client", "invalid_header", f"client id length {length}")
    if length > size - 10:
        raise PeerError("client", "invalid_header", f"client id of {length} bytes in a frame of {size}")
    return at + 14 + max(length, 0)


def skip_header_tags(buf: bytes | bytearray, body: int, stop: int) -> int:
    """Return the offset after the tagged fields of a header. Raises IndexError, PeerError."""
    body = skip_tags(buf, body) if buf[body] else body + 1
    if body > stop:  # what was read belongs to the next frame
        raise IndexError
    return body


def acks_at(buf: bytes | bytearray, body: int, stop: int, version: int) -> int:
    """Return the offset of ``acks`` in the ProduceRequest ``buf[body:stop]``. Raises IndexError, struct.error,
    PeerError."""
    if version >= 9:
        length, body = uvarint(buf, body)
        body += max(length - 1, 0)
    elif version >= 3:
        body += 2 + max(_int16(buf, body)[0], 0)
    if body + 2 > min(stop, len(buf)):
        raise IndexError
    return body


def least_header(buf: bytes | bytearray, pos: int, *, tagged: bool, produce: int | None = None) -> int:
    """Return the offset before which a header cannot end that is cut at the end of ``buf``, so that one that comes byte
    by byte is not read from its start for each of them.

    ``pos``: after the client id, where tagged fields begin if it is ``tagged``. ``produce``: the version of a
    ProduceRequest, of which all is needed up to its ``acks``.
    """
    left = 0
    try:
        if tagged:
            left, pos = uvarint(buf, pos)
            while left:
                size, after = uvarint(buf, uvarint(buf, pos)[1])
                pos, left = after + size, left - 1
        if produce is not None and produce >= 9:
            size, pos = uvarint(buf, pos)
            pos += max(size - 1, 0) + 2
        elif produce is not None and produce >= 3:
            pos += 2 + max(_int16(buf, pos)[0], 0) + 2
    except (IndexError, struct.error):
        pos += 2 * left  # a field takes two bytes or more
    except PeerError:
        return NEVER
    return max(pos, len(buf) + 1)


def peek(exchange: Exchange, flags: int, buf: bytes | bytearray, body: int, limit: int, stop: int) -> bool:
    """Read what stands first in the response ``buf[body:stop]``. Returns False where it may yet come."""
    need = 6 if flags & ERROR_AFTER_THROTTLE else 4 if flags & THROTTLE_FIRST else 2
    if body + need > stop:
        return True
    if body + need > limit:
        return False
    if flags & THROTTLE_FIRST:
        exchange.throttle_ms = _int32(buf, body)[0]
    if flags & (ERROR_FIRST | ERROR_AFTER_THROTTLE):
        exchange.error_code = _int16(buf, body + need - 2)[0]
    return True


def token_size(side: Side, buf: bytes | bytearray, at: int) -> int:
    """Read the size of the raw SASL token whose frame begins at ``buf[at]``. Raises PeerError for one out of bounds."""
    size: int = _int32(buf, at)[0]
    if not 0 <= size <= MAX_TOKEN:
        raise PeerError(side, "invalid_size", f"SASL token of {size} bytes; allowed: 0 to {MAX_TOKEN}")
    return size
