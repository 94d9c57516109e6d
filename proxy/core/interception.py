# cython: language_level=3, annotation_typing=False
"""What a session with interceptors forwards instead of the bytes that came, and what it answers itself.

A chunk is forwarded as it came up to the first byte that an interceptor changes, holds or drops. From there on its
replacement is put together here, piece by piece. The beginning of a frame whose header is not complete waits for the
rest of the header, because only then it is known which request it is.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import cython

from proxy.compiled.exchange import Exchange
from proxy.core.counters import ListenerCounters
from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    REWRITE,
    REWRITE_PREFIX,
    REWRITE_STREAM,
    Deferred,
    Denied,
    Disposition,
    InterceptorChain,
    Request,
    Verdict,
)
from proxy.core.last_rewritten import LastRewritten
from proxy.core.memory import API_KEYS
from proxy.core.observation_interest import VERSIONS
from proxy.core.produce_scan import ProduceScan
from proxy.core.protected_topics import TOPIC_AUTHORIZATION_FAILED, Partitions
from proxy.core.streamed_response import StreamedResponse
from proxy.core.wire import Buffer
from proxy.errors import PeerError

if TYPE_CHECKING:
    from proxy.core.account import Account  # which imports this module

MAX_PENDING_RESPONSES = 65_536
"""Bytes of unsent responses from which the connection's next request is not read: a short request may have a long
response, and a client may send faster than it reads."""

MAX_REFUSED_PRODUCE = 300_000
"""Bytes that a refused Produce is charged with at most: the partitions that its response names."""

MAX_HELD_RESPONSE = 1_048_576
"""Bytes of the longest response, or beginning of one, that is held. A longer one ends the connection, because it may
have addresses in it that clients must not see."""

STREAM_THRESHOLD = 65_536
"""Bytes from which a response with both REWRITE and REWRITE_STREAM is streamed and not held."""

if not cython.compiled:
    from proxy.core.memory import count, with_head

versions = VERSIONS
_response = struct.Struct(">ii").pack
_int32 = struct.Struct(">i").pack


ClosedBy = Literal["unsupported_request", "protected_topic", "session_failed"]
"""Causes of ``proxy.core.causes`` of a connection that a response of the sidecar ends."""


class Frame(Protocol):
    """One frame that is not forwarded as it comes."""

    @property
    def holds_bytes(self) -> bool:
        """Whether it holds bytes that are forwarded later."""

    def feed(self, piece: bytes, last: bool) -> bytes:
        """Take the next piece of the frame, which begins with its size. Return what is forwarded now."""


class DroppedFrame:
    """Nothing of the frame is forwarded."""

    holds_bytes = False

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102  # as Frame has it, like those below
        return b""


@cython.cclass
class HeldFrame:
    """Held until it is complete, and charged to ``account`` until then. ``then`` returns what is forwarded."""

    holds_bytes = True

    def __init__(self, account: Account, then: Callable[[bytes], bytes]) -> None:
        self._account = account
        self._frame = bytearray()  # grows with what comes: a declared length allocates nothing
        self._then = then

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if not last:
            self._account.charge(len(piece))
            self._frame += piece
            return b""
        if not self._frame:
            return self._then(piece)
        self._account.charge(-len(self._frame))
        return self._then(bytes(self._frame) + piece)


class PrefixRewrite:
    """A response whose beginning is held until ``rewrite_prefix`` returns its replacement. The rest passes as it comes.

    ``rewrite_prefix`` gets the bytes that have come, and whether these are all. It returns None if it needs more.
    """

    __slots__ = ("_account", "_enough", "_frame", "_rewrite_prefix")

    def __init__(self, account: Account, rewrite_prefix: Callable[[bytes, bool], bytes | None]) -> None:
        self._account = account
        self._rewrite_prefix = rewrite_prefix
        self._frame = bytearray()
        self._enough = 0  # bytes with which to ask again: twice as many, so that short pieces cost no more than long

    @property
    def holds_bytes(self) -> bool:  # noqa: D102
        return len(self._frame) > 0

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if self._enough < 0:
            return piece
        self._account.charge(len(piece))
        self._frame += piece
        if len(self._frame) < self._enough and not last:
            return b""
        out = self._rewrite_prefix(bytes(self._frame), last)
        if out is None:
            self._enough = 2 * len(self._frame)
            if len(self._frame) > MAX_HELD_RESPONSE:
                raise PeerError("broker", "invalid_size", f"a beginning of more than {MAX_HELD_RESPONSE} bytes")
            return b""
        self._enough = -1
        self._account.charge(-len(self._frame))
        self._frame.clear()
        return out


class RefusedProduce:
    """A Produce of which nothing is forwarded. Its topics and partitions are collected for the response."""

    __slots__ = ("_account", "_before", "_charged", "_scan", "_then")

    holds_bytes = False

    def __init__(
        self, account: Account, before: int, scan: ProduceScan, then: Callable[[Partitions | None], object]
    ) -> None:
        self._account = account
        self._before = before  # bytes until its ``acks``
        self._charged = 0
        self._scan = scan
        self._then = then

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        skipped = min(self._before, len(piece))
        self._before -= skipped
        self._scan.feed(piece, skipped, len(piece))
        more = min(len(piece), MAX_REFUSED_PRODUCE - self._charged)
        self._charged += more
        self._account.charge(more)
        if last:
            self._account.charge(-self._charged)
            self._then(self._scan.partitions)
        return b""


class OverlongResponse:
    """A response of ``size`` bytes, which is too long to be held. Nothing of it is forwarded, and the connection ends.

    It ends with the second piece, when the session knows which request it answers. A response so long has several.
    """

    __slots__ = ("_began", "_size")

    holds_bytes = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._began = False

    def feed(self, piece: bytes, last: bool) -> bytes:  # noqa: D102
        if self._began or last:
            raise PeerError("broker", "invalid_size", f"{self._size} bytes; allowed here: up to {MAX_HELD_RESPONSE}")
        self._began = True
        return b""


@cython.cclass
class Interception:
    """What one session with interceptors does with the chunk at hand, and the responses that it has still to send.

    For the last chunk, if ``diverted``: ``replacement`` is forwarded instead (None: the chunk as it came); ``replies``
    are sent to the client, and ``replied`` says that there were some; ``failure``: the error of an interceptor.

    ``rest``: the end of the client's last chunk that was not read, because a turn was over, or because unsent responses
    were too long or a request is deferred (``full``).

    ``responses``: those to open requests that the sidecar answers, in the order of the requests; a Deferred as long as
    there is none, which is always the last; None: the connection ends there. ``closing``: there is a None, so no more
    is read of the client, for ``cause``. ``ending``: it is first.
    """

    def __init__(self, interceptors: InterceptorChain, counters: ListenerCounters, account: Account) -> None:
        self._account = account
        self.interceptors = interceptors
        self.counters = counters
        self.responses: deque[bytes | Deferred | None] = deque()
        self.closing = self.ending = self.full = False
        self.cause: ClosedBy = "unsupported_request"
        self.rest = b""
        self._charged_responses = 0  # bytes of ``responses`` and ``_replies``
        self._deferred_bytes = 0  # of the request that is deferred; 0: none is
        self._out: bytearray | None = None  # in place of the chunk, as far as it was looked at
        self._sent = 0  # bytes of the chunk that are in ``_out``, or dropped
        self._replies = bytearray()
        self.start_chunk()

    # ---- a chunk --------------------------------------------------------------------------------------------------

    def start_chunk(self) -> None:
        """Begin a chunk, after one that was diverted."""
        self.diverted = self.replied = False
        self.release_chunk()

    def release_chunk(self) -> None:
        """Release the replacement of the last chunk, which was forwarded: an idle connection keeps no memory for it."""
        self.replacement: bytes | None = None
        self.replies = b""
        self.failure: Exception | None = None

    def finish_chunk(self, data: bytes, upto: int) -> None:
        """End the chunk ``data``, which was read up to ``upto``; the bytes after it are not forwarded now."""
        if self._out is not None:
            self._out += data[self._sent : upto]
            self.replacement, self._out = bytes(self._out), None
            self._sent = 0
            self.diverted = True
        elif upto < len(data):
            self.replacement = data[:upto]
            self.diverted = True
        if self._replies:
            self.replies, self._replies = bytes(self._replies), bytearray()
            self.diverted = self.replied = True
            self._charge_responses(-len(self.replies))

    @property
    def is_unchanged(self) -> bool:
        """Whether the chunk at hand is forwarded as it came, and there are no responses to send."""
        return self._out is None and not self.responses and not self._replies and not self.rest

    def begin_frame(self, frame: Frame | None, lead: bytes, data: bytes, at: int, upto: int, ended: bool) -> None:
        """Begin a frame: ``lead``, which waited so far, and ``data[at:upto]``. ``frame`` None: it passes as it is."""
        if frame is None:
            self.replace(lead, data, at, at)
        else:
            self.replace(b"", data, at, at)
            self.replace(frame.feed(lead + data[at:upto], ended), data, at, upto)

    def replace(self, piece: bytes, data: bytes, at: int, upto: int) -> None:
        """Forward ``piece`` instead of ``data[at:upto]``."""
        if self._out is None:
            self._out = bytearray()
        self._out += data[self._sent : at]
        self._out += piece
        self._sent = upto

    def take_response(self, data: bytes | None, at: int) -> bytes:
        """Send the first of ``responses``: between the frames of the broker's chunk ``data``, at ``at``, or at once if
        ``data`` is None. Return it; empty: the connection ends here, or there is none yet."""
        answer = self.responses[0]
        if answer is None:
            self.ending = self.diverted = True
            return b""
        if isinstance(answer, Deferred):
            return b""
        self.responses.popleft()
        if data is None:
            self._replies += answer
        else:
            self.replace(answer, data, at, at)
            self._charge_responses(-len(answer))
        return answer

    def store_rest(self, rest: bytes) -> None:
        """Store ``rest`` of the client's chunk; empty: release what was stored."""
        self._account.charge(len(rest) - len(self.rest))
        self.rest = rest

    def _charge_responses(self, more: int) -> None:
        self._charged_responses += more
        self._account.charge(more)
        self.full = self._charged_responses >= MAX_PENDING_RESPONSES or self._deferred_bytes > 0

    def record_failure(self, error: Exception) -> None:
        """Record ``error``, which an interceptor raised or which prevents what it asked for."""
        self.counters.intercept_errors += 1
        self.failure = error
        self.diverted = True

    # ---- requests -------------------------------------------------------------------------------------------------

    def frame_of_request(self, flags: int, request: Request, exchange: Exchange, body: int) -> Frame | None:
        """Return what handles the frame of this request, whose body begins at ``body``; None: it passes as it comes."""
        if flags & ON_HEADER:
            try:
                verdict = self.interceptors.on_header(request)
            except Exception as error:
                self.record_failure(error)
                verdict = Disposition.FORWARD
            if not self._judge(exchange, verdict, request.acks):
                return DroppedFrame()
        return HeldFrame(self._account, partial(self._ask, request, exchange, body)) if flags & ON_BODY else None

    def refuse_produce(self, request: Request, exchange: Exchange, before: int) -> Frame:
        """Return what handles a Produce with a protected topic, of which nothing was forwarded. Its ``acks`` is
        ``before`` bytes after its beginning."""
        if not request.acks:
            self._denied(request, exchange, None)
            return DroppedFrame()
        exchange.synthesized = True
        assert self.interceptors.topics is not None
        scan = ProduceScan(request.api_version, self.interceptors.topics, collect=True)
        return RefusedProduce(
            self._account, before, scan, lambda partitions: self._denied(request, exchange, partitions)
        )

    def cut_produce(self, exchange: Exchange) -> Frame:
        """Return what handles a Produce with a protected topic, of which some was forwarded: the broker never gets all
        of it, and the connection ends when it is its turn."""
        request = Request(exchange.connection, exchange.api_key, exchange.api_version, exchange.client_id, 0, 0)
        self._denied(request, exchange, None)
        return DroppedFrame()

    def _denied(self, request: Request, exchange: Exchange, partitions: Partitions | None) -> None:
        try:
            verdict = self.interceptors.on_protected_topic(request, partitions)
        except Exception as error:
            self.record_failure(error)
            verdict = Denied(None)
        self._judge(exchange, verdict, request.acks)

    def _ask(self, request: Request, exchange: Exchange, body: int, frame: bytes) -> bytes:
        try:
            verdict = self.interceptors.on_body(request, frame[body:])
        except PeerError as error:
            raise PeerError("client", "invalid_request", error.detail) from None
        except Exception as error:
            self.record_failure(error)
            verdict = self.interceptors.on_error(request)
        if isinstance(verdict, Deferred) and request.acks:
            self._defer(exchange, verdict)
            return b""
        return frame if self._judge(exchange, verdict, request.acks) else b""

    def _judge(self, exchange: Exchange, verdict: Verdict, acks: int) -> bool:
        """Return whether the request is forwarded; if not, add its response."""
        if verdict is Disposition.FORWARD:
            return True
        exchange.synthesized = True
        denied = isinstance(verdict, Denied)
        body = verdict.body if isinstance(verdict, Denied) else verdict
        if denied:
            exchange.error_code = TOPIC_AUTHORIZATION_FAILED
        if isinstance(body, bytes) and acks:
            answer = _response(len(body) + 4, exchange.correlation_id) + body
            self.responses.append(answer)
            self._charge_responses(len(answer))
            counted = "replied"
        else:
            self.responses.append(None)
            self.closing = self.diverted = True
            self.cause = "protected_topic" if denied else "unsupported_request"
            counted = "closed"
        self._count_intercepted(exchange.api_key, "denied" if denied else counted)
        return False

    def _defer(self, exchange: Exchange, verdict: Deferred) -> None:
        exchange.synthesized = True
        self.responses.append(verdict)
        self._deferred_bytes = exchange.request_bytes
        self._account.charge(self._deferred_bytes)
        self.full = True

    def answer_deferred(self, exchange: Exchange, answer: bytes | Exception | None) -> None:
        """Respond to the deferred request, which is the first of the open ones. None, or the error of what served it:
        the connection ends."""
        self.responses.popleft()
        self._account.charge(-self._deferred_bytes)
        self._deferred_bytes = 0
        self._charge_responses(0)
        self._judge(exchange, answer if isinstance(answer, bytes) else Disposition.CLOSE, acks=1)
        if self.closing:
            self.store_rest(b"")  # nothing more is read
        if isinstance(answer, Exception):
            self.record_failure(answer)
            self.cause = "session_failed"

    def give_up(self, exchange: Exchange) -> None:
        """The deferred request, which is the first of the open ones, gets no response here."""
        self.responses.popleft()
        self.store_rest(b"")
        self._count_intercepted(exchange.api_key, "given_up")

    def _count_intercepted(self, key: int, verdict: str) -> None:
        """As ``memory.count_api``."""
        counts = self.counters.intercepted
        if not 0 <= key < API_KEYS and (key, verdict) not in counts and len(counts) >= 2 * API_KEYS:
            key = -1
        counts[key, verdict] += 1

    # ---- responses ------------------------------------------------------------------------------------------------

    def frame_of_response(self, flags: int, exchange: Exchange, header: int, size: int) -> Frame | None:
        """Return what handles the frame of a response; None: it passes as it comes. ``header``: bytes before its body;
        ``size``: bytes of the frame."""
        key, version = exchange.api_key, exchange.api_version
        if flags & REWRITE_PREFIX:
            return PrefixRewrite(self._account, partial(self._begin, exchange, header, size))
        if flags & REWRITE and not (flags & REWRITE_STREAM and size > STREAM_THRESHOLD):
            if size > MAX_HELD_RESPONSE:
                return OverlongResponse(size)
            return HeldFrame(self._account, partial(self._edit, exchange, header))
        if flags & REWRITE_STREAM and size > header:
            try:
                return StreamedResponse(self, key, header, self.interceptors.stream(key, version, size - header))
            except Exception as error:
                self.record_failure(error)
        return None

    def last_rewritten(self, key: int, version: int, data: Buffer, at: int, stop: int, now: float) -> bytes | None:
        """Return the replacement of the response's body ``data[at:stop]`` if it equals the last one; else None."""
        kept: LastRewritten | None = self.interceptors.last_rewritten.get(key * versions + version)
        return None if kept is None else kept.replacement_of(data, at, stop, now)

    def replace_body(self, exchange: Exchange, head: bytes, body: bytes, data: bytes, at: int, stop: int) -> None:
        """Forward a response with ``head``, the bytes before its body, and ``body`` instead of ``data[at:stop]``."""
        edited = self._edited(exchange, head, body)
        self.replace(edited, data, at, stop)

    def _begin(self, exchange: Exchange, header: int, size: int, frame: bytes, whole: bool) -> bytes | None:
        """Return the replacement of ``frame``, the beginning of a frame of ``size`` bytes; None if more is needed."""
        try:
            found = self.interceptors.rewrite_prefix(exchange.api_key, exchange.api_version, frame[header:], whole)
            if found is None and not whole:
                return None
            if found is None:
                raise ValueError("nothing in place of the whole response")
            beginning, replaced = found
            new_size = size - replaced + len(beginning)
            edited = b"".join((_int32(new_size - 4), frame[4:header], beginning, frame[header + replaced :]))
        except Exception as error:
            self.record_failure(error)
            return frame
        self.counters.edited[exchange.api_key] += 1
        exchange.response_bytes = new_size  # as the client counts it
        return edited

    def _edit(self, exchange: Exchange, header: int, frame: bytes) -> bytes:
        try:
            body = self.interceptors.rewrite(exchange.api_key, exchange.api_version, frame[header:])
            return self._edited(exchange, frame[:header], body)
        except Exception as error:
            self.record_failure(error)
            return frame

    def _edited(self, exchange: Exchange, head: bytes, body: bytes) -> bytes:
        edited = with_head(head, body)
        count(self.counters.edited, exchange.api_key)
        exchange.response_bytes = len(edited)  # as the client counts it
        return edited
