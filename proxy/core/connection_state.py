# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, annotation_typing=False
"""What a session knows from one chunk to the next: how far each direction has got, which requests are open, what is to
be answered; and what happens to the body of a frame once its header is read.

``buf[at:limit]`` is what is there of a frame, in the chunk ``data`` itself or in the bytes that were carried over;
``shift`` leads from offsets in ``buf`` to those in ``data``, of which ``end`` is the last.
"""

from __future__ import annotations

import cython

from proxy.compiled.exchange import Exchange
from proxy.core import interceptor, observation_interest
from proxy.core.account import Account
from proxy.core.budget import Budget
from proxy.core.counters import ListenerCounters
from proxy.core.exchange import Connection
from proxy.core.header import MAX_FRAME, MIN_FRAME
from proxy.core.interception import Frame, Interception
from proxy.core.interceptor import InterceptorChain
from proxy.core.observation import BodyCapture, Observation
from proxy.core.observation_interest import NO_SINK, ObservationSink
from proxy.core.principal_tracker import PrincipalTracker
from proxy.core.produce_scan import ProduceScan
from proxy.core.protected_topics import ProtectedTopics
from proxy.core.session_states import ACTIONS, EVENTS, NEXT_STATES, Action, Event, State
from proxy.core.wire import Buffer
from proxy.errors import PeerError

if not cython.compiled:
    from proxy.compiled.exchange import Kind, OutcomeCode
    from proxy.compiled.walk import kind_of
    from proxy.compiled.walk_door import new_feed
    from proxy.core.header import (
        MORE,
        is_flexible,
        is_known,
        token_size,
    )
    from proxy.core.memory import count_api, int16_at, sliced

    API_VERSIONS = 18
    REQUEST_AGAIN = -5

NO_TABLE = bytearray()

min_frame = MIN_FRAME
keys = observation_interest.KEYS
versions = observation_interest.VERSIONS
want_facts = observation_interest.WANT_FACTS
want_response_body = observation_interest.WANT_RESPONSE_BODY
unknown_version = interceptor.UNKNOWN_VERSION
events = EVENTS
next_states = NEXT_STATES
actions = ACTIONS
requests_state = State.REQUESTS.value
tokens_state = State.TOKENS
requests_kept_state = State.REQUESTS_KEPT
tokens_kept_state = State.TOKENS_KEPT
closing_state = State.CLOSING
ended_state = State.ENDED
request_event = Event.REQUEST
token_event = Event.TOKEN
close_event = Event.CLOSE
unasked_event = Event.UNASKED
lost_event = Event.LOST
read_action = Action.READ


@cython.cclass
class Direction:
    """How far one direction has got inside its current frame."""

    def __init__(self) -> None:
        self.left = 0  # bytes of the frame still to come, once its header is read
        self.carry = bytearray()  # what came of a frame whose header is not complete
        self.enough = 0  # bytes of it below which it cannot be complete
        self.exchange: Exchange | None = None  # what the frame belongs to
        self.capture: BodyCapture | None = None  # what is wanted of its body
        self.frame: Frame | None = None  # what it passes; None: it is forwarded as it comes
        self.scan: ProduceScan | None = None  # reads its topics

    def forget(self) -> None:
        """The connection has ended: nothing more of the frame comes."""
        self.left = self.enough = 0
        self.carry.clear()
        self.exchange = self.capture = self.frame = self.scan = None


