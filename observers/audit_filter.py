"""Which exchanges give no event, with the fetch sessions and muted connections that this needs. No IO, no clock."""

from __future__ import annotations

from collections.abc import Collection

from observers.api import ObservedExchange
from observers.channel_muting import ChannelMuting
from observers.fetch_sessions import FETCH_API_KEYS, FetchSessions
from observers.topic_names import TopicNames

MAX_POLLED_CHARACTERS = 1_000_000
"""Characters of all topic names in ``polled`` of one event, about 20,000 usual names. Further names are left out."""


class AuditFilter:
    """Hides excluded principals, exchanges on excluded topics alone, and the sidecar's own calls.

    A client can choose its id, so the sidecar's own id hides only exchanges that touch no topic.
    """

    def __init__(
        self, names: TopicNames, *, topics: Collection[str], principals: Collection[str], client_ids: Collection[str]
    ) -> None:
        self._names = names
        self._topics = frozenset(topics)
        self._principals = frozenset(principals)
        self._client_ids = frozenset(client_ids)
        self.sessions = FetchSessions()
        """Fetch sessions, of all fetches passed to ``record_and_check_hidden``."""
        self.muting = ChannelMuting()
        """Muted connections, of all exchanges, including hidden ones."""

    def hides_principal(self, principal: str) -> bool:
        """Whether ``principal`` is excluded."""
        return principal in self._principals

    def is_own_client_id(self, client_id: str | None) -> bool:
        """Whether this is the client id of the sidecar's own calls."""
        return client_id in self._client_ids

    def hides_topic(self, name: str) -> bool:
        """Whether the topic ``name`` is excluded."""
        return name in self._topics

    def record_and_check_hidden(self, exchange: ObservedExchange) -> bool:
        """Update the fetch sessions, and return whether ``exchange`` gives no event. Call once for each, in order."""
        if self.hides_principal(exchange.connection.principal):
            return True
        on_topics = self._touches_only_hidden_topics(exchange)
        if exchange.api_key in FETCH_API_KEYS and exchange.request is not None:
            self.sessions.record_fetch(exchange)
        return self.is_own_client_id(exchange.client_id) if on_topics is None else on_topics

    def take_polled_topics(self, exchange: ObservedExchange) -> tuple[str, ...]:
        """Return an event's ``polled``, of a fetch that was answered and is not hidden."""
        room = MAX_POLLED_CHARACTERS
        names = []
        for name in self.sessions.take_polled_topics(exchange, self._names.label_of):
            room -= len(name)
            if name not in self._topics and room >= 0:
                names.append(name)
        return tuple(names)

    def _touches_only_hidden_topics(self, exchange: ObservedExchange) -> bool | None:
        """Whether all topics of the exchange are hidden. None if it has no topic, or they were not read.

        An idle fetch of a session names no topic; then the topics of its session count.
        """
        only_hidden = None
        for facts in (exchange.request, exchange.response):
            if facts is None:
                continue
            for partition in facts.partitions:
                if self._names.label_of(partition.topic, facts.topics_are_ids)[0] not in self._topics:
                    return False
                only_hidden = True
        if only_hidden is None and exchange.api_key in FETCH_API_KEYS and exchange.request is not None:
            session = self.sessions.find(exchange)
            if session is not None and session.partitions:
                return all(
                    self._names.label_of(topic, session.are_ids)[0] in self._topics for topic in session.partitions
                )
        return only_hidden
