"""What an event contains and which exchanges give none; field by field: tests/property/test_audit.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from observers.audit_filter import MAX_HIDDEN_NAMES, AuditFilter
from observers.audit_producer import MAX_RECORD_BYTES
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent, TopicPartition
from observers.event_blocks import MAX_BLOCK_BYTES, Block, BlockBuilder, EncodedEvents, RecordWriter
from observers.fetch_sessions import SHARE_FETCH
from observers.request_events import MAX_EVENT_BYTES, UNKNOWN_ERROR_CODE, max_partition_bytes
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import ItemErrorFacts, ItemErrors, RequestResource, RequestResources
from tests.unit.observers.samples import FETCH, PRINTED_ID, PRODUCE, TOPIC_ID, connection, exchange, fetch, produce

AUDIT, SECRET = b"audit", b"secret"
API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata"}
HOSTILE = "\x01" * 256  # six bytes of JSON for each byte on the wire
MOST = MAX_EVENT_BYTES // max_partition_bytes(HOSTILE, None)  # partitions of such a topic that one event may have

ABOUT = RequestResources(
    tuple(RequestResource("topic", name, None, 0, None, None) for name in (SECRET, b"a", AUDIT)), 3
)
PARTLY_HIDDEN = {
    "produced": (produce([(AUDIT, 0, 1, 1), (b"a", 0, 1, 1), (SECRET, 0, 1, 1), (AUDIT, 1, 1, 1)]), True),
    "fetched": (fetch([], [(AUDIT, 0, 1, 1, 0), (b"a", 0, 1, 1, 0), (SECRET, 0, 0, 0, 3), (AUDIT, 1, 1, 1, 0)]), True),
    "fetched of others": (fetch([(b"a", 0)], [(AUDIT, 0, 1, 1, 0), (SECRET, 0, 1, 1, 0)]), True),
    "named": (exchange(resources=ABOUT), False),
    "named, all of them": (exchange(resources=RequestResources(ABOUT.items[::2], 2)), False),
    "refused": (
        exchange(
            item_errors=ItemErrors(
                tuple(ItemErrorFacts(3, "topic", name, None, 0, 0, None, None) for name in (SECRET, b"a", AUDIT)),
                3, 0, 0,
            )
        ),
        False,
    ),
}  # fmt: skip
"""Exchanges that have an event, in which two excluded topics are missing; whether rollups name such topics."""

Translate = Callable[..., EncodedEvents]
Event = Callable[[Exchange], RequestEvent]


def names() -> TopicNames:
    return TopicNames(lambda: {TOPIC_ID: "orders"}, clock=lambda: 0.0, sleep=lambda seconds: None)


def audit_filter(**changes: Any) -> AuditFilter:
    values: dict[str, Any] = {"topics": {"audit", "secret"}, "principals": {"User:probe"}}
    return AuditFilter(names(), **{**values, **changes})


@pytest.fixture
def translate() -> Translate:
    """Translates exchanges, numbered from ``first`` on."""
    translator = RequestEventEncoder(API_NAMES, names(), audit_filter())

    def call(*exchanges: Exchange, first: int = 1) -> EncodedEvents:
        return translator.encode_exchanges(exchanges, first, 1_700_000_000.0)

    return call


@pytest.fixture
def event(translate: Translate) -> Event:
    """The event of an exchange, with the number 0."""

    def call(one: Exchange) -> RequestEvent:
        (chunk,) = translate(one, first=0).chunks
        return msgspec.json.decode(chunk.json, type=RequestEvent)

    return call


def seqs(made: EncodedEvents) -> list[int]:
    events = [msgspec.json.decode(b"[%b]" % chunk.json, type=list[RequestEvent]) for chunk in made.chunks]
    assert [(chunk.first, chunk.count) for chunk in made.chunks] == [(some[0].seq, len(some)) for some in events]
    return [one.seq for some in events for one in some]


class TestTranslation:
    @pytest.mark.promise("audit-event.md", "What is excluded takes no number, and what is lost keeps its own.")
    def test_events_are_numbered_from_the_first_on(self, translate: Translate) -> None:
        made = translate(*[exchange()] * 250, first=7)
        assert seqs(made) == list(range(7, 257))
        assert (made.last, made.hidden, made.failed, made.not_encodable) == (256, 0, 0, 0)
        made = translate(first=7)
        assert (made.last, made.chunks) == (6, [])
        hidden = [produce([(AUDIT, 0, 1, 1)]), exchange(connection=connection(principal="User:probe"))]
        made = translate(exchange(), *hidden, exchange())
        assert (seqs(made), made.last, made.hidden) == ([1, 2], 2, 2)
        no_text, no_time = exchange(client_id="\ud800"), exchange(received_at=float("nan"))
        made = translate(exchange(), no_text, exchange(), no_text, no_time)
        assert (seqs(made), made.last, made.not_encodable, made.failed) == ([1, 3], 5, 2, 1)

    def test_what_the_sidecar_answers_says_so_and_has_the_result_of_the_answer(
        self, translate: Translate, event: Event
    ) -> None:
        """An empty response is that to an unsupported request. Without a response the connection was closed."""
        (chunk,) = translate(exchange()).chunks
        assert b"synthesized" not in chunk.json
        translated = event(exchange(synthesized=True))
        assert (translated.synthesized, translated.upstream_us, translated.latency_us) == (True, 0, 2000)
        for size, error_code, result in ((8, 0, 35), (18, 0, 0), (18, 31, 31), (0, 0, UNKNOWN_ERROR_CODE)):
            about = RequestResources((RequestResource("feature", b"f", None, 0, None, None),), 1)
            outcome = "answered" if size else "connection_lost"
            answer = {"resources": about, "response_bytes": size, "error_code": error_code, "outcome": outcome}
            answered = event(exchange(api_key=57, synthesized=True, **answer))
            assert [one.error_code for one in answered.resources] == [result], (size, error_code)

    def test_what_becomes_known_of_a_client_is_reported_from_then_on(self, translate: Translate) -> None:
        """And the clients of one connection may differ."""
        client = connection()
        before = translate(exchange(connection=client, client_id="one")).chunks[0].json
        other = translate(exchange(connection=client, client_id="two")).chunks[0].json
        known = connection(principal="User:ann", client_software_name="librdkafka", principal_source="sasl")
        after = translate(exchange(connection=known)).chunks[0].json
        assert (b"User:ANONYMOUS" in before, b"User:ann" in before) == (True, False)
        assert (b"User:ann" in after, b"librdkafka" in after) == (True, True)
        assert (b'"client_id":"one"' in before, b'"client_id":"two"' in other) == (True, True)


def produced(partitions: int, **changes: Any) -> Exchange:
    return produce([(HOSTILE.encode(), n, 1, 1) for n in range(partitions)], **changes)


def fetched(partitions: int) -> Exchange:
    return fetch([], [(HOSTILE.encode(), n, 0, 0, 3) for n in range(partitions)])


def add_counters(made: EncodedEvents) -> list[Block]:
    builder = BlockBuilder()
    return builder.add_chunks(made.chunks, made.last, 0.0) + builder.complete()


class TestSize:
    @pytest.mark.promise("audit-event.md", "An event that might need more than 8,000,000 bytes is a gap.")
    def test_too_large_an_event_is_lost_alone_with_its_number(self, translate: Translate) -> None:
        for kind in (produced, fetched):
            large = kind(MOST + 1)
            made = translate(large, exchange(), large, exchange(), large)
            assert seqs(made) == [2, 4], kind
            assert (made.last, made.too_large, made.failed, made.not_encodable) == (5, 3, 0, 0), kind
            made = translate(kind(MOST))
            (event,) = msgspec.json.decode(b"[%b]" % made.chunks[0].json, type=list[RequestEvent])
            assert (len(event.topics), made.too_large) == (MOST, 0), kind
        hidden = [(AUDIT, n, 1, 1) for n in range(MAX_EVENT_BYTES // max_partition_bytes("audit", None) + 1)]
        made = translate(produce([*hidden, (b"a", 0, 1, 1)]))
        assert (seqs(made), made.too_large) == ([1], 0), "hidden partitions do not count"

    def test_the_largest_event_fits_a_record_that_the_producer_takes(self, translate: Translate) -> None:
        client = connection(
            principal=HOSTILE, client_software_name=HOSTILE, client_software_version=HOSTILE, id="c" * 50
        )
        (block,) = add_counters(translate(produced(MOST, connection=client, client_id=HOSTILE)))
        writer = RecordWriter("cluster", 1, "boot", "0.1.0")
        record = writer.encode_record(block.first, block.last, block.json(), level=2, dropped=2**62, sent_at=2**62)
        assert MAX_BLOCK_BYTES < len(record) < MAX_RECORD_BYTES

    def test_a_large_event_shares_no_record_and_others_stay_below_its_limit(self, translate: Translate) -> None:
        made = translate(*[exchange()] * 50, produced(1000), *[exchange()] * 50)
        assert [(block.first, block.last) for block in add_counters(made)] == [(1, 50), (51, 51), (52, 101)]
        blocks = add_counters(translate(*[produced(140), produced(470)] * 10))
        assert blocks[-1].last == 20
        assert all(block.size <= MAX_BLOCK_BYTES for block in blocks)


class TestEvent:
    def test_what_every_request_reports(self, event: Event) -> None:
        client = connection(
            principal="User:ann", client_software_name="librdkafka", client_software_version="2.16.0", id="c9"
        )
        assert event(exchange(connection=client, decode="none")) == RequestEvent(
            seq=0,
            listener="CLIENT",
            connection_id="c9",
            correlation_id=5,
            api_key=3,
            api="Metadata",
            api_version=12,
            principal="User:ann",
            client_ip="10.0.0.7",
            ts_request=1_700_000_100_000_000,
            latency_us=2000,
            request_bytes=50,
            response_bytes=80,
            client_id="app",
            client_software_name="librdkafka",
            client_software_version="2.16.0",
        )


class TestProduce:
    def test_a_partition_has_the_brokers_error_and_none_is_invented(self, event: Event) -> None:
        parts = [(b"a", 0, 100, 3)]
        assert [t.error_code for t in event(produce(parts, error_code=29)).topics] == [29]
        (topic,) = event(produce([(TOPIC_ID, 0, 100, 3)], ids=True)).topics
        assert (topic.topic, topic.topic_id, topic.error_code) == ("orders", PRINTED_ID, 0)
        for outcome in ("no_response", "connection_lost"):
            got = event(produce(parts, outcome=outcome, response=None))
            assert got.outcome == outcome
            assert got.topics == (
                TopicPartition(topic="a", partition=0, bytes=100, records=3, producer_id=7, base_sequence=3),
            )
        unread = event(produce(parts, response=None, decode="malformed"))
        assert [t.error_code for t in unread.topics] == [UNKNOWN_ERROR_CODE], "not taken for success"
        got = event(exchange(api_key=PRODUCE, decode="malformed"))
        assert (got.api, got.decode, got.acks, got.topics) == ("Produce", "malformed", None, ())
        assert [t.topic for t in event(produce([(SECRET, 0, 9, 1), (b"a", 0, 100, 3)])).topics] == ["a"]


class TestPolled:
    @pytest.fixture
    def polled(self, translate: Translate) -> Callable[[Exchange], tuple[str, ...] | None]:
        """The topics that the event of an exchange says were polled; None where it has no event."""

        def call(one: Exchange) -> tuple[str, ...] | None:
            chunks = translate(one).chunks
            return msgspec.json.decode(chunks[0].json, type=RequestEvent).polled if chunks else None

        return call

    def test_the_session_of_share_fetches_is_the_connections(self, polled: Any) -> None:
        def share(*wanted: tuple[bytes, int], epoch: int, at: float, **changes: Any) -> Exchange:
            return fetch(list(wanted), [], session_epoch=epoch, answered_at=at, api_key=SHARE_FETCH, **changes)

        assert polled(share((b"a", 0), epoch=0, at=101.0)) == ("a",)
        assert polled(share((b"b", 0), epoch=1, at=110.0)) == ()
        assert polled(share(epoch=2, at=170.0)) == ("a", "b")
        assert polled(share(epoch=2, at=170.0, connection=connection(id="c2"))) == ()
        assert polled(share(epoch=-1, at=171.0)) == ()
        assert polled(share(epoch=2, at=240.0)) == ()

    def test_share_fetches_of_excluded_topics_alone_are_hidden_idle_ones_too(self, polled: Any) -> None:
        assert polled(fetch([(AUDIT, 0)], [], session_epoch=0, api_key=SHARE_FETCH)) is None
        assert polled(fetch([], [], session_epoch=1, api_key=SHARE_FETCH)) is None
        assert polled(fetch([(b"a", 0)], [], session_epoch=2, api_key=SHARE_FETCH)) == ("a",)
        assert polled(fetch([], [], session_epoch=3, api_key=SHARE_FETCH)) == ()


class TestScope:
    def test_excluded_principals_and_topics_alone_hide_an_exchange(self) -> None:
        by_id = produce([(TOPIC_ID, 0, 1, 1)], ids=True)
        for one, hides in (
            (exchange(), False),
            (produce([(b"a", 0, 1, 1)]), False),
            (fetch([(b"a", 0)], []), False),
            (fetch([], []), False),
            (exchange(api_key=FETCH, decode="unsupported"), False),  # a body that was not read
            (exchange(connection=connection(principal="User:probe")), True),
            (produce([(AUDIT, 0, 1, 1), (SECRET, 0, 1, 1)]), True),
            (produce([(AUDIT, 0, 1, 1), (b"a", 0, 1, 1)]), False),
            (fetch([(AUDIT, 0)], [(AUDIT, 0, 10, 1, 0)]), True),
            (fetch([(AUDIT, 0)], [], outcome="connection_lost", response=None), True),
            (by_id, False),
        ):
            assert audit_filter().record_and_check_hidden(one) == hides, one
        assert audit_filter(topics={"orders"}).record_and_check_hidden(by_id), "known by its id"

    def test_what_is_hidden_is_counted_by_what_hides_it(self) -> None:
        seen = audit_filter()
        probe = connection(principal="User:probe")
        for one in (
            produce([(AUDIT, 0, 1, 1), (SECRET, 0, 1, 1)]),
            exchange(connection=probe),
            produce([(SECRET, 0, 1, 1)], connection=probe),
            fetch([(SECRET, 0)], [(SECRET, 0, 10, 1, 0)]),
            produce([(SECRET, 0, 1, 1), (b"a", 0, 1, 1)]),
            exchange(),
        ):
            seen.record_and_check_hidden(one)
        assert list(seen.hidden_by().items()) == [("principal User:probe", 2), ("topic audit", 1), ("topic secret", 1)]
        names = [f"User:{number}" for number in range(MAX_HIDDEN_NAMES + 2)]
        seen = audit_filter(principals=names)
        for name in [*names, names[-1]]:
            seen.count_hidden_by_principal(name)
        counts = seen.hidden_by()
        assert (len(counts), counts["other"], counts[f"principal {names[-1]}"]) == (MAX_HIDDEN_NAMES + 1, 2, 2)

    def test_an_event_that_lacks_excluded_topics_is_counted_once_for_each_of_them(self) -> None:
        by_topic = {"topic audit": 2, "topic secret": 2}
        for what, (one, rolled_up) in PARTLY_HIDDEN.items():
            seen = audit_filter()
            made = RequestEventEncoder(API_NAMES, names(), seen).encode_exchanges([one, exchange(), one], 1, 0.0)
            assert (made.last, made.hidden) == (3, 0), what
            assert (seen.partly_hidden, seen.partly_hidden_by()) == (2, by_topic), what
            assert not seen.hidden_by(), what
            seen = audit_filter()
            rollup = RollupAggregator(API_NAMES, names(), seen)
            assert rollup.add_exchanges([one, exchange(), one], 0, 0.0).hidden == 0, what
            assert (seen.partly_hidden, seen.partly_hidden_by()) == ((2, by_topic) if rolled_up else (0, {})), what

    def test_excluded_topics_of_a_poll_are_left_out_once_they_would_be_listed(self) -> None:
        seen = audit_filter()
        polls = [fetch([(b"a", 0), (SECRET, 0)], [], answered_at=at) for at in (101.0, 102.0, 170.0)]
        RequestEventEncoder(API_NAMES, names(), seen).encode_exchanges(polls, 1, 0.0)
        assert (seen.partly_hidden, seen.partly_hidden_by()) == (2, {"topic secret": 2})

    def test_what_has_no_event_is_not_hidden_in_part(self) -> None:
        seen = audit_filter()
        both = [(SECRET, 0, 1, 1), (b"a", 0, 1, 1)]
        lost = [
            produce([(SECRET, 0, 1, 1)]),
            produce(both, connection=connection(principal="User:probe")),
            produce(both, received_at=float("nan")),
            produce(both, client_id="\ud800"),
        ]
        RequestEventEncoder(API_NAMES, names(), seen).encode_exchanges([*lost, exchange()], 1, 0.0)
        RollupAggregator(API_NAMES, names(), seen).add_exchanges([*lost, exchange()], 0, 0.0)
        RequestEventEncoder(API_NAMES, names(), seen, max_event=0).encode_exchanges([produce(both)], 1, 0.0)
        assert (seen.partly_hidden, seen.partly_hidden_by()) == (0, {})

    def test_idle_fetches_of_a_session_on_excluded_topics_are_hidden_too(self) -> None:
        """A consumer of the audit topic must not cause an event each time it finds nothing."""

        def incremental(session: int, epoch: int, *wanted: tuple[bytes, int], got: Any = ()) -> Exchange:
            return fetch(list(wanted), list(got), session_id=session, session_epoch=epoch, answered_session=session)

        seen = audit_filter()
        assert seen.record_and_check_hidden(fetch([(AUDIT, 0)], [], session_epoch=0, answered_session=77))
        assert seen.record_and_check_hidden(incremental(77, 1))
        assert not seen.record_and_check_hidden(incremental(78, 1))
        assert not seen.record_and_check_hidden(incremental(77, 2, (b"a", 0)))
        assert not seen.record_and_check_hidden(incremental(77, 1)), "it now has a topic that is not excluded"
        assert not seen.record_and_check_hidden(fetch([(AUDIT, 0), (b"a", 0)], [], session_epoch=0, answered_session=5))
        assert seen.record_and_check_hidden(incremental(5, 1, got=[(AUDIT, 0, 1, 1, 0)]))
        assert not seen.record_and_check_hidden(incremental(5, 2)), "one that began with a visible topic stays visible"
