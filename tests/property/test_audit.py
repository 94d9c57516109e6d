"""The translator makes the same events of exchanges as the oracle, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent
from observers.event_blocks import EncodedEvents
from observers.request_events import MAX_EVENT_BYTES
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    AnsweredPartition,
    Connection,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
)
from tests.oracle import translate as oracle
from tests.property.audited import API_NAMES, WALL, batches, surroundings


def translator(kind: Any, max_event: int = MAX_EVENT_BYTES) -> tuple[Any, AuditFilter]:
    names, audit_filter = surroundings()
    return kind(API_NAMES, names, audit_filter, max_event=max_event), audit_filter


def runs(made: EncodedEvents) -> list[tuple[int, int, bytes]]:
    """What the chunks hold, those that follow each other joined."""
    joined: list[tuple[int, int, bytes]] = []
    for chunk in made.chunks:
        if joined and joined[-1][0] + joined[-1][1] == chunk.first:
            first, count, json = joined.pop()
            joined.append((first, count + chunk.count, json + b"," + chunk.json))
        else:
            joined.append((chunk.first, chunk.count, chunk.json))
    return joined


@pytest.mark.promise("audit-format.md", "Encoded audit events are byte for byte what their definition gives.")
@given(batches(), st.sampled_from([0, 700, 3000, MAX_EVENT_BYTES]))
def test_events_are_those_of_the_oracle(reported: list[list[Exchange]], max_event: int) -> None:
    theirs, their_filter = translator(oracle.Translator, max_event)
    ours, our_filter = translator(RequestEventEncoder, max_event)
    first = 1
    for exchanges in reported:
        expected = theirs.encode_exchanges(exchanges, first, WALL)
        got = ours.encode_exchanges(exchanges, first, WALL)
        assert runs(got) == runs(expected)
        assert msgspec.structs.replace(got, chunks=[]) == msgspec.structs.replace(expected, chunks=[])
        assert our_filter.sessions.open_sessions == their_filter.sessions.open_sessions
        assert our_filter.partly_hidden_by() == their_filter.partly_hidden_by()
        assert our_filter.partly_hidden == their_filter.partly_hidden
        first = got.last + 1


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
    expected = translator(oracle.Translator)[0].encode_exchanges(exchanges, 1, 0.0)
    got = translator(RequestEventEncoder)[0].encode_exchanges(exchanges, 1, 0.0)
    assert runs(got) == runs(expected)
    for chunk in got.chunks:
        events = msgspec.json.decode(b"[" + chunk.json + b"]", type=list[RequestEvent])
        assert [event.seq for event in events] == list(range(chunk.first, chunk.first + chunk.count))
