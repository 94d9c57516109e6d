"""An interceptor for tests: what it wants and says is chosen by api key, and by what a request holds."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, cast

from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    REWRITE,
    REWRITE_PREFIX,
    REWRITE_STREAM,
    BrokerCall,
    Deferred,
    Disposition,
    GivenUp,
    Interceptor,
    Request,
    Served,
    Stream,
    Verdict,
)
from proxy.errors import PeerError

REPLIED, SHUT, RAISING = 100, 101, 102
"""Decided by their headers: answered by the header's own facts, closed, and failing."""

HELD, HELD_FLEXIBLE = 103, 60
"""Requests whose first byte decides (see ``Chooser.ask``); the header of the second has tagged fields in version 0."""

EDITING, STREAMING, LEADING = 61, 65, 69
"""Responses that are edited, streamed, and whose beginning is replaced; their headers have tagged fields in version 0,
like those below."""

LEAD = 5
"""Bytes of the beginning that is replaced."""

PRIVATE = 30_000
"""As HELD, outside of the table."""

BROKEN_EDIT, BROKEN_STREAM, EAGER_STREAM = 66, 67, 68
"""Responses that fail to be edited, to be streamed from their tenth byte on, and whose streams say too much."""

WANTED = {
    REPLIED: ON_HEADER,
    SHUT: ON_HEADER,
    RAISING: ON_HEADER,
    HELD: ON_BODY,
    HELD_FLEXIBLE: ON_BODY,
    PRIVATE: ON_BODY,
    EDITING: REWRITE,
    STREAMING: REWRITE_STREAM,
    LEADING: REWRITE_PREFIX,
    BROKEN_EDIT: REWRITE,
    BROKEN_STREAM: REWRITE_STREAM,
    EAGER_STREAM: REWRITE_STREAM,
}


class Chooser(Interceptor):
    def __init__(self) -> None:
        self.asked: list[tuple[Request, bytes]] = []

    def flags(self, api_key: int, api_version: int) -> int:
        return WANTED.get(api_key, 0)

    def on_header(self, request: Request) -> Verdict:
        self.asked.append((request, b""))
        if request.api_key == RAISING:
            raise RuntimeError("decide")
        return Disposition.CLOSE if request.api_key == SHUT else replied(request.api_version)

    def on_body(self, request: Request, body: bytes) -> Verdict:
        """``f``: forward, ``c``: close, ``e``: an error, ``p``: a peer's error, ``d``: what ``serve`` says of the rest;
        all else is the answer."""
        self.asked.append((request, body))
        first = body[:1]
        if first == b"e":
            raise RuntimeError("ask")
        if first == b"p":
            raise PeerError("client", "malformed", "p")
        if first == b"d":
            return Deferred(partial(serve, body[1:]))
        return Disposition.FORWARD if first == b"f" else Disposition.CLOSE if first == b"c" else body

    def rewrite(self, api_key: int, api_version: int, body: bytes) -> bytes:
        if api_key == BROKEN_EDIT:
            raise RuntimeError("edit")
        return edited(body)

    def rewrite_prefix(self, api_key: int, api_version: int, body: bytes, whole: bool) -> tuple[bytes, int] | None:
        if len(body) >= LEAD:
            return led(body[:LEAD]), LEAD
        if whole:
            raise RuntimeError("lead")
        return None

    def stream(self, api_key: int, api_version: int, length: int) -> Stream:
        return Late(api_key, length)


async def serve(body: bytes, call: BrokerCall) -> Served:
    """``c``: close, ``e``: an error, ``g``: give the connection up; all else is the answer."""
    if body[:1] == b"g":
        return GivenUp(body[1:])
    if body[:1] == b"e":
        raise RuntimeError("serve")
    return None if body[:1] == b"c" else body


def served(deferred: Deferred) -> Served | Exception:
    """What comes of a request that ``Chooser`` has deferred. It awaits nothing."""
    try:
        cast(Coroutine[Any, Any, Served], deferred.serve(_no_call)).send(None)
    except StopIteration as returned:
        return cast(Served, returned.value)
    except RuntimeError as error:
        return error
    raise AssertionError("it waits")


async def _no_call(api_key: int, api_version: int, body: bytes) -> bytes:
    raise AssertionError("nothing is asked")


class Late:
    """Keeps four bytes back until the end, and then turns them around."""

    def __init__(self, api_key: int, length: int) -> None:
        self.api_key = api_key
        self.left = length
        self.seen = 0
        self.kept = b""

    def feed(self, piece: bytes) -> bytes:
        self.left -= len(piece)
        self.seen += len(piece)
        if self.api_key == BROKEN_STREAM and self.seen >= 10:
            raise RuntimeError("stream")
        if self.api_key == EAGER_STREAM:
            return piece + b"!"
        self.kept += piece
        if not self.left:
            return streamed(self.kept)
        ready, self.kept = self.kept[:-4], self.kept[-4:]
        return ready


def replied(api_version: int) -> bytes:
    return b"r" * (api_version & 15)


def edited(body: bytes) -> bytes:
    return b"<" + body[::2] + b">"


def led(body: bytes) -> bytes:
    return body if len(body) < LEAD else b"(" + body[:LEAD][::-1] + b")" + body[LEAD:]


def streamed(body: bytes) -> bytes:
    return body[:-4] + body[-4:][::-1]
