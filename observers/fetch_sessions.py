"""What fetches of a session leave out (KIP-227, KIP-932): pure, told of exchanges in the order in which they ended.

A full request (epoch 0) names all partitions, and its response the session they are kept in. Incremental ones (epoch
> 0) name only what changed, and which partitions left; an idle one, and its response, name none. A session belongs to
the broker, and may be used over any connection; but a ShareFetch has the one session of its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec import Struct, field

from observers.api import ObservedExchange
from observers.topic_names import RecentCache, TopicLabel

MAX_SESSIONS = 10_000
"""Sessions kept; above it the one that changed longest ago is forgotten (a broker keeps 1,000 by default)."""

MAX_PARTITIONS = 500_000
"""Partitions of all sessions kept, each topic of a session counted as ``TOPIC`` more: some 100 bytes each; likewise."""

TOPIC = 5
"""What a topic takes besides its partitions, in partitions."""

MAX_TOPIC = 249
"""Longest name of a topic in bytes; longer ones, which no broker has, are not kept."""

POLL_EVERY = 60.0
"""Seconds between two lists of polled topics of one connection."""

MAX_POLLED = 20_000
"""Topics in such a list; what is more is left out. To sort many more would hold up the loop."""

LOOK_EVERY = 5.0
"""Seconds between two looks for them, where the last found none: a topic with records hides none that is empty."""

MAX_CONNECTIONS = 20_000
"""Connections whose next list is known to be due later; of one that was forgotten it is due at once."""

FETCH, SHARE_FETCH = 1, 78
FETCHES = (FETCH, SHARE_FETCH)
"""Api keys."""

NOT_FOUND = (70, 122)
"""FETCH_SESSION_ID_NOT_FOUND, SHARE_SESSION_NOT_FOUND: the broker does not have the session any more."""

SessionKey = int | str
"""The session's id, or the connection's of a ShareFetch."""


class Session(Struct):
    """The partitions of one session, by topic: names as bytes, or raw ids."""

    are_ids: bool
    partitions: dict[bytes, set[int]] = field(default_factory=dict)
    size: int = 0
    """As ``MAX_PARTITIONS`` counts."""

    def add(self, topic: bytes, partition: int) -> None:
        """Hold one more, if it is not there."""
        if topic not in self.partitions:
            if len(topic) > MAX_TOPIC:
                return
            self.partitions[topic] = set()
            self.size += TOPIC
        held = self.partitions[topic]
        self.size += partition not in held
        held.add(partition)

    def forget(self, topic: bytes, partition: int) -> None:
        """Hold one less, if it is there."""
        held = self.partitions.get(topic)
        if held is None or partition not in held:
            return
        held.discard(partition)
        self.size -= 1
        if not held:
            del self.partitions[topic]
            self.size -= TOPIC

    def lacks(self, request: Any) -> bool:
        """Whether ``request`` changes what is here."""
        held = self.partitions
        return bool(request.forgotten) or any(
            one.partition not in held.get(one.topic, ()) for one in request.partitions
        )


class FetchSessions:
    """Sessions that are open, and which of their topics returned nothing. Not thread-safe."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_partitions: int = MAX_PARTITIONS) -> None:
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self.open: dict[SessionKey, Session] = {}
        """Open ones; what changed last is the last. For reading."""
        self._held = 0
        self._due: RecentCache[str, float] = RecentCache(MAX_CONNECTIONS)

    def follow(self, exchange: ObservedExchange) -> None:
        """Take in a Fetch whose request was read.

        It changes nothing, and need not be told of, where the epoch is above 0, every partition named is held and none
        is forgotten, and the response has no error.
        """
        request, response = exchange.request, exchange.response
        key = _key_of(exchange)
        if request.session_epoch <= 0:
            self._drop(key)  # closed with −1, replaced with 0
            opened = _answered_key(exchange)
            if request.session_epoch == 0 and opened:
                self._change(opened, Session(request.topics_are_ids), request)
        elif response is not None and response.error_code:
            if response.error_code in NOT_FOUND:
                self._drop(key)
        elif key in self.open and self.open[key].lacks(request):
            self._change(key, self._take(key), request)

    def of(self, exchange: ObservedExchange) -> Session | None:
        """The session that the request of this Fetch is of, if it is known."""
        return self.open.get(_key_of(exchange))

    def due(self, connection_id: str) -> float:
        """When ``polled`` may tell of this connection again, by ``answered_at``."""
        return self._due.get(connection_id) or 0.0

    def polled(self, exchange: ObservedExchange, label: Callable[[bytes, bool], TopicLabel]) -> tuple[str, ...]:
        """Names of the topics that an answered Fetch or ShareFetch asked for and that returned no records.

        Told once in ``POLL_EVERY`` for each connection; nothing otherwise, which costs one look into a dict. Comes
        after ``follow``. ``label``: as ``TopicNames.label_of``.
        """
        if exchange.answered_at < self.due(exchange.connection.id):
            return ()
        request, response = exchange.request, exchange.response
        if request is None or response is None or response.error_code:
            return ()
        session = self.open.get(_key_of(exchange) if request.session_epoch > 0 else _answered_key(exchange))
        asked = set() if session is None else {label(topic, session.are_ids)[0] for topic in session.partitions}
        asked.update(label(one.topic, request.topics_are_ids)[0] for one in request.partitions)
        asked.difference_update(
            label(one.topic, response.topics_are_ids)[0] for one in response.partitions if one.records.records
        )
        self._due.put(exchange.connection.id, exchange.answered_at + (POLL_EVERY if asked else LOOK_EVERY))
        return tuple(sorted(islice(asked, MAX_POLLED)))

    def _change(self, key: SessionKey, session: Session, request: Any) -> None:
        """Put what ``request`` adds and forgets into ``session``, which becomes the last one; make room for it."""
        if session.are_ids != request.topics_are_ids:
            return
        for one in request.partitions:
            session.add(one.topic, one.partition)
        for topic, partition in request.forgotten:
            session.forget(topic, partition)
        if session.size > self._max_partitions:
            return  # others need not make room for what does not fit
        self.open[key] = session
        self._held += session.size
        while len(self.open) > self._max_sessions or self._held > self._max_partitions:
            self._take(next(iter(self.open)))

    def _take(self, key: SessionKey) -> Session:
        session = self.open.pop(key)
        self._held -= session.size
        return session

    def _drop(self, key: SessionKey) -> None:
        if key in self.open:
            self._take(key)


def _key_of(exchange: ObservedExchange) -> SessionKey:
    """The session that the request names; 0 for none."""
    return exchange.connection.id if exchange.api_key == SHARE_FETCH else int(exchange.request.session_id)


def _answered_key(exchange: ObservedExchange) -> SessionKey:
    """The session that the response to a full request opened; 0 for none."""
    response = exchange.response
    if response is None or response.error_code:
        return 0
    return exchange.connection.id if exchange.api_key == SHARE_FETCH else int(response.session_id)
