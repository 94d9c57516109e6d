"""What a rollup contains; that it is the sum of single events: tests/property/test_rollup.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from observers.audit_filter import AuditFilter
from observers.event import ROLLUP_BUCKETS, RollupEvent
from observers.fetch_sessions import SHARE_FETCH
from observers.rollup import TOPICS_PER_ROLLUP_EVENT
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.names import clip
from tests.unit.observers.samples import FETCH, TOPIC_ID, connection, exchange, fetch, produce


def make(**bounds: int) -> RollupAggregator:
    names = TopicNames(lambda: {TOPIC_ID: "orders"}, clock=lambda: 0.0, sleep=lambda seconds: None)
    audit_filter = AuditFilter(names, topics={"audit"}, principals={"User:probe"})
    return RollupAggregator({0: "Produce", 1: "Fetch", 3: "Metadata"}, names, audit_filter, **bounds)


def roll(*exchanges: Exchange) -> list[RollupEvent]:
    """The rollups of exchanges."""
    rollup = make()
    assert rollup.add_exchanges(exchanges, 0, 1_700_000_000.0).until == len(exchanges)
    return rollup.drain()


@pytest.mark.promise("audit-event.md", "A rollup sums the requests of one minute, client, api and version.")
def test_requests_of_one_client_add_up() -> None:
    others = {"connection": connection(id="c2"), "received_at": 101.0, "answered_at": 101.002, "throttle_ms": 30}
    assert roll(exchange(), exchange(**others), exchange(error_code=3)) == [
        RollupEvent(
            seq=0,
            minute=1_700_000_100_000_000 // 60_000_000 * 60_000_000,
            listener="CLIENT",
            api_key=3,
            api="Metadata",
            principal="User:ANONYMOUS",
            client_ip="10.0.0.7",
            requests=3,
            request_bytes=150,
            client_id="app",
            api_version=12,
            response_bytes=240,
            errors=1,
            throttle_ms=30,
            latencies=(0,) * 10 + (3,),
            upstream_latencies=(3,),
        )
    ]


def test_very_many_topics_take_several_events_that_all_say_who_it_was() -> None:
    client = connection(client_software_name="k" * 300, client_software_version="2.0")
    count = 2 * TOPICS_PER_ROLLUP_EVENT + 1
    events = roll(produce([(b"%d" % n, 0, 1, 1) for n in range(count)], api_version=-3, connection=client))
    assert [len(event.per_topic) for event in events] == [TOPICS_PER_ROLLUP_EVENT, TOPICS_PER_ROLLUP_EVENT, 1]
    assert [(event.requests, event.request_bytes, len(event.latencies)) for event in events] == [
        (1, 50, 11), (0, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert {(one.api_version, one.client_software_name, one.client_software_version) for one in events} == {
        (-3, clip("k" * 300), "2.0")
    }
    assert len({(event.minute, event.api, event.principal, event.client_id) for event in events}) == 1
    assert len({topic.topic for event in events for topic in event.per_topic}) == count


@pytest.mark.promise("audit-format.md", "A rollup has a histogram of latencies.")
def test_a_latency_is_in_the_bucket_that_ends_with_it() -> None:
    at = {"received_at": 0.0, "forwarded_at": 64.0}  # exact to a fraction of a µs
    for bucket in (0, 1, 20, 38):
        end = ROLLUP_BUCKETS[bucket] / 1e6
        (event,) = roll(exchange(**at, answered_at=end, responded_at=64.0 + end))
        assert (len(event.latencies), len(event.upstream_latencies)) == (bucket + 1, bucket + 1), bucket
        (event,) = roll(exchange(**at, answered_at=end + 1e-6, responded_at=64.0 + end + 1e-6))
        assert (len(event.latencies), len(event.upstream_latencies)) == (bucket + 2, bucket + 2), bucket


def test_what_a_fetch_let_the_broker_wait_for_is_no_service() -> None:
    """Service that is the latency is left out."""
    got = [(b"a", 0, 50, 2, 0)]
    for key in (FETCH, SHARE_FETCH):
        for wait, service in ((-5, ()), (0, ()), (1, ()), (1_000, (0,) * 28 + (1,)), (2_000, (1,)), (2**31 - 1, (1,))):
            one = fetch([(b"a", 0)], got, max_wait_ms=wait, api_key=key, answered_at=102.0)
            (event,) = roll(one)  # answered after two seconds
            for rolled_up in (event, event.per_topic[0]):
                assert rolled_up.latencies == (0,) * 30 + (1,), (key, wait)
                assert rolled_up.service_latencies == service, (key, wait)
    for one in (produce([(b"a", 0, 1, 1)]), fetch([(b"a", 0)], [], outcome="connection_lost")):
        (event,) = roll(one)
        assert {topic.service_latencies for topic in event.per_topic} | {event.service_latencies} == {()}


def test_it_says_when_it_is_full() -> None:
    rolled_up = [exchange(client_id=str(n)) for n in range(5)]
    rollup = make(max_rollups=3)
    assert rollup.add_exchanges(rolled_up, 0, 0.0).until == 3
    assert (rollup.full, rollup.requests) == (True, 3)
    assert rollup.add_exchanges(rolled_up, 3, 0.0).until == 3, "it takes nothing more"
    assert [event.client_id for event in rollup.drain()] == ["0", "1", "2"]
    assert (rollup.full, rollup.requests) == (False, 0)
    assert rollup.add_exchanges(rolled_up, 3, 0.0).until == 5


def test_what_is_hidden_or_lost_is_counted_apart() -> None:
    rollup = make()
    probe = connection(principal="User:probe")
    lost = [exchange(received_at=float("nan")), exchange(client_id="\ud800")]
    added = rollup.add_exchanges([exchange(connection=probe), *lost, exchange()], 0, 0.0)
    assert (added.hidden, added.failed, added.not_encodable, rollup.requests) == (1, 1, 1, 1)
    for other in (None, SimpleNamespace(api_key=3)):
        with pytest.raises(TypeError):
            make().add_exchanges([exchange(), other], 0, 0.0)
