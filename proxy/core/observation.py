# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What observers learn of one session, and what is read and kept of its bodies, once a chunk has been forwarded.

While the session reads a chunk it leaves pieces here; ``read_bodies`` takes them in order when the chunk has been
forwarded. So exchanges are recorded in the order in which they end, each after its last byte was handed on.
"""

from __future__ import annotations

from typing import Any

import cython

from proxy.compiled.exchange import Exchange
from proxy.core import observation_interest
from proxy.core.account import Account
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection, ConnectionTransition, RequestResources
from proxy.core.observation_interest import ObservationSink
from proxy.core.principal_tracker import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, PrincipalTracker
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
keys = observation_interest.KEYS
versions = observation_interest.VERSIONS
want_exchange = observation_interest.WANT_EXCHANGE
want_request_body = observation_interest.WANT_REQUEST_BODY
want_response_body = observation_interest.WANT_RESPONSE_BODY


def identifies(response: bool, key: int) -> bool:
    """Whether bodies of this api say who the client is."""
    return key in (handshake, authenticate) or (key == api_versions and not response)


@cython.cclass
class Subscribers:
    """Those who observe the sessions of a process, as sessions see them: one object for all."""

    def __init__(self, sink: ObservationSink) -> None:
        self.sink = sink
        self.record = sink.record
        self.record_change = sink.record_change
        self.table = sink.interest.table
        self.others = sink.interest.others
        self.private = sink.interest.private
        self.private_base = sink.interest.private_base
        self.private_keys = len(sink.interest.private) // versions
        self.max_body = sink.max_body
        self.observed = sink.observed
        if len(self.table) != keys * versions:
            raise ValueError(f"a table of {len(self.table)} bytes, not {keys * versions}")

    def add_change(self, change: ConnectionTransition) -> int:
        """Record a change of a connection."""
        self.observed[0] += 1
        self.record_change(change)
        return 0

    def flags(self, key: int, version: int) -> int:
        """Return what is wanted of this api and version; 0 where nobody observes it."""
        flags = self.others
        if 0 <= key < keys and 0 <= version < versions:
            flags = self.table[key * versions + version]
        elif 0 <= key - self.private_base < self.private_keys and 0 <= version < versions:
            flags = self.private[(key - self.private_base) * versions + version]
        return flags if flags & want_exchange else 0


latest: Subscribers | None = None


def subscribers_of(sink: ObservationSink) -> Subscribers:
    """Return the same object for all sessions of a watch: a process has one."""
    global latest
    if latest is None or latest.sink is not sink:
        latest = Subscribers(sink)
    return latest


@cython.cclass
class BodyCapture:
    """One body that is wanted, while it passes.

    ``raw``: its bytes are for the exchange. ``learnt``: they are for ``PrincipalTracker``. ``feed``: reads it as it
    comes. ``charged``: bytes, for what the feed keeps. ``only_items``: the feed reads nothing but resources or
    error codes.
    """

    def __init__(self, length: int, raw: bool, learnt: bool) -> None:
        self.length = length
        self.raw = raw
        self.learnt = learnt
        self.feed: Any = None
        self.gathered: bytearray | None = None  # grows with what comes: a declared length allocates nothing
        self.charged = 0
        self.only_items = False


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
        self,
        connection: Connection,
        counters: ListenerCounters,
        sink: ObservationSink,
        principal_tracker: PrincipalTracker | None,
        account: Account,
    ) -> None:
        self.connection = connection
        self.principal_tracker: PrincipalTracker | None = principal_tracker
        self.account = account
        self.decoded = counters.decoded
        self.subscribers = subscribers_of(sink)
        self.pieces: list[BodyPiece] = []
        self.membership: tuple[bytes | None, ...] | None = None  # as ``Session.membership``; at most 1 KiB
        self.undecided = False  # only the broker's answer to something else shows that the client is logged in

    def capture(self, response: bool, key: int, flags: int, length: int, learnt: bool) -> BodyCapture | None:
        """Return what gathers a body of ``length`` bytes for those who want it; None where nobody does."""
        raw = False
        # What proves who a client is goes nowhere but to its session's identity.
        if flags & (want_response_body if response else want_request_body) and key != authenticate:
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
            self.collect(piece, exchange, capture, now)
        if not piece.last or exchange is None:
            return 0
        if piece.response:
            exchange.answered_at = now
            if self.undecided and not identifies(False, exchange.api_key) and not exchange.synthesized:
                self.track_principal("passed", (now,))
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
                fits = self.try_charge(exchange, size)
            else:
                capture.feed.feed(piece.data, piece.start, piece.end)
                size = capture.feed.size() - capture.charged
                if piece.last:
                    size = capture.feed.finish_into(exchange, piece.response) - capture.charged
                    complete = True
                fits = self.try_charge(exchange, size)
                if fits:
                    capture.charged += size
        except Exception:  # whatever it is, it concerns the record of this exchange only
            exchange.decode_code = DecodeCode.MALFORMED
            count(self.decoded, "malformed")
            self.drop_body(exchange, capture)
            complete = False
        if not fits:
            exchange.drop_facts(piece.response)
            if exchange.decode_code != DecodeCode.MALFORMED:
                exchange.decode_code = DecodeCode.NOT_KEPT
            self.drop_body(exchange, capture)
            return count(self.decoded, "not_kept")
        if not complete or piece.kind >= Kind.RESPONSE_ERRORS or (capture is not None and capture.only_items):
            return 0
        if exchange.decode_code == DecodeCode.NONE:
            exchange.decode_code = DecodeCode.FULL
        return count(self.decoded, "full")

    def try_charge(self, exchange: Exchange | None, size: int) -> bool:
        """Charge ``size`` bytes more for ``exchange``; False where there is no room for them."""
        fits = self.account.try_charge(size)
        if fits:
            exchange.charged += size
        return fits

    def drop_body(self, exchange: Exchange, capture: BodyCapture | None) -> int:
        """The rest of this body passes unread, and what was read of it is not kept."""
        if capture is not None:
            self.uncharge(exchange, capture.charged)
            capture.feed = None
            capture.charged = 0
        return 0

    def uncharge(self, exchange: Exchange | None, size: int) -> int:
        """Hold ``size`` bytes less for ``exchange``."""
        exchange.charged -= size
        return self.account.charge(-size)

    def collect(self, piece: BodyPiece, exchange: Exchange | None, capture: BodyCapture, now: float) -> int:
        """Gather a body whose bytes are wanted, and hand them on once it has ended."""
        size = piece.end - piece.start
        short = capture.length <= max_learned
        had = 0 if capture.gathered is None else len(capture.gathered)
        if capture.raw and not self.try_charge(exchange, size):
            capture.raw = False
            self.uncharge(exchange, had)
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
                return self.track_principal("token_reply", (body, now))
            return self.track_principal("response", (exchange.api_key, body, now))
        if exchange is None:
            return self.track_principal("token", (body,))
        return self.track_principal("request", (exchange.api_version, exchange.api_key, body))

    def track_principal(self, method: str, arguments: tuple[Any, ...]) -> int:
        """Let ``PrincipalTracker`` learn, and record what changed of the connection."""
        if self.principal_tracker is None:
            return 0
        change = None
        try:
            change = getattr(self.principal_tracker, method)(*arguments)
            self.connection = self.principal_tracker.connection
            self.undecided = self.principal_tracker.undecided
        except Exception:  # a mistake of ours: it costs the name, not the connection
            self.principal_tracker = None
            self.undecided = False
        if change is not None:
            self.subscribers.add_change(change)
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
                self.record_lost(exchange)
        for exchange in exchanges:
            self.record_lost(exchange)
        return self.track_principal("closed", (now,))

    def record_lost(self, exchange: Exchange) -> int:
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
        if exchange.resources is not None:
            self.learn_membership(exchange.resources)
        self.subscribers.observed[0] += 1
        self.subscribers.record(exchange)
        return 0

    def learn_membership(self, found: RequestResources) -> int:
        """Keep what the request says of its group and transactions."""
        if found.group_id is None and found.transactional_id is None:
            return 0
        instance_id, member_id, transactional_id = found.group_instance_id, found.member_id, found.transactional_id
        known = self.membership
        if known is not None:
            if known[0] == found.group_id:  # not every request of a member says all of it
                instance_id, member_id = instance_id or known[1], member_id or known[2]
            transactional_id = transactional_id or known[3]
        self.membership = (found.group_id, instance_id, member_id, transactional_id)
        return 0
