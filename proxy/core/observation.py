# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What observers learn of one session, and what is read and kept of its bodies, once a chunk has been forwarded.

While the session reads a chunk it leaves pieces here; ``read_bodies`` takes them in order when the chunk has been
forwarded. So exchanges are recorded in the order in which they end, each after its last byte was handed on.
"""

from __future__ import annotations

from typing import Any

import cython

from proxy.compiled.exchange import Exchange
from proxy.core import watch as watching
from proxy.core.account import Account
from proxy.core.exchange import Connection
from proxy.core.identity import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Identity
from proxy.core.tally import Tally
from proxy.core.watch import Watch
from proxy.core.wire import Buffer

if not cython.compiled:
    from proxy.compiled.exchange import DecodeCode, Kind, OutcomeCode
    from proxy.compiled.walk_door import read_whole
    from proxy.core.memory import count, sliced

MAX_LEARNED = 65_536
"""Bytes of the longest body, or raw SASL token, that is read to know who a client is. Of longer ones it is only known
that they passed."""

max_learned = MAX_LEARNED
handshake = SASL_HANDSHAKE
authenticate = SASL_AUTHENTICATE
api_versions = API_VERSIONS
keys = watching.KEYS
versions = watching.VERSIONS
told = watching.TOLD
keep_request = watching.KEEP_REQUEST
keep_response = watching.KEEP_RESPONSE


def identifies(response: bool, key: int) -> bool:
    """Whether bodies of this api say who the client is."""
    return key in (handshake, authenticate) or (key == api_versions and not response)


@cython.cclass
class Subscribers:
    """Those who observe the sessions of a process, as sessions see them: one object for all."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.record = watch.record
        self.note = watch.note
        self.table = watch.interest.table
        self.others = watch.interest.others
        self.max_body = watch.max_body
        self.observed = watch.observed
        if len(self.table) != keys * versions:
            raise ValueError(f"a table of {len(self.table)} bytes, not {keys * versions}")

    def flags(self, key: int, version: int) -> int:
        """Return what is wanted of this api and version; 0 where nobody observes it."""
        flags = self.others
        if 0 <= key < keys and 0 <= version < versions:
            flags = self.table[key * versions + version]
        return flags if flags & told else 0


latest: Subscribers | None = None


def subscribers_of(watch: Watch) -> Subscribers:
    """Return the same object for all sessions of a watch: a process has one."""
    global latest
    if latest is None or latest.watch is not watch:
        latest = Subscribers(watch)
    return latest


@cython.cclass
class BodyCapture:
    """One body that somebody wants, while it passes.

    ``raw``: the exchange is to have its bytes. ``learnt``: ``Identity`` is to have them. ``feed``: reads it as it
    comes. ``charged``: bytes, for what the feed keeps.
    """

    def __init__(self, length: int, raw: bool, learnt: bool) -> None:
        self.length = length
        self.raw = raw
        self.learnt = learnt
        self.feed: Any = None
        self.gathered: bytearray | None = None  # grows with what comes: a declared length allocates nothing
        self.charged = 0


@cython.freelist(64)
@cython.cclass
class BodyPiece:
    """Part of a body to read after its chunk has been forwarded.

    ``exchange``: None for a raw SASL token. ``kind``: what reads the body whole. ``data[start:end]`` are its bytes,
    which the chunk holds, or ``keep``. ``last``: the frame ends with them.
    """

    response: bool
    exchange: Exchange | None
    kind: int
    capture: BodyCapture | None
    keep: bytes | None
    data: Buffer
    start: int
    end: int
    last: bool


