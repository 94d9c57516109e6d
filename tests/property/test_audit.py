"""Events are encoded as msgspec does, many at once as one at a time, and say what their exchanges have."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent, TopicPartition, encoder
from observers.event_blocks import EncodedEvents, split_events
from observers.numbered_events import epoch_us
from observers.request_events import MAX_EVENT_BYTES, UNKNOWN_ERROR_CODE
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    AnsweredPartition,
    Connection,
    ItemErrors,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
)
from proxy.core.names import clip_optional
from tests.property.audited import API_NAMES, WALL, batches, surroundings

COUNTS = ("hidden", "not_encodable", "too_large", "failed")


def events_of(made: EncodedEvents) -> list[RequestEvent]:
    """The events of all chunks, which are numbered as the chunks say and encoded as msgspec does."""
    found = []
    for chunk in made.chunks:
        written = split_events(chunk.json)
        events = [msgspec.json.decode(one, type=RequestEvent) for one in written]
        assert [encoder.encode(event) for event in events] == written
        assert [event.seq for event in events] == list(range(chunk.first, chunk.first + chunk.count))
        found += events
    return found


def check_event(event: RequestEvent, of: Exchange, names: TopicNames) -> None:
    """What an event takes from its exchange alone."""
    client, request, response = of.connection, of.request, of.response
    for same in ("correlation_id", "api_key", "api_version", "request_bytes", "response_bytes", "outcome", "decode"):
        assert getattr(event, same) == getattr(of, same)
    for same in ("listener", "client_ip", "principal_source"):
        assert getattr(event, same) == getattr(client, same)
    for clipped in ("principal", "client_software_name", "client_software_version"):
        assert getattr(event, clipped) == clip_optional(getattr(client, clipped))
    assert (event.connection_id, event.client_id) == (client.id, clip_optional(of.client_id))
    assert (event.synthesized, event.api) == (of.synthesized, API_NAMES.get(of.api_key, f"ApiKey({of.api_key})"))
    assert event.ts_request == epoch_us(of.received_at, WALL)
    spans = [of.answered_at - of.received_at]
    spans.append(of.responded_at - of.forwarded_at if of.responded_at and of.forwarded_at else 0.0)
    answered = of.outcome == "answered"
    assert [event.latency_us, event.upstream_us] == [max(0, round(one * 1e6)) * answered for one in spans]
    fetches = of.api_key in (1, 78)
    assert event.throttle_ms == (of.throttle_ms if response is None else response.throttle_ms)
    assert event.error_code == (response.error_code if fetches and response is not None else of.error_code)
    items = of.item_errors or ItemErrors((), 0, 0, 0)
    counted = (items.failures, items.retriable, items.protocol)
    assert (event.item_failures, event.item_retriable, event.item_protocol) == counted
    assert event.max_wait_ms == (request.max_wait_ms if fetches and request is not None else 0)
    expected = []
    if of.api_key == 0 and request is not None:
        transaction = request.transactional_id
        text = None if transaction is None else clip_optional(transaction.decode("utf-8", "replace"))
        assert (event.acks, event.transactional_id) == (request.acks, text)
        answers = {(one.topic, one.partition): one for one in (() if response is None else response.partitions)}
        for sent in request.partitions:
            missing = AnsweredPartition(sent.topic, sent.partition, UNKNOWN_ERROR_CODE if answered else 0, -1)
            answer, sums = answers.get((sent.topic, sent.partition), missing), sent.records
            name, topic_id = names.label_of(sent.topic, request.topics_are_ids)
            expected.append(
                TopicPartition(
                    name, sent.partition, topic_id, sums.size, sums.records, answer.error_code, sums.producer_id,
                    sums.producer_epoch, sums.base_sequence, answer.base_offset, sums.claimed,
                )
            )  # fmt: skip
    elif fetches and response is not None:
        consumed = iter(event.topics)
        for got in response.partitions:
            name, topic_id = names.label_of(got.topic, response.topics_are_ids)
            if name != "audit" and (got.records.size or got.error_code):
                one = next(consumed)  # how many records: tests/unit/observers/test_consumed_records.py
                expected.append(
                    TopicPartition(
                        name, got.partition, topic_id, got.records.size, one.records, got.error_code,
                        base_offset=got.records.base_offset, claimed=got.records.claimed, upper_bound=one.upper_bound,
                    )
                )  # fmt: skip
    assert event.topics == tuple(one for one in expected if one.topic != "audit")


@pytest.mark.promise("audit-format.md", "Encoded audit events are byte for byte what their definition gives.")
@given(batches(), st.sampled_from([0, 700, 3000, MAX_EVENT_BYTES]))
def test_events_are_those_of_the_definition(reported: list[list[Exchange]], max_event: int) -> None:
    together, alone = (RequestEventEncoder(API_NAMES, *surroundings(), max_event=max_event) for _ in range(2))
    names, _ = surroundings()
    first = 1
    for exchanges in reported:
        found, counts, last = list[RequestEvent](), dict.fromkeys(COUNTS, 0), first - 1
        for exchange in exchanges:
            made = alone.encode_exchanges([exchange], last + 1, WALL)
            events, last = events_of(made), made.last
            found += events
            counts = {name: count + getattr(made, name) for name, count in counts.items()}
            for event in events:
                check_event(event, exchange, names)
        made = together.encode_exchanges(exchanges, first, WALL)
        assert events_of(made) == found
        assert (made.last, {name: getattr(made, name) for name in COUNTS}) == (last, counts)
        assert len(found) + counts["not_encodable"] + counts["too_large"] == last - first + 1
        first = last + 1


def test_chunks_of_many_events_hold_what_they_say() -> None:
    connections = [Connection(f"c{n}", "CLIENT", "10.0.0.7", 1, 1.0, f"User:{n}") for n in range(1500)]
    topics = [f"topic-{n}".encode() for n in range(700)]
    exchanges = []
    for n, connection in enumerate(connections):
        sent = tuple(
            ProducedPartition(topics[(n + part) % 700], part, RecordSet(10, 1, 1)) for part in range(n % 11 * (n % 7))
        )
        answered = tuple(AnsweredPartition(part.topic, part.partition, 0, 7 * n) for part in sent[::-1])
        request, response = ProduceRequest(1, 1000, None, sent, False), ProduceResponse(0, answered, False)
        exchanges.append(Exchange(connection, 0, 9, n, None, 1.0, 50, 1.5, 50, "answered", "full", request, response))
    names, audit_filter = surroundings()
    events = events_of(RequestEventEncoder(API_NAMES, names, audit_filter).encode_exchanges(exchanges, 1, WALL))
    assert len(events) == len(exchanges)
    for event, exchange in zip(events, exchanges, strict=True):
        check_event(event, exchange, names)
