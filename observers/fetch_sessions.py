"""Partitions that incremental fetches leave out (KIP-227, KIP-932). Pure; gets exchanges in the order they ended.

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

MAX_SESSION_PARTITIONS = 500_000
"""Partitions kept of all sessions, about 150 bytes each. A topic of a session counts as ``TOPIC_WEIGHT`` more. Above it
the session that changed longest ago is forgotten."""

TOPIC_WEIGHT = 5
"""What a topic takes besides its partitions, in partitions."""

MAX_TOPIC_NAME_BYTES = 249
"""Longest name of a topic in bytes. Kafka allows no longer name, and none is kept."""

POLLED_LIST_INTERVAL = 60.0
"""Seconds between two lists of polled topics of one connection."""

MAX_POLLED_TOPICS = 20_000
"""Most topics in such a list. To sort many more would hold the GIL for long."""

EMPTY_LIST_RETRY_INTERVAL = 5.0
"""Seconds until a list is computed again after an empty one."""

MAX_POLLED_CONNECTIONS = 20_000
"""Connections whose next list has a known time. For a connection that was forgotten a list is computed at once."""

FETCH, SHARE_FETCH = 1, 78
FETCH_API_KEYS = (FETCH, SHARE_FETCH)
"""Api keys."""

SESSION_NOT_FOUND_CODES = (70, 122)
"""FETCH_SESSION_ID_NOT_FOUND, SHARE_SESSION_NOT_FOUND: the broker does not have the session any more."""

SessionKey = int | str
"""The session's id, or the connection's of a ShareFetch."""


class FetchSession(Struct):
    """The partitions of one session and their last fetch offsets, by topic: names as bytes, or raw ids."""

    are_ids: bool
    partitions: dict[bytes, dict[int, int]] = field(default_factory=dict)
    size: int = 0
    """As ``MAX_SESSION_PARTITIONS`` counts."""

    def set_partition(self, topic: bytes, partition: int, fetch_offset: int) -> None:
        """Add a partition, or change its fetch offset."""
        if topic not in self.partitions:
            if len(topic) > MAX_TOPIC_NAME_BYTES:
                return
            self.partitions[topic] = {}
            self.size += TOPIC_WEIGHT
        held = self.partitions[topic]
        self.size += partition not in held
        held[partition] = fetch_offset

    def remove_partition(self, topic: bytes, partition: int) -> None:
        """Remove a partition, if it is there."""
        held = self.partitions.get(topic)
        if held is None or partition not in held:
            return
        del held[partition]
        self.size -= 1
        if not held:
            del self.partitions[topic]
            self.size -= TOPIC_WEIGHT

    def update_offsets(self, request: Any) -> bool:
        """Store the fetch offsets of partitions that are there; return whether ``request`` adds or removes others."""
        changed = bool(request.forgotten)
        for one in request.partitions:
            held = self.partitions.get(one.topic, {})
            if one.partition in held:
                held[one.partition] = one.fetch_offset
            else:
                changed = True
        return changed


class FetchSessions:
    """Sessions that are open, and which of their topics returned nothing. Not thread-safe."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_partitions: int = MAX_SESSION_PARTITIONS) -> None:
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self.open_sessions: dict[SessionKey, FetchSession] = {}
        """Open sessions by key, ordered by their last change. Callers only read it."""
        self._held = 0
        self._next_poll_at: RecentCache[str, float] = RecentCache(MAX_POLLED_CONNECTIONS)

    def record_fetch(self, exchange: ObservedExchange) -> None:
        """Update the sessions by a Fetch whose request was read.

        The call is not needed if the epoch is above 0, every partition named is known, none is forgotten, and the
        response has no error: then nothing changes but fetch offsets, which ``observers/exchanges.pxi`` stores.
        """
        request, response = exchange.request, exchange.response
        key = _requested_key(exchange)
        if request.session_epoch <= 0:
            self._discard(key)  # closed with −1, replaced with 0
            opened = _opened_key(exchange)
            if request.session_epoch == 0 and opened:
                self._update(opened, FetchSession(request.topics_are_ids), request)
        elif response is not None and response.error_code:
            if response.error_code in SESSION_NOT_FOUND_CODES:
                self._discard(key)
        elif key in self.open_sessions and self.open_sessions[key].update_offsets(request):
            self._update(key, self._remove(key), request)

    def find(self, exchange: ObservedExchange) -> FetchSession | None:
        """Return the session that the request of this Fetch names, or None if it is not known."""
        return self.open_sessions.get(_requested_key(exchange))

    def next_poll_at(self, connection_id: str) -> float:
        """Return from which ``answered_at`` on ``take_polled_topics`` computes a list for this connection again."""
        return self._next_poll_at.get(connection_id) or 0.0

    def take_polled_topics(
        self, exchange: ObservedExchange, label: Callable[[bytes, bool], TopicLabel]
    ) -> tuple[str, ...]:
        """Return the topics that an answered Fetch or ShareFetch asked for and that returned no records.

        Returns a list once in ``POLLED_LIST_INTERVAL`` for each connection, else an empty one at the cost of a lookup.
        Call it after ``record_fetch``. ``label``: as ``TopicNames.label_of``.
        """
        if exchange.answered_at < self.next_poll_at(exchange.connection.id):
            return ()
        request, response = exchange.request, exchange.response
        if request is None or response is None or response.error_code:
            return ()
        session = self.open_sessions.get(
            _requested_key(exchange) if request.session_epoch > 0 else _opened_key(exchange)
        )
        asked = set() if session is None else {label(topic, session.are_ids)[0] for topic in session.partitions}
        asked.update(label(one.topic, request.topics_are_ids)[0] for one in request.partitions)
        asked.difference_update(
            label(one.topic, response.topics_are_ids)[0] for one in response.partitions if one.records.records
        )
        self._next_poll_at.put(
            exchange.connection.id,
            exchange.answered_at + (POLLED_LIST_INTERVAL if asked else EMPTY_LIST_RETRY_INTERVAL),
        )
        return tuple(sorted(islice(asked, MAX_POLLED_TOPICS)))

    def _update(self, key: SessionKey, session: FetchSession, request: Any) -> None:
        """Apply ``request`` to ``session``, store it as the last one, and remove others until it fits."""
        if session.are_ids != request.topics_are_ids:
            return
        for one in request.partitions:
            session.set_partition(one.topic, one.partition, one.fetch_offset)
        for topic, partition in request.forgotten:
            session.remove_partition(topic, partition)
        if session.size > self._max_partitions:
            return  # a session that cannot fit displaces no other
        self.open_sessions[key] = session
        self._held += session.size
        while len(self.open_sessions) > self._max_sessions or self._held > self._max_partitions:
            self._remove(next(iter(self.open_sessions)))

    def _remove(self, key: SessionKey) -> FetchSession:
        session = self.open_sessions.pop(key)
        self._held -= session.size
        return session

    def _discard(self, key: SessionKey) -> None:
        if key in self.open_sessions:
            self._remove(key)


def _requested_key(exchange: ObservedExchange) -> SessionKey:
    """The session that the request names; 0 for none."""
    return exchange.connection.id if exchange.api_key == SHARE_FETCH else int(exchange.request.session_id)


def _opened_key(exchange: ObservedExchange) -> SessionKey:
    """The session that the response to a full request opened; 0 for none."""
    response = exchange.response
    if response is None or response.error_code:
        return 0
    return exchange.connection.id if exchange.api_key == SHARE_FETCH else int(response.session_id)
