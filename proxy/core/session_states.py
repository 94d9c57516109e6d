"""What a session does next with the bytes of its client: states and events, and for each pair the next state and the
action.

Frames are requests, or raw SASL tokens after SaslHandshake v0. Of each of the two there is a state in which frames are
read, and one in which the rest of a chunk is kept, since a session with rules reads a limited number of frames at once.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """What the session expects of its client."""

    REQUESTS = 0
    TOKENS = 1
    """A frame is a raw SASL token, unless it is a request that Kafka has."""
    REQUESTS_KEPT = 2
    """The rest of the last chunk, which begins with a request, is to be given again."""
    TOKENS_KEPT = 3
    CLOSING = 4
    """The connection ends once the open requests are answered; nothing more of the client is read."""
    ENDED = 5


class Event(IntEnum):
    """What happens to the session."""

    CHUNK = 0
    """Bytes of the client come; of a rest, it and what came after it."""
    REQUEST = 1
    """A frame is a request: its api and version were read where it could have been a token, or its header was read."""
    HANDSHAKE = 2
    """After REQUEST: it was SaslHandshake v0, which is forwarded."""
    TOKEN = 3
    """The size of a frame was read that is no request."""
    KEEP = 4
    """A turn is over, there is no room for more answers, or a request is deferred, before the chunk's end."""
    CLOSE = 5
    """An answer of the sidecar is the connection's last."""
    UNASKED = 6
    """The broker sends a frame while no request is open."""
    LOST = 7
    """The connection has ended; requests may be open."""


class Action(IntEnum):
    """What the session does with the bytes that the event is about."""

    READ = 0
    """They are read, and forwarded as the rules say."""
    STORE = 1
    """They are kept until they are given again."""
    DROP = 2
    """They are neither read nor forwarded."""
    FAIL = 3
    """They cannot be understood: PeerError ends the connection."""
    NONE = 4
    """Nothing: the event does not happen in this state."""


TRANSITIONS: dict[State, dict[Event, tuple[State, Action]]] = {
    State.REQUESTS: {
        Event.CHUNK: (State.REQUESTS, Action.READ),
        Event.REQUEST: (State.REQUESTS, Action.READ),
        Event.HANDSHAKE: (State.TOKENS, Action.READ),
        Event.TOKEN: (State.REQUESTS, Action.NONE),
        Event.KEEP: (State.REQUESTS_KEPT, Action.STORE),
        Event.CLOSE: (State.CLOSING, Action.DROP),
        Event.UNASKED: (State.REQUESTS, Action.FAIL),
        Event.LOST: (State.ENDED, Action.DROP),
    },
    State.TOKENS: {
        Event.CHUNK: (State.TOKENS, Action.READ),
        Event.REQUEST: (State.REQUESTS, Action.READ),
        Event.HANDSHAKE: (State.TOKENS, Action.NONE),
        Event.TOKEN: (State.TOKENS, Action.READ),
        Event.KEEP: (State.TOKENS_KEPT, Action.STORE),
        Event.CLOSE: (State.CLOSING, Action.NONE),
        Event.UNASKED: (State.TOKENS, Action.READ),
        Event.LOST: (State.ENDED, Action.DROP),
    },
    State.REQUESTS_KEPT: {
        Event.CHUNK: (State.REQUESTS, Action.READ),
        Event.REQUEST: (State.REQUESTS_KEPT, Action.NONE),
        Event.HANDSHAKE: (State.REQUESTS_KEPT, Action.NONE),
        Event.TOKEN: (State.REQUESTS_KEPT, Action.NONE),
        Event.KEEP: (State.REQUESTS_KEPT, Action.NONE),
        Event.CLOSE: (State.CLOSING, Action.DROP),
        Event.UNASKED: (State.REQUESTS_KEPT, Action.FAIL),
        Event.LOST: (State.ENDED, Action.DROP),
    },
    State.TOKENS_KEPT: {
        Event.CHUNK: (State.TOKENS, Action.READ),
        Event.REQUEST: (State.TOKENS_KEPT, Action.NONE),
        Event.HANDSHAKE: (State.TOKENS_KEPT, Action.NONE),
        Event.TOKEN: (State.TOKENS_KEPT, Action.NONE),
        Event.KEEP: (State.TOKENS_KEPT, Action.NONE),
        Event.CLOSE: (State.CLOSING, Action.NONE),
        Event.UNASKED: (State.TOKENS_KEPT, Action.READ),
        Event.LOST: (State.ENDED, Action.DROP),
    },
    State.CLOSING: {
        Event.CHUNK: (State.CLOSING, Action.DROP),
        Event.REQUEST: (State.CLOSING, Action.NONE),
        Event.HANDSHAKE: (State.CLOSING, Action.NONE),
        Event.TOKEN: (State.CLOSING, Action.NONE),
        Event.KEEP: (State.CLOSING, Action.DROP),
        Event.CLOSE: (State.CLOSING, Action.NONE),
        Event.UNASKED: (State.CLOSING, Action.NONE),
        Event.LOST: (State.ENDED, Action.DROP),
    },
    State.ENDED: {
        Event.CHUNK: (State.ENDED, Action.DROP),
        Event.REQUEST: (State.ENDED, Action.NONE),
        Event.HANDSHAKE: (State.ENDED, Action.NONE),
        Event.TOKEN: (State.ENDED, Action.NONE),
        Event.KEEP: (State.ENDED, Action.NONE),
        Event.CLOSE: (State.ENDED, Action.NONE),
        Event.UNASKED: (State.ENDED, Action.NONE),
        Event.LOST: (State.ENDED, Action.NONE),
    },
}
"""Complete: each state has each event."""

EVENTS = len(Event)

NEXT_STATES = bytes(state for row in TRANSITIONS.values() for state, _ in row.values())
"""``TRANSITIONS`` by ``EVENTS * state + event``, as compiled code reads it."""

ACTIONS = bytes(action for row in TRANSITIONS.values() for _, action in row.values())
