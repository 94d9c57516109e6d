"""From exchanges to encoded audit events, and which exchanges give none: no IO, no clock.

``Translator`` is what is meant; ``observers.audit_writer`` does the same for the exchanges of a compiled session, byte
for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import structlog

from observers.api import ObservedExchange
from observers.batch import Chunk, Translation
from observers.event import (
    Decode,
    Outcome,
    PrincipalSource,
    RequestEvent,
    TopicPartition,
    clip,
    encoder,
)
from observers.fetch_sessions import SHARE_FETCH, FetchSessions
from observers.mutes import Mutes
from observers.topics import TopicNames

PRODUCE, FETCH = 0, 1
FETCHES = (FETCH, SHARE_FETCH)

UNKNOWN_RESULT = -1
"""Error code of a partition whose answer could not be read (Kafka's own −1, UNKNOWN_SERVER_ERROR)."""

MAX_POLLED = 1_000_000
"""Characters of all topics' names in ``polled`` of one event: some 20,000 usual ones. What is more is left out."""

MAX_EVENT = 8_000_000
"""Bytes that the partitions of one event may need, as ``room_of`` counts them: more than 20,000 of topics with usual
names. A larger event is lost; any other fits a record of ``sink.MAX_MESSAGE``, envelope included."""

PART_ROOM = 320
"""Bytes of a partition in an event besides its texts, more than there can be."""

log = structlog.get_logger("observers")


class Scope:
    """What gives no event: excluded principals, exchanges on excluded topics alone, and the sidecar's own calls.

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
        """As of all fetches that were asked about."""
        self.mutes = Mutes()
        self._muted = self.mutes.spans
        """As of all exchanges that ``muted_us`` was asked of."""

    def hides_principal(self, principal: str) -> bool:
        """Whether nothing that ``principal`` does gives an event."""
        return principal in self._principals

    def is_own(self, client_id: str | None) -> bool:
        """Whether the sidecar itself calls by this id."""
        return client_id in self._client_ids

    def hides_topic(self, name: str) -> bool:
        """Whether the topic ``name`` never appears in an event."""
        return name in self._topics

    def hides(self, exchange: ObservedExchange) -> bool:
        """Whether ``exchange`` gives no event. Asked once for each, in order."""
        if self.hides_principal(exchange.connection.principal):
            return True
        on_topics = self._only_hidden_topics(exchange)
        if exchange.api_key in FETCHES and exchange.request is not None:
            self.sessions.follow(exchange)
        return self.is_own(exchange.client_id) if on_topics is None else on_topics

    def muted_us(self, exchange: ObservedExchange) -> int:
        """Return an event's ``muted_us``. Asked once for each exchange, in order, before anything else."""
        response = exchange.response
        throttled = exchange.throttle_ms if response is None else response.throttle_ms
        if throttled <= 0 and not self._muted:
            return 0
        return self.mutes.follow(exchange, throttled)

    def polled(self, exchange: ObservedExchange) -> tuple[str, ...]:
        """Return an event's ``polled``, of a fetch that was answered and is not hidden."""
        room = MAX_POLLED
        names = []
        for name in self.sessions.polled(exchange, self._names.label):
            room -= len(name)
            if name not in self._topics and room >= 0:
                names.append(name)
        return tuple(names)

    def _only_hidden_topics(self, exchange: ObservedExchange) -> bool | None:
        """Whether all topics it touches are hidden; None where it touches none, or they were not read.

        An idle fetch of a session names no topic at all; then those of the session tell.
        """
        only_hidden = None
        for facts in (exchange.request, exchange.response):
            if facts is None:
                continue
            for partition in facts.partitions:
                if self._names.label(partition.topic, facts.topics_are_ids)[0] not in self._topics:
                    return False
                only_hidden = True
        if only_hidden is None and exchange.api_key in FETCHES and exchange.request is not None:
            session = self.sessions.of(exchange)
            if session is not None and session.partitions:
                return all(self._names.label(topic, session.are_ids)[0] in self._topics for topic in session.partitions)
        return only_hidden


class Translator:
    """Builds events. Not thread-safe, like its scope."""

    def __init__(
        self, api_names: Mapping[int, str], names: TopicNames, scope: Scope, *, max_event: int = MAX_EVENT
    ) -> None:
        self._api_names = api_names
        self._names = names
        self._scope = scope
        self._max_event = max_event

    def translate(self, exchanges: Sequence[ObservedExchange], first: int, wall_offset: float) -> Translation:
        """Return the events of ``exchanges``, numbered from ``first`` on; see ``event`` for ``wall_offset``.

        Never raises for an exchange it cannot work with: that one is counted, and its number is missing.
        """
        made = Translation(last=first - 1)
        for exchange in exchanges:
            made.last += 1
            try:
                muted_us = self._scope.muted_us(exchange)
                if self._scope.hides(exchange):
                    made.last -= 1
                    made.hidden += 1
                    continue
                event = self.event(exchange, wall_offset)
                event.muted_us = muted_us
                event.seq = made.last
                topics = self.topics(exchange)
                event.topics = topics or ()
                json = encoder.encode(event)
                if topics is None:
                    made.too_large += 1
                else:
                    made.chunks.append(Chunk(made.last, 1, json))
            except UnicodeError:
                made.not_encodable += 1
            except Exception:
                report_failure(exchange)
                made.failed += 1
        return made

    def event(self, exchange: ObservedExchange, wall_offset: float) -> RequestEvent:
        """Return the event of ``exchange`` without its number (``seq`` 0), its topics and ``muted_us``.

        ``wall_offset``: seconds to add to the exchange's times to get seconds since the epoch.
        """
        connection, request = exchange.connection, exchange.request
        event = RequestEvent(
            seq=0,
            listener=connection.listener,
            connection_id=connection.id,
            correlation_id=exchange.correlation_id,
            api_key=exchange.api_key,
            api=self._api_names.get(exchange.api_key) or f"ApiKey({exchange.api_key})",
            api_version=exchange.api_version,
            principal=clip(connection.principal),
            client_ip=connection.client_ip,
            ts_request=epoch_us(exchange.received_at, wall_offset),
            latency_us=latency_us(exchange),
            request_bytes=exchange.request_bytes,
            response_bytes=exchange.response_bytes,
            outcome=cast(Outcome, exchange.outcome),
            decode=cast(Decode, exchange.decode),
            client_id=clipped(exchange.client_id),
            client_software_name=clipped(connection.client_software_name),
            client_software_version=clipped(connection.client_software_version),
            throttle_ms=throttle_ms(exchange),
            error_code=error_code(exchange),
            upstream_us=upstream_us(exchange),
            principal_source=cast(PrincipalSource, connection.principal_source),
            synthesized=exchange.synthesized,
        )
        if request is not None:
            if exchange.api_key == PRODUCE:
                event.acks = request.acks
            elif exchange.api_key in FETCHES:
                event.max_wait_ms = request.max_wait_ms
                if exchange.outcome == "answered":
                    event.polled = self._scope.polled(exchange)
        return event

    def topics(self, exchange: ObservedExchange) -> tuple[TopicPartition, ...] | None:
        """Return the topics of the event of ``exchange``, or None where they need more than ``max_event`` bytes."""
        request, response = exchange.request, exchange.response
        if exchange.api_key == PRODUCE and request is not None:
            return self._produced(request, response, exchange.outcome)
        if exchange.api_key in FETCHES and response is not None:
            return self._fetched(response)
        return ()

    def _visible(self, partitions: Sequence[Any], are_ids: bool) -> Iterable[tuple[Any, tuple[str, str | None]]] | None:
        """Return those of ``partitions`` that are not hidden, with their labels; None where they are too many."""
        visible, labels = [], []
        last, hidden, needs, room = None, False, 0, 0
        for partition in partitions:
            label = self._names.label(partition.topic, are_ids)
            if label is not last:  # mostly it is: partitions come by topic
                last, hidden, needs = label, self._scope.hides_topic(label[0]), room_of(*label)
            if hidden:
                continue
            room += needs
            if room > self._max_event:
                return None
            visible.append(partition)
            labels.append(label)
        return zip(visible, labels, strict=True)

    def _produced(self, request: Any, response: Any, outcome: str) -> tuple[TopicPartition, ...] | None:
        """Every partition sent, joined with its answer by (topic, partition)."""
        visible = self._visible(request.partitions, request.topics_are_ids)
        if visible is None:
            return None
        answers = {} if response is None else {(p.topic, p.partition): p for p in response.partitions}
        parts = []
        for sent, (name, topic_id) in visible:
            answer = answers.get((sent.topic, sent.partition))
            records = sent.records
            if answer is not None:
                error_code, base_offset = answer.error_code, answer.base_offset
            else:
                error_code, base_offset = UNKNOWN_RESULT if outcome == "answered" else 0, -1
            parts.append(
                TopicPartition(
                    topic=name,
                    partition=sent.partition,
                    topic_id=topic_id,
                    bytes=records.size,
                    records=records.records,
                    error_code=error_code,
                    producer_id=records.producer_id,
                    producer_epoch=records.producer_epoch,
                    base_sequence=records.base_sequence,
                    base_offset=base_offset,
                    claimed=records.claimed,
                )
            )
        return tuple(parts)

    def _fetched(self, response: Any) -> tuple[TopicPartition, ...] | None:
        """Every partition that returned records or an error."""
        told = [got for got in response.partitions if got.records.size or got.error_code]
        visible = self._visible(told, response.topics_are_ids)
        if visible is None:
            return None
        parts = []
        for got, (name, topic_id) in visible:
            records = got.records
            parts.append(
                TopicPartition(
                    topic=name,
                    partition=got.partition,
                    topic_id=topic_id,
                    bytes=records.size,
                    records=records.records,
                    error_code=got.error_code,
                    base_offset=records.base_offset,
                    claimed=records.claimed,
                )
            )
        return tuple(parts)


def room_of(name: str, topic_id: str | None) -> int:
    """Return the bytes that a partition of this topic can need at most in an event."""
    return PART_ROOM + len(encoder.encode(name)) + len(topic_id or "")


def report_failure(exchange: ObservedExchange) -> None:
    """Log the exception at hand, which left ``exchange`` without an event."""
    log.exception("audit_event_failed", api_key=exchange.api_key, api_version=exchange.api_version)


def epoch_us(seconds: float, wall_offset: float) -> int:
    """Return µs since 1970 of ``seconds`` on the monotonic clock. Raises for what is no number."""
    return round((seconds + wall_offset) * 1e6)


def latency_us(exchange: ObservedExchange) -> int:
    """Return an event's ``latency_us``."""
    if exchange.outcome != "answered":
        return 0
    return max(0, round((exchange.answered_at - exchange.received_at) * 1e6))


def upstream_us(exchange: ObservedExchange) -> int:
    """Return an event's ``upstream_us``."""
    if exchange.outcome != "answered" or not (exchange.forwarded_at and exchange.responded_at):
        return 0
    return max(0, round((exchange.responded_at - exchange.forwarded_at) * 1e6))


def throttle_ms(exchange: ObservedExchange) -> int:
    """Return an event's ``throttle_ms``."""
    return int(exchange.throttle_ms if exchange.response is None else exchange.response.throttle_ms)


def error_code(exchange: ObservedExchange) -> int:
    """Return an event's ``error_code``."""
    if exchange.response is not None and exchange.api_key in FETCHES:
        return int(exchange.response.error_code)
    return exchange.error_code


def clipped(text: str | None) -> str | None:
    """Return ``clip(text)``, and None for None."""
    return None if text is None else clip(text)
