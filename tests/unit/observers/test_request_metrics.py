"""What the observer of requests counts, and what /metrics makes of it."""

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from observers.channel_muting import ChannelMuting
from observers.event import ROLLUP_BUCKETS
from observers.request_counter import RequestCounter
from observers.request_metrics import RequestMetricsObserver
from observers.request_metrics_stats import (
    MAX_LABELS,
    NATIVE_FIRST,
    NATIVE_LAST,
    ApiStats,
    Durations,
    Exemplar,
    LabelStats,
    RequestStats,
)
from observers.topic_names import TopicNames
from proxy.core.exchange import ItemErrorFacts, ItemErrors, RequestResources
from proxy.telemetry.metrics import render
from proxy.telemetry.snapshot import Snapshot, sum_exited
from tests.unit.observers.samples import connection, exchange, fetch, produce

LISTENER = connection().listener


@pytest.fixture
def counter() -> RequestCounter:
    return RequestCounter(TopicNames(dict), ChannelMuting())


def of_api(counter: RequestCounter, key: int) -> Any:
    return counter.apis()[LISTENER][key]


@pytest.mark.promise("metrics.md", "Requests, bytes, errors by class and durations in parts are counted for each api.")
def test_requests_are_counted_by_api_with_durations_whole_and_in_parts(counter: RequestCounter) -> None:
    times = {"received_at": 100.0, "forwarded_at": 100.001, "responded_at": 100.003, "answered_at": 100.004}
    counter.add_exchanges([exchange(**times), exchange(**times, error_code=29), exchange(api_key=12, error_code=27)])
    metadata, heartbeat = of_api(counter, 3), of_api(counter, 12)
    assert (metadata.requests, metadata.errors, metadata.protocol) == (2, 1, 0)
    assert (heartbeat.requests, heartbeat.errors, heartbeat.protocol) == (1, 0, 1)
    assert (metadata.request_bytes, metadata.response_bytes) == (100, 160)
    four, two = ((2 * us, {bucket_of(us): 2}, {native_bucket_of(us): 2}) for us in (4000, 2000))
    parts = (metadata.latency, metadata.upstream, metadata.sidecar, metadata.service)
    assert [(one.sum_us, one.buckets, one.native) for one in parts] == [four, two, two, four]


def bucket_of(latency_us: int) -> int:
    return sum(end < latency_us for end in ROLLUP_BUCKETS)


def native_bucket_of(latency_us: int) -> int:
    return min(max(math.ceil(8 * math.log2(latency_us / 1e6)), NATIVE_FIRST), NATIVE_LAST)


def test_each_duration_is_in_the_buckets_that_end_at_or_after_it(counter: RequestCounter) -> None:
    ends = [end + step for end in ROLLUP_BUCKETS for step in (-1, 0, 1)]
    native_ends = [int(1e6 * 2 ** (n / 8)) + step for n in range(NATIVE_FIRST, NATIVE_LAST + 2) for step in (-1, 0, 1)]
    for us in {1, *range(1, 300), *ends, *native_ends, 2**33, 2**40} - {0}:
        one = RequestCounter(TopicNames(dict), ChannelMuting())
        one.add_exchanges([exchange(received_at=1.0, answered_at=1.0 + us / 1e6)])
        found = of_api(one, 3).latency
        assert found.sum_us == us
        assert (found.buckets, found.native) == ({bucket_of(us): 1}, {native_bucket_of(us): 1})
    # No time at all is a zero and what found no data or was not forwarded has none.
    counter.add_exchanges([exchange(received_at=1.0, answered_at=1.0)])
    found = of_api(counter, 3).latency
    assert (found.buckets, found.native, found.zeros) == ({0: 1}, {}, 1)
    counter.add_exchanges([fetch([], []), fetch([], [(b"orders", 0, 10, 1, 0)])])
    found = of_api(counter, 1)
    assert (found.requests, sum(found.latency.buckets.values())) == (2, 1)
    own = RequestCounter(TopicNames(dict), ChannelMuting())
    own.add_exchanges([exchange(api_key=key, synthesized=True, error_code=41) for key in range(90)])
    stats = own.apis()[LISTENER].values()
    assert [(one.requests, one.request_bytes, one.latency.buckets) for one in stats] == [(1, 50, {})] * 90
    shown = {s.name for s in samples_of(own)}
    assert "brokerside_request_bytes_total" in shown
    assert not {name for name in shown if "_duration_seconds" in name}


def test_the_newest_request_of_a_bucket_is_its_exemplar(counter: RequestCounter) -> None:
    counter.add_exchanges(
        [
            exchange(connection=connection(id=name), received_at=at, answered_at=at + 0.004)
            for name, at in (("a", 100.0), ("b", 101.0))
        ]
    )
    assert counter.apis(1000.0)[LISTENER][3].exemplars == {bucket_of(4000): ("b", 4000, 1101.004)}


@pytest.mark.promise("changes.md", "A request counts once in errors, by the worst of its items.")
def test_errors_of_items_and_partitions_count_once_by_the_worst(counter: RequestCounter) -> None:
    moved = ItemErrors((ItemErrorFacts(6, "topic", b"t", None, 0, 0, None, None),), 0, 1, 0)
    counter.add_exchanges(
        [exchange(item_errors=moved), produce([(b"orders", n, 10, 1) for n in range(3)], error_code=29)]
    )
    assert (of_api(counter, 3).errors, of_api(counter, 3).retriable) == (0, 1)
    assert (of_api(counter, 0).errors, of_api(counter, 0).retriable) == (1, 0)


