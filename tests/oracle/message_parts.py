"""Parts of readers that take a message in the pieces it comes in.

Such a reader is a generator. Where it runs out of bytes it yields the offset of the first byte it still needs, which
may lie beyond the end of the buffer; it is sent the next buffer and the position of that byte in it. So the grammar of
a message is written once, as straight code over local variables.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from proxy.core.wire import TRUNCATED, Buffer, uvarint

NO_TAGS: Final = b"\0"
"""A section of tagged fields that holds none, which is nearly every one."""

Part = Generator[int, tuple[bytes, int], tuple[Buffer, int]]
"""A part of a reader that only moves on: returns the buffer and position after what it skipped."""


def pass_tags(buf: Buffer, pos: int) -> Part:
    """Pass a section of tagged fields."""
    while True:
        mark = pos
        try:
            count, pos = uvarint(buf, pos)
            break
        except TRUNCATED:
            buf, pos = yield mark
    for _ in range(count):
        while True:
            mark = pos
            try:
                _, pos = uvarint(buf, pos)
                size, pos = uvarint(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield mark
        pos += size
    return buf, pos