@cython.cclass
class ConnectionState:
    """The state of a ``Session``, which says what the arguments of the constructor are."""

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
        self.known_as = connection
        self.account = Account(budget or Budget())
        self.interception: Interception | None = None
        self.table = NO_TABLE
        self.topics: ProtectedTopics | None = None
        if interceptors is not None:
            self.interception = Interception(interceptors, counters, self.account)
            self.table = interceptors.table
            self.topics = interceptors.topics
            if len(interceptors.table) != keys * versions:
                raise ValueError(f"a table of {len(interceptors.table)} bytes, not {keys * versions}")
            if sink is None and principal_tracker is not None:
                sink = NO_SINK
        self.observation = (
            None if sink is None else Observation(connection, counters, sink, principal_tracker, self.account)
        )
        self.requests_by_key = counters.requests
        self.responses_by_key = counters.responses
        self.decoded = counters.decoded
        self.max_frame = max_frame
        self.client = Direction()
        self.broker = Direction()
        self.client_id_raw = b""
        self.client_id: str | None = None
        self.first: Exchange | None = None  # of the open exchanges, which are linked in their order
        self.last: Exchange | None = None
        self.whole: bytes | None = None  # the chunk at hand, once it is needed as an object
        self.held: bytes | None = None  # the chunk of a caller in Python, until its bodies are read
        self.open = self.requests = self.clean = self.consecutive = 0
        self.state = requests_state  # see session_states
        self.touched = False  # the answers were given something of this chunk
        self.diverted = False
        self.pending = False  # as the answers have them, like those below
        self.full = False

    @property
    def login(self) -> tuple[float, float]:
        """As ``PrincipalTracker.login``; zeros where nobody logs in, or it is not followed."""
        observation = self.observation
        if observation is None or observation.principal_tracker is None:
            return 0.0, 0.0
        return observation.principal_tracker.login

    def open_exchanges(self) -> list[Exchange]:
        """Return the requests that wait for their response."""
        exchanges: list[Exchange] = []
        exchange = self.first
        while exchange is not None:
            exchanges.append(exchange)
            exchange = exchange.next
        return exchanges

    def enqueue(self, exchange: Exchange) -> int:
        """``exchange`` waits for its response, after all others."""
        if self.first is None:
            self.first = exchange
        else:
            self.last.next = exchange
        self.last = exchange
        self.open += 1
        return 0

    def dequeue(self) -> int:
        """The first of the open exchanges waits no more."""
        exchange = self.first
        self.first = exchange.next
        exchange.next = None
        if self.first is None:
            self.last = None
        self.open -= 1
        return 0

    def advance(self, event: int) -> int:
        """Go to the next state after ``event``. Returns the action."""
        entry = events * self.state + event
        self.state = next_states[entry]
        return actions[entry]

    def has_ended(self) -> bool:
        """Whether nothing of either side is read any more."""
        return self.state == ended_state

    def reads_tokens(self) -> bool:
        """Whether the next frame of the client may be a raw SASL token."""
        return self.state == tokens_state

    def keeps_rest(self) -> bool:
        """Whether the answers have a rest of the client's last chunk."""
        return self.state == requests_kept_state or self.state == tokens_kept_state

    def is_closing(self) -> bool:
        """Whether nothing more of the client is read, because an answer was the connection's last, or it has ended."""
        return self.state >= closing_state

    def must_pause_reading(self, response: bool) -> bool:
        """As ``must_pause``."""
        if not self.account.is_full():
            return False
        return not response or (self.broker.frame is not None and self.broker.frame.holds_bytes)

    def has_no_partial_request(self) -> bool:
        """As ``is_between_requests``."""
        return self.client.left == 0 and len(self.client.carry) == 0 and not self.keeps_rest()

    def interceptor_flags(self, key: int, version: int) -> int:
        """The flags that the rules have for this api key and version."""
        if 0 <= key < keys and 0 <= version < versions:
            return self.table[key * versions + version]
        return self.interception.interceptors.flags(key, version)

    # ---- raw SASL tokens ------------------------------------------------------------------------------------------

    def read_token(self, buf: Buffer, at: int, limit: int, shift: int, data: Buffer, end: int, now: float) -> int:
        """After SaslHandshake v0 tokens come as bare frames, until the first frame that is a request.

        Returns as ``read_request``, or REQUEST_AGAIN.
        """
        if limit - at < 4:
            return MORE
        if token_size(False, buf, at) >= min_frame:
            if limit - at < 8:
                return MORE
            key = int16_at(buf, at + 4)
            version = int16_at(buf, at + 6)
            if is_known(key, version) or (
                self.interception is not None and self.interceptor_flags(key, version) & unknown_version
            ):
                self.advance(request_event)
                return REQUEST_AGAIN
        self.advance(token_event)
        return self.pass_token(False, buf, at, shift, data, end, now)

    def read_token_response(
        self, buf: Buffer, at: int, limit: int, shift: int, data: Buffer, end: int, now: float
    ) -> int:
        """A frame that answers no request: right only while raw SASL tokens are exchanged."""
        if self.open or limit - at < 4:
            return MORE
        if self.advance(unasked_event) != read_action:
            raise PeerError("broker", "out_of_sync", "a response without a request")
        return self.pass_token(True, buf, at, shift, data, end, now)

    def pass_token(self, response: bool, buf: Buffer, at: int, shift: int, data: Buffer, end: int, now: float) -> int:
        """Forward a raw SASL token."""
        size = token_size(response, buf, at)
        capture = None
        if self.observation is not None and self.observation.principal_tracker is not None:
            capture = BodyCapture(size, False, True)
        return self.begin_body(
            response, None, None, Kind.NO_WALKER, capture, buf, at, at + 4, at + 4 + size, shift, data, end, now
        )

    # ---- bodies ---------------------------------------------------------------------------------------------------

    def begin_body(
        self,
        response: bool,
        exchange: Exchange | None,
        frame: Frame | None,
        kind: int,
        capture: BodyCapture | None,
        buf: Buffer,
        at: int,
        body: int,
        stop: int,
        shift: int,
        data: Buffer,
        end: int,
        now: float,
    ) -> int:
        """The header of the frame that begins at ``buf[at]`` is read: pass its body ``buf[body:stop]``, as far as
        ``data`` holds it. Returns the offset in ``data`` after that.

        ``exchange``: None for a raw SASL token. An offset below 0 in ``data`` is before it, in what was carried over.
        """
        state = self.broker if response else self.client
        observation = self.observation
        start = at + shift
        first = body + shift
        stop += shift
        ended = stop <= end
        upto = stop if ended else end
        if self.interception is not None and (start < 0 or frame is not None):
            lead = sliced(buf, at, at - start) if start < 0 else b""
            self.interception.begin_frame(frame, lead, self.chunk(data, end), start if start > 0 else 0, upto, ended)
            self.follow_interception()
        if kind != Kind.NO_WALKER and (first < 0 or not ended):
            if capture is None:
                capture = BodyCapture(stop - first, False, False)
            capture.feed = new_feed(kind, exchange.api_key, exchange.api_version)
            capture.only_items = kind >= Kind.RESPONSE_ERRORS
            kind = Kind.NO_WALKER
        if observation is None:
            pass
        elif kind != Kind.NO_WALKER or capture is not None:
            if first < 0:  # that many bytes of the body came before data
                lead = sliced(buf, body, body - first)
                observation.add_piece(response, exchange, kind, capture, lead, lead, 0, -first, False)
                first = 0
            observation.add_piece(response, exchange, kind, capture, None, data, first, upto, ended)
        elif ended:
            observation.add_piece(response, exchange, Kind.NO_WALKER, None, None, data, 0, 0, True)
        if not ended:
            state.left = stop - end
            state.exchange = exchange
            state.capture = capture
            state.frame = frame
            return end
        self.end_frame(response, exchange, data, end, stop, now)
        return stop

    def read_body(self, response: bool, state: Direction, data: Buffer, end: int, now: float) -> int:
        """Pass more of the current frame's body. Returns the offset after it."""
        last = state.left <= end
        taken = state.left if last else end
        exchange = state.exchange
        capture = state.capture
        state.left -= taken
        if state.scan is not None and exchange is not None:
            self.scan_topics(state, exchange, data, taken)
        if state.frame is not None:
            whole = self.chunk(data, end)
            self.interception.replace(state.frame.feed(whole[:taken], last), whole, 0, taken)
            self.follow_interception()
        if self.observation is not None and (last or capture is not None):
            self.observation.add_piece(response, exchange, Kind.NO_WALKER, capture, None, data, 0, taken, last)
        if last:
            state.exchange = state.capture = state.frame = state.scan = None
            self.end_frame(response, exchange, data, end, taken, now)
        return taken

    def scan_topics(self, state: Direction, exchange: Exchange, data: Buffer, size: int) -> int:
        """Read the topics in the next piece: from the piece with a protected one on, nothing of the frame is
        forwarded."""
        state.scan.read(data, 0, size)
        if state.scan.found:
            state.scan = None
            state.frame = self.interception.cut_produce(exchange)
            self.follow_interception()
            self.await_end(exchange)
        return 0

    def await_end(self, exchange: Exchange) -> int:
        """The place of a refused request without a response among the others says when the connection ends."""
        if exchange.synthesized and exchange.outcome_code == OutcomeCode.NO_RESPONSE:
            exchange.outcome_code = OutcomeCode.OPEN
            self.enqueue(exchange)
        return 0

    def end_frame(
        self, response: bool, exchange: Exchange | None, data: Buffer, end: int, stop: int, now: float
    ) -> int:
        """A frame is complete, in ``data`` up to ``stop``; ``exchange``: None for a raw SASL token."""
        if not response:
            if exchange is not None:
                exchange.received_at = now
                if exchange.outcome_code == OutcomeCode.NO_RESPONSE and not exchange.synthesized:
                    self.release(exchange)
                self.await_end(exchange)
            return 0
        if exchange is not None:
            exchange.responded_at = now
            exchange.outcome_code = OutcomeCode.ANSWERED
            count_api(self.responses_by_key, exchange.api_key)
            self.release(exchange)
        if self.pending:
            self.send_responses(self.chunk(data, end), stop)
        return 0

    def release(self, exchange: Exchange) -> int:
        """``exchange`` is not open any more; where somebody observes, it is recorded first."""
        return self.account.charge(-exchange.charged) if self.observation is None else 0

    def read_bodies(self, now: float) -> int:
        """As ``observe``."""
        try:
            if self.observation is not None:
                self.observation.read_bodies(now)
        finally:
            self.held = None
        return 0

    def end_all(self, now: float) -> int:
        """As ``close``."""
        self.advance(lost_event)
        ended = self.open_exchanges()
        for exchange in ended:
            exchange.next = None
        self.first = self.last = None
        self.open = 0
        if self.broker.exchange is not None:  # its response was on its way
            ended.insert(0, self.broker.exchange)
        if self.client.exchange is not None and self.client.exchange.outcome_code == OutcomeCode.NO_RESPONSE:
            ended.append(self.client.exchange)
        self.client.forget()
        self.broker.forget()
        try:
            if self.observation is not None:
                self.observation.end(ended, now)
        finally:
            self.account.close()
        return 0

    def give_up(self, now: float) -> int:
        """The connection leaves at ``now``, without a response to the request that is ``deferred``. Returns the
        correlation id of that request. The session has ended then."""
        exchange = self.first
        assert exchange is not None, "nothing is deferred"
        self.interception.give_up(exchange)
        self.dequeue()
        exchange.outcome_code = OutcomeCode.NO_RESPONSE
        if self.observation is not None:
            self.observation.record(exchange)
        correlation_id = exchange.correlation_id
        self.end_all(now)
        return correlation_id

    # ---- answers of the sidecar -----------------------------------------------------------------------------------

    def settle(self, response: bool, data: Buffer, end: int, upto: int) -> int:
        """``data`` was read up to there."""
        if not response and self.pending and not self.broker.left and not len(self.broker.carry):
            self.send_responses(None, 0)
        if self.touched or upto < end:
            self.interception.finish_chunk(self.chunk(data, end), upto)
            self.follow_interception()
            self.diverted = self.interception.diverted
        self.whole = None
        return 0

    def chunk(self, data: Buffer, end: int) -> bytes:
        """The chunk at hand, as an object."""
        if self.whole is None:
            self.whole = sliced(data, 0, end)
        return self.whole

    def follow_interception(self) -> int:
        """``interception`` may have changed: see what of it is read for each frame."""
        self.touched = True
        self.pending = len(self.interception.responses) != 0
        self.full = self.interception.full
        if self.interception.closing:
            self.advance(close_event)
        return 0

    def send_responses(self, data: bytes | None, at: int) -> int:
        """Between two frames of the broker, which are in its chunk ``data`` at ``at``: answer what is due."""
        exchange = self.first
        while self.pending and exchange is not None and exchange.synthesized:
            if exchange is self.client.exchange and not self.is_closing():
                return 0  # its request has not ended yet
            answer = self.interception.take_response(data, at)
            self.follow_interception()
            if not answer:
                return 0
            self.dequeue()
            exchange.response_bytes = len(answer)
            exchange.outcome_code = OutcomeCode.ANSWERED
            count_api(self.responses_by_key, exchange.api_key)
            self.release(exchange)
            if self.observation is not None:
                key = exchange.api_key
                version = exchange.api_version
                body = 8 + (key != API_VERSIONS and is_flexible(key, version))
                kind = Kind.NO_WALKER
                if exchange.wanted & want_facts and len(answer) > body:
                    kind = kind_of(key, version, True)
                capture = None
                if exchange.wanted & want_response_body and len(answer) >= body:
                    capture = self.observation.capture(True, key, exchange.wanted, len(answer) - body, False)
                self.observation.add_piece(True, exchange, kind, capture, answer, answer, body, len(answer), True)
            exchange = self.first
        return 0
