"""Rewrites responses with records, whose addresses come last. All bytes before the addresses are passed on at once."""

from __future__ import annotations

from collections.abc import Callable

from proxy.core.schema import Field, Layout
from proxy.core.wire import TRUNCATED, DecodeError
from proxy.errors import MalformedBody
from proxy.interceptors.address_walk import AddressWalk, program_of


class TailRewriter:
    """Rewrites the body of one response, piece by piece. Raises MalformedBody.

    The array of nodes and all bytes after it are buffered until they are complete. ``rewrite`` returns as many bytes
    for them.
    """

    def __init__(self, message: Layout, nodes: Field, length: int, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._remaining = length
        self._walk = AddressWalk(program_of(message, nodes.index if nodes.tag is None else len(message.ordered)))
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
        self._found, need = self._walk.skip(buf, pos)
        self._unread = b"" if self._found else buf[need:]
        self._skip = max(need - len(buf), 0)
        return piece[: need - len(buf)] if self._found and need < len(buf) else piece
