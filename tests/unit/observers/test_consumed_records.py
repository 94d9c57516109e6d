"""How many records an event says that a client takes of what a fetch returned."""

from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent
from observers.fetch_sessions import SHARE_FETCH
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import EMPTY_RECORD_SET, FetchedPartition, RecordSet, WantedPartition
from tests.unit.observers.samples import FETCH, exchange, fetch

TOPIC = b"orders"
BASE = 100
"""Offset of the first batch returned."""


class Counted(NamedTuple):
    """What an event says of one partition."""

    records: int
    upper_bound: bool = False


def fetched(
    *,
    first: int = 10,
    delta: int = 9,
    records: int = 30,
    aborted: int = 0,
    offset: int | None = 100,
    epoch: int = -1,
    partition: int = 0,
    answered_session: int = 0,
    **changes: Any,
) -> Exchange:
    """A fetch of one partition; ``offset``: where it begins, None where the request does not name the partition."""
    sample = fetch([], [], session_id=7 if epoch > 0 else 0, session_epoch=epoch, answered_session=answered_session)
    wanted = () if offset is None else (WantedPartition(TOPIC, partition, offset),)
    sums = RecordSet(900, 3, records, 2, base_offset=BASE)
    got = FetchedPartition(TOPIC, partition, 0, 1000, sums, first, delta, aborted)
    values: dict[str, Any] = {
        "api_key": FETCH,
        "decode": "full",
        "request": replace(sample.request, partitions=wanted),
        "response": replace(sample.response, partitions=(got,)),
    }
    return exchange(**{**values, **changes})


def counted(*exchanges: Exchange) -> Counted:
    """What the event of the last one says; the rollup of that one alone says the same."""
    names = TopicNames(dict)
    audit_filter = AuditFilter(names, topics=(), principals=())
    encoder = RequestEventEncoder({}, names, audit_filter)
    for one in exchanges:
        (chunk,) = encoder.encode_exchanges([one], 1, 0.0).chunks
    (part,) = msgspec.json.decode(chunk.json, type=RequestEvent).topics
    rollup = RollupAggregator({}, names, audit_filter)
    rollup.add_exchanges(exchanges[-1:], 0, 0.0)
    (topic,) = rollup.drain()[0].per_topic
    assert topic.records == part.records
    assert topic.estimated_records == (part.records if part.upper_bound else 0)
    return Counted(part.records, part.upper_bound)


@pytest.mark.promise("consumed-records.md", "Records before the fetch offset do not count.")
def test_records_before_the_fetch_offset_do_not_count() -> None:
    for offset, records in (
        (0, 30), (BASE, 30), (BASE + 1, 29), (BASE + 9, 21), (BASE + 10, 20), (2**63 - 1, 20),
    ):  # fmt: skip
        assert counted(fetched(offset=offset)) == Counted(records), offset
    for offset, expected in (
        (BASE, Counted(30)),
        (BASE + 1, Counted(30, upper_bound=True)),
        (BASE + 15, Counted(25, upper_bound=True)),  # of the ten records at most five are at the last five offsets
        (BASE + 19, Counted(21, upper_bound=True)),
        (BASE + 20, Counted(20)),
    ):
        assert counted(fetched(delta=19, offset=offset)) == expected, offset


@pytest.mark.promise("consumed-records.md", "Aborted records do not count for who reads committed ones.")
def test_aborted_records_do_not_count() -> None:
    assert counted(fetched(aborted=12)) == Counted(18)
    assert counted(fetched(aborted=10, first=0, offset=BASE + 5)) == Counted(20)
    assert counted(fetched(aborted=12, offset=BASE + 5)) == Counted(13)
    assert counted(fetched(aborted=-1)) == Counted(30, upper_bound=True), "too many transactions"
    assert counted(fetched(aborted=-1, offset=BASE + 4)) == Counted(26, upper_bound=True)


@pytest.mark.promise("consumed-records.md", "In a fetch session the offset that was named last counts.")
def test_the_offset_of_a_session_is_the_one_that_was_named_last() -> None:
    opened = fetched(offset=BASE + 3, epoch=0, answered_session=7)
    silent = fetched(offset=None, epoch=1)
    assert counted(opened) == Counted(27)
    assert counted(opened, silent) == Counted(27)
    assert counted(opened, fetched(offset=BASE + 8, epoch=1), silent) == Counted(22)
    assert counted(opened, silent, silent) == Counted(27)


@pytest.mark.promise("consumed-records.md", "A number of records that is not exact is marked as an upper bound.")
def test_an_offset_that_is_not_known_gives_an_upper_bound() -> None:
    assert counted(fetched(offset=None, epoch=1)) == Counted(30, upper_bound=True)
    assert counted(fetched(request=None)) == Counted(30, upper_bound=True)
    assert counted(fetched(offset=None, epoch=1, first=0)) == Counted(30), "the first batch has nothing for a client"
    assert counted(fetched(offset=None, epoch=1, first=1, delta=0)) == Counted(30), "it has one offset"
    opened = fetched(offset=BASE + 3, epoch=0, answered_session=7, partition=1)
    assert counted(opened, fetched(offset=None, epoch=1)) == Counted(30, upper_bound=True)


@pytest.mark.promise("consumed-records.md", "The records of share fetches are an upper bound.")
def test_share_fetches_give_an_upper_bound_and_an_empty_partition_nothing() -> None:
    assert counted(fetched(api_key=SHARE_FETCH)) == Counted(30, upper_bound=True)
    assert counted(fetched(api_key=SHARE_FETCH, records=0)) == Counted(0)
    empty = FetchedPartition(TOPIC, 0, 3, 1000, EMPTY_RECORD_SET)
    assert counted(fetched(response=replace(fetched().response, partitions=(empty,)))) == Counted(0)