def test_the_busiest_principals_topics_and_groups_have_counts_of_their_own(counter: RequestCounter) -> None:
    ask(counter, a=3)
    assert counter.principals() == {"other": LabelStats(3, 0, 150, 240)}
    counter.publish()
    ask(counter, a=2, b=1)
    assert counter.principals() == {"User:a": LabelStats(2, 0, 100, 160), "other": LabelStats(4, 0, 200, 320)}
    some = [
        produce([(b"orders", 0, 70, 7), (b"orders", 1, 30, 3)]),
        fetch([], [(b"orders", 0, 50, 5, 0)]),
        exchange(api_key=12, resources=RequestResources(group_id=b"readers"), error_code=30),
        produce([(b"other", 0, 5, 1)]),  # a topic that is named as all others is one of them
    ]
    for _ in range(2):
        counter.add_exchanges(some)
        counter.publish()
    assert counter.topics() == {"orders": LabelStats(2, 0, 100, 50), "other": LabelStats(4, 0, 110, 50)}
    assert counter.groups()["readers"] == LabelStats(1, 1, 50, 80)


def test_a_request_counts_once_for_each_topic_however_its_partitions_are_ordered(counter: RequestCounter) -> None:
    mixed = [(b"aa", 0, 10, 1, 0), (b"bb", 0, 20, 2, 0), (b"aa", 1, 30, 3, 0), (b"bb", 1, 40, 4, 0)]
    denied = [(b"aa", number, 0, 0, 29) for number in range(3)]
    counter.add_exchanges([fetch([], mixed), fetch([], denied)])
    assert counter.topics() == {"other": LabelStats(3, 1, 0, 100)}
    counter.publish()
    counter.add_exchanges([fetch([], mixed), fetch([], denied)])
    assert counter.topics() == {
        "aa": LabelStats(2, 1, 0, 40),
        "bb": LabelStats(1, 0, 0, 60),
        "other": LabelStats(3, 1, 0, 100),
    }


@pytest.mark.promise("metrics.md", "Labels are bounded whatever clients send, and no count is lost.")
def test_labels_are_bounded_whatever_clients_send(counter: RequestCounter) -> None:
    chance = random.Random(18)
    for turn in range(1, 4):
        some = [
            produce([(f"topic-{chance.randrange(100_000)}".encode(), 0, 1, 1)],
                    connection=connection(principal=f"User:{chance.randrange(100_000)}"))
            for _ in range(10_000)
        ]  # fmt: skip
        counter.add_exchanges(some)
        counter.publish()
        for counts in (counter.principals(), counter.topics()):
            assert len(counts) == MAX_LABELS + 1
            assert sum(one.requests for one in counts.values()) == turn * 10_000
    counter.add_exchanges([exchange(api_key=key) for key in range(1_000, 3_000)])
    assert len(counter.apis()[LISTENER]) < 300, "keys that clients choose share a label"
    samples = [s for s in samples_of(counter) if s.name == "brokerside_request_bytes_total"]
    assert {s.labels["api"]: s.value for s in samples}["unknown"] == 2_000 * 50


def ask(counter: RequestCounter, **times: int) -> None:
    for name, count in times.items():
        counter.add_exchanges([exchange(connection=connection(principal=f"User:{name}"))] * count)


def test_a_busy_one_displaces_an_idle_one_or_the_least_busy_of_those_that_hold_all_places(
    counter: RequestCounter,
) -> None:
    for first in (0, 1):  # one place is idle, and somebody new gets it
        ask(counter, **{f"{number}": 1 for number in range(first, first + MAX_LABELS)})
        counter.publish()
    found = counter.principals()
    assert (len(found), f"User:{MAX_LABELS}" in found, "User:0" in found) == (MAX_LABELS + 1, True, False)
    counter = RequestCounter(TopicNames(dict), ChannelMuting())
    holders = {f"holder{number}": 3 + (number > 0) for number in range(MAX_LABELS)}
    for busy in (0, 0, 0, 100, 100, 100):
        ask(counter, **holders, busy=busy)
        counter.publish()
    found = counter.principals()
    assert (len(found), "User:busy" in found, "User:holder0" in found) == (MAX_LABELS + 1, True, False)


def samples_of(counter: RequestCounter) -> Iterator[Any]:
    observer = RequestMetricsObserver()
    observer.configure({"topic.names": TopicNames(dict)})
    observer._counter = counter
    page = render(Snapshot({}, requests=observer.stats()))
    for family in text_string_to_metric_families(page.decode()):
        yield from family.samples


def stats_of(requests: int, topics: list[str], exemplar: Exemplar) -> RequestStats:
    none = Durations()
    api = ApiStats(requests, 0, 0, 0, 0, 0, none, none, none, none, {5: exemplar})
    return RequestStats({LISTENER: {0: api}}, topics={name: LabelStats(requests, 0, 0, 0) for name in topics})


def test_workers_that_have_exited_have_no_more_names_than_one() -> None:
    exited = Snapshot({})
    for turn in range(20):
        topics = ["orders", *(f"spoof{turn}-{number}" for number in range(MAX_LABELS - 1)), "other"]
        worker = Snapshot({}, requests=stats_of(turn + 1, topics, Exemplar("c", 1, 1.0)))
        exited = sum_exited([exited, worker])
    found = exited.requests.topics
    assert len(found) == MAX_LABELS + 1
    assert found["orders"].requests == sum(range(1, 21))
    assert sum(one.requests for one in found.values()) == sum(range(1, 21)) * (MAX_LABELS + 1)
