"""Bytes at an offset, for code that runs compiled and interpreted.

Interpreted, ``data`` is any buffer of bytes, and these functions run. Compiled, it is a pointer, and those of
memory.pxd run, which check no bounds: the caller knows that the bytes are there.
"""

from __future__ import annotations

import struct
from typing import Any

from proxy.core.wire import Buffer

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_size = struct.Struct(">i").pack


def int16_at(data: Buffer, at: int) -> int:
    """Return the big-endian integer of two bytes."""
    value: int = _int16(data, at)[0]
    return value


def int32_at(data: Buffer, at: int) -> int:
    """Return the big-endian integer of four bytes."""
    value: int = _int32(data, at)[0]
    return value


def sliced(data: Buffer, start: int, end: int) -> bytes:
    """Return ``data[start:end]``."""
    return bytes(data[start:end])


def equals(text: bytes, data: Buffer, start: int, size: int) -> bool:
    """Whether ``data[start:start + size]`` is ``text``."""
    return data[start : start + size] == text


def with_head(head: bytes, body: bytes) -> bytes:
    """Return the frame of ``head``, which begins with the size of another one, and ``body``."""
    return _size(len(head) - 4 + len(body)) + head[4:] + body


API_KEYS = 128
"""Api keys that always have a count of their own. Of the others as many again have one, and −1 is that of all further
ones: a client may send any key."""


def count_api(counts: dict[int, int], key: int) -> int:
    """Count ``key``, an api key, once more."""
    if not 0 <= key < API_KEYS and key not in counts and len(counts) >= 2 * API_KEYS:
        key = -1
    return count(counts, key)


def count(counts: dict[Any, int], key: object) -> int:
    """Count ``key`` once more."""
    counts[key] = counts.get(key, 0) + 1
    return 0
