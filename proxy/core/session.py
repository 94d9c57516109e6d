# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""The protocol state of one client connection: bytes of both directions in, exchanges out.

Two rules. Everything that decides which response belongs to which request lives here; nothing here knows a socket, a
clock or a thread.

For each chunk the caller does three things. ``read_client_data`` or ``read_broker_data`` reads frame sizes and headers,
and refuses the chunk by raising. Then the chunk is forwarded. Then ``observe`` reads the bodies that are wanted, and
records the exchanges that have ended (see ``proxy.core.observation``). So an error in a body cannot hold back a byte.

Responses belong to requests by position, as in Kafka: correlation ids are chosen by the client and may repeat. A
Produce with ``acks=0`` takes no place in the queue, because its response does not exist.

One source for both modes: interpreted as it stands, compiled with the types of session.pxd. ``buf[at:limit]`` is what
is there of a frame, in the chunk ``data`` itself or in the bytes that were carried over; ``shift`` leads from offsets
in ``buf`` to those in ``data``, of which ``end`` is the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

from proxy.compiled.exchange import Exchange
from proxy.core import apis, interceptor, observation_interest
from proxy.core.budget import CLIENT_ID, EXCHANGE
from proxy.core.exchange import Connection
from proxy.core.header import CARRY_STEP, MAX_PREFIX, MIN_FRAME, PEEKED
from proxy.core.interceptor import Deferred, Request
from proxy.core.names import MAX_NAME, shorten
from proxy.core.produce_scan import FIRST_TOPIC, ProduceScan
from proxy.core.session_states import Action, Event
from proxy.core.wire import Buffer, refused_size
from proxy.errors import PeerError, Side

if not cython.compiled:
    from proxy.compiled.exchange import DecodeCode, Kind, OutcomeCode, new_exchange
    from proxy.compiled.walk import kind_of
    from proxy.core.connection_state import ConnectionState
    from proxy.core.header import (
        MORE,
        acks_at,
        after_client_id,
        is_flexible,
        is_known,
        least_header,
        peek,
        skip_tags,
    )
    from proxy.core.memory import count, count_api, equals, int16_at, int32_at, sliced
    from proxy.core.observation import identifies

    PRODUCE, SASL_HANDSHAKE, API_VERSIONS = 0, 17, 18
    REQUEST_AGAIN = -5

MAX_IN_FLIGHT = 256
"""Unanswered requests after which a connection's client is no longer read (``saturated``); clients use 1 to 100."""

TURN = 100
"""Frames of a client that a session with rules reads at once. What a chunk has more of waits (``rest``) until the loop
has served the other connections: a chunk may hold 18,000 requests."""

ANSWER_COST = 4
"""As how many frames each one counts from the first on that is not forwarded as it came: Python has to do with these,
and 25 of them take up to half a millisecond."""

max_in_flight = MAX_IN_FLIGHT
turn = TURN
answer_cost = ANSWER_COST
max_prefix = MAX_PREFIX
carry_step = CARRY_STEP
min_frame = MIN_FRAME
first_topic = FIRST_TOPIC
exchange_bytes = EXCHANGE
client_id_bytes = CLIENT_ID
max_name = MAX_NAME
want_exchange = observation_interest.WANT_EXCHANGE
want_facts = observation_interest.WANT_FACTS
want_request_body = observation_interest.WANT_REQUEST_BODY
want_response_body = observation_interest.WANT_RESPONSE_BODY
peeked = PEEKED
on_header = interceptor.ON_HEADER
on_body = interceptor.ON_BODY
on_topics = interceptor.ON_TOPICS
request_flags = interceptor.ON_HEADER | interceptor.ON_BODY | interceptor.ON_TOPICS
rewrite = interceptor.REWRITE
response_flags = interceptor.REWRITE | interceptor.REWRITE_PREFIX | interceptor.REWRITE_STREAM
chunk_event = Event.CHUNK
request_event = Event.REQUEST
handshake_event = Event.HANDSHAKE
keep_event = Event.KEEP
read_action = Action.READ
store_action = Action.STORE


