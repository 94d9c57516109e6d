"""Both translators make the same events of the same exchanges, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from observers.batch import Translation
from observers.event import RequestEvent
from observers.translate import MAX_EVENT, Scope, Translator
from proxy.core.exchange import (
    AnsweredPartition,
    Connection,
    Exchange,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
)
from tests.property.audited import API_NAMES, WALL, batches, surroundings
from tests.tools.implementations import compiled, needs_compiled
from tests.unit.observers.samples import compiled_twin

COMPILED: Any = compiled("observers.audit_writer")
pytestmark = needs_compiled


def translator(kind: Any, max_event: int = MAX_EVENT) -> tuple[Any, Scope]:
    names, scope = surroundings()
    return kind(API_NAMES, names, scope, max_event=max_event), scope


def runs(made: Translation) -> list[tuple[int, int, bytes]]:
    """What the chunks hold, those that follow each other joined."""
    joined: list[tuple[int, int, bytes]] = []
    for chunk in made.chunks:
        if joined and joined[-1][0] + joined[-1][1] == chunk.first:
            first, count, json = joined.pop()
            joined.append((first, count + chunk.count, json + b"," + chunk.json))
        else:
            joined.append((chunk.first, chunk.count, chunk.json))
    return joined


@given(batches(), st.sampled_from([0, 700, 3000, MAX_EVENT]))
def test_compiled_events_are_the_pure_ones(told: list[list[Exchange]], max_event: int) -> None:
    pure, pure_scope = translator(Translator, max_event)
    fast, fast_scope = translator(COMPILED.Translator, max_event)
    first = 1
    for exchanges in told:
        expected = pure.translate(exchanges, first, WALL)
        got = fast.translate([compiled_twin(one) for one in exchanges], first, WALL)
        assert runs(got) == runs(expected)
        assert msgspec.structs.replace(got, chunks=[]) == msgspec.structs.replace(expected, chunks=[])
        assert fast_scope.sessions.open == pure_scope.sessions.open
        first = got.last + 1


def test_chunks_of_many_events_hold_what_they_say() -> None:
    connections = [Connection(f"c{n}", "CLIENT", "10.0.0.7", 1, 1.0, f"User:{n}") for n in range(5000)]
    topics = [f"topic-{n}".encode() for n in range(700)]
    exchanges = []
    for n, connection in enumerate(connections):
        sent = tuple(
            ProducedPartition(topics[(n + part) % 700], part, RecordSet(10, 1, 1)) for part in range(n % 11 * (n % 7))
        )
        answered = tuple(AnsweredPartition(part.topic, part.partition, 0, 7 * n) for part in sent[::-1])
        request, response = ProduceRequest(1, 1000, None, sent, False), ProduceResponse(0, answered, False)
        exchanges.append(Exchange(connection, 0, 9, n, None, 1.0, 50, 1.5, 50, "answered", "full", request, response))
    expected = translator(Translator)[0].translate(exchanges, 1, 0.0)
    got = translator(COMPILED.Translator)[0].translate([compiled_twin(one) for one in exchanges], 1, 0.0)
    assert runs(got) == runs(expected)
    for chunk in got.chunks:
        events = msgspec.json.decode(b"[" + chunk.json + b"]", type=list[RequestEvent])
        assert [event.seq for event in events] == list(range(chunk.first, chunk.first + chunk.count))


def test_exchanges_of_a_pure_session_are_translated_as_well() -> None:
    exchanges = [Exchange(Connection("c1", "CLIENT", "10.0.0.7", 1, 1.0, "User:a"), 3, 9, 1, None, 1.0, 50, 1.5, 50)]
    expected = translator(Translator)[0].translate(exchanges, 1, 0.0)
    assert translator(COMPILED.Translator)[0].translate(exchanges, 1, 0.0) == expected
