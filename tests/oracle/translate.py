"""From exchanges to encoded audit events: what ``observers.audit_writer`` does, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from observers.api import ObservedExchange
from observers.audit_filter import AuditFilter
from observers.event import Decode, Outcome, PrincipalSource, RequestEvent, TopicPartition, encoder
from observers.event_blocks import Chunk, EncodedEvents
from observers.fetch_sessions import FETCH_API_KEYS, SHARE_FETCH
from observers.item_errors import item_errors_of
from observers.numbered_events import epoch_us
from observers.request_events import MAX_EVENT_BYTES, UNKNOWN_ERROR_CODE, log_event_failure, max_partition_bytes
from observers.request_resources import resource_fields
from observers.topic_names import TopicNames
from proxy.core.names import clip, clip_optional

PRODUCE = 0


class Translator:
    """Builds events. Not thread-safe, and neither is its filter."""

    def __init__(
        self,
        api_names: Mapping[int, str],
        names: TopicNames,
        audit_filter: AuditFilter,
        *,
        max_event: int = MAX_EVENT_BYTES,
        lists_items: bool = True,
    ) -> None:
        """``lists_items``: events have the errors of single items, and what requests are about."""
        self._api_names = api_names
        self._names = names
        self._filter = audit_filter
        self._max_event = max_event
        self._lists_items = lists_items

    def encode_exchanges(self, exchanges: Sequence[ObservedExchange], first: int, wall_offset: float) -> EncodedEvents:
        """Return the events of ``exchanges``, numbered from ``first`` on; see ``event`` for ``wall_offset``.

        Never raises for an exchange it cannot work with: that one is counted, and its number is missing.
        """
        made = EncodedEvents(last=first - 1)
        for exchange in exchanges:
            made.last += 1
            self._filter.left_out.clear()
            try:
                muted = muted_us(self._filter, exchange)
                if self._filter.record_and_check_hidden(exchange):
                    made.last -= 1
                    made.hidden += 1
                    continue
                event = self.event(exchange, wall_offset)
                event.muted_us = muted
                event.seq = made.last
                topics = self.topics(exchange)
                event.topics = topics or ()
                json = encoder.encode(event)
                if topics is None:
                    made.too_large += 1
                else:
                    made.chunks.append(Chunk(made.last, 1, json))
                    if self._filter.left_out:
                        self._filter.count_partly_hidden()
            except UnicodeError:
                made.not_encodable += 1
            except Exception:
                log_event_failure(exchange)
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
            client_id=clip_optional(exchange.client_id),
            client_software_name=clip_optional(connection.client_software_name),
            client_software_version=clip_optional(connection.client_software_version),
            throttle_ms=throttle_ms(exchange),
            error_code=error_code(exchange),
            upstream_us=upstream_us(exchange),
            principal_source=cast(PrincipalSource, connection.principal_source),
            synthesized=exchange.synthesized,
        )
        found = exchange.item_errors
        if found is not None:
            if self._lists_items:
                event.item_errors = item_errors_of(found, self._names, self._filter)
            event.item_failures = found.failures
            event.item_retriable = found.retriable
            event.item_protocol = found.protocol
        if exchange.resources is not None and self._lists_items:
            for name, value in resource_fields(exchange, self._names, self._filter).items():
                setattr(event, name, value)
        if request is not None:
            if exchange.api_key == PRODUCE:
                event.acks = request.acks
                if request.transactional_id is not None:
                    event.transactional_id = clip(request.transactional_id.decode("utf-8", "replace"))
            elif exchange.api_key in FETCH_API_KEYS:
                event.max_wait_ms = request.max_wait_ms
                if request.group_id is not None:
                    event.group_id = clip(request.group_id.decode("utf-8", "replace"))
                if exchange.outcome == "answered":
                    event.polled = self._filter.take_polled_topics(exchange)
        return event

    def topics(self, exchange: ObservedExchange) -> tuple[TopicPartition, ...] | None:
        """Return the topics of the event of ``exchange``, or None where they need more than ``max_event`` bytes."""
        request, response = exchange.request, exchange.response
        if exchange.api_key == PRODUCE and request is not None:
            return self._produced(request, response, exchange.outcome)
        if exchange.api_key in FETCH_API_KEYS and response is not None:
            return self._fetched(exchange)
        return ()

    def _visible(self, partitions: Sequence[Any], are_ids: bool) -> Iterable[tuple[Any, tuple[str, str | None]]] | None:
        """Return those of ``partitions`` that are not hidden, with their labels; None where they are too many."""
        visible, labels = [], []
        last, hidden, needs, room = None, False, 0, 0
        for partition in partitions:
            label = self._names.label_of(partition.topic, are_ids)
            if label is not last:  # mostly it is: partitions come by topic
                last, hidden, needs = label, self._filter.leaves_out(label[0]), max_partition_bytes(*label)
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
        interception = {} if response is None else {(p.topic, p.partition): p for p in response.partitions}
        parts = []
        for sent, (name, topic_id) in visible:
            answer = interception.get((sent.topic, sent.partition))
            records = sent.records
            if answer is not None:
                error_code, base_offset = answer.error_code, answer.base_offset
            else:
                error_code, base_offset = UNKNOWN_ERROR_CODE if outcome == "answered" else 0, -1
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

    def _fetched(self, exchange: ObservedExchange) -> tuple[TopicPartition, ...] | None:
        """Every partition that returned records or an error."""
        response = exchange.response
        reported = [got for got in response.partitions if got.records.size or got.error_code]
        visible = self._visible(reported, response.topics_are_ids)
        if visible is None:
            return None
        parts = []
        for got, (name, topic_id) in visible:
            records = got.records
            fewest, most = consumed_records(self._filter, exchange, got)
            parts.append(
                TopicPartition(
                    topic=name,
                    partition=got.partition,
                    topic_id=topic_id,
                    bytes=records.size,
                    records=most,
                    error_code=got.error_code,
                    base_offset=records.base_offset,
                    claimed=records.claimed,
                    upper_bound=fewest < most,
                )
            )
        return tuple(parts)


def consumed_records(audit_filter: AuditFilter, exchange: ObservedExchange, got: Any) -> tuple[int, int]:
    """Return the fewest and the most records that a client takes of the fetched partition ``got``."""
    records, first, delta = got.records.records, got.first_batch_records, got.last_offset_delta
    if exchange.api_key == SHARE_FETCH:
        return 0, records
    offset = fetch_offset(audit_filter, exchange, got)
    most = records - max(got.aborted_records, 0)
    fewest = most - (got.aborted_records < 0)
    if not first or not delta:
        return fewest, most
    if offset is None:
        return most - 1, most
    skipped = offset - got.records.base_offset
    if skipped <= 0:
        return fewest, most
    fewest_of_first = max(0, first - skipped)
    most_of_first = max(fewest_of_first, min(first, delta + 1 - skipped))
    return fewest - first + fewest_of_first, most - first + most_of_first


def fetch_offset(audit_filter: AuditFilter, exchange: ObservedExchange, got: Any) -> int | None:
    """Return where the fetch of the partition ``got`` began; None if it is not known."""
    request = exchange.request
    if request is None:
        return None
    for wanted in reversed(request.partitions):
        if (wanted.topic, wanted.partition) == (got.topic, got.partition):
            return int(wanted.fetch_offset)
    session = audit_filter.sessions.find(exchange) if request.session_epoch > 0 else None
    return None if session is None else session.partitions.get(got.topic, {}).get(got.partition)


def muted_us(audit_filter: AuditFilter, exchange: ObservedExchange) -> int:
    """Return an event's ``muted_us``. Asked once for each exchange, in order, before anything else."""
    throttled = throttle_ms(exchange)
    if throttled <= 0 and not audit_filter.muting.spans:
        return 0
    return audit_filter.muting.record_exchange(exchange, throttled)


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
    if exchange.response is not None and exchange.api_key in FETCH_API_KEYS:
        return int(exchange.response.error_code)
    return exchange.error_code
