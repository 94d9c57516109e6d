"""What becomes of the bytes of a session with rules: which of them wait, are dropped or replaced, and what is said in
place of the broker.

A chunk goes on as it came until something is to be done otherwise in it. From there on what goes on in its place is
put together here: what came so far, then piece by piece. The beginning of a frame whose header is not complete waits
for the rest of it, for only then it is known whose the frame is.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from proxy.compiled.exchange import Exchange
from proxy.core.intercept import ASKED, DECIDED, EDITED, LED, STREAMED, Denied, Request, Rules, Stream, Verdict, Way
from proxy.core.produce_scan import ProduceScan
from proxy.core.protected import TOPIC_AUTHORIZATION_FAILED, Partitions
from proxy.core.tally import Tally
from proxy.errors import PeerError

if TYPE_CHECKING:
    from proxy.core.account import Account  # which imports this module

MAX_OWED = 65_536
"""Bytes of answers that wait from which the connection's next request is not looked at: a short request may have a
long answer, and a client may ask faster than it reads."""

MAX_REFUSED = 300_000
"""Bytes that a refused Produce is charged with at most: the names of as many partitions as are answered."""

MAX_EDITED = 1_048_576
"""Bytes of the longest response that is held back, or of its beginning. A longer one ends the connection, for it may
hold what clients are not to see."""

STREAMED_FROM = 65_536
"""Bytes from which a response is streamed that may be held back as well."""

_response = struct.Struct(">ii").pack
_int32 = struct.Struct(">i").pack


ClosedBy = Literal["unsupported_request", "protected_topic"]
"""Why an answer ends the connection: of ``proxy.core.causes``."""


class Frame(Protocol):
    """One frame that does not pass as it comes."""

    @property
    def holds(self) -> bool:
        """Whether it holds back bytes that go on later."""

    def take(self, piece: bytes, last: bool) -> bytes:
        """Take the next piece of it, from its size on; return what goes on now."""


class Dropped:
    """Nothing of it goes on."""

    holds = False

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102  # as Frame has it, like those below
        return b""


class Gathered:
    """Waits until it is whole; ``then`` says what goes on. It is charged to ``account`` for as long."""

    __slots__ = ("_account", "_frame", "_then")

    holds = True

    def __init__(self, account: Account, then: Callable[[bytes], bytes]) -> None:
        self._account = account
        self._frame = bytearray()  # grows with what comes: a declared length allocates nothing
        self._then = then

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if not last:
            self._account.charge(len(piece))
            self._frame += piece
            return b""
        self._account.charge(-len(self._frame))
        return self._then(bytes(self._frame) + piece)


class Leading:
    """A response whose beginning waits until ``lead`` says what goes on in its place; after that all passes as it came.

    ``lead`` gets what has come, and whether that is all; None from it: more is needed.
    """

    __slots__ = ("_account", "_enough", "_frame", "_lead")

    def __init__(self, account: Account, lead: Callable[[bytes, bool], bytes | None]) -> None:
        self._account = account
        self._lead = lead
        self._frame = bytearray()
        self._enough = 0  # bytes with which to ask again: twice as many, so that short pieces cost no more than long

    @property
    def holds(self) -> bool:  # noqa: D102
        return len(self._frame) > 0

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if self._enough < 0:
            return piece
        self._account.charge(len(piece))
        self._frame += piece
        if len(self._frame) < self._enough and not last:
            return b""
        out = self._lead(bytes(self._frame), last)
        if out is None:
            self._enough = 2 * len(self._frame)
            if len(self._frame) > MAX_EDITED:
                raise PeerError("broker", "invalid_size", f"a beginning of more than {MAX_EDITED} bytes")
            return b""
        self._enough = -1
        self._account.charge(-len(self._frame))
        self._frame.clear()
        return out


class Refused:
    """A Produce of which nothing is forwarded: its topics and partitions are gathered, for the answer to name them."""

    __slots__ = ("_account", "_before", "_charged", "_scan", "_then")

    holds = False

    def __init__(
        self, account: Account, before: int, scan: ProduceScan, then: Callable[[Partitions | None], object]
    ) -> None:
        self._account = account
        self._before = before  # bytes until its ``acks``
        self._charged = 0
        self._scan = scan
        self._then = then

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        skipped = min(self._before, len(piece))
        self._before -= skipped
        self._scan.feed(piece, skipped, len(piece))
        more = min(len(piece), MAX_REFUSED - self._charged)
        self._charged += more
        self._account.charge(more)
        if last:
            self._account.charge(-self._charged)
            self._then(self._scan.partitions)
        return b""


class Overlong:
    """A response of ``size`` bytes, too long to be held back: nothing of it goes on, and the connection ends.

    It ends with the second piece, when the session knows what the response answers; so long a one has several.
    """

    __slots__ = ("_began", "_size")

    holds = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._began = False

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if self._began or last:
            raise PeerError("broker", "invalid_size", f"{self._size} bytes; allowed here: up to {MAX_EDITED}")
        self._began = True
        return b""


class Streamed:
    """Passes an interceptor's stream after its header. Where that fails, the rest passes as it came."""

    __slots__ = ("_answers", "_api_key", "_header", "_held", "_stream")

    holds = False

    def __init__(self, answers: Answers, api_key: int, header: int, stream: Stream) -> None:
        self._answers = answers
        self._api_key = api_key
        self._header = header  # bytes of it still to come
        self._stream: Stream | None = stream
        self._held = b""  # the last bytes of what the stream was given, as many as it still has

    def take(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        header, body = piece[: self._header], piece[self._header :]
        self._header -= len(header)
        if self._stream is None or not body:
            return piece
        self._held += body
        try:
            out = self._stream.feed(body)
            if len(out) > len(self._held) or (last and len(out) < len(self._held)):
                raise ValueError(f"{len(out)} bytes in place of {len(self._held)}")
        except Exception as error:
            self._answers.failed(error)
            self._stream = None
            return header + self._held
        self._held = self._held[len(out) :]
        if last:
            self._answers.tally.edited[self._api_key] += 1
        return header + out


class Answers:
    """One per session with rules.

    Of the last chunk, where ``diverted``: ``edited`` goes on in its place (None: it goes on as it came); ``replies``
    are for the client, ``replied`` says that there were some; ``failure``: what an interceptor raised. ``rest``: what
    of the client's last chunk was not looked at, because it was too much for one turn, or what is to be said was too
    much (``full``).

    ``waiting``: what is said to those of the open requests that the sidecar answers, in their order; None: the
    connection is to end there. ``closing``: there is such a one, so nothing more is taken of the client, for ``cause``.
    ``ending``: it is its turn.
    """

    __slots__ = (
        "_account", "_out", "_owed", "_replies", "_sent", "cause", "closing", "diverted", "edited", "ending",
        "failure", "full", "replied", "replies", "rest", "rules", "tally", "waiting",
    )  # fmt: skip

    def __init__(self, rules: Rules, tally: Tally, account: Account) -> None:
        self._account = account
        self.rules = rules
        self.tally = tally
        self.waiting: deque[bytes | None] = deque()
        self.closing = self.ending = self.full = False
        self.cause: ClosedBy = "unsupported_request"
        self.rest = b""
        self._owed = 0  # bytes of ``waiting`` and ``_replies``
        self._out: bytearray | None = None  # in place of the chunk, as far as it was looked at
        self._sent = 0  # bytes of the chunk that are in ``_out``, or dropped
        self._replies = bytearray()
        self.begin()

    # ---- a chunk --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A chunk begins, after one that was diverted."""
        self.diverted = self.replied = False
        self.let_go()

    def let_go(self) -> None:
        """What came of the chunk was handed on: a connection that is quiet from now on keeps nothing of it."""
        self.edited: bytes | None = None
        self.replies = b""
        self.failure: Exception | None = None

    def end(self, data: bytes, upto: int) -> None:
        """``data[:upto]`` has been looked at; what comes after it does not go on now."""
        if self._out is not None:
            self._out += data[self._sent : upto]
            self.edited, self._out = bytes(self._out), None
            self._sent = 0
            self.diverted = True
        elif upto < len(data):
            self.edited = data[:upto]
            self.diverted = True
        if self._replies:
            self.replies, self._replies = bytes(self._replies), bytearray()
            self.diverted = self.replied = True
            self._owe(-len(self.replies))

    @property
    def untouched(self) -> bool:
        """Whether nothing of the chunk at hand is otherwise than it came, and nothing is to be said."""
        return self._out is None and not self.waiting and not self._replies and not self.rest

    def open(self, frame: Frame | None, lead: bytes, data: bytes, at: int, upto: int, ended: bool) -> None:
        """A frame begins with ``lead``, which waited so far, and ``data[at:upto]``; None: it passes as it comes."""
        if frame is None:
            self.put(lead, data, at, at)
        else:
            self.put(b"", data, at, at)
            self.put(frame.take(lead + data[at:upto], ended), data, at, upto)

    def put(self, piece: bytes, data: bytes, at: int, upto: int) -> None:
        """``piece`` goes on in place of ``data[at:upto]``."""
        if self._out is None:
            self._out = bytearray()
        self._out += data[self._sent : at]
        self._out += piece
        self._sent = upto

    def answer(self, data: bytes | None, at: int) -> bytes:
        """It is the turn of the first of ``waiting``: say it between the frames of the broker's chunk ``data``, at
        ``at``, or at once where there is none. Returns it; empty: the connection is to end."""
        answer = self.waiting[0]
        if answer is None:
            self.ending = self.diverted = True
            return b""
        self.waiting.popleft()
        if data is None:
            self._replies += answer
        else:
            self.put(answer, data, at, at)
            self._owe(-len(answer))
        return answer

    def keep(self, rest: bytes) -> None:
        """``rest`` of the client's chunk waits; empty: it does not any more."""
        self._account.charge(len(rest) - len(self.rest))
        self.rest = rest

    def _owe(self, more: int) -> None:
        self._owed += more
        self._account.charge(more)
        self.full = self._owed >= MAX_OWED

    def failed(self, error: Exception) -> None:
        """An interceptor raised ``error``, or what it wants cannot be done."""
        self.tally.intercept_errors += 1
        self.failure = error
        self.diverted = True

    # ---- requests -------------------------------------------------------------------------------------------------

    def request(self, flags: int, request: Request, exchange: Exchange, body: int) -> Frame | None:
        """Return how the frame of ``exchange`` passes, of which the body begins at ``body``; None: as it comes."""
        if flags & DECIDED:
            try:
                verdict = self.rules.decide(request)
            except Exception as error:
                self.failed(error)
                verdict = Way.FORWARD
            if not self._judge(exchange, verdict, request.acks):
                return Dropped()
        return Gathered(self._account, partial(self._ask, request, exchange, body)) if flags & ASKED else None

    def deny(self, request: Request, exchange: Exchange, before: int) -> Frame:
        """The same for a Produce that names a protected topic, of which nothing was forwarded; its ``acks`` stand
        ``before`` bytes after its start."""
        if not request.acks:
            self._denied(request, exchange, None)
            return Dropped()
        exchange.synthesized = True
        assert self.rules.topics is not None
        scan = ProduceScan(request.api_version, self.rules.topics, collect=True)
        return Refused(self._account, before, scan, lambda partitions: self._denied(request, exchange, partitions))

    def cut(self, exchange: Exchange) -> Frame:
        """The same where some of it was forwarded: it never becomes whole, and the connection ends in its turn."""
        request = Request(exchange.connection, exchange.api_key, exchange.api_version, exchange.client_id, 0, 0)
        self._denied(request, exchange, None)
        return Dropped()

    def _denied(self, request: Request, exchange: Exchange, partitions: Partitions | None) -> None:
        try:
            verdict = self.rules.deny(request, partitions)
        except Exception as error:
            self.failed(error)
            verdict = Denied(None)
        self._judge(exchange, verdict, request.acks)

    def _ask(self, request: Request, exchange: Exchange, body: int, frame: bytes) -> bytes:
        try:
            verdict = self.rules.ask(request, frame[body:])
        except PeerError as error:
            raise PeerError("client", "invalid_request", error.detail) from None
        except Exception as error:
            self.failed(error)
            verdict = self.rules.on_error(request)
        return frame if self._judge(exchange, verdict, request.acks) else b""

    def _judge(self, exchange: Exchange, verdict: Verdict, acks: int) -> bool:
        """Whether the request is forwarded."""
        if verdict is Way.FORWARD:
            return True
        exchange.synthesized = True
        denied = isinstance(verdict, Denied)
        body = verdict.body if isinstance(verdict, Denied) else verdict
        if denied:
            exchange.error_code = TOPIC_AUTHORIZATION_FAILED
        if isinstance(body, bytes) and acks:
            answer = _response(len(body) + 4, exchange.correlation_id) + body
            self.waiting.append(answer)
            self._owe(len(answer))
            counted = "replied"
        else:
            self.waiting.append(None)
            self.closing = self.diverted = True
            self.cause = "protected_topic" if denied else "unsupported_request"
            counted = "closed"
        self.tally.intercepted[exchange.api_key, "denied" if denied else counted] += 1
        return False

    # ---- responses ------------------------------------------------------------------------------------------------

    def response(self, flags: int, exchange: Exchange, header: int, size: int) -> Frame | None:
        """The same for a response; ``header``: bytes of the frame of ``size`` bytes before its body."""
        key, version = exchange.api_key, exchange.api_version
        if flags & LED:
            return Leading(self._account, partial(self._begin, exchange, header, size))
        if flags & EDITED and not (flags & STREAMED and size > STREAMED_FROM):
            if size > MAX_EDITED:
                return Overlong(size)
            return Gathered(self._account, partial(self._edit, exchange, header))
        if flags & STREAMED and size > header:
            try:
                return Streamed(self, key, header, self.rules.stream(key, version, size - header))
            except Exception as error:
                self.failed(error)
        return None

    def _begin(self, exchange: Exchange, header: int, size: int, frame: bytes, whole: bool) -> bytes | None:
        """What goes on in place of the beginning ``frame`` of a frame of ``size`` bytes."""
        try:
            found = self.rules.lead(exchange.api_key, exchange.api_version, frame[header:], whole)
            if found is None and not whole:
                return None
            if found is None:
                raise ValueError("nothing in place of the whole response")
            beginning, replaced = found
            new_size = size - replaced + len(beginning)
            edited = b"".join((_int32(new_size - 4), frame[4:header], beginning, frame[header + replaced :]))
        except Exception as error:
            self.failed(error)
            return frame
        self.tally.edited[exchange.api_key] += 1
        exchange.response_bytes = new_size  # as the client counts it
        return edited

    def _edit(self, exchange: Exchange, header: int, frame: bytes) -> bytes:
        try:
            body = self.rules.edit(exchange.api_key, exchange.api_version, frame[header:])
            edited = _int32(header - 4 + len(body)) + frame[4:header] + body
        except Exception as error:
            self.failed(error)
            return frame
        self.tally.edited[exchange.api_key] += 1
        exchange.response_bytes = len(edited)  # as the client counts it
        return edited
