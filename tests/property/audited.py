"""Exchanges as no client would make them all, for what becomes of them in the audit."""

from collections.abc import Collection
from typing import Any, get_args

from hypothesis import strategies as st

from observers.audit_filter import AuditFilter
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    EMPTY_RECORD_SET,
    AnsweredPartition,
    Connection,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ItemErrorFacts,
    ItemErrors,
    PrincipalSource,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)
from tests.property.strategies import INT16, INT32, INT64

API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata", 18: "ApiVersions", 78: "ShareFetch"}
WALL = 1_795_260_000.25
"""What is added to the times of exchanges."""

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
LARGEST = 2**62
TIMES = st.floats(0, 1e7, allow_nan=False)
MAYBE = st.one_of(st.just(0.0), TIMES)
PARTITIONS = st.one_of(st.integers(0, 3), INT32)


def sizes(largest: int, smallest: int = 0) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(smallest, 2000), st.integers(smallest, largest))


def record_sets(largest: int) -> st.SearchStrategy[RecordSet]:
    filled = st.builds(
        RecordSet,
        sizes(largest, smallest=1),
        st.integers(0, 100),
        st.integers(0, largest),
        SMALL,
        st.one_of(SMALL, INT64),
        st.one_of(SMALL, INT16),
        st.one_of(SMALL, INT32),
        st.one_of(SMALL, INT64),
        st.booleans(),
    )
    return st.one_of(st.just(EMPTY_RECORD_SET), filled)


@st.composite
def bodies(draw: st.DrawFn, key: int, largest: int) -> tuple[Any, Any]:
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
            parts(ProducedPartition, record_sets(largest)),
            ids,
        )
        response: Any = ProduceResponse(draw(INT32), parts(AnsweredPartition, errors, numbers), ids)
    else:
        session, answered = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        wanted = parts(WantedPartition, numbers)
        forgotten = draw(st.lists(st.tuples(topics, PARTITIONS), max_size=draw(st.sampled_from([0, 0, 3]))))
        epoch = draw(st.sampled_from([-1, 0, 1, 1, 2]))
        request = FetchRequest(
            -1, draw(INT32), draw(INT32), session, epoch, wanted, ids, tuple(forgotten), draw(st.sampled_from([0, 1]))
        )
        bounded = st.one_of(SMALL, st.integers(0, min(largest, 2**31 - 1)))
        fetched = parts(
            FetchedPartition, errors, numbers, record_sets(largest), bounded, st.one_of(SMALL, INT32),
            st.one_of(st.integers(-1, 3), bounded),
        )  # fmt: skip
        error = draw(st.one_of(st.just(0), st.sampled_from([70, 71, 122]), INT16))
        response = FetchResponse(draw(INT32), error, answered, fetched, ids)
    return draw(st.sampled_from([request, request, request, None])), draw(
        st.sampled_from([response, response, response, None])
    )


def item_errors(besides: Collection[bytes]) -> st.SearchStrategy[ItemErrors]:
    """Errors of items of a response; the walker makes none for a response without them."""
    names = st.none() | st.sampled_from([name for name in NAMES if name not in besides])
    ids = [topic_id for topic_id in (*IDS, UNKNOWN_ID) if topic_id not in besides]
    one = st.builds(
        ItemErrorFacts, st.sampled_from([29, 6, 79, -1]), st.sampled_from(["topic", "group", "acl"]), names,
        st.none() | st.sampled_from(ids), PARTITIONS, st.integers(0, 3), st.none() | st.just("group"),
        names,
    )  # fmt: skip
    return st.builds(
        ItemErrors, st.lists(one, max_size=3).map(tuple), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)
    ).filter(lambda found: found.failures + found.retriable + found.protocol > 0)


def connections() -> st.SearchStrategy[Connection]:
    return st.builds(
        Connection, TEXTS, st.just("CLIENT"), st.just("10.0.0.7"), st.just(40000), st.just(1.0), TEXTS,
        st.none() | TEXTS, st.none() | TEXTS, st.sampled_from(get_args(PrincipalSource)), st.none() | TEXTS,
    )  # fmt: skip


@st.composite
def batches(draw: st.DrawFn, largest: int = LARGEST, besides: Collection[bytes] = ()) -> list[list[Exchange]]:
    """Batches over a few connections, each of which becomes another one as more is known of its client.

    ``largest``: of the sizes, to keep their sums within 64 bits. ``besides``: what no error of an item names.
    """
    known = draw(st.lists(connections(), min_size=1, max_size=5))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        exchanges = []
        for _ in range(draw(st.integers(0, 6))):
            key = draw(st.sampled_from([0, 0, 1, 1, 78, 3, 18, 30001, -7]))
            request, response = draw(bodies(key, largest)) if key in (0, 1, 78) else (None, None)
            one = Exchange(
                draw(st.sampled_from(known)), key, draw(INT16), draw(INT32), draw(st.none() | TEXTS), draw(TIMES),
                draw(sizes(largest)), draw(TIMES), draw(sizes(largest)),
                draw(st.sampled_from(["answered", "answered", "no_response", "connection_lost"])),
                draw(st.sampled_from(["none", "full", "malformed", "unsupported"])),
                request, response, draw(MAYBE), draw(MAYBE), draw(INT32), draw(INT16), None, None,
                draw(st.sampled_from([False, False, False, True])), 0, draw(st.none() | item_errors(besides)),
            )  # fmt: skip
            assert (one.request, one.response) == (request, response), "facts have what was drawn"
            exchanges.append(one)
        made.append(exchanges)
    return made


def surroundings() -> tuple[TopicNames, AuditFilter]:
    """Names of the topics above, one of them excluded."""
    names = TopicNames(lambda: IDS, clock=lambda: 0.0, sleep=lambda seconds: None)
    return names, AuditFilter(names, topics={"audit"}, principals={"User:probe"})
