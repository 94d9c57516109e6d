"""What Fetch requests of a session leave out (KIP-227): pure, told of exchanges in the order in which they ended.

A full request (epoch 0) names all partitions, and its response the session they are kept in. Incremental ones (epoch
> 0) name only what changed, and which partitions left; an idle one, and its response, name none. A session belongs to
the broker, and may be used over any connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct, field

from observers.api import ObservedExchange
from observers.topics import Label, Recent

MAX_SESSIONS = 10_000
"""Sessions kept; above it the one that changed longest ago is forgotten (a broker keeps 1,000 by default)."""

MAX_PARTITIONS = 1_000_000
"""Partitions of all sessions kept, less than 100 bytes each; likewise."""

POLL_EVERY = 60.0
"""Seconds between two lists of polled topics of one connection."""

MAX_CONNECTIONS = 20_000
"""Connections whose next list is known to be due later; of one that was forgotten it is due at once."""

NOT_FOUND = 70
"""FETCH_SESSION_ID_NOT_FOUND: the broker does not have the session any more."""


class Session(Struct):
    """The partitions of one session, by topic: names as bytes, or raw ids."""

    are_ids: bool
    partitions: dict[bytes, set[int]] = field(default_factory=dict)
    size: int = 0
    """How many partitions."""

    def add(self, topic: bytes, partition: int) -> None:
        """Hold one more, if it is not there."""
        held = self.partitions.setdefault(topic, set())
        self.size += partition not in held
        held.add(partition)

    def forget(self, topic: bytes, partition: int) -> None:
        """Hold one less, if it is there."""
        held = self.partitions.get(topic, set())
        self.size -= partition in held
        held.discard(partition)
        if not held:
            self.partitions.pop(topic, None)


class FetchSessions:
    """Sessions that are open, and which of their topics returned nothing. Not thread-safe."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_partitions: int = MAX_PARTITIONS) -> None:
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._sessions: dict[int, Session] = {}  # what changed last is the last
        self._held = 0
        self._due: Recent[str, float] = Recent(MAX_CONNECTIONS)

    def __len__(self) -> int:
        return len(self._sessions)

    def follow(self, exchange: ObservedExchange) -> None:
        """Take in a Fetch whose request was read.

        It changes nothing, and need not be told of, where the epoch is above 0, no partition is named or forgotten,
        and the response has no error.
        """
        request, response = exchange.request, exchange.response
        if request.session_epoch <= 0:
            self._drop(request.session_id)  # closed with −1, replaced with 0
            if request.session_epoch == 0 and response is not None and response.session_id:
                self._change(response.session_id, Session(request.topics_are_ids), request)
        elif response is not None and response.error_code:
            if response.error_code == NOT_FOUND:
                self._drop(request.session_id)
        elif request.session_id in self._sessions and (request.partitions or request.forgotten):
            self._change(request.session_id, self._take(request.session_id), request)

    def topics(self, session_id: int) -> Collection[bytes]:
        """Topics of this session, names or raw ids (``are_ids``); none of one that is not known."""
        session = self._sessions.get(session_id)
        return session.partitions.keys() if session is not None else ()

    def are_ids(self, session_id: int) -> bool:
        """Whether the topics of this session are raw ids."""
        session = self._sessions.get(session_id)
        return session is not None and session.are_ids

    def due(self, connection_id: str, now: float) -> bool:
        """Whether ``polled`` would tell of this connection now."""
        return now >= (self._due.get(connection_id) or 0.0)

    def polled(self, exchange: ObservedExchange, label: Callable[[bytes, bool], Label]) -> tuple[str, ...]:
        """Names of the topics that an answered Fetch or ShareFetch asked for and that returned no records.

        Told once in ``POLL_EVERY`` for each connection; nothing otherwise, which costs one look into a dict. Comes
        after ``follow``. ``label``: as ``TopicNames.label``.
        """
        if not self.due(exchange.connection.id, exchange.answered_at):
            return ()
        request, response = exchange.request, exchange.response
        if request is None or response is None or response.error_code:
            return ()
        self._due.put(exchange.connection.id, exchange.answered_at + POLL_EVERY)
        session_id = request.session_id if request.session_epoch > 0 else response.session_id
        asked = {label(topic, self.are_ids(session_id))[0] for topic in self.topics(session_id)}
        asked.update(label(one.topic, request.topics_are_ids)[0] for one in request.partitions)
        asked.difference_update(
            label(one.topic, response.topics_are_ids)[0] for one in response.partitions if one.records.records
        )
        return tuple(sorted(asked))

    def _change(self, session_id: int, session: Session, request: Any) -> None:
        """Put what ``request`` adds and forgets into ``session``, which becomes the last one; make room for it."""
        if session.are_ids != request.topics_are_ids:
            return
        for one in request.partitions:
            session.add(one.topic, one.partition)
        for topic, partition in request.forgotten:
            session.forget(topic, partition)
        self._sessions[session_id] = session
        self._held += session.size
        while len(self._sessions) > self._max_sessions or self._held > self._max_partitions:
            self._take(next(iter(self._sessions)))

    def _take(self, session_id: int) -> Session:
        session = self._sessions.pop(session_id)
        self._held -= session.size
        return session

    def _drop(self, session_id: int) -> None:
        if session_id in self._sessions:
            self._take(session_id)
