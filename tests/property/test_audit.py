"""Both translators make the same events of the same exchanges, byte for byte."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from observers.batch import Translation
from observers.event import RequestEvent
from observers.topics import TopicNames
from observers.translate import MAX_EVENT, Scope, Translator
from proxy.core.exchange import (
    EMPTY_RECORD_SET,
    AnsweredPartition,
    Connection,
    Exchange,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    PrincipalSource,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)
from tests.property.strategies import INT16, INT32, INT64
from tests.tools.implementations import compiled, needs_compiled
from tests.unit.observers.samples import compiled_twin

COMPILED: Any = compiled("observers.compiled")
pytestmark = needs_compiled

IDS = {bytes([n]) * 16: name for n, name in enumerate(["orders", "audit", "a" * 300, "näme"])}
UNKNOWN_ID = b"?" * 16
NAMES = [b"orders", b"audit", b"\xff\x00bad", b'quo"te\\', "ünï😀".encode(), b"x" * 400, b""]

# Ends of ranges, defaults and what JSON escapes come up often; lone surrogates are no Unicode text.
TEXTS = st.one_of(
    st.sampled_from(
        ["", "own", "app", "User:probe", '"\\/\b\x1f\x7f\u2028', "x" * 256, "é" * 257, "😀" * 300, "a\ud800"]
    ),
    st.text(max_size=8),
)
SMALL = st.sampled_from([-1, 0, 1])
SIZES = st.one_of(st.integers(0, 2000), st.integers(0, 2**62))
TIMES = st.floats(0, 1e7, allow_nan=False)
MAYBE = st.one_of(st.just(0.0), TIMES)
PARTITIONS = st.one_of(st.integers(0, 3), INT32)


def record_sets() -> st.SearchStrategy[RecordSet]:
    filled = st.builds(
        RecordSet,
        st.one_of(st.integers(1, 2000), st.integers(1, 2**62)),
        st.integers(0, 100),
        st.integers(0, 2**62),
        SMALL,
        st.one_of(SMALL, INT64),
        st.one_of(SMALL, INT16),
        st.one_of(SMALL, INT32),
        st.one_of(SMALL, INT64),
        st.booleans(),
    )
    return st.one_of(st.just(EMPTY_RECORD_SET), filled)


@st.composite
def bodies(draw: st.DrawFn, key: int) -> tuple[Any, Any]:
    """Facts of a request and of its response, each perhaps not read; partitions repeat and come in any order."""
    ids = draw(st.booleans())
    topics = st.sampled_from([*IDS, UNKNOWN_ID] if ids else NAMES)
    errors, numbers = st.one_of(SMALL, INT16), st.one_of(SMALL, INT64)

    def parts(kind: Any, *fields: Any) -> tuple[Any, ...]:
        return tuple(
            draw(st.lists(st.builds(kind, topics, PARTITIONS, *fields), max_size=draw(st.sampled_from([1, 3, 20]))))
        )

    if key == 0:
        request: Any = ProduceRequest(
            draw(SMALL),
            draw(INT32),
            draw(st.none() | st.binary(max_size=9)),
            parts(ProducedPartition, record_sets()),
            ids,
        )
        response: Any = ProduceResponse(draw(INT32), parts(AnsweredPartition, errors, numbers), ids)
    else:
        session, answered = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        wanted = parts(WantedPartition, numbers)
        request = FetchRequest(-1, draw(INT32), draw(INT32), session, draw(st.sampled_from([-1, 0, 1, 2])), wanted, ids)
        fetched = parts(FetchedPartition, errors, numbers, record_sets())
        response = FetchResponse(draw(INT32), draw(errors), answered, fetched, ids)
    return draw(st.sampled_from([request, request, request, None])), draw(
        st.sampled_from([response, response, response, None])
    )


def connections() -> st.SearchStrategy[Connection]:
    return st.builds(
        Connection, TEXTS, st.just("CLIENT"), st.just("10.0.0.7"), st.just(40000), st.just(1.0), TEXTS,
        st.none() | TEXTS, st.none() | TEXTS, st.sampled_from(get_args(PrincipalSource)), st.none() | TEXTS,
    )  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> list[list[Exchange]]:
    """Batches over a few connections, each of which becomes another one as more is known of its client."""
    known = draw(st.lists(connections(), min_size=1, max_size=5))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        exchanges = []
        for _ in range(draw(st.integers(0, 6))):
            key = draw(st.sampled_from([0, 0, 1, 1, 78, 3, 18, 30001, -7]))
            request, response = draw(bodies(key)) if key in (0, 1, 78) else (None, None)
            exchanges.append(
                Exchange(
                    draw(st.sampled_from(known)), key, draw(INT16), draw(INT32), draw(st.none() | TEXTS), draw(TIMES),
                    draw(SIZES), draw(TIMES), draw(SIZES),
                    draw(st.sampled_from(["answered", "answered", "no_response", "connection_lost", "open"])),
                    draw(st.sampled_from(["none", "full", "malformed", "unsupported"])),
                    request, response, draw(MAYBE), draw(MAYBE), draw(INT32), draw(INT16),
                )
            )  # fmt: skip
        made.append(exchanges)
    return made


def translator(kind: Any, max_event: int = MAX_EVENT) -> tuple[Any, Scope]:
    names = TopicNames(lambda: IDS, clock=lambda: 0.0, sleep=lambda seconds: None)
    scope = Scope(names, topics={"audit"}, principals={"User:probe"}, client_ids={"own"})
    return kind({0: "Produce", 1: "Fetch", 3: "Metadata", 18: "ApiVersions"}, names, scope, max_event=max_event), scope


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
        expected = pure.translate(exchanges, first, 1_795_260_000.25)
        got = fast.translate([compiled_twin(one) for one in exchanges], first, 1_795_260_000.25)
        assert runs(got) == runs(expected)
        assert msgspec.structs.replace(got, chunks=[]) == msgspec.structs.replace(expected, chunks=[])
        assert list(fast_scope.sessions) == list(pure_scope.sessions)
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
