# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What a session reads of a frame before its body: the client id, tagged fields, the ``acks`` of a Produce, and what
stands first in a response.

``data[at:limit]`` is what is there of a frame. Functions that return an offset return ``MORE`` where bytes are missing
that may mend it, and ``BAD`` where none can.
"""

from __future__ import annotations

import cython

from proxy.compiled.exchange import Exchange
from proxy.core import apis
from proxy.core.observation_interest import ERROR_AFTER_THROTTLE, ERROR_FIRST, THROTTLE_FIRST
from proxy.core.wire import Buffer
from proxy.errors import PeerError, Side

if not cython.compiled:
    from proxy.core.memory import int16_at, int32_at

    MORE, BAD = -2, -3

MIN_FRAME = 10
"""Smallest request in bytes: key, version, correlation id, null client id."""

MAX_FRAME = 104_857_600
"""Largest request in bytes (Kafka's ``socket.request.max.bytes``); a larger one ends the connection, as at a broker."""

MAX_PREFIX = 131_072
"""Most bytes kept of a request whose header is not complete. Client id and transactional id take up to 32 KiB each."""

CARRY_STEP = 1024
"""Bytes added to an incomplete prefix at a time; most prefixes are shorter than that."""

MAX_TOKEN = 524_288
"""Largest raw SASL token in bytes (Kafka's ``sasl.server.max.receive.size``)."""

PEEKED = THROTTLE_FIRST | ERROR_FIRST | ERROR_AFTER_THROTTLE

APIS = 256
"""Api keys that the table has room for."""

NEVER = 255

# Of each api key: the oldest and the newest version, and the first flexible one; NEVER where there is none.
versions = bytearray([NEVER, 0, NEVER] * APIS)
for number, api in apis.APIS.items():
    flexible_since = NEVER if api.flexible_since is None else api.flexible_since
    versions[3 * number : 3 * number + 3] = bytes((api.min_version, api.max_version, flexible_since))
table: bytes = bytes(versions)

apis_in_table = APIS
never = NEVER
least_frame = MIN_FRAME
most_token = MAX_TOKEN
throttle_first = THROTTLE_FIRST
error_first = ERROR_FIRST
error_after_throttle = ERROR_AFTER_THROTTLE


def is_known(key: int, version: int) -> bool:
    """Whether Kafka has this version of this api."""
    return 0 <= key < apis_in_table and table[3 * key] <= version <= table[3 * key + 1]


def is_flexible(key: int, version: int) -> bool:
    """Whether the header of such a request has tagged fields; versions of the future have."""
    return 0 <= key < apis_in_table and table[3 * key + 2] != never and table[3 * key + 2] <= version


def skip_uvarint(data: Buffer, at: int, limit: int) -> int:
    """Return the offset after an unsigned varint."""
    shift = 0
    while shift < 35:
        if at >= limit:
            return MORE
        at += 1
        if data[at - 1] < 128:
            return at
        shift += 7
    return BAD


def uvarint_at(data: Buffer, at: int, limit: int) -> int:
    """Return the unsigned varint at ``at``, which is less than 2^35."""
    value = shift = 0
    while shift < 35:
        if at >= limit:
            return MORE
        byte = data[at]  # 64 bits wide where it is compiled, so that no bit is shifted out
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        at += 1
        shift += 7
    return BAD


def skip_tags(data: Buffer, at: int, limit: int) -> int:
    """Return the offset after a section of tagged fields."""
    if at < limit and data[at] == 0:
        return at + 1
    fields = uvarint_at(data, at, limit)
    at = skip_uvarint(data, at, limit)
    while at >= 0 and fields > 0:
        fields -= 1
        at = skip_uvarint(data, at, limit)
        if at >= 0:
            size = uvarint_at(data, at, limit)
            at = skip_uvarint(data, at, limit)
            if at >= 0:
                at += size
    return MORE if at > limit else at


def after_client_id(at: int, size: int, length: int) -> int:
    """Return the offset after the client id of ``length`` bytes, in a frame of ``size`` that begins at ``at``. Raises
    PeerError."""
    if length < -1:
        raise PeerError("client", "invalid_header", f"client id length {length}")
    if length > size - least_frame:
        raise PeerError("client", "invalid_header", f"client id of {length} bytes in a frame of {size}")
    return at + 14 + (length if length > 0 else 0)


def acks_at(data: Buffer, at: int, limit: int, version: int) -> int:
    """Return the offset of ``acks`` in the ProduceRequest whose body begins at ``at``."""
    if version >= 9:
        length = uvarint_at(data, at, limit)
        if length < 0:
            return length
        at = skip_uvarint(data, at, limit) + (length - 1 if length > 1 else 0)
    elif version >= 3:
        if at + 2 > limit:
            return MORE
        length = int16_at(data, at)
        at += 2 + (length if length > 0 else 0)
    return MORE if at + 2 > limit else at


def least_header(data: Buffer, at: int, limit: int, stop: int, tagged: bool, produce: int) -> int:
    """Return the offset before which a header cannot end that is cut at ``limit``, so that one that comes byte by byte
    is not read from its start for each of them. It is at most ``stop``, where its frame ends.

    ``at``: after the client id, where tagged fields begin if it is ``tagged``. ``produce``: the version of a
    ProduceRequest, of which all is needed up to its ``acks``; else -1.
    """
    if tagged:
        left = uvarint_at(data, at, limit)
        after = skip_uvarint(data, at, limit)
        if after < 0:
            return limit + 1 if after == MORE else stop
        at = after
        while left > 0:
            size = MORE
            after = skip_uvarint(data, at, limit)
            if after >= 0:
                size = uvarint_at(data, after, limit)
                after = skip_uvarint(data, after, limit)
            if after < 0:
                if after == BAD:
                    return stop
                return least_of(at + 2 * left, limit, stop)  # a field takes two bytes or more
            at = after + size
            left -= 1
    if produce >= 9:
        size = uvarint_at(data, at, limit)
        after = skip_uvarint(data, at, limit)
        if after == BAD:
            return stop
        if after >= 0:
            at = after + (size - 1 if size > 1 else 0) + 2
    elif produce >= 3 and at + 2 <= limit:
        size = int16_at(data, at)
        at += 2 + (size if size > 0 else 0) + 2
    return least_of(at, limit, stop)


def least_of(at: int, limit: int, stop: int) -> int:
    """Return ``at``, but more than what is there, and no more than the frame."""
    if at <= limit:
        return limit + 1
    return at if at < stop else stop


def peek(exchange: Exchange, flags: int, data: Buffer, body: int, limit: int, stop: int) -> bool:
    """Read what stands first in the response ``data[body:stop]``. Returns False where it may yet come."""
    need = 6 if flags & error_after_throttle else 4 if flags & throttle_first else 2
    if body + need > stop:
        return True
    if body + need > limit:
        return False
    if flags & throttle_first:
        exchange.throttle_ms = int32_at(data, body)
    if flags & (error_first | error_after_throttle):
        exchange.error_code = int16_at(data, body + need - 2)
    return True


def token_size(response: bool, data: Buffer, at: int) -> int:
    """Return the size of the raw SASL token whose frame begins at ``at``. Raises PeerError for one out of bounds."""
    size = int32_at(data, at)
    if not 0 <= size <= most_token:
        side: Side = "broker" if response else "client"
        raise PeerError(side, "invalid_size", f"SASL token of {size} bytes; allowed: 0 to {MAX_TOKEN}")
    return size
