"""The protocol state of one client connection: bytes of both directions in, exchanges out.

Responses belong to requests by position, as in Kafka: correlation ids are chosen by the client and may repeat. A
Produce with ``acks=0`` takes no place in the queue, because its response does not exist.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from proxy.core import apis
from proxy.core.budget import CLIENT_ID, EXCHANGE, Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.header import CARRY_STEP, MAX_FRAME, MAX_PREFIX, MIN_FRAME
from proxy.core.interception import Frame, Interception
from proxy.core.interceptor import (
    ON_BODY,
    ON_HEADER,
    ON_TOPICS,
    REWRITE,
    REWRITE_PREFIX,
    REWRITE_STREAM,
    UNKNOWN_VERSION,
    Deferred,
    InterceptorChain,
    Request,
)
from proxy.core.names import shorten
from proxy.core.observation_interest import (
    NO_SINK,
    WANT_EXCHANGE,
    WANT_FACTS,
    WANT_REQUEST_BODY,
    WANT_RESPONSE_BODY,
    ObservationSink,
)
from proxy.core.principal_tracker import SASL_HANDSHAKE, PrincipalTracker
from proxy.core.produce_scan import FIRST_TOPIC
from proxy.core.session import ANSWER_COST, MAX_IN_FLIGHT, TURN
from proxy.errors import PeerError, Side
from tests.oracle import header
from tests.oracle.account import Account
from tests.oracle.exchange import Exchange
from tests.oracle.observation import Direction, Observation, Passing
from tests.oracle.protected_topics import Check
from tests.oracle.request_resources import RequestWalker
from tests.oracle.walk import (
    BodyFeed,
    WalkerFunction,
    walker_for_errors,
    walker_for_request,
    walker_for_resources,
    walker_for_response,
)

PRODUCE = 0

_int32 = struct.Struct(">i").unpack_from
_key_version = struct.Struct(">hh").unpack_from
_request = struct.Struct(">ihhih").unpack_from
_response = struct.Struct(">ii").unpack_from

_StartFrame = Callable[[bytes | bytearray, int, int, int, bytes, float], int | None]


class Session:
    """One per connection. Its parameters and members are those of ``proxy.core.session.Session``."""

    __slots__ = (
        "_broker",
        "_client",
        "_client_id_raw",
        "_connection",
        "_counters",
        "_decided",
        "_max_frame",
        "_observation",
        "_sent_client_id",
        "_tokens",
        "account",
        "clean",
        "client_id",
        "in_flight",
        "interception",
        "requests",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        counters: ListenerCounters,
        sink: ObservationSink | None = None,
        max_frame: int = MAX_FRAME,
        principal_tracker: PrincipalTracker | None = None,
        interceptors: InterceptorChain | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._connection = connection
        self.account = Account(budget or Budget())
        self._counters, self._max_frame = counters, max_frame
        if sink is None and interceptors is not None and principal_tracker is not None:
            sink = NO_SINK
        self._observation = (
            None if sink is None else Observation(connection, counters, sink, principal_tracker, self.account)
        )
        self._client, self._broker = Direction(), Direction()
        self._client_id_raw: bytes | bytearray = b""
        self.client_id: str | None = None
        self._sent_client_id: str | None = None
        self._tokens = False
        self._decided = 0  # requests in a row, up to the last one
        self.in_flight: deque[Exchange] = deque()
        self.interception = None if interceptors is None else Interception(interceptors, counters, self.account)
        self.requests = self.clean = 0

    @property
    def connection(self) -> Connection:
        """As it is known now."""
        return self._connection if self._observation is None else self._observation.connection

    @property
    def saturated(self) -> bool:
        """Whether so many requests are open that the client should not be read for now, or one of them ends it all."""
        return len(self.in_flight) >= MAX_IN_FLIGHT or (self.interception is not None and self.interception.closing)

    def must_pause(self, side: Side) -> bool:
        """Whether this side should not be read for now, because connections hold too much memory: of the broker only
        while a response is held back, for every other one makes room."""
        frame = self._broker.frame
        return self.account.full and (side == "client" or (frame is not None and frame.holds_bytes))

    @property
    def diverted(self) -> bool:
        """Whether ``interception`` has something to say of the last chunk."""
        return self.interception is not None and self.interception.diverted

    @property
    def rest(self) -> bytes:
        """What of the client's last chunk is to be given again: in the next turn, once there is room for answers."""
        return b"" if self.interception is None else self.interception.rest

    @property
    def deferred(self) -> Deferred | None:
        """The deferred request that is due: all responses before it were taken, and no frame of the broker is under
        way."""
        under_way = self._broker.left or self._broker.carry
        if under_way or self.interception is None or not self.in_flight or not self.in_flight[0].synthesized:
            return None
        first = next(iter(self.interception.responses), None)
        return first if isinstance(first, Deferred) else None

    @property
    def is_unchanged(self) -> bool:
        """Whether all that came has gone on, or is in the chunk at hand, just as it came."""
        held = any(side.carry or side.frame is not None for side in (self._client, self._broker))
        return self.interception is None or (self.interception.is_unchanged and not held)

    @property
    def is_between_requests(self) -> bool:
        """Whether no request has been read in part."""
        return not self._client.left and not self._client.carry and not self.rest

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no frame of either direction is under way."""
        broker = self._broker
        return not self.in_flight and self.is_between_requests and not broker.left and not broker.carry

    # ---- client to broker ---------------------------------------------------------------------------------------

    def read_client_data(self, data: bytes, now: float) -> bool:
        """Read sizes and headers of the requests in ``data``; ``now``: seconds, monotonic.

        Returns whether ``observe`` has something to do. Raises PeerError(client) for what a broker refuses too: a size
        out of bounds, a header that does not fit its frame.
        """
        return self._pass(self._client, "client", self._start_request, data, now)

    def _start_request(
        self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, now: float
    ) -> int | None:
        """Read the prefix at ``buf[at:limit]`` of the frame that begins at ``data[start]`` (< 0: before it).

        Returns the offset in ``data`` after what it holds of this frame, or None while the prefix is incomplete.
        """
        if self._tokens and (passed := self._token(buf, at, limit, start, data, now)) != -1:
            return passed
        if limit - at < 14:
            if limit - at >= 4:
                header.check_size(_int32(buf, at)[0], self._max_frame)
            return None
        size, key, version, correlation_id, id_length = _request(buf, at)
        header.check_size(size, self._max_frame)
        stop = at + 4 + size
        body = header.after_client_id(at, size, id_length)
        if body > limit:
            self._client.enough = body - at
            return None
        raw = buf[at + 14 : body]
        if not raw or raw != self._client_id_raw:
            self._client_id_raw = raw
            self._sent_client_id = None if id_length < 0 else raw.decode("utf-8", "replace")
            self.client_id = None if id_length < 0 else shorten(bytes(raw)).decode("utf-8", "replace")

        reported = self._observation
        flags = 0 if reported is None else reported.flags(key, version)
        walker = None
        if flags & WANT_FACTS:
            walker = walker_for_request(key, version) or walker_for_resources(key, version)
        learnt = reported is not None and reported.learns("client", key)
        interception = self.interception
        wanted = (
            interception.interceptors.flags(key, version) & (ON_HEADER | ON_BODY | ON_TOPICS)
            if interception is not None
            else 0
        )
        if (
            interception is not None
            and wanted & ON_BODY
            and size > (most := interception.interceptors.max_held_request(key, version))
        ):
            raise PeerError("client", "invalid_size", f"{size} bytes; allowed here: up to {most}")
        acks, ahead = 1, 0
        needed = key == PRODUCE or flags & WANT_REQUEST_BODY or learnt or wanted & ON_BODY
        needed = needed or (walker is not None and not isinstance(walker, RequestWalker))
        if needed or walker is not None:
            tagged, tags = apis.request_is_flexible(key, version), body
            try:
                if tagged:
                    body = header.skip_header_tags(buf, body, stop)
                if key == PRODUCE:
                    ahead = header.acks_at(buf, body, stop, version)
                    acks = buf[ahead : ahead + 2] != b"\0\0"
            except (IndexError, struct.error, PeerError):
                if limit < stop:
                    least = header.least_header(buf, tags, tagged=tagged, produce=version if key == PRODUCE else None)
                    self._client.enough = min(least, stop) - at
                    return None
                if needed and apis.is_known(key, version):
                    raise PeerError("client", "invalid_header", f"{apis.api_name(key)} v{version}") from None
                walker = None  # forwarded, and of a version of the future taken to have a response

        check = None
        if interception is not None and interception.interceptors.topics is not None and wanted & ON_TOPICS:
            check = Check(version, interception.interceptors.topics)
            check.feed(buf, ahead, min(limit, stop))
            if limit < stop and not check.named:
                self._client.enough = min(ahead + FIRST_TOPIC, stop) - at
                return None
            rest = start + limit - at  # what of the frame is in ``data`` alone
            check.feed(data, rest, max(rest, min(start + 4 + size, len(data))))

        exchange = Exchange(self.connection, key, version, correlation_id, self._sent_client_id, now, size + 4)
        exchange.charged = EXCHANGE + CLIENT_ID * id_length
        self.account.charge(exchange.charged)
        self._counters.requests[key] += 1
        self.requests += 1
        frame = None
        self._decided = self._decided + 1 if wanted & ON_HEADER else 0
        if interception is not None and (wanted & ~ON_TOPICS or (check is not None and check.found)):
            asked = Request(exchange.connection, key, version, self._sent_client_id, acks, self._decided)
            frame = interception.frame_of_request(wanted, asked, exchange, body - at)
            if check is not None and check.found:
                frame, check = frame or interception.refuse_produce(asked, exchange, ahead - at), None
        if acks or exchange.synthesized:
            self.in_flight.append(exchange)
        else:
            exchange.outcome = "no_response"
        if key == SASL_HANDSHAKE and version == 0 and not exchange.synthesized:
            self._tokens = True
        if flags and not apis.is_known(key, version):
            exchange.decode = "unsupported"
            self._counters.decoded["unsupported"] += 1
        passing = None
        learnt = learnt and not exchange.synthesized  # the broker will not answer it
        if reported is not None and (learnt or flags & WANT_REQUEST_BODY):
            passing = reported.passing("client", key, flags, stop - body, learnt)
        done = self._open(
            self._client, "client", exchange, frame, walker, passing, buf, body, stop, start - at, data, now
        )
        if self._client.left:
            self._client.check = check
        return done

    def _token(self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, now: float) -> int | None:
        """After SaslHandshake v0, tokens travel as bare frames until the first frame that is a request.

        Returns as ``_start_request`` does, or −1 when the frame is a request again.
        """
        if limit - at < 4:
            return None
        if (size := header.token_size("client", buf, at)) >= MIN_FRAME:
            if limit - at < 8:
                return None
            key, version = _key_version(buf, at + 4)
            if apis.is_known(key, version) or (
                self.interception and self.interception.interceptors.flags(key, version) & UNKNOWN_VERSION
            ):
                self._tokens = False
                return -1
        return self._pass_token("client", buf, at, size, start, data, now)

    # ---- broker to client ---------------------------------------------------------------------------------------

    def read_broker_data(self, data: bytes, now: float) -> bool:
        """Read sizes and correlation ids of the responses in ``data``; as ``read_client_data``.

        Raises PeerError(broker) for a response that no request asked for: from there on nothing can be matched.
        """
        return self._pass(self._broker, "broker", self._start_response, data, now)

    def _start_response(
        self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, now: float
    ) -> int | None:
        if limit - at < 8:
            return self._token_reply(buf, at, limit, start, data, now)
        size, correlation_id = _response(buf, at)
        if not self.in_flight:
            return self._token_reply(buf, at, limit, start, data, now)
        exchange = self.in_flight[0]
        if size < 4:
            raise PeerError("broker", "invalid_size", f"response of {size} bytes")
        if exchange.correlation_id != correlation_id:
            raise PeerError("broker", "out_of_sync", f"correlation id {correlation_id}, not {exchange.correlation_id}")
        if exchange is self._client.exchange and self._client.left:
            raise PeerError("broker", "out_of_sync", "a response before the end of its request")
        if exchange.synthesized:
            raise PeerError("broker", "out_of_sync", "a response to what it was not asked")
        key, version = exchange.api_key, exchange.api_version
        reported = self._observation
        flags = reported.flags(key, version) if reported is not None else 0
        walker = None
        if flags & WANT_FACTS:
            walker = walker_for_response(key, version) or walker_for_errors(key, version)
        learnt = reported is not None and reported.learns("broker", key)
        interception = self.interception
        wanted = (
            interception.interceptors.flags(key, version) & (REWRITE | REWRITE_PREFIX | REWRITE_STREAM)
            if interception is not None
            else 0
        )
        body, stop = at + 8, at + 4 + size
        if (flags & ~WANT_EXCHANGE or learnt or wanted) and apis.response_header_is_flexible(key, version):
            try:
                body = header.skip_header_tags(buf, body, stop)
            except (IndexError, PeerError):
                if limit < stop:
                    self._broker.enough = min(header.least_header(buf, body, tagged=True), stop) - at
                    return None
                body, walker, flags = at + 8, None, flags & ~header.PEEKED
                if interception is not None and wanted:
                    interception.record_failure(ValueError("the response's header cannot be read"))
                    wanted = 0
        if flags & header.PEEKED and not header.peek(exchange, flags, buf, body, limit, stop):
            return None
        self.in_flight.popleft()
        exchange.response_bytes = size + 4
        passing = None
        if reported is not None and (learnt or flags & WANT_RESPONSE_BODY):
            passing = reported.passing("broker", key, flags, stop - body, learnt)
        frame = (
            interception.frame_of_response(wanted, exchange, body - at, size + 4)
            if interception is not None and wanted
            else None
        )
        return self._open(
            self._broker, "broker", exchange, frame, walker, passing, buf, body, stop, start - at, data, now
        )

    def _token_reply(
        self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, now: float
    ) -> int | None:
        """A frame that answers no request: right only while raw SASL tokens are exchanged."""
        if self.in_flight or limit - at < 4:
            return None
        if not self._tokens:
            raise PeerError("broker", "out_of_sync", "a response without a request")
        return self._pass_token("broker", buf, at, header.token_size("broker", buf, at), start, data, now)

    # ---- both directions ----------------------------------------------------------------------------------------

    def _pass(self, state: Direction, side: Side, start_frame: _StartFrame, data: bytes, now: float) -> bool:
        """Read ``data``; where there are rules, put together what is forwarded. Returns whether there is to walk."""
        interception = self.interception
        if interception is None:
            self._read(state, side, start_frame, data, now)
        else:
            if interception.diverted:
                interception.start_chunk()
            self.clean = upto = 0
            if side == "client" and interception.rest:
                interception.store_rest(b"")
            try:
                if side == "broker" or not interception.closing:
                    upto = self._read(state, side, start_frame, data, now)
            except PeerError:
                self._settle(interception, side, data, self.clean)
                raise
            if side == "client" and upto < len(data) and not interception.closing:
                interception.store_rest(data[upto:])
            elif state.carry:
                upto = self.clean  # the beginning of a header waits for the rest of it
            self._settle(interception, side, data, upto)
        return self._observation is not None and self._observation.waiting

    def _settle(self, interception: Interception, side: Side, data: bytes, upto: int) -> None:
        """``data`` was read up to there."""
        if side == "client" and interception.responses and not self._broker.left and not self._broker.carry:
            self._answer()
        if not interception.is_unchanged or upto < len(data):
            interception.finish_chunk(data, upto)

    def _read(self, state: Direction, side: Side, start_frame: _StartFrame, data: bytes, now: float) -> int:
        """Take ``data`` frame by frame; ``start_frame`` reads the prefix of each. Returns up to where."""
        end, frames = len(data), 0
        interception = self.interception if side == "client" else None
        pos = self._go_on(state, side, data, now) if state.left else 0
        carry = state.carry
        while pos < end:
            if interception is not None and (frames >= TURN or interception.full or interception.closing):
                return pos
            if carry:
                start = pos - len(carry)  # of the frame, in coordinates of data
                self.clean = max(start, 0)
                # Doubling, so that a long header is not read from its start again and again.
                grown = min(pos + max(CARRY_STEP, len(carry)), end)
                carry += data[pos:grown]
                self.account.charge(grown - pos)
                done = None if len(carry) < state.enough else start_frame(carry, 0, len(carry), start, data, now)
                if done is None:
                    pos = grown
                    if len(carry) > MAX_PREFIX:
                        raise PeerError(side, "invalid_header", f"no complete header in {len(carry)} bytes")
                    continue
                self.account.charge(-len(carry))
                carry.clear()
                state.enough = 0
            else:
                self.clean = start = pos
                done = start_frame(data, pos, end, start, data, now)
                if done is None:
                    carry += data[pos:end]
                    self.account.charge(end - pos)
                    break
            frames += 1 if interception is None or interception.is_unchanged else ANSWER_COST
            pos = done
        return end

    def _open(
        self, state: Direction, side: Side, exchange: Exchange | None, frame: Frame | None,
        walker: WalkerFunction | None, passing: Passing | None, buf: bytes | bytearray, body: int, stop: int,
        shift: int, data: bytes, now: float,
    ) -> int:  # fmt: skip
        """The prefix of a frame is read: pass its body ``buf[body:stop]``, as far as ``data`` holds it.

        ``shift`` leads from offsets in ``buf`` to those in ``data``, of which the first may be < 0: before ``data``.
        ``exchange``: None for a raw SASL token.
        """
        first, stop, end = body + shift, stop + shift, len(data)
        ended = stop <= end
        interception = self.interception
        if interception is not None and (frame is not None or shift < 0):
            lead, at = (bytes(buf[:-shift]), 0) if shift < 0 else (b"", self.clean)
            interception.begin_frame(frame, lead, data, at, min(stop, end), ended)
        if walker is not None and (first < 0 or not ended):
            passing = passing or Passing(stop - first, raw=False, learnt=False)
            passing.feed = BodyFeed(walker, 0 if exchange is None else exchange.api_version, side)
            walker = None
        reported = self._observation
        if reported is not None and (walker is not None or passing is not None):
            if first < 0:
                lead = bytes(buf[body:-shift])
                reported.piece(side, exchange, None, passing, lead, 0, len(lead), False)
            reported.piece(side, exchange, walker, passing, data, max(first, 0), min(stop, end), ended)
        elif reported is not None and ended:
            reported.piece(side, exchange, None, None, data, end, end, True)
        if not ended:
            state.left = stop - end
            state.exchange = exchange
            state.passing = passing
            state.frame = frame
            return end
        self._end(side, exchange, data, stop, now)
        return stop

    def _go_on(self, state: Direction, side: Side, data: bytes, now: float) -> int:
        """Pass more of the current frame's body; return the offset after it."""
        take = min(state.left, len(data))
        state.left -= take
        exchange, passing, reported, last = state.exchange, state.passing, self._observation, not state.left
        if self.interception is not None and state.check is not None and exchange is not None:
            state.check.feed(data, 0, take)
            if state.check.found:
                state.check, state.frame = None, self.interception.cut_produce(exchange)
                self._await_end(exchange)
        if state.frame is not None and self.interception is not None:
            self.interception.replace(state.frame.feed(data[:take], last), data, 0, take)
        if reported is not None and (last or passing is not None):
            reported.piece(side, exchange, None, passing, data, 0, take, last)
        if last:
            state.exchange = state.passing = state.frame = state.check = None
            self._end(side, exchange, data, take, now)
        return take

    def _end(self, side: Side, exchange: Exchange | None, data: bytes, stop: int, now: float) -> None:
        """A frame is complete, in ``data`` up to ``stop``."""
        if side == "client":
            if exchange is not None:
                exchange.received_at = now
                if exchange.outcome == "no_response" and not exchange.synthesized and self._observation is None:
                    self.account.charge(-exchange.charged)
                self._await_end(exchange)
            return
        if exchange is not None:
            exchange.responded_at = now
            exchange.outcome = "answered"
            self._counters.responses[exchange.api_key] += 1
            if self._observation is None:  # else it is recorded first
                self.account.charge(-exchange.charged)
        if self.interception is not None and self.interception.responses:
            self._answer(data, stop)

    def _await_end(self, exchange: Exchange) -> None:
        """The place of a refused request without a response among the others says when the connection ends."""
        if exchange.synthesized and exchange.outcome == "no_response":
            exchange.outcome = "open"
            self.in_flight.append(exchange)

    def _answer(self, data: bytes | None = None, at: int = 0) -> None:
        """Between two frames of the broker, which are in its chunk ``data`` at ``at``: say what is to be said now."""
        interception = self.interception
        while interception is not None and interception.responses and self.in_flight and self.in_flight[0].synthesized:
            exchange = self.in_flight[0]
            if exchange is self._client.exchange and not interception.closing:
                return  # its request has not ended yet
            answer = interception.take_response(data, at)
            if not answer:
                return
            self.in_flight.popleft()
            exchange.response_bytes = len(answer)
            exchange.outcome = "answered"
            self._counters.responses[exchange.api_key] += 1
            if self._observation is None:
                self.account.charge(-exchange.charged)
            else:
                self._observation.answer(exchange, answer)

    def answer_deferred(self, answer: bytes | Exception | None) -> None:
        """Respond to the request that is ``deferred``; None, or the error of what served it: the connection ends."""
        interception = self.interception
        assert interception is not None
        if interception.diverted:
            interception.start_chunk()
        interception.answer_deferred(self.in_flight[0], answer)
        self._answer()
        interception.finish_chunk(b"", 0)

    def give_up(self, now: float) -> int:
        """The connection leaves at ``now``, without a response to the request that is ``deferred``. Returns the
        correlation id of that request."""
        assert self.interception is not None
        exchange = self.in_flight.popleft()
        self.interception.give_up(exchange)
        exchange.outcome = "no_response"
        if self._observation is not None:
            self._observation.record(exchange)
        self.close(now)
        return exchange.correlation_id

    def observe(self, now: float) -> None:
        """The last chunk was handed on at ``now``: read its bodies that somebody asked for, and record what ended in
        it. Never raises."""
        if self._observation is not None:
            self._observation.walk(now)

    def close(self, now: float) -> None:
        """The connection ended at ``now``: every open exchange is finished without a response."""
        open_, self.in_flight = list(self.in_flight), deque()
        answering, asking = self._broker.exchange, self._client.exchange
        if answering is not None:  # its response was on its way
            open_.insert(0, answering)
        if asking is not None and asking.outcome == "no_response":
            open_.append(asking)
        self._client, self._broker = Direction(), Direction()
        try:
            if self._observation is not None:
                self._observation.ended(open_, now)
        finally:
            self.account.close()

    def _pass_token(
        self, side: Side, buf: bytes | bytearray, at: int, size: int, start: int, data: bytes, now: float
    ) -> int:
        """Pass a raw SASL token whose frame begins at ``start``; return the offset after what is there of it."""
        passing = self._observation.token(size) if self._observation is not None else None
        state = self._client if side == "client" else self._broker
        return self._open(state, side, None, None, None, passing, buf, at + 4, at + 4 + size, start - at, data, now)
