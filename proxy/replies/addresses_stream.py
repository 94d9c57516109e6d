"""Responses with records, whose addresses stand at their end: all that comes before them passes at once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache

from msgspec import Struct

from proxy.core.schema import SIZES, Field, Layout
from proxy.core.steps import NO_TAGS, Part, pass_tags
from proxy.core.wire import TRUNCATED, Buffer, Nonsense, compact_length
from proxy.errors import MalformedBody


class Tail:
    """One response's body, in pieces. Its array of nodes, and what comes after that, are held back until they are
    whole; ``seal`` replaces them by as many bytes. Raises MalformedBody."""

    def __init__(self, made: Layout, nodes: Field, length: int, seal: Callable[[bytes], bytes]) -> None:
        self._seal = seal
        self._left = length
        self._walk = _walk(_path(made, nodes.index if nodes.tag is None else len(made.ordered)))
        next(self._walk)
        self._found = False  # where the nodes begin
        self._skip = 0  # bytes to come that nobody reads
        self._carry = b""  # passed on, but not read yet; never together with a skip
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next piece; return what may go out now."""
        self._left -= len(piece)
        try:
            passed = self._passed(piece)
            self._held += piece[len(passed) :]
            return passed if self._left else passed + self._seal(self._held)
        except TRUNCATED:
            raise MalformedBody("broker", "the body ends before its addresses do") from None
        except Nonsense as nonsense:
            raise MalformedBody("broker", nonsense.detail) from None

    def _passed(self, piece: bytes) -> bytes:
        """Read on; return the bytes of ``piece`` that are not held back."""
        if len(piece) <= self._skip:
            self._skip -= len(piece)
            return piece
        if self._found:
            start, self._skip = self._skip, 0
            return piece[:start]
        buf, pos = (self._carry + piece, 0) if self._carry else (piece, self._skip)
        try:
            need = self._walk.send((buf, pos))
            self._carry = buf[need:]
        except StopIteration as stop:
            self._found = True
            self._carry = b""
            _, need = stop.value
        self._skip = max(need - len(buf), 0)
        return piece[: need - len(buf)] if self._found and need < len(buf) else piece


class _Path(Struct, frozen=True):
    """How fields are passed over: bytes of a fixed number, then one that has a length or fields of its own, and so on;
    at last ``rest`` bytes.

    ``steps``: the fixed bytes before it; the bytes of one element, or 0 where elements have fields; those fields, and
    whether there is a number of them before.
    """

    steps: tuple[tuple[int, int, _Path | None, bool], ...]
    rest: int


@cache
def _path(made: Layout, end: int) -> _Path:
    """The path over the first ``end`` fields of a flexible struct. What no such message has is not provided for."""
    assert made.flexible
    steps: list[tuple[int, int, _Path | None, bool]] = []
    gap = 0
    for field in made.ordered[:end]:
        counted = field.array or field.type in ("string", "bytes", "records")
        if field.layout is not None:
            assert counted or not field.nullable, field.name
            steps.append((gap, 0, _path(field.layout, len(field.layout.ordered)), counted))
        elif counted:
            assert not field.array or field.type in SIZES, field.name
            steps.append((gap, SIZES[field.type] if field.array else 1, None, True))
        else:
            gap += SIZES[field.type]
            continue
        gap = 0
    return _Path(tuple(steps), gap)


def _walk(path: _Path) -> Generator[int, tuple[bytes, int], tuple[Buffer, int]]:
    """Pass over the fields of a message, as a walker that is given its first bytes as all others."""
    buf, pos = yield 0
    return (yield from _pass(path, buf, pos))


def _pass(path: _Path, buf: Buffer, pos: int) -> Part:
    """Pass over the fields of a struct, but for its tagged fields."""
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
            buf, pos = yield from _pass(nested, buf, pos)
            if buf[pos : pos + 1] == NO_TAGS:
                pos += 1
            else:
                buf, pos = yield from pass_tags(buf, pos)
    return buf, pos + path.rest
