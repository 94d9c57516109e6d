"""Which exchanges give no event, with the fetch sessions and muted connections that this needs. No IO, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from observers.api import ObservedExchange
from observers.channel_muting import ChannelMuting
from observers.fetch_sessions import FETCH_API_KEYS, FetchSessions
from observers.topic_names import TopicNames

MAX_POLLED_CHARACTERS = 1_000_000
"""Characters of all topic names in ``polled`` of one event, about 20,000 usual names. Further names are left out."""


MAX_HIDDEN_NAMES = 100
"""Names in ``hidden_by`` and ``partly_hidden_by``. The counts of further ones are added up."""


class AuditFilter:
    """Hides excluded principals, and exchanges that touch excluded topics only. Nothing else hides an exchange."""

    def __init__(self, names: TopicNames, *, topics: Collection[str], principals: Collection[str]) -> None:
        self._names = names
        self._topics = frozenset(topics)
        self.excluded_principals = frozenset(principals)
        """Never changed."""
        self._hidden: Counter[str] = Counter()
        self._partly_hidden: Counter[str] = Counter()
        self.partly_hidden = 0
        """Events of requests, and requests in rollups, that lack at least one excluded topic."""
        self.left_out: set[str] = set()
        """Excluded topics that were left out of the event of the current exchange; always the same object. Who makes
        the event empties it first, and calls ``count_partly_hidden`` once there is an event."""
        self.sessions = FetchSessions()
        """Fetch sessions, of all fetches passed to ``record_and_check_hidden``."""
        self.muting = ChannelMuting()
        """Muted connections, of all exchanges, including hidden ones."""

    def hides_principal(self, principal: str) -> bool:
        """Whether ``principal`` is excluded."""
        return principal in self.excluded_principals

    def hides_topic(self, name: str) -> bool:
        """Whether the topic ``name`` is excluded."""
        return name in self._topics

    def leaves_out(self, name: str) -> bool:
        """Whether the topic ``name`` is excluded; then the event of the current exchange does without it."""
        excluded = name in self._topics
        if excluded:
            self.left_out.add(name)
        return excluded

    def record_and_check_hidden(self, exchange: ObservedExchange) -> bool:
        """Update the fetch sessions, and return whether ``exchange`` gives no event. Call once for each, in order."""
        principal = exchange.connection.principal
        if self.hides_principal(principal):
            self.count_hidden_by_principal(principal)
            return True
        topic = self._find_hidden_topic(exchange)
        if exchange.api_key in FETCH_API_KEYS and exchange.request is not None:
            self.sessions.record_fetch(exchange)
        if topic is None:
            return False
        self._hidden[f"topic {topic}"] += 1
        return True

    def count_hidden_by_principal(self, principal: str) -> None:
        """Count one exchange or change of a connection that gives no event because ``principal`` is excluded."""
        self._hidden[f"principal {principal}"] += 1

    def count_partly_hidden(self) -> None:
        """Count an exchange that has an event without the topics of ``left_out``, and empty that."""
        self.partly_hidden += 1
        self._partly_hidden.update(f"topic {name}" for name in self.left_out)
        self.left_out.clear()

    def hidden_by(self) -> dict[str, int]:
        """Return how much has been hidden so far, by ``principal NAME`` and ``topic NAME``, the largest counts first.

        An exchange on several excluded topics counts for the first of them.
        """
        return _largest(self._hidden)

    def partly_hidden_by(self) -> dict[str, int]:
        """Return how many of ``partly_hidden`` lack each excluded topic, by ``topic NAME``, the largest counts first.

        An event that lacks several counts for each of them.
        """
        return _largest(self._partly_hidden)

    def take_polled_topics(self, exchange: ObservedExchange) -> tuple[str, ...]:
        """Return an event's ``polled``, of a fetch that was answered and is not hidden."""
        room = MAX_POLLED_CHARACTERS
        names = []
        for name in self.sessions.take_polled_topics(exchange, self._names.label_of):
            room -= len(name)
            if not self.leaves_out(name) and room >= 0:
                names.append(name)
        return tuple(names)

    def _find_hidden_topic(self, exchange: ObservedExchange) -> str | None:
        """Return the first topic of the exchange if all its topics are hidden, else None; None as well without topics.

        An idle fetch of a session names no topic; then the topics of its session count.
        """
        first: str | None = None
        for facts in (exchange.request, exchange.response):
            if facts is None:
                continue
            for partition in facts.partitions:
                name = self._names.label_of(partition.topic, facts.topics_are_ids)[0]
                if name not in self._topics:
                    return None
                first = first or name
        if first is None and exchange.api_key in FETCH_API_KEYS and exchange.request is not None:
            session = self.sessions.find(exchange)
            if session is not None:
                for topic in session.partitions:
                    name = self._names.label_of(topic, session.are_ids)[0]
                    if name not in self._topics:
                        return None
                    first = first or name
        return first


def _largest(counts: Counter[str]) -> dict[str, int]:
    """Return the largest of ``counts``, and the sum of the others as ``other``."""
    largest = counts.most_common()
    found = dict(largest[:MAX_HIDDEN_NAMES])
    if further := sum(count for _, count in largest[MAX_HIDDEN_NAMES:]):
        found["other"] = further
    return found
