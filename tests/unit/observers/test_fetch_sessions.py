"""Fetch sessions, what was polled in them, and how many records an event says that a client takes."""

import random
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.event import RequestEvent
from observers.fetch_sessions import (
    MAX_POLLED_CONNECTIONS,
    MAX_POLLED_TOPICS,
    MAX_TOPIC_NAME_BYTES,
    POLLED_LIST_INTERVAL,
    SESSION_NOT_FOUND_CODES,
    SHARE_FETCH,
    TOPIC_WEIGHT,
    FetchSessions,
)
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import EMPTY_RECORD_SET, FetchedPartition, RecordSet, WantedPartition
from tests.unit.observers.samples import FETCH, TOPIC_ID, connection, exchange, fetch

INVALID_EPOCH = 71


def opened(sessions: FetchSessions, session_id: int, *wanted: tuple[bytes, int], ids: bool = False) -> None:
    sessions.record_fetch(fetch(list(wanted), [], session_epoch=0, answered_session=session_id, ids=ids))


def topics(sessions: FetchSessions, session_id: int) -> set[bytes]:
    return set(sessions.open_sessions[session_id].partitions) if session_id in sessions.open_sessions else set()


def later(session_id: int, *wanted: tuple[bytes, int], forgotten: Any = (), error: int = 0, **changes: Any) -> Exchange:
    """An incremental Fetch."""
    return fetch(
        list(wanted),
        changes.pop("got", []),
        session_id=session_id,
        session_epoch=3,
        answered_session=session_id,
        forgotten=tuple(forgotten),
        answered_error=error,
        **changes,
    )


def test_a_session_ends_with_its_close_its_replacement_or_its_eviction() -> None:
    for ending, left in (
        (fetch([], [], session_id=9, session_epoch=-1), {}),
        (fetch([(b"b", 0)], [], session_id=9, session_epoch=0), {}),
        (later(9, error=SESSION_NOT_FOUND_CODES[0]), {}),
        (later(9, (TOPIC_ID, 0), ids=True), {}),  # a request that mixes ids and names
        (fetch([(b"b", 0)], [], session_id=9, session_epoch=0, answered_session=10), {10: {b"b"}}),
        # What the broker refused changes nothing: who names another's session with a wrong epoch takes nothing away.
        (later(9, (b"b", 0), forgotten=[(b"a", 0)], error=INVALID_EPOCH), {9: {b"a"}}),
        (fetch([(b"b", 0)], [], session_epoch=0, response=None, outcome="connection_lost"), {9: {b"a"}}),
    ):
        sessions = FetchSessions()
        opened(sessions, 9, (b"a", 0))
        sessions.record_fetch(ending)
        assert {each: topics(sessions, each) for each in sessions.open_sessions} == left, ending


@pytest.mark.promise("consumed-records.md", "Remembered fetch sessions are bounded.")
def test_sessions_and_partitions_are_bounded_and_the_longest_unchanged_go_first() -> None:
    sessions = FetchSessions(max_sessions=3, max_partitions=5 + 3 * TOPIC_WEIGHT)
    for session_id in (1, 2, 3):
        opened(sessions, session_id, (b"a", 0))
    sessions.record_fetch(later(1, (b"a", 1)))
    opened(sessions, 4, (b"a", 0))
    assert [bool(topics(sessions, session_id)) for session_id in (1, 2, 3, 4)] == [True, False, True, True]
    sessions.record_fetch(later(4, (b"b", 0)))
    assert [bool(topics(sessions, session_id)) for session_id in (1, 3, 4)] == [True, False, True]
    everything = [(b"a", n) for n in range(5 + 2 * TOPIC_WEIGHT)]
    opened(sessions, 6, *everything, (b"a", 99))
    assert set(sessions.open_sessions) == {1, 4}, "what is more than all of the room costs no other its place"
    opened(sessions, 7, *everything)
    assert topics(sessions, 7) == {b"a"}, "the room was given back"
    sessions.record_fetch(later(7, forgotten=everything[1:]))
    opened(sessions, 8, *everything[TOPIC_WEIGHT + 1 :])
    assert (topics(sessions, 7), topics(sessions, 8)) == ({b"a"}, {b"a"}), "what is forgotten gives it back"
    # Topics that no broker has are not held.
    sessions = FetchSessions()
    opened(sessions, 9, (b"a" * MAX_TOPIC_NAME_BYTES, 0), (b"b" * (MAX_TOPIC_NAME_BYTES + 1), 0))
    sessions.record_fetch(later(9, (b"c" * 32_000, 0)))
    assert topics(sessions, 9) == {b"a" * MAX_TOPIC_NAME_BYTES}


