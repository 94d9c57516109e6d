"""Reads bodies of Produce, Fetch and ShareFetch in place, whole or in the pieces they come in; records stay untouched.

A walker is a generator: ``walker(buf, pos, version, kept)`` starts on the body at ``buf[pos]``. Where it runs out of
bytes it yields the offset of the first byte it still needs, which may lie beyond the end of ``buf`` because records are
skipped; it is sent the next buffer and the position of that byte in it. It returns its facts and the offset after the
body; ``kept`` says at any time what it keeps.
So the grammar of a message is written once, as straight code over local variables, and a body that is whole in one
buffer never suspends.

``walk_whole`` and ``BodyFeed`` are the two ways to run one. For whatever bytes, they raise MalformedBody or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from proxy.core.bodies import FETCH_VERSIONS, MAX_CARRY, PRODUCE_VERSIONS, SHARE_FETCH_VERSIONS
from proxy.core.exchange import RequestFacts, RequestResources, ResponseFacts
from proxy.core.wire import Buffer, DecodeError
from proxy.errors import MalformedBody, Side
from tests.oracle.fetch import fetch_request, fetch_response
from tests.oracle.produce import produce_request, produce_response
from tests.oracle.request_resources import RequestWalker, request_resources
from tests.oracle.response_errors import Found, ResponseErrors, response_errors
from tests.oracle.share import share_fetch_request, share_fetch_response
from tests.oracle.steps import Kept, Walker

Facts = RequestFacts | ResponseFacts | Found | RequestResources
WalkerFunction = Callable[[Buffer, int, int, Kept], Walker[Facts]]


def walker_for_request(key: int, version: int) -> WalkerFunction | None:
    """Return the walker of this request's body; None where there is none for this key and version."""
    if key == 0 and version in PRODUCE_VERSIONS:
        return produce_request
    if key == 1 and version in FETCH_VERSIONS:
        return fetch_request
    if key == 78 and version in SHARE_FETCH_VERSIONS:
        return share_fetch_request
    return None


def walker_for_response(key: int, version: int) -> WalkerFunction | None:
    """Return the walker of this response's body; None where there is none for this key and version."""
    if key == 0 and version in PRODUCE_VERSIONS:
        return produce_response
    if key == 1 and version in FETCH_VERSIONS:
        return fetch_response
    if key == 78 and version in SHARE_FETCH_VERSIONS:
        return share_fetch_response
    return None


def walker_for_errors(key: int, version: int) -> WalkerFunction | None:
    """Return the walker of the errors of items in this response; None where there are none."""
    return cast("WalkerFunction | None", response_errors(key, version))


def walker_for_resources(key: int, version: int) -> WalkerFunction | None:
    """Return the walker of what this request is about; None where it is about no resource."""
    return cast("WalkerFunction | None", request_resources(key, version))


def kept_by(walker: WalkerFunction) -> Kept:
    """Return what counts what this walker keeps."""
    return walker.kept() if isinstance(walker, ResponseErrors | RequestWalker) else Kept()


def walk_whole(
    walker: WalkerFunction, data: bytes, start: int, end: int, version: int, side: Side, kept: Kept | None = None
) -> Facts:
    """Read the body ``data[start:end]``; other frames may follow in ``data``. ``kept``: then has what is kept of it.

    Raises MalformedBody.
    """
    try:
        next(walker(data, start, version, kept or kept_by(walker)))
    except StopIteration as stop:
        facts: Facts
        facts, stopped = stop.value
        if stopped == end:
            return facts
        raise MalformedBody(side, f"the body ends at byte {stopped - start} of {end - start}") from None
    except DecodeError as nonsense:
        raise MalformedBody(side, nonsense.detail) from None
    raise MalformedBody(side, f"the body does not end within its {end - start} bytes")


class BodyFeed:
    """Reads one body that comes in pieces. After MalformedBody it must not be used again."""

    __slots__ = ("_carry", "_facts", "_kept", "_side", "_skip", "_version", "_walk", "_walker")

    def __init__(self, walker: WalkerFunction, version: int, side: Side) -> None:
        self._walker = walker
        self._version = version
        self._side = side
        self._walk: Walker[Facts] | None = None
        self._kept = kept_by(walker)
        self._carry = b""  # the bytes from the one the walker asked for; never together with a skip
        self._skip = 0  # bytes to come that nobody needs
        self._facts: Facts | None = None

    def feed(self, data: bytes, start: int, end: int) -> None:
        """Take ``data[start:end]`` as the next bytes of the body. Raises MalformedBody."""
        fresh = end - start
        if fresh <= self._skip:
            self._skip -= fresh
            return
        if self._facts is not None:
            raise MalformedBody(self._side, "bytes after the end of the body")
        pos = start + self._skip
        buf = data
        if self._carry or end != len(data):
            buf = self._carry + data[pos:end]
            pos = 0
        try:
            if self._walk is None:
                self._walk = self._walker(buf, pos, self._version, self._kept)
                need = next(self._walk)
            else:
                need = self._walk.send((buf, pos))
        except StopIteration as stop:
            self._facts, need = stop.value
            if need < len(buf):
                raise MalformedBody(self._side, "bytes after the end of the body") from None
        except DecodeError as nonsense:
            raise MalformedBody(self._side, nonsense.detail) from None
        self._skip = max(need - len(buf), 0)
        self._carry = buf[need:]
        if len(self._carry) > MAX_CARRY:
            raise MalformedBody(self._side, f"an element of more than {MAX_CARRY} bytes")

    @property
    def size(self) -> int:
        """Bytes that it is charged with."""
        return self._kept.size

    def finish(self) -> Facts:
        """Return the facts; every byte of the body has been fed. Raises MalformedBody if that was not all of it."""
        if self._facts is None or self._skip:
            raise MalformedBody(self._side, "the body is cut short")
        return self._facts
