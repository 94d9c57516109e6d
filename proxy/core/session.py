"""The protocol state of one client connection: bytes of both directions in, exchanges out.

Two rules. Everything that decides which response belongs to which request lives here; nothing here knows a socket, a
clock or a thread.

For each chunk the caller does three things: ``client_data`` (or ``broker_data``) reads frame sizes and headers and may
refuse the chunk by raising; then the chunk is forwarded; then ``walk`` reads the bodies that somebody asked for. So
nothing that goes wrong inside a body can hold back a byte.

Responses belong to requests by position, as in Kafka: correlation ids are chosen by the client and may repeat. A
Produce with ``acks=0`` takes no place in the queue, because its response does not exist.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from proxy.core import apis
from proxy.core.exchange import Connection, Exchange, FetchRequest, ProduceRequest
from proxy.core.tally import Tally
from proxy.core.walk import BodyFeed, WalkerFunction, walk_whole, walker_for_request, walker_for_response
from proxy.core.watch import Watch
from proxy.core.wire import skip_tags, uvarint
from proxy.errors import PeerError, Side

MAX_FRAME = 104_857_600
"""Largest request in bytes (Kafka's ``socket.request.max.bytes``); a larger one ends the connection, as at a broker."""

MIN_FRAME = 10
"""Smallest request in bytes: key, version, correlation id, null client id."""

MAX_TOKEN = 524_288
"""Largest raw SASL token in bytes (Kafka's ``sasl.server.max.receive.size``)."""

MAX_PREFIX = 131_072
"""Most bytes kept of a request whose header is not complete. Client id and transactional id take up to 32 KiB each."""

CARRY_STEP = 1024
"""Bytes added to an incomplete prefix at a time; most prefixes are shorter than that."""

MAX_IN_FLIGHT = 256
"""Unanswered requests after which a connection's client is no longer read (``saturated``); clients use 1 to 100."""

PRODUCE = 0
WALKED = (PRODUCE, 1, 78)  # Produce, Fetch, ShareFetch
SASL_HANDSHAKE = 17

_int16 = struct.Struct(">h").unpack_from
_int32 = struct.Struct(">i").unpack_from
_key_version = struct.Struct(">hh").unpack_from
_request = struct.Struct(">ihhih").unpack_from
_response = struct.Struct(">ii").unpack_from

_StartFrame = Callable[[bytes | bytearray, int, int, int, bytes, int, float], int | None]
_Piece = tuple[Side, Exchange, WalkerFunction | None, BodyFeed | None, bytes, int, int, bool]


class _Direction:
    """How far one direction has got inside its current frame."""

    __slots__ = ("carry", "exchange", "feed", "left")

    def __init__(self) -> None:
        self.left = 0  # bytes of the current frame still to come, once its prefix is read
        self.carry = bytearray()  # what came of a frame whose prefix is not complete
        self.exchange: Exchange | None = None  # what the current frame belongs to
        self.feed: BodyFeed | None = None  # reads the current frame's body as it comes


class Session:
    """One per connection. ``watch``: those who observe; None means that nobody does, so no body is read.

    ``clean``: how many bytes of the chunk that raised PeerError precede the refused frame.
    """

    __slots__ = (
        "_broker",
        "_client",
        "_client_id",
        "_client_id_raw",
        "_connection",
        "_max_frame",
        "_record",
        "_tally",
        "_todo",
        "_tokens",
        "clean",
        "in_flight",
    )

    def __init__(
        self,
        connection: Connection,
        tally: Tally,
        watch: Watch | None = None,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self._connection = connection
        self._tally = tally
        self._record = None if watch is None else watch.record
        self._max_frame = max_frame
        self._client = _Direction()
        self._broker = _Direction()
        self._client_id_raw: bytes | bytearray = b""
        self._client_id = ""
        self._tokens = False
        self._todo: list[_Piece] = []
        self.in_flight: deque[Exchange] = deque()
        self.clean = 0

    @property
    def saturated(self) -> bool:
        """Whether so many requests are open that the client should not be read for now."""
        return len(self.in_flight) >= MAX_IN_FLIGHT

    @property
    def between_requests(self) -> bool:
        """Whether no request has been read in part."""
        return not self._client.left and not self._client.carry

    @property
    def quiet(self) -> bool:
        """Whether no request is open and no frame of either direction is under way."""
        broker = self._broker
        return not self.in_flight and self.between_requests and not broker.left and not broker.carry

    # ---- client to broker ---------------------------------------------------------------------------------------

    def client_data(self, data: bytes, now: float) -> bool:
        """Read sizes and headers of the requests in ``data``; ``now``: seconds, monotonic.

        Returns whether ``walk`` has something to do. Raises PeerError(client) where a broker closes too: a size out of
        bounds, a header that does not fit its frame.
        """
        return self._read(self._client, "client", self._start_request, data, now)

    def _start_request(
        self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, end: int, now: float
    ) -> int | None:
        """Read the prefix at ``buf[at:limit]`` of the frame that begins at ``data[start]`` (< 0: before it).

        Returns the offset in ``data`` after what it holds of this frame, or None while the prefix is incomplete.
        """
        if self._tokens and (passed := self._token(buf, at, limit, start, end)) != -1:
            return passed
        if limit - at < 14:
            if limit - at >= 4:
                self._check_size(_int32(buf, at)[0])
            return None
        size, key, version, correlation_id, id_length = _request(buf, at)
        self._check_size(size)
        stop = at + 4 + size
        body = at + 14
        client_id: str | None
        if id_length > 0:
            body += id_length
            if body > stop:
                raise PeerError("client", "invalid_header", f"client id of {id_length} bytes in a frame of {size}")
            if body > limit:
                return None
            raw = buf[at + 14 : body]
            if raw != self._client_id_raw:
                self._client_id_raw = raw
                self._client_id = raw.decode("utf-8", "replace")
            client_id = self._client_id
        elif id_length >= -1:
            client_id = None if id_length else ""
        else:
            raise PeerError("client", "invalid_header", f"client id length {id_length}")

        record = self._record
        walker = walker_for_request(key, version) if record is not None else None
        acks = 1
        if key == PRODUCE or walker is not None:
            try:
                if apis.request_is_flexible(key, version):
                    body = skip_tags(buf, body) if buf[body] else body + 1
                if key == PRODUCE:
                    acks = _acks(buf, body, version)
            except (IndexError, struct.error, PeerError):
                if limit < stop:
                    return None
                if apis.is_known(key, version):
                    raise PeerError("client", "invalid_header", f"{apis.api_name(key)} v{version}") from None
                walker = None  # a version of the future: forwarded, and taken to have a response

        exchange = Exchange(self._connection, key, version, correlation_id, client_id, now, size + 4)
        self._tally.requests[key] += 1
        if acks:
            self.in_flight.append(exchange)
        else:
            exchange.outcome = "no_response"
        if key == SASL_HANDSHAKE and version == 0:
            self._tokens = True
        if walker is None and record is not None and key in WALKED:
            exchange.decode = "unsupported"
            self._tally.decoded["unsupported"] += 1

        shift = start - at
        lead = buf[body:-shift] if body + shift < 0 else b""
        return self._open(self._client, "client", exchange, walker, lead, data, body + shift, stop + shift, end, now)

    def _check_size(self, size: int) -> None:
        if not MIN_FRAME <= size <= self._max_frame:
            raise PeerError("client", "invalid_size", f"{size} bytes; allowed: {MIN_FRAME} to {self._max_frame}")

    def _token(self, buf: bytes | bytearray, at: int, limit: int, start: int, end: int) -> int | None:
        """After SaslHandshake v0, tokens travel as bare frames until the first frame that is a request.

        Returns as ``_start_request`` does, or −1 when the frame is a request again.
        """
        if limit - at < 4:
            return None
        size = _token_size("client", buf, at)
        if size >= MIN_FRAME:
            if limit - at < 8:
                return None
            if apis.is_known(*_key_version(buf, at + 4)):
                self._tokens = False
                return -1
        return _pass_token(self._client, size, start, end)

    # ---- broker to client ---------------------------------------------------------------------------------------

    def broker_data(self, data: bytes, now: float) -> bool:
        """Read sizes and correlation ids of the responses in ``data``; as ``client_data``.

        Raises PeerError(broker) for a response that no request asked for: from there on nothing can be matched.
        """
        return self._read(self._broker, "broker", self._start_response, data, now)

    def _start_response(
        self, buf: bytes | bytearray, at: int, limit: int, start: int, data: bytes, end: int, now: float
    ) -> int | None:
        if limit - at < 8:
            return self._token_reply(buf, at, limit, start, end)
        size, correlation_id = _response(buf, at)
        if not self.in_flight:
            return self._token_reply(buf, at, limit, start, end)
        exchange = self.in_flight[0]
        if size < 4:
            raise PeerError("broker", "invalid_size", f"response of {size} bytes")
        if exchange.correlation_id != correlation_id:
            raise PeerError("broker", "out_of_sync", f"correlation id {correlation_id}, not {exchange.correlation_id}")
        if exchange is self._client.exchange and self._client.left:
            raise PeerError("broker", "out_of_sync", "a response before the end of its request")
        key, version = exchange.api_key, exchange.api_version
        body = at + 8
        walker = walker_for_response(key, version) if self._record is not None else None
        if walker is not None and apis.response_header_is_flexible(key, version):
            if body >= limit and limit < at + 4 + size:
                return None
            try:
                body = skip_tags(buf, body) if buf[body] else body + 1
            except (IndexError, PeerError):
                if limit < at + 4 + size:
                    return None
                walker = None
        self.in_flight.popleft()
        exchange.response_bytes = size + 4
        shift = start - at
        stop = at + 4 + size + shift
        return self._open(self._broker, "broker", exchange, walker, b"", data, body + shift, stop, end, now)

    def _token_reply(self, buf: bytes | bytearray, at: int, limit: int, start: int, end: int) -> int | None:
        """A frame that answers no request: right only while raw SASL tokens are exchanged."""
        if self.in_flight or limit - at < 4:
            return None
        if not self._tokens:
            raise PeerError("broker", "out_of_sync", "a response without a request")
        return _pass_token(self._broker, _token_size("broker", buf, at), start, end)

    # ---- both directions ----------------------------------------------------------------------------------------

    def _read(self, state: _Direction, side: Side, start_frame: _StartFrame, data: bytes, now: float) -> bool:
        """Take ``data`` frame by frame; ``start_frame`` reads the prefix of each. Returns whether there is to walk."""
        end = len(data)
        pos = self._go_on(state, side, data, end, now) if state.left else 0
        carry = state.carry
        while pos < end:
            if carry:
                start = pos - len(carry)  # of the frame, in coordinates of data
                self.clean = max(start, 0)
                # Doubling, so that a long header is not read from its start again and again.
                grown = min(pos + max(CARRY_STEP, len(carry)), end)
                carry += data[pos:grown]
                done = start_frame(carry, 0, len(carry), start, data, end, now)
                if done is None:
                    pos = grown
                    if len(carry) > MAX_PREFIX:
                        raise PeerError(side, "invalid_header", f"no complete header in {len(carry)} bytes")
                    continue
                carry.clear()
            else:
                self.clean = start = pos
                done = start_frame(data, pos, end, start, data, end, now)
                if done is None:
                    carry += data[pos:end]
                    break
            pos = done
        return bool(self._todo)

    def _open(
        self,
        state: _Direction,
        side: Side,
        exchange: Exchange,
        walker: WalkerFunction | None,
        lead: bytes | bytearray,
        data: bytes,
        body: int,
        stop: int,
        end: int,
        now: float,
    ) -> int:
        """The prefix of a frame is read: pass its body ``data[body:stop]``, as far as ``data`` holds it.

        ``body`` < 0: that many bytes of it came before ``data``; they are ``lead``.
        """
        feed = None
        if walker is not None and (lead or stop > end):
            feed = BodyFeed(walker, exchange.api_version, side)
            if lead:
                self._todo.append((side, exchange, None, feed, bytes(lead), 0, len(lead), False))
                body = 0
            self._todo.append((side, exchange, None, feed, data, body, min(stop, end), stop <= end))
        elif walker is not None:
            self._todo.append((side, exchange, walker, None, data, body, stop, True))
        if stop <= end:
            self._end(side, exchange, now, walked=walker is not None)
            return stop
        state.left = stop - end
        state.exchange = exchange
        state.feed = feed
        return end

    def _go_on(self, state: _Direction, side: Side, data: bytes, end: int, now: float) -> int:
        """Pass more of the current frame's body; return the offset after it."""
        left = state.left
        take = left if left < end else end
        state.left = left - take
        exchange, feed = state.exchange, state.feed
        if exchange is None:  # a raw SASL token
            return take
        last = take == left
        if feed is not None:
            self._todo.append((side, exchange, None, feed, data, 0, take, last))
        if last:
            state.exchange = state.feed = None
            self._end(side, exchange, now, walked=feed is not None)
        return take

    def _end(self, side: Side, exchange: Exchange, now: float, *, walked: bool) -> None:
        """A frame is complete; the exchange is finished unless its response is to come or ``walk`` is to finish it."""
        if side == "client":
            exchange.received_at = now
            if exchange.outcome == "open":
                return
        else:
            exchange.answered_at = now
            exchange.outcome = "answered"
            self._tally.responses[exchange.api_key] += 1
        if not walked and self._record is not None:
            if self._todo:  # keep the order: some exchange before this one is finished only by ``walk``
                self._todo.append((side, exchange, None, None, b"", 0, 0, True))
            else:
                self._record(exchange)

    def walk(self) -> None:
        """Read the bodies of the last chunk that somebody asked for. Never raises: a bad body is counted."""
        todo, self._todo = self._todo, []
        record = self._record
        spoilt: BodyFeed | None = None  # by its first piece; this is its second
        for side, exchange, walker, feed, data, start, stop, last in todo:
            facts = None
            try:
                if walker is not None:
                    facts = walk_whole(walker, data, start, stop, exchange.api_version, side)
                elif feed is not None and feed is not spoilt:
                    feed.feed(data, start, stop)
                    facts = feed.finish() if last else None
            except Exception:  # whatever it is, it concerns the record of this exchange only
                self._malformed(exchange, feed)
                spoilt = feed
            if facts is not None:
                self._tally.decoded["full"] += 1
                if exchange.decode == "none":
                    exchange.decode = "full"
                if isinstance(facts, ProduceRequest | FetchRequest):
                    exchange.request = facts
                else:
                    exchange.response = facts
            if last and exchange.outcome != "open" and record is not None:
                record(exchange)

    def _malformed(self, exchange: Exchange, feed: BodyFeed | None) -> None:
        exchange.decode = "malformed"
        self._tally.decoded["malformed"] += 1
        for state in (self._client, self._broker):
            if feed is not None and state.feed is feed:
                state.feed = None  # the rest of this body passes unread

    def lost(self) -> None:
        """The connection ended: every open exchange is finished without a response."""
        open_, self.in_flight = list(self.in_flight), deque()
        answering, self._broker.exchange = self._broker.exchange, None
        if answering is not None:  # its response was on its way
            answering.response_bytes = 0
            open_.insert(0, answering)
        asking, self._client.exchange = self._client.exchange, None
        if asking is not None and asking.outcome == "no_response":
            open_.append(asking)
        for exchange in open_:
            exchange.outcome = "connection_lost"
            if self._record is not None:
                self._record(exchange)


def _token_size(side: Side, buf: bytes | bytearray, at: int) -> int:
    size: int = _int32(buf, at)[0]
    if not 0 <= size <= MAX_TOKEN:
        raise PeerError(side, "invalid_size", f"SASL token of {size} bytes; allowed: 0 to {MAX_TOKEN}")
    return size


def _pass_token(state: _Direction, size: int, start: int, end: int) -> int:
    """Pass a raw SASL token whose frame begins at ``start``; return the offset after what is there of it."""
    stop = start + 4 + size
    state.left = max(stop - end, 0)
    return min(stop, end)


def _acks(buf: bytes | bytearray, body: int, version: int) -> int:
    """The ``acks`` of a ProduceRequest whose body starts at ``body``. Raises IndexError, struct.error, PeerError."""
    if version >= 9:
        length, body = uvarint(buf, body)
        body += max(length - 1, 0)
    elif version >= 3:
        body += 2 + max(_int16(buf, body)[0], 0)
    acks: int = _int16(buf, body)[0]
    return acks
