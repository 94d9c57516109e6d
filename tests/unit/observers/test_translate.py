"""Which exchanges give no event, how large one is, and what a rollup contains; field by field: tests/property."""

from typing import Any

import msgspec
import pytest

from observers.audit_filter import MAX_HIDDEN_NAMES, AuditFilter
from observers.audit_producer import MAX_RECORD_BYTES
from observers.audit_writer import RequestEventEncoder
from observers.event import ROLLUP_BUCKETS, RequestEvent, RollupEvent
from observers.event_blocks import MAX_BLOCK_BYTES, Block, BlockBuilder, EncodedEvents, RecordWriter
from observers.request_events import MAX_EVENT_BYTES, max_partition_bytes
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from tests.unit.observers.samples import FETCH, TOPIC_ID, connection, exchange, fetch, produce

AUDIT, SECRET = b"audit", b"secret"
API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata"}
HOSTILE = "\x01" * 256  # six bytes of JSON for each byte on the wire
MOST = MAX_EVENT_BYTES // max_partition_bytes(HOSTILE, None)  # partitions of such a topic that one event may have


def names() -> TopicNames:
    return TopicNames(lambda: {TOPIC_ID: "orders"}, clock=lambda: 0.0, sleep=lambda seconds: None)


def audit_filter(**changes: Any) -> AuditFilter:
    values: dict[str, Any] = {"topics": {"audit", "secret"}, "principals": {"User:probe"}}
    return AuditFilter(names(), **{**values, **changes})


def translate(*exchanges: Exchange, first: int = 1) -> EncodedEvents:
    """What becomes of exchanges, numbered from ``first`` on."""
    return RequestEventEncoder(API_NAMES, names(), audit_filter()).encode_exchanges(exchanges, first, 1_700_000_000.0)


def roll(*exchanges: Exchange) -> list[RollupEvent]:
    """The rollups of exchanges."""
    rollup = RollupAggregator(API_NAMES, names(), audit_filter())
    assert rollup.add_exchanges(exchanges, 0, 1_700_000_000.0).until == len(exchanges)
    return rollup.drain()


def seqs(made: EncodedEvents) -> list[int]:
    events = [msgspec.json.decode(b"[%b]" % chunk.json, type=list[RequestEvent]) for chunk in made.chunks]
    assert [(chunk.first, chunk.count) for chunk in made.chunks] == [(some[0].seq, len(some)) for some in events]
    return [one.seq for some in events for one in some]


@pytest.mark.promise("audit-event.md", "What is excluded takes no number, and what is lost keeps its own.")
def test_events_are_numbered_from_the_first_on() -> None:
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


def produced(partitions: int, **changes: Any) -> Exchange:
    return produce([(HOSTILE.encode(), n, 1, 1) for n in range(partitions)], **changes)


def fetched(partitions: int) -> Exchange:
    return fetch([], [(HOSTILE.encode(), n, 0, 0, 3) for n in range(partitions)])


def add_counters(made: EncodedEvents) -> list[Block]:
    builder = BlockBuilder()
    return builder.add_chunks(made.chunks, made.last, 0.0) + builder.complete()


@pytest.mark.promise("audit-event.md", "An event that might need more than 8,000,000 bytes is a gap.")
def test_too_large_an_event_is_lost_alone_with_its_number() -> None:
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


def test_the_largest_event_fits_a_record_that_the_producer_takes() -> None:
    client = connection(principal=HOSTILE, client_software_name=HOSTILE, client_software_version=HOSTILE, id="c" * 50)
    (block,) = add_counters(translate(produced(MOST, connection=client, client_id=HOSTILE)))
    writer = RecordWriter("cluster", 1, "boot", "0.1.0")
    record = writer.encode_record(block.first, block.last, block.json(), level=2, dropped=2**62, sent_at=2**62)
    assert MAX_BLOCK_BYTES < len(record) < MAX_RECORD_BYTES


def test_excluded_principals_and_topics_alone_hide_an_exchange() -> None:
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


def test_what_is_hidden_is_counted_by_what_hides_it() -> None:
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


def test_idle_fetches_of_a_session_on_excluded_topics_are_hidden_too() -> None:
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


# ---- rollups ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("audit-event.md", "A rollup sums the requests of one minute, client, api and version.")
def test_requests_of_one_client_add_up() -> None:
    others = {"connection": connection(id="c2"), "received_at": 101.0, "answered_at": 101.002, "throttle_ms": 30}
    assert roll(exchange(), exchange(**others), exchange(error_code=3)) == [
        RollupEvent(
            seq=0, minute=1_700_000_100_000_000 // 60_000_000 * 60_000_000, listener="CLIENT", api_key=3,
            api="Metadata", principal="User:ANONYMOUS", client_ip="10.0.0.7", requests=3, request_bytes=150,
            client_id="app", api_version=12, response_bytes=240, errors=1, throttle_ms=30,
            latencies=(0,) * 10 + (3,), upstream_latencies=(3,),
        )
    ]  # fmt: skip


@pytest.mark.promise("audit-format.md", "A rollup has a histogram of latencies.")
def test_a_latency_is_in_the_bucket_that_ends_with_it() -> None:
    at = {"received_at": 0.0, "forwarded_at": 64.0}  # exact to a fraction of a µs
    for bucket in (0, 1, 20, 38):
        end = ROLLUP_BUCKETS[bucket] / 1e6
        (event,) = roll(exchange(**at, answered_at=end, responded_at=64.0 + end))
        assert (len(event.latencies), len(event.upstream_latencies)) == (bucket + 1, bucket + 1), bucket
        (event,) = roll(exchange(**at, answered_at=end + 1e-6, responded_at=64.0 + end + 1e-6))
        assert (len(event.latencies), len(event.upstream_latencies)) == (bucket + 2, bucket + 2), bucket