def test_it_says_what_a_broker_would_say() -> None:
    """A broker's own sessions, by its rules, beside ours, over random requests."""
    chance = random.Random(1)
    sessions, broker = FetchSessions(), dict[int, set[tuple[bytes, int]]]()
    everything = [(bytes([letter]), n) for letter in b"abc" for n in range(3)]
    for next_id in range(1, 2000):
        named = chance.sample(everything, chance.randrange(4))
        session_id = chance.choice([0, *broker, *broker, 99_999])
        if chance.random() < 0.1 or not session_id:
            broker.pop(session_id, None)
            epoch = chance.choice([0, 0, -1])
            answered = next_id if epoch == 0 and len(broker) < 20 else 0
            if answered:
                broker[answered] = set(named)
            sessions.record_fetch(
                fetch(named, [], session_id=session_id, session_epoch=epoch, answered_session=answered)
            )
        elif session_id in broker:
            gone = chance.sample(everything, chance.randrange(4))
            broker[session_id] = (broker[session_id] | set(named)) - set(gone)
            sessions.record_fetch(later(session_id, *named, forgotten=gone))
        else:
            sessions.record_fetch(later(session_id, *named, error=SESSION_NOT_FOUND_CODES[0]))
        for known, partitions in broker.items():
            assert topics(sessions, known) == {topic for topic, _ in partitions}


def label(topic: bytes, is_id: bool) -> tuple[str, str | None]:
    return topic.decode(), None


@pytest.mark.promise("audit-event.md", "A fetch lists polled topics that had no records, once a minute.")
def test_topics_that_returned_nothing_are_reported_once_a_minute_the_session_s_included() -> None:
    sessions = FetchSessions()
    opened(sessions, 9, (b"a", 0), (b"b", 0), (b"c", 0))
    got = [(b"a", 0, 100, 3, 0), (b"b", 0, 0, 0, 3)]
    first = later(9, (b"d", 0), got=got, answered_at=100.0)
    sessions.record_fetch(first)
    assert sessions.take_polled_topics(first, label) == ("b", "c", "d")
    assert sessions.take_polled_topics(later(9, answered_at=100.0 + POLLED_LIST_INTERVAL - 1), label) == ()
    got = sessions.take_polled_topics(later(9, answered_at=100.0 + POLLED_LIST_INTERVAL), label)
    assert got == ("a", "b", "c", "d")


def test_each_connection_has_its_own_minute_and_those_remembered_are_bounded() -> None:
    sessions = FetchSessions()
    polled = [fetch([(b"a", 0)], [], connection=connection(id=f"c{n}")) for n in range(MAX_POLLED_CONNECTIONS + 1)]
    for one in polled:
        assert sessions.take_polled_topics(one, label) == ("a",)
    assert sessions.take_polled_topics(polled[-1], label) == ()
    assert sessions.take_polled_topics(polled[0], label) == ("a",), "forgotten, so reported again"
    many = fetch([(b"%d" % n, 0) for n in range(MAX_POLLED_TOPICS + 1)], [])
    listed = FetchSessions().take_polled_topics(many, label)
    assert (len(listed), list(listed)) == (MAX_POLLED_TOPICS, sorted(listed))


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
