"""Every cell of the table of a session's states: a session is brought into the state, and the event happens to it."""

from collections.abc import Callable

import pytest

from proxy.core.interceptor import ON_BODY, ON_HEADER, BrokerCall, Deferred, Disposition, Interceptor, Request, Verdict
from proxy.core.session import TURN
from proxy.core.session_states import ACTIONS, EVENTS, NEXT_STATES, TRANSITIONS, Action, Event, State
from proxy.errors import PeerError
from tests.cases import each
from tests.frames import METADATA, SASL_HANDSHAKE, batch, produce, request, response, sized
from tests.sasl import handshake, handshake_reply
from tests.unit.core.test_session_interception import Bench

CLOSED, DEFERRED = 101, 102
"""The api keys of requests after which the sidecar closes, at once or later."""

UNACKNOWLEDGED = produce(1, 0, batch(1))
"""A request that has no response, so none is open after it."""

TOKEN = sized(b"abc")


class Closing(Interceptor):
    """Closes connections of clients that send CLOSED or DEFERRED, and those that ask for Metadata v1."""

    def flags(self, api_key: int, api_version: int) -> int:
        if api_key == DEFERRED:
            return ON_BODY
        return ON_HEADER if api_key == CLOSED or (api_key, api_version) == (METADATA, 1) else 0

    def on_header(self, request: Request) -> Verdict:
        return Disposition.CLOSE

    def on_body(self, request: Request, body: bytes) -> Verdict:
        async def serve(call: BrokerCall) -> None:
            return None

        return Deferred(serve)


class Driven(Bench):
    """A session that may be brought into any state."""

    def __init__(self) -> None:
        super().__init__([Closing()], wanted=None)

    def client(self, data: bytes) -> None:
        super().client(data, later=True)

    def _pass(self, side: str, data: bytes, usual: bytes) -> None:
        if self.session.state != State.ENDED:  # then a relay hands nothing on
            super()._pass(side, data, usual)

    def into(self, state: State) -> None:
        """Bring a new session into this state, with no request open but the one that closes."""
        if state in (State.TOKENS, State.TOKENS_KEPT):
            self.client(request(SASL_HANDSHAKE, 0, 1, handshake("PLAIN")))
            self.broker(response(1, handshake_reply()))
        if state is State.REQUESTS_KEPT:
            self.client(UNACKNOWLEDGED * (TURN + 1))
        elif state is State.TOKENS_KEPT:
            self.client(TOKEN * (TURN + 1))
        elif state is State.CLOSING:
            self.client(request(CLOSED, 0, 1))
        elif state is State.ENDED:
            self.session.close(1.0)
        assert self.session.state == state
        self.to_broker = self.to_client = b""


def a_chunk(driven: Driven) -> Action:
    """The beginning of a frame; what was kept comes again before it."""
    rest = driven.session.rest
    driven.client(rest + TOKEN[:2])
    if driven.session.is_between_requests:
        assert driven.to_broker == b""
        return Action.DROP
    return Action.READ


def a_frame(frame: bytes) -> Callable[[Driven], Action]:
    def cause(driven: Driven) -> Action:
        driven.client(frame)
        assert driven.to_broker == frame
        return Action.READ

    return cause


a_handshake = a_frame(request(SASL_HANDSHAKE, 0, 2, handshake("PLAIN")))


def more_than_a_turn(driven: Driven) -> Action:
    one = TOKEN if driven.session.state == State.TOKENS else UNACKNOWLEDGED
    driven.client(one * (TURN + 1))
    assert driven.to_broker == one * TURN
    assert driven.session.rest == one
    return Action.STORE


def a_last_answer(driven: Driven) -> Action:
    driven.client(request(CLOSED, 0, 2) + UNACKNOWLEDGED)
    assert driven.to_broker == b""
    assert driven.session.rest == b""
    return Action.DROP


def a_last_answer_to_what_was_deferred(driven: Driven) -> Action:
    driven.client(driven.session.rest + request(DEFERRED, 0, 2) + UNACKNOWLEDGED)
    assert (driven.session.state, driven.session.rest) == (State.REQUESTS_KEPT, UNACKNOWLEDGED)
    driven.session.answer_deferred(None)
    assert driven.session.rest == b""
    return Action.DROP


def more_after_a_last_answer(driven: Driven) -> Action:
    driven.client(UNACKNOWLEDGED * (TURN + 1))
    assert driven.to_broker == b""
    assert driven.session.rest == b""
    return Action.DROP


def an_unasked_frame(driven: Driven) -> Action:
    failed = None
    try:
        driven.broker(TOKEN)
    except PeerError as error:
        failed = (error.side, error.reason)
    assert (failed, driven.to_client) in [(None, TOKEN), (("broker", "out_of_sync"), b"")]
    return Action.READ if failed is None else Action.FAIL


def the_end(driven: Driven) -> Action:
    driven.session.close(2.0)
    assert driven.session.in_flight == []
    return Action.DROP


CAUSES: dict[Event, Callable[[Driven], Action]] = {
    Event.CHUNK: a_chunk,
    Event.REQUEST: a_frame(request(METADATA, 0, 2)),
    Event.HANDSHAKE: a_handshake,
    Event.TOKEN: a_frame(TOKEN),
    Event.KEEP: more_than_a_turn,
    Event.CLOSE: a_last_answer,
    Event.UNASKED: an_unasked_frame,
    Event.LOST: the_end,
}

AFTERWARDS = {
    (State.CLOSING, Event.KEEP): more_after_a_last_answer,
    (State.REQUESTS, Event.HANDSHAKE): a_handshake,
    (State.REQUESTS_KEPT, Event.CLOSE): a_last_answer_to_what_was_deferred,
}

ALL = [(state, event) for state in State for event in Event]


def test_the_table_is_complete_and_in_order() -> None:
    assert list(TRANSITIONS) == list(State)
    assert all(list(row) == list(Event) for row in TRANSITIONS.values())
    assert len(Event) == EVENTS
    for state, event in ALL:
        entry = EVENTS * state + event
        assert TRANSITIONS[state][event] == (NEXT_STATES[entry], ACTIONS[entry])


@pytest.mark.promise("architecture.md", "A session goes through its states as its table says, event by event.")
@each(("state", "event"), [cell for cell in ALL if TRANSITIONS[cell[0]][cell[1]][1] is not Action.NONE])
def test_an_event_leads_to_the_state_and_the_action_of_its_cell(state: State, event: Event) -> None:
    driven = Driven()
    driven.into(state)
    action = AFTERWARDS.get((state, event), CAUSES[event])(driven)
    assert (State(driven.session.state), action) == TRANSITIONS[state][event]
