"""Parts that all walkers share. What a walker is, is described in ``walk``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeVar

from proxy.core.bodies import MAX_PARTITIONS
from proxy.core.budget import BODY, NAME, PARTITION
from proxy.core.wire import TRUNCATED, Buffer, DecodeError, compact_length, compact_string, int32_length, string
from tests.oracle.message_parts import pass_tags

_int32 = struct.Struct(">i").unpack_from

Facts_co = TypeVar("Facts_co", covariant=True)
Walker = Generator[int, tuple[bytes, int], tuple[Facts_co, int]]


class Kept:
    """What a walker has kept so far: partitions, those that leave a fetch session, and bytes of names."""

    __slots__ = ("forgotten", "names", "partitions")

    def __init__(self) -> None:
        self.partitions: list[Any] = []
        self.forgotten: list[tuple[bytes, int]] = []
        self.names = 0

    @property
    def size(self) -> int:
        """Bytes that it is charged with."""
        return BODY + PARTITION * (len(self.partitions) + len(self.forgotten)) + self.names


Readers = tuple[
    Callable[[Buffer, int], tuple[int, int]],
    Callable[[Buffer, int], tuple[bytes | None, int]],
    Callable[[Buffer, int], tuple[bytes | None, int]],
]


def uuid(buf: Buffer, pos: int) -> tuple[bytes, int]:
    """The 16 bytes of a topic id."""
    if pos + 16 > len(buf):
        raise IndexError
    return bytes(buf[pos : pos + 16]), pos + 16


OLD: Readers = (int32_length, string, string)
"""Readers of array lengths, strings and topics in versions that are not flexible."""

FLEXIBLE: Readers = (compact_length, compact_string, compact_string)
"""The same in flexible versions that name their topics."""

WITH_IDS: Readers = (compact_length, compact_string, uuid)
"""The same in versions that carry topic ids."""


def refuse_count(count: int) -> NoReturn:
    """Raise DecodeError for the length of an array that is null, or longer than ``MAX_PARTITIONS`` allows."""
    raise DecodeError("null where an array must be" if count < 0 else f"more than {MAX_PARTITIONS} partitions")


def array_length(
    buf: Buffer, pos: int, length: Callable[[Buffer, int], tuple[int, int]] = compact_length
) -> Generator[int, tuple[bytes, int], tuple[int, Buffer, int]]:
    """Read the length of an array that may not be null, as a part of a walker.

    For what is read seldom; the walkers of Produce and Fetch have the same in a line of their own. Returns the length,
    the buffer and the position.
    """
    while True:
        try:
            count, after = length(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield pos
    if count < 0:
        refuse_count(count)
    return count, buf, after


def forgotten_topics(
    buf: Buffer, pos: int, readers: Readers, kept: Kept
) -> Generator[int, tuple[bytes, int], tuple[tuple[tuple[bytes, int], ...], Buffer, int]]:
    """Read the topics and partitions that leave a fetch session, as a part of a walker.

    Returns (topic, partition) of each, the buffer and the position.
    """
    length, _, name = readers
    flexible = length is compact_length
    found, taken = kept.forgotten, len(kept.partitions)
    topics, buf, pos = yield from array_length(buf, pos, length)
    while topics:
        topics -= 1
        while True:
            mark = pos
            try:
                topic, pos = name(buf, pos)
                count, pos = length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        if topic is None:
            raise DecodeError("a topic without a name")
        if count < 0 or taken + len(found) + count > MAX_PARTITIONS:
            refuse_count(count)
        if count:
            kept.names += NAME + len(topic)
        while count:
            try:
                found.append((topic, _int32(buf, pos)[0]))
            except TRUNCATED:
                buf, pos = yield pos
                continue
            pos += 4
            count -= 1
        if flexible:
            buf, pos = yield from pass_tags(buf, pos)
    return tuple(found), buf, pos