@cython.cclass
class Session(ConnectionState):
    """One per connection.

    ``sink``: where observations go; None: nobody observes, so no body is read. ``principal_tracker``: finds out who the
    client is, for the sink and for ``interceptors``. ``interceptors``: None: nothing is answered or rewritten here.
    ``budget``: of the process, which is charged with what all sessions hold; None: one of its own.

    With interceptors the caller asks after each chunk whether it is ``diverted``. Then ``interception`` says what is
    forwarded instead, what is sent to the client, and whether the connection ends.

    ``requests``: how many have begun; ``client_id``: of the last of them, at most 256 bytes. ``clean``: how many bytes
    of the chunk that raised PeerError precede the refused frame.
    """

    @property
    def connection(self) -> Connection:
        """As it is known now."""
        return self.known_as if self.observation is None else self.observation.connection

    @property
    def saturated(self) -> bool:
        """Whether so many requests are open that the client should not be read for now, or one of them ends it all."""
        return self.is_saturated()

    @property
    def rest(self) -> bytes:
        """What of the client's last chunk is to be given again: in the next turn, once there is room for answers."""
        return b"" if self.interception is None else self.interception.rest

    @property
    def deferred(self) -> Deferred | None:
        """The deferred request that is due: all responses before it were taken, and no frame of the broker is under
        way. None while there is none."""
        if self.first is None or not self.first.synthesized or self.broker.left or len(self.broker.carry):
            return None
        responses = self.interception.responses
        return responses[0] if responses and isinstance(responses[0], Deferred) else None

    @property
    def is_unchanged(self) -> bool:
        """Whether all that came has been forwarded, or is in the chunk at hand, just as it came."""
        held = (
            self.client.frame is not None
            or self.broker.frame is not None
            or len(self.client.carry) != 0
            or len(self.broker.carry) != 0
        )
        return self.interception is None or (self.interception.is_unchanged and not held)

    @property
    def is_between_requests(self) -> bool:
        """Whether no request has been read in part."""
        return self.has_no_partial_request()

    @property
    def is_idle(self) -> bool:
        """Whether no request is open and no frame of either direction is under way."""
        responding = self.broker.left != 0 or len(self.broker.carry) != 0
        return not responding and not self.open and self.has_no_partial_request()

    @property
    def in_flight(self) -> Sequence[Exchange]:
        """Requests that wait for their response, in their order."""
        return self.open_exchanges()

    @property
    def membership(self) -> tuple[bytes | None, ...] | None:
        """Group, static instance, member and transactional id of the last request that had one of them, UTF-8 and at
        most 256 bytes each; None where there was none, or nothing observes."""
        return None if self.observation is None else self.observation.membership

    def must_pause(self, side: Side) -> bool:
        """Whether this side should not be read for now, because connections hold too much memory: of the broker only
        while a response is held back, for every other one makes room."""
        return self.must_pause_reading(side == "broker")

    def read_client_data(self, data: bytes, now: float) -> bool:
        """Read sizes and headers of the requests in ``data``; ``now``: seconds, monotonic.

        Returns whether ``observe`` has something to do. Raises PeerError(client) for what a broker refuses too: a size
        out of bounds, a header that does not fit its frame.
        """
        self.held = data
        return self.read(False, data, len(data), now) != 0

    def read_broker_data(self, data: bytes, now: float) -> bool:
        """Read sizes and correlation ids of the responses in ``data``; as ``read_client_data``.

        Raises PeerError(broker) for a response that no request asked for: from there on nothing can be matched.
        """
        self.held = data
        return self.read(True, data, len(data), now) != 0

    def observe(self, now: float) -> None:
        """The last chunk was handed on at ``now``: read its bodies that somebody asked for, and record what ended in
        it. Never raises."""
        self.read_bodies(now)

    def answer_deferred(self, answer: bytes | Exception | None) -> None:
        """Respond to the request that is ``deferred``; None, or the error of what served it: the connection ends.

        As after a chunk, the caller looks at ``diverted``, and then calls ``observe``.
        """
        if self.diverted:
            self.interception.start_chunk()
            self.diverted = False
        assert self.first is not None, "nothing is deferred"
        self.interception.answer_deferred(self.first, answer)
        self.follow_interception()
        self.settle(False, b"", 0, 0)

    def close(self, now: float) -> None:
        """The connection ended at ``now``: every open exchange is finished without a response."""
        self.end_all(now)

    def is_saturated(self) -> bool:
        """As ``saturated``."""
        return self.open >= max_in_flight or self.is_closing()

    # ---- chunks -------------------------------------------------------------------------------------------------

    def read(self, response: bool, data: Buffer, end: int, now: float) -> int:
        """Read a chunk. Returns whether there are bodies to read. Raises PeerError."""
        if self.has_ended():
            return 0
        state = self.broker if response else self.client
        had = len(state.carry)
        if self.interception is None:
            self.read_frames(response, data, end, now)
        else:
            self.read_intercepted(response, data, end, now)
        had = len(state.carry) - had
        if had:
            self.account.charge(had)
        return self.observation is not None and len(self.observation.pieces) != 0

    def read_frames(self, response: bool, data: Buffer, end: int, now: float) -> int:
        """Read a chunk frame by frame. Returns up to where."""
        state = self.broker if response else self.client
        carry = state.carry
        pos = self.read_body(response, state, data, end, now) if state.left else 0
        frames = 0
        while pos < end:
            if not response and self.interception is not None and (frames >= turn or self.full or self.is_closing()):
                return pos
            if len(carry):
                start = pos - len(carry)  # of the frame, in coordinates of data
                self.clean = start if start > 0 else 0
                # Doubling, so that a long header is not read from its start again and again.
                grown = min(pos + max(carry_step, len(carry)), end)
                carry += sliced(data, pos, grown)
                if len(carry) < state.enough:
                    done = MORE
                elif response:
                    done = self.read_response(carry, 0, len(carry), start, data, end, now)
                else:
                    done = self.read_request(carry, 0, len(carry), start, data, end, now)
                if done == MORE:
                    pos = grown
                    if len(carry) > max_prefix:
                        raise PeerError(
                            "broker" if response else "client",
                            "invalid_header",
                            f"no complete header in {len(carry)} bytes",
                        )
                    continue
                carry.clear()
                state.enough = 0
            else:
                self.clean = pos
                if response:
                    done = self.read_response(data, pos, end, 0, data, end, now)
                else:
                    done = self.read_request(data, pos, end, 0, data, end, now)
                if done == MORE:
                    carry += sliced(data, pos, end)
                    break
            frames += answer_cost if (self.touched or self.pending) and not self.interception.is_unchanged else 1
            pos = done
        return end

    # ---- client to broker ---------------------------------------------------------------------------------------

    def read_request(self, buf: Buffer, at: int, limit: int, shift: int, data: Buffer, end: int, now: float) -> int:
        """Read the header of the request at ``buf[at:limit]``. Returns the offset in ``data`` after what it holds of
        this frame, or MORE while the header is incomplete."""
        observation = self.observation
        if self.reads_tokens():
            done = self.read_token(buf, at, limit, shift, data, end, now)
            if done != REQUEST_AGAIN:
                return done
        if limit - at < 14:
            if limit - at >= 4:
                self.check_size(int32_at(buf, at))
            return MORE
        size = int32_at(buf, at)
        self.check_size(size)
        key = int16_at(buf, at + 4)
        version = int16_at(buf, at + 6)
        id_length = int16_at(buf, at + 12)
        stop = at + 4 + size
        body = after_client_id(at, size, id_length)
        if body > limit:
            self.client.enough = body - at
            return MORE
        if id_length <= 0:
            self.client_id_raw = b""
            self.client_id = None if id_length else ""
            client_id = self.client_id
        elif equals(self.client_id_raw, buf, at + 14, id_length):
            client_id = self.client_id
        else:
            raw = sliced(buf, at + 14, body)
            client_id = raw.decode("utf-8", "replace")
            # A long one is charged to its exchange. An idle connection would keep it for nothing.
            self.client_id_raw = raw if id_length <= max_name else b""
            self.client_id = client_id if id_length <= max_name else shorten(raw).decode("utf-8", "replace")

        flags = wanted = 0
        learnt = False
        kind = Kind.NO_WALKER
        if observation is not None:
            flags = observation.subscribers.flags(key, version)
            learnt = observation.principal_tracker is not None and identifies(False, key)
            if flags & want_facts:
                kind = kind_of(key, version, False)
        if self.interception is not None:
            wanted = self.interceptor_flags(key, version) & request_flags
            if wanted & on_body:
                most = self.interception.interceptors.max_held_request(key, version)
                if size > most:
                    raise PeerError("client", "invalid_size", f"{size} bytes; allowed here: up to {most}")
        acks = 1
        acks_offset = 0
        there = limit if limit < stop else stop
        if kind == Kind.NO_WALKER or kind == Kind.REQUEST_RESOURCES:
            needed = key == PRODUCE or flags & want_request_body or learnt or wanted & on_body
        else:
            needed = True
        if needed or kind != Kind.NO_WALKER:
            found = tags = body
            if is_flexible(key, version):
                found = skip_tags(buf, body, there)
                if found >= 0:
                    body = found
            if found >= 0 and key == PRODUCE:
                found = acks_at(buf, found, there, version)
                if found >= 0:
                    acks_offset = found
                    acks = int16_at(buf, found) != 0
            if found < 0:
                if limit < stop:
                    produce = version if key == PRODUCE else -1
                    least = least_header(buf, tags, limit, stop, is_flexible(key, version), produce)
                    self.client.enough = least - at
                    return MORE
                if needed and is_known(key, version):
                    raise PeerError("client", "invalid_header", f"{apis.api_name(key)} v{version}")
                kind = Kind.NO_WALKER  # forwarded, and of a version of the future taken to have a response

        scan = None
        if wanted & on_topics and self.topics is not None:
            scan = ProduceScan(version, self.topics)
            scan.read(buf, acks_offset, there)
            if limit < stop and not scan.named:
                self.client.enough = min(acks_offset + first_topic, stop) - at
                return MORE
            scan.read(data, there + shift, min(stop + shift, end))  # from here on the frame is in ``data`` alone

        connection = self.known_as if observation is None else observation.connection
        exchange = new_exchange(connection, client_id, key, version, int32_at(buf, at + 8), now, size + 4)
        exchange.wanted = flags
        exchange.charged = exchange_bytes + client_id_bytes * id_length
        self.account.charge(exchange.charged)
        count_api(self.requests_by_key, key)
        self.requests += 1
        self.advance(request_event)
        self.consecutive = self.consecutive + 1 if wanted & on_header else 0
        frame = None
        if wanted & ~on_topics or (scan is not None and scan.found):
            request = Request(connection, key, version, client_id, acks, self.consecutive)
            frame = self.interception.frame_of_request(wanted, request, exchange, body - at)
            if scan is not None and scan.found:
                scan = None
                if frame is None:
                    frame = self.interception.refuse_produce(request, exchange, acks_offset - at)
            self.follow_interception()
        if acks or exchange.synthesized:
            self.enqueue(exchange)
        else:
            exchange.outcome_code = OutcomeCode.NO_RESPONSE
        if key == SASL_HANDSHAKE and version == 0 and not exchange.synthesized:
            self.advance(handshake_event)
        if flags and not is_known(key, version):
            exchange.decode_code = DecodeCode.UNSUPPORTED
            count(self.decoded, "unsupported")
        capture = None
        learnt = learnt and not exchange.synthesized  # the broker will not answer it
        if learnt or flags & want_request_body:
            capture = observation.capture(False, key, flags, stop - body, learnt)
        done = self.begin_body(False, exchange, frame, kind, capture, buf, at, body, stop, shift, data, end, now)
        if self.client.left:
            self.client.scan = scan
        return done

    # ---- broker to client ---------------------------------------------------------------------------------------

    def read_response(self, buf: Buffer, at: int, limit: int, shift: int, data: Buffer, end: int, now: float) -> int:
        """Read the header of the response at ``buf[at:limit]``; as ``read_request``."""
        exchange = self.first
        if limit - at < 8 or exchange is None:
            return self.read_token_response(buf, at, limit, shift, data, end, now)
        size = int32_at(buf, at)
        correlation_id = int32_at(buf, at + 4)
        if size < 4:
            raise PeerError("broker", "invalid_size", f"response of {size} bytes")
        if exchange.correlation_id != correlation_id:
            raise PeerError("broker", "out_of_sync", f"correlation id {correlation_id}, not {exchange.correlation_id}")
        if exchange is self.client.exchange and self.client.left:
            raise PeerError("broker", "out_of_sync", "a response before the end of its request")
        if exchange.synthesized:
            raise PeerError("broker", "out_of_sync", "a response to what it was not asked")
        observation = self.observation
        key = exchange.api_key
        version = exchange.api_version
        flags = exchange.wanted
        kind = kind_of(key, version, True) if flags & want_facts else Kind.NO_WALKER
        learnt = observation is not None and observation.principal_tracker is not None and identifies(True, key)
        wanted = 0 if self.interception is None else self.interceptor_flags(key, version) & response_flags
        body = at + 8
        stop = at + 4 + size
        if (
            (flags & ~want_exchange or learnt or wanted)
            and key != API_VERSIONS  # its header has no tags, whatever its body is (KIP-511)
            and is_flexible(key, version)
        ):
            found = skip_tags(buf, body, limit if limit < stop else stop)
            if found >= 0:
                body = found
            elif limit < stop:
                self.broker.enough = least_header(buf, body, limit, stop, True, -1) - at
                return MORE
            else:
                kind = Kind.NO_WALKER
                flags = flags & ~peeked
                if wanted:
                    self.interception.record_failure(ValueError("the response's header cannot be read"))
                    self.follow_interception()
                    wanted = 0
        if flags & peeked and not peek(exchange, flags, buf, body, limit, stop):
            return MORE
        self.dequeue()
        exchange.response_bytes = size + 4
        capture = None
        if learnt or flags & want_response_body:
            capture = observation.capture(True, key, flags, stop - body, learnt)
        frame = None
        known = None
        if wanted == rewrite and shift == 0 and stop <= end:
            known = self.interception.last_rewritten(key, version, data, body, stop, now)
        if known is not None:
            head = sliced(data, at, body)
            self.interception.replace_body(exchange, head, known, self.chunk(data, end), at, stop)
            self.follow_interception()
        elif wanted:
            frame = self.interception.frame_of_response(wanted, exchange, body - at, size + 4)
            self.follow_interception()
        return self.begin_body(True, exchange, frame, kind, capture, buf, at, body, stop, shift, data, end, now)

    # ---- with rules ---------------------------------------------------------------------------------------------

    def read_intercepted(self, response: bool, data: Buffer, end: int, now: float) -> int:
        """Read a chunk, and put together what is forwarded where that is not the chunk as it is."""
        state = self.broker if response else self.client
        upto = 0
        if self.diverted:
            self.interception.start_chunk()
            self.diverted = False
        self.touched = False
        self.whole = None
        self.clean = 0
        if not response and self.keeps_rest():
            self.interception.store_rest(b"")
        try:
            if response or self.advance(chunk_event) == read_action:
                upto = self.read_frames(response, data, end, now)
        except PeerError:
            self.settle(response, data, end, self.clean)
            raise
        if not response and upto < end and self.advance(keep_event) == store_action:
            self.interception.store_rest(self.chunk(data, end)[upto:])
        elif len(state.carry):
            upto = self.clean  # the beginning of a header waits for the rest of it
        return self.settle(response, data, end, upto)

    def check_size(self, size: int) -> int:
        """Raise PeerError for a request of ``size`` bytes where a broker refuses it too."""
        if not min_frame <= size <= self.max_frame:
            raise PeerError("client", "invalid_size", refused_size(size, min_frame, self.max_frame))
        return 0
