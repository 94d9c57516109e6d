"""Rewrites responses with records, whose addresses come last. All bytes before the addresses are passed on at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from proxy.core.schema import SIZES, Field, Layout
from proxy.core.steps import NO_TAGS, Part, pass_tags
from proxy.core.wire import TRUNCATED, Buffer, DecodeError, compact_length
from proxy.errors import MalformedBody


class TailRewriter:
    """Rewrites the body of one response, piece by piece. Raises MalformedBody.

    The array of nodes and all bytes after it are buffered until they are complete. ``rewrite`` returns as many bytes
    for them.
    """

    def __init__(self, message: Layout, nodes: Field, length: int, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._remaining = length
        self._walker = _walk_path(_skip_path(message, nodes.index if nodes.tag is None else len(message.ordered)))
        next(self._walker)
        self._found = False  # whether the beginning of the nodes was reached
        self._skip = 0  # following bytes that need no parsing
        self._unread = b""  # passed on, but not parsed yet; empty while bytes are skipped
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Add the next piece, and return the bytes that may be sent now."""
        self._remaining -= len(piece)
        try:
            passed = self._pass_through(piece)
            self._held += piece[len(passed) :]
            return passed if self._remaining else passed + self._rewrite(self._held)
        except TRUNCATED:
            raise MalformedBody("broker", "the body ends before its addresses do") from None
        except DecodeError as error:
            raise MalformedBody("broker", error.detail) from None

    def _pass_through(self, piece: bytes) -> bytes:
        """Parse the next piece, and return those of its bytes that are not buffered."""
        if len(piece) <= self._skip:
            self._skip -= len(piece)
            return piece
        if self._found:
            start, self._skip = self._skip, 0
            return piece[:start]
        buf, pos = (self._unread + piece, 0) if self._unread else (piece, self._skip)
        try:
            need = self._walker.send((buf, pos))
            self._unread = buf[need:]
        except StopIteration as stop:
            self._found = True
            self._unread = b""
            _, need = stop.value
        self._skip = max(need - len(buf), 0)
        return piece[: need - len(buf)] if self._found and need < len(buf) else piece


class SkipStep(NamedTuple):
    """One field of variable length, and the fixed bytes before it.

    ``gap``: the fixed bytes before it. ``size``: bytes of one element, 0 if elements have fields. ``nested``: those
    fields. ``counted``: whether the number of elements precedes it.
    """

    gap: int
    size: int
    nested: SkipPath | None
    counted: bool


class SkipPath(Struct, frozen=True):
    """How to skip the fields of a struct: the steps in order, and then ``rest`` fixed bytes."""

    steps: tuple[SkipStep, ...]
    rest: int


@cache
def _skip_path(message: Layout, end: int) -> SkipPath:
    """Return the path over the first ``end`` fields of a flexible struct. Supports only what these messages have."""
    assert message.flexible
    steps: list[SkipStep] = []
    gap = 0
    for field in message.ordered[:end]:
        counted = field.array or field.type in ("string", "bytes", "records")
        if field.layout is not None:
            assert counted or not field.nullable, field.name
            steps.append(SkipStep(gap, 0, _skip_path(field.layout, len(field.layout.ordered)), counted))
        elif counted:
            assert not field.array or field.type in SIZES, field.name
            steps.append(SkipStep(gap, SIZES[field.type] if field.array else 1, None, True))
        else:
            gap += SIZES[field.type]
            continue
        gap = 0
    return SkipPath(tuple(steps), gap)


def _walk_path(path: SkipPath) -> Generator[int, tuple[bytes, int], tuple[Buffer, int]]:
    """Skip the fields of a message. The first bytes are sent to the generator like all others."""
    buf, pos = yield 0
    return (yield from _skip_fields(path, buf, pos))


def _skip_fields(path: SkipPath, buf: Buffer, pos: int) -> Part:
    """Skip the fields of a struct, except its tagged fields."""
    for gap, size, nested, counted in path.steps:
        pos += gap
        count = 1
        while counted:
            try:
                count, pos = compact_length(buf, pos)
                break
            except TRUNCATED:
                buf, pos = yield pos
        if nested is None:
            pos += max(count, 0) * size
            continue
        while count > 0:
            count -= 1
            buf, pos = yield from _skip_fields(nested, buf, pos)
            if buf[pos : pos + 1] == NO_TAGS:
                pos += 1
            else:
                buf, pos = yield from pass_tags(buf, pos)
    return buf, pos + path.rest
