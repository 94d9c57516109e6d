"""What observers get of one session, and what is read and kept of its bodies, once a chunk has been forwarded.

While the session reads a chunk it leaves pieces here; ``walk`` takes them in order when the chunk has gone on. So
exchanges are recorded in the order in which they end, each after its last byte was handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from proxy.core.apis import response_header_is_flexible
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition, RequestFacts, RequestResources, ResponseFacts
from proxy.core.interception import Frame
from proxy.core.observation import MAX_LEARNED
from proxy.core.observation_interest import (
    WANT_EXCHANGE,
    WANT_FACTS,
    WANT_REQUEST_BODY,
    WANT_RESPONSE_BODY,
    ObservationSink,
)
from proxy.core.principal_tracker import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, PrincipalTracker
from proxy.errors import Side
from tests.oracle.account import Account
from tests.oracle.exchange import Exchange
from tests.oracle.protected_topics import Check
from tests.oracle.response_errors import Found
from tests.oracle.walk import (
    BodyFeed,
    Facts,
    WalkerFunction,
    kept_by,
    walk_whole,
    walker_for_errors,
    walker_for_response,
)

SASL = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
LEARNED = (*SASL, API_VERSIONS)
"""Apis whose requests say who the client is."""


class Passing:
    """One body that somebody wants, while it passes."""

    __slots__ = ("charged", "feed", "gathered", "learnt", "length", "raw")

    def __init__(self, length: int, *, raw: bool, learnt: bool) -> None:
        self.length = length
        self.raw = raw  # the exchange is to have its bytes
        self.learnt = learnt  # whoever learns the client's identity is to have them
        self.feed: BodyFeed | None = None  # reads it as it comes
        self.gathered = bytearray()  # grows with what comes: a declared length allocates nothing
        self.charged = 0  # bytes, for what the feed keeps


class Direction:
    """How far one direction has got inside its current frame."""

    __slots__ = ("carry", "check", "enough", "exchange", "frame", "left", "passing")

    def __init__(self) -> None:
        self.left = 0  # bytes of the current frame still to come, once its prefix is read
        self.carry = bytearray()  # what came of a frame whose prefix is not complete
        self.enough = 0  # bytes of it below which it cannot be complete
        self.exchange: Exchange | None = None  # what the current frame belongs to
        self.passing: Passing | None = None  # what is wanted of the current frame's body
        self.frame: Frame | None = None  # what the current frame passes; None: it is forwarded as it comes
        self.check: Check | None = None  # reads the topics of the current frame


_Piece = tuple[Side, Exchange | None, WalkerFunction | None, Passing | None, bytes, int, int, bool]
"""Part of a body: its exchange (None: a raw SASL token), what reads it whole, or what gathers it, then ``data``,
``start``, ``stop``, and whether the frame ends there."""


class Observation:
    """One per observed session. ``connection``: as it is known now."""

    __slots__ = ("_account", "_counters", "_identity", "_pieces", "_undecided", "_watch", "connection")

    def __init__(
        self,
        connection: Connection,
        counters: ListenerCounters,
        sink: ObservationSink,
        principal_tracker: PrincipalTracker | None,
        account: Account,
    ) -> None:
        self.connection = connection
        self._counters = counters
        self._watch = sink
        self._account = account
        self._identity = principal_tracker
        self._pieces: list[_Piece] = []
        self._undecided = False  # only the broker's answer to something else shows that the client is through

    @property
    def waiting(self) -> bool:
        """Whether ``walk`` has something to do."""
        return bool(self._pieces)

    def flags(self, key: int, version: int) -> int:
        """What is wanted of this api and version; 0 where it is not observed."""
        flags = self._watch.interest.flags(key, version)
        return flags if flags & WANT_EXCHANGE else 0

    def learns(self, side: Side, key: int) -> bool:
        """Whether bodies of this api say who the client is."""
        return self._identity is not None and key in (LEARNED if side == "client" else SASL)

    def passing(self, side: Side, key: int, flags: int, length: int, learnt: bool) -> Passing | None:
        """Return what gathers a body of ``length`` bytes for those who want it; None where nobody does."""
        raw = False
        # What proves who a client is goes nowhere but to its session's identity.
        if flags & (WANT_REQUEST_BODY if side == "client" else WANT_RESPONSE_BODY) and key != SASL_AUTHENTICATE:
            raw = length <= self._watch.max_body
            if not raw:
                self._counters.decoded["not_kept"] += 1
        return Passing(length, raw=raw, learnt=learnt) if raw or learnt else None

    def token(self, length: int) -> Passing | None:
        """The same for a raw SASL token."""
        return None if self._identity is None else Passing(length, raw=False, learnt=True)

    def piece(self, *piece: *_Piece) -> None:
        """Take a piece until ``walk``."""
        self._pieces.append(piece)

    def answer(self, exchange: Exchange, answer: bytes) -> None:
        """The sidecar itself has answered: the same as for a response of the broker."""
        key, version = exchange.api_key, exchange.api_version
        body = 8 + response_header_is_flexible(key, version)
        flags = self.flags(key, version)
        walked = flags & WANT_FACTS and len(answer) > body
        walker = (walker_for_response(key, version) or walker_for_errors(key, version)) if walked else None
        size = len(answer) - body
        kept = flags & WANT_RESPONSE_BODY and size >= 0
        passing = self.passing("broker", key, flags, size, False) if kept else None
        self.piece("broker", exchange, walker, passing, answer, body, len(answer), True)

    def walk(self, now: float) -> None:
        """Read the bodies of the last chunk that somebody asked for, and record what ended in it; it was handed on at
        ``now``. Never raises: a bad body is counted."""
        pieces, self._pieces = self._pieces, []
        for side, exchange, walker, passing, data, start, stop, last in pieces:
            if exchange is not None and (walker is not None or (passing is not None and passing.feed is not None)):
                self._read(side, exchange, walker, passing, data, start, stop, last)
            if passing is not None and (passing.raw or passing.learnt):
                self._gather(side, exchange, passing, data, start, stop, last, now)
            if not last or exchange is None:
                continue
            if side == "client":
                exchange.connection = self.connection
                if not exchange.synthesized:
                    exchange.forwarded_at = now
                if exchange.outcome == "no_response":
                    self.record(exchange)
            else:
                exchange.answered_at = now
                if self._undecided and exchange.api_key not in LEARNED and not exchange.synthesized:
                    self._learn(PrincipalTracker.passed, now)
                    exchange.connection = self.connection  # this answer is what shows it
                self.record(exchange)

    def ended(self, exchanges: Iterable[Exchange], now: float) -> None:
        """The connection ended with ``exchanges`` open."""
        pieces, self._pieces = self._pieces, []
        for side, exchange, *_, last in pieces:  # ended in the last chunk, which was not handed on
            if last and exchange is not None and (side == "broker" or exchange.outcome == "no_response"):
                self._lost(exchange)
        for exchange in exchanges:
            self._lost(exchange)
        self._learn(PrincipalTracker.closed, now)

    def _read(
        self,
        side: Side,
        exchange: Exchange,
        walker: WalkerFunction | None,
        passing: Passing | None,
        data: bytes,
        start: int,
        stop: int,
        last: bool,
    ) -> None:
        facts: Facts | None = None
        fits = True
        try:
            if walker is not None:
                kept = kept_by(walker)
                facts = walk_whole(walker, data, start, stop, exchange.api_version, side, kept)
                fits = self._hold(exchange, kept.size)
            elif passing is not None and passing.feed is not None:
                passing.feed.feed(data, start, stop)
                facts = passing.feed.finish() if last else None
                more = passing.feed.size - passing.charged
                if fits := self._hold(exchange, more):
                    passing.charged += more
        except Exception:  # whatever it is, it concerns the record of this exchange only
            exchange.decode = "malformed"
            self._counters.decoded["malformed"] += 1
            self._forget(exchange, passing)
        if not fits:
            if exchange.decode != "malformed":
                exchange.decode = "not_kept"
            self._counters.decoded["not_kept"] += 1
            self._forget(exchange, passing)
            return
        if facts is None:
            return
        if isinstance(facts, RequestResources):
            exchange.resources = facts
            return
        if isinstance(facts, Found):
            exchange.error_code = facts.error_code or exchange.error_code
            exchange.item_errors = facts.items
            return
        self._counters.decoded["full"] += 1
        if exchange.decode == "none":
            exchange.decode = "full"
        if side == "client":
            exchange.request = cast(RequestFacts, facts)
        else:
            exchange.response = cast(ResponseFacts, facts)

    def _hold(self, exchange: Exchange, size: int) -> bool:
        """Charge ``size`` bytes more for ``exchange``; False where there is no room for them."""
        fits = self._account.try_charge(size)
        if fits:
            exchange.charged += size
        return fits

    def _forget(self, exchange: Exchange, passing: Passing | None) -> None:
        """The rest of this body passes unread, and what was read of it is not kept."""
        if passing is not None:
            self._give_back(exchange, passing.charged)
            passing.feed, passing.charged = None, 0

    def _give_back(self, exchange: Exchange, size: int) -> None:
        exchange.charged -= size
        self._account.charge(-size)

    def _gather(
        self,
        side: Side,
        exchange: Exchange | None,
        passing: Passing,
        data: bytes,
        start: int,
        stop: int,
        last: bool,
        now: float,
    ) -> None:
        short = passing.length <= MAX_LEARNED
        if passing.raw and exchange is not None and not self._hold(exchange, stop - start):
            passing.raw = False
            self._give_back(exchange, len(passing.gathered))
            self._counters.decoded["not_kept"] += 1
            if passing.learnt and short:
                self._account.charge(len(passing.gathered))
            else:
                passing.gathered.clear()
        if passing.raw:
            passing.gathered += data[start:stop]
        elif passing.learnt and short:
            self._account.charge(-len(passing.gathered) if last else stop - start)
            passing.gathered += data[start:stop]
        if not last:
            return
        body = bytes(passing.gathered)
        if passing.raw and exchange is not None:
            if side == "client":
                exchange.request_raw = body
            else:
                exchange.response_raw = body
        if not passing.learnt:
            return
        learnt = body if short else None
        if side == "client" and exchange is not None:
            self._learn(PrincipalTracker.request, exchange.api_version, exchange.api_key, learnt)
        elif side == "client":
            self._learn(PrincipalTracker.token, learnt)
        elif exchange is not None:
            self._learn(PrincipalTracker.response, exchange.api_key, learnt, now)
        else:
            self._learn(PrincipalTracker.token_reply, learnt, now)

    def _learn(self, method: Callable[..., ConnectionTransition | None], *args: Any) -> None:
        principal_tracker = self._identity
        change = None
        if principal_tracker is None:
            return
        try:
            change = method(principal_tracker, *args)
            self.connection, self._undecided = principal_tracker.connection, principal_tracker.undecided
        except Exception:  # a mistake of ours: it costs the name, not the connection
            self._identity = None
            self._undecided = False
        if change is not None:
            self._watch.observed[0] += 1
            self._watch.record_change(change)

    def _lost(self, exchange: Exchange) -> None:
        exchange.outcome = "connection_lost"
        exchange.response_bytes = 0
        self.record(exchange)

    def record(self, exchange: Exchange) -> None:
        charged, exchange.charged = exchange.charged, 0
        if not self.flags(exchange.api_key, exchange.api_version):
            self._account.charge(-charged)
            return
        self._account.record(charged)
        self._watch.observed[0] += 1
        self._watch.record(exchange)