class Observation:
    """One per observed session. ``connection``: as it is known now."""

    def __init__(
        self, connection: Connection, tally: Tally, watch: Watch, identity: Identity | None, account: Account
    ) -> None:
        self.connection = connection
        self.identity: Identity | None = identity
        self.account = account
        self.decoded = tally.decoded
        self.subscribers = subscribers_of(watch)
        self.pieces: list[BodyPiece] = []
        self.undecided = False  # only the broker's answer to something else shows that the client is logged in

    def capture(self, response: bool, key: int, flags: int, length: int, learnt: bool) -> BodyCapture | None:
        """Return what gathers a body of ``length`` bytes for those who want it; None where nobody does."""
        raw = False
        # What proves who a client is goes nowhere but to its session's identity.
        if flags & (keep_response if response else keep_request) and key != authenticate:
            raw = length <= self.subscribers.max_body
            if not raw:
                count(self.decoded, "not_kept")
        return BodyCapture(length, raw, learnt) if raw or learnt else None

    def add_piece(
        self,
        response: bool,
        exchange: Exchange | None,
        kind: int,
        capture: BodyCapture | None,
        keep: bytes | None,
        data: Buffer,
        start: int,
        end: int,
        last: bool,
    ) -> int:
        """Take a piece until ``read_bodies``."""
        piece = BodyPiece.__new__(BodyPiece)
        piece.response = response
        piece.exchange = exchange
        piece.kind = kind
        piece.capture = capture
        piece.keep = keep
        piece.data = data
        piece.start = start
        piece.end = end
        piece.last = last
        self.pieces.append(piece)
        return 0

    def read_bodies(self, now: float) -> int:
        """Read the bodies of the last chunk that somebody asked for, and record what ended in it; it was handed on at
        ``now``. A bad body is counted, never raised."""
        pieces = self.pieces
        try:
            for piece in pieces:
                self.read_piece(piece, now)
        finally:
            pieces.clear()
        return 0

    def read_piece(self, piece: BodyPiece, now: float) -> int:
        """Read one piece, and record its exchange where that ends with it."""
        exchange = piece.exchange
        capture = piece.capture
        if exchange is not None and (
            piece.kind != Kind.NO_WALKER or (capture is not None and capture.feed is not None)
        ):
            self.read_facts(piece, exchange, capture)
        if capture is not None and (capture.raw or capture.learnt):
            self.gather(piece, exchange, capture, now)
        if not piece.last or exchange is None:
            return 0
        if piece.response:
            exchange.answered_at = now
            if self.undecided and not identifies(False, exchange.api_key) and not exchange.synthesized:
                self.learn("passed", (now,))
                exchange.connection = self.connection  # this answer is what shows it
            return self.record(exchange)
        exchange.connection = self.connection
        if not exchange.synthesized:
            exchange.forwarded_at = now
        return self.record(exchange) if exchange.outcome_code == OutcomeCode.NO_RESPONSE else 0

    def read_facts(self, piece: BodyPiece, exchange: Exchange, capture: BodyCapture | None) -> int:
        """Read the facts of a body, which stand in ``exchange`` once it has ended."""
        fits = True
        complete = False
        try:
            if piece.kind != Kind.NO_WALKER:
                size = read_whole(exchange, piece.kind, piece.response, piece.data, piece.start, piece.end)
                complete = True
                fits = self.hold(exchange, size)
            else:
                capture.feed.feed(piece.data, piece.start, piece.end)
                size = capture.feed.size() - capture.charged
                if piece.last:
                    size = capture.feed.finish_into(exchange, piece.response) - capture.charged
                    complete = True
                fits = self.hold(exchange, size)
                if fits:
                    capture.charged += size
        except Exception:  # whatever it is, it concerns the record of this exchange only
            exchange.decode_code = DecodeCode.MALFORMED
            count(self.decoded, "malformed")
            self.forget(exchange, capture)
            complete = False
        if not fits:
            exchange.drop_facts(piece.response)
            if exchange.decode_code != DecodeCode.MALFORMED:
                exchange.decode_code = DecodeCode.NOT_KEPT
            self.forget(exchange, capture)
            return count(self.decoded, "not_kept")
        if not complete:
            return 0
        if exchange.decode_code == DecodeCode.NONE:
            exchange.decode_code = DecodeCode.FULL
        return count(self.decoded, "full")

    def hold(self, exchange: Exchange | None, size: int) -> bool:
        """Charge ``size`` bytes more for ``exchange``; False where there is no room for them."""
        fits = self.account.take(size)
        if fits:
            exchange.charged += size
        return fits

    def forget(self, exchange: Exchange, capture: BodyCapture | None) -> int:
        """The rest of this body passes unread, and what was read of it is not kept."""
        if capture is not None:
            self.give_back(exchange, capture.charged)
            capture.feed = None
            capture.charged = 0
        return 0

    def give_back(self, exchange: Exchange | None, size: int) -> int:
        """Hold ``size`` bytes less for ``exchange``."""
        exchange.charged -= size
        return self.account.charge(-size)

    def gather(self, piece: BodyPiece, exchange: Exchange | None, capture: BodyCapture, now: float) -> int:
        """Gather a body whose bytes are wanted, and hand them on once it has ended."""
        size = piece.end - piece.start
        short = capture.length <= max_learned
        had = 0 if capture.gathered is None else len(capture.gathered)
        if capture.raw and not self.hold(exchange, size):
            capture.raw = False
            self.give_back(exchange, had)
            count(self.decoded, "not_kept")
            if capture.learnt and short:
                self.account.charge(had)
            else:
                capture.gathered = None
        wanted = capture.raw or (capture.learnt and short)
        if wanted and not capture.raw:
            self.account.charge(-had if piece.last else size)
        body = None
        if wanted and piece.last and capture.gathered is None:
            body = sliced(piece.data, piece.start, piece.end)
        elif wanted:
            if capture.gathered is None:
                capture.gathered = bytearray()
            capture.gathered += sliced(piece.data, piece.start, piece.end)
            if piece.last:
                body = bytes(capture.gathered)
        if not piece.last:
            return 0
        if capture.raw and piece.response:
            exchange.response_raw = body
        elif capture.raw:
            exchange.request_raw = body
        if not capture.learnt:
            return 0
        if not short:
            body = None
        if piece.response:
            if exchange is None:
                return self.learn("token_reply", (body, now))
            return self.learn("response", (exchange.api_key, body, now))
        if exchange is None:
            return self.learn("token", (body,))
        return self.learn("request", (exchange.api_version, exchange.api_key, body))

    def learn(self, method: str, arguments: tuple[Any, ...]) -> int:
        """Let ``Identity`` learn, and record what changed of the connection."""
        if self.identity is None:
            return 0
        change = None
        try:
            change = getattr(self.identity, method)(*arguments)
            self.connection = self.identity.connection
            self.undecided = self.identity.undecided
        except Exception:  # a mistake of ours: it costs the name, not the connection
            self.identity = None
            self.undecided = False
        if change is not None:
            self.subscribers.observed[0] += 1
            self.subscribers.note(change)
        return 0

    def end(self, exchanges: list[Exchange], now: float) -> int:
        """The connection ended with ``exchanges`` open."""
        pieces = self.pieces
        self.pieces = []
        for piece in pieces:  # what ended in the last chunk, which was not handed on
            exchange = piece.exchange
            if (
                piece.last
                and exchange is not None
                and (piece.response or exchange.outcome_code == OutcomeCode.NO_RESPONSE)
            ):
                self.lose(exchange)
        for exchange in exchanges:
            self.lose(exchange)
        return self.learn("closed", (now,))

    def lose(self, exchange: Exchange) -> int:
        """Record ``exchange`` as one whose connection ended."""
        exchange.outcome_code = OutcomeCode.CONNECTION_LOST
        exchange.response_bytes = 0
        return self.record(exchange)

    def record(self, exchange: Exchange) -> int:
        """Hand ``exchange`` to those who observe it."""
        charged = exchange.charged
        exchange.charged = 0
        if not exchange.wanted:
            return self.account.charge(-charged)
        self.account.record(charged)
        self.subscribers.observed[0] += 1
        self.subscribers.record(exchange)
        return 0
