"""Groups, what they committed, how far behind they are, and which topics there are."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pytest

from observers.cluster_events import CommittedPartition, EndOffset, EndOffsetsEvent, InventoryEvent, InventoryTopic
from spark_jobs.schemas import COMMITTED_OFFSETS, END_OFFSETS, GROUP_MEMBERS, TRAFFIC
from tests.spark import derived
from tests.spark.decoded import decoded
from tests.spark.derived import after
from tests.spark.envelopes import MINUTE, NOON, encoded, event, group
from tests.spark.stored import Row, merged, rows

SECOND = 1_000_000


def committed(topic: str, partition: int, offset: int, ts: int = NOON) -> CommittedPartition:
    return CommittedPartition(topic, partition, offset, ts)


def ends(*offsets: EndOffset) -> EndOffsetsEvent:
    return EndOffsetsEvent(seq=0, ts=NOON, end_offsets=offsets)


def by(found: Sequence[Row], *names: str) -> dict[Any, Row]:
    made = {tuple(row[name] for name in names): row for row in found}
    assert len(made) == len(found)
    return made


@pytest.mark.promise(
    "tables/group_members.md",
    "A member has one row without a topic, and one for each topic that it committed or fetched.",
)
def test_a_member_has_one_row_and_one_for_each_of_its_topics() -> None:
    """Sums are on the first one alone, also when its offsets came in several events."""
    reported = [
        group(commits=2, committed=(committed("a", 0, 5), committed("a", 1, 7, NOON + 5)), fetched=("b",)),
        group(requests=0, committed=(committed("a", 2, 9),)),
        group(ts_last=NOON + MINUTE, requests=3, generation_id=4, group_type=None),
    ]
    found = by(decoded("group_members", [encoded(*reported)]), "topic")
    whole = found[None,]
    assert (whole.requests, whole.commits, whole.generation_id, whole.group_type) == (15, 2, 4, "classic")
    assert (whole.first_seen, whole.last_seen) == (datetime(2026, 9, 22, 12), datetime(2026, 9, 22, 12, 1))
    assert {topic: (row.requests, row.committed_at is None) for (topic,), row in found.items()} == {
        None: (15, True), "a": (0, False), "b": (0, True),
    }  # fmt: skip


@pytest.mark.promise(
    "tables/committed_offsets.md",
    "`committed_offsets` has the last offset of each minute, also after a group was set back.",
)
def test_the_last_offset_of_a_minute_holds_also_if_it_is_lower() -> None:
    """A group was set back; and batches come in any order."""
    batches = [
        [group(committed=(committed("a", 0, 50, NOON + 2 * SECOND),))],
        [group(committed=(committed("a", 0, 90, NOON + SECOND), committed("a", 1, 4)))],
        [group(committed=(committed("a", 0, 20, NOON + MINUTE),), member_id=None)],
    ]
    made = [row for batch in batches for row in decoded("committed_offsets", [encoded(*batch)])]
    found = [Row(row) for row in merged(COMMITTED_OFFSETS, made)]
    assert {key: row.committed_offset for key, row in by(found, "minute", "partition").items()} == {
        (datetime(2026, 9, 22, 12), 0): 50, (datetime(2026, 9, 22, 12), 1): 4, (datetime(2026, 9, 22, 12, 1), 0): 20,
    }  # fmt: skip


@pytest.mark.promise(
    "tables/end_offsets.md", "`end_offsets` has the last end of a partition that was seen in each minute."
)
def test_the_last_end_of_a_minute_holds() -> None:
    values = [
        encoded(ends(EndOffset("a", 0, 100, NOON + 1), EndOffset("b", 0, 3, NOON))),
        encoded(ends(EndOffset("a", 0, 70, NOON)), broker_id=2),
    ]
    found = decoded("end_offsets", values)
    assert {key: row.end_offset for key, row in by(found, "topic").items()} == {("a",): 100, ("b",): 3}


def member(topic: str | None = None, **changes: Any) -> dict[str, Any]:
    seen = {"first_seen": after(0), "last_seen": after(30), "group_type": "classic", "generation_id": 1}
    who = {"principal": "User:billing", "client_id": "app", "client_ip": "10.0.0.7", "listener": "CLIENT"}
    key = {"day": after(0).date(), "cluster_id": "cluster", "broker_id": 1, "group_id": "invoicing", "member_id": "m1"}
    return {**key, **who, **seen, "topic": topic, **changes}


def fetched(topic: str, **changes: Any) -> dict[str, Any]:
    who = {"principal": "User:billing", "client_id": "app", "client_ip": "10.0.0.7", "listener": "CLIENT"}
    key = {"day": after(0).date(), "minute": after(0), "cluster_id": "cluster", "broker_id": 2, "api": "Fetch"}
    return {**key, **who, "topic": topic, "records": 5, "bytes": 50, **changes}


def sources(members: Sequence[Any], traffic: Sequence[Any]) -> set[tuple[Any, ...]]:
    inputs = {"group_members": rows(GROUP_MEMBERS, *members), "traffic": rows(TRAFFIC, *traffic)}
    return {(row.group_id, row.member_id, row.topic, row.topic_source) for row in derived.rows("groups", inputs)}


@pytest.mark.promise(
    "groups.md", "`topic_source` says whether a commit, a connection or a client shows that a member reads a topic."
)
def test_topics_of_a_member_say_how_they_are_known() -> None:
    members = [
        member(requests=10, commits=2), member("orders", committed_at=after(5)), member("clicks"),
        member(member_id="m2", client_id=None), member(member_id="m3", client_id="other"),
        member(member_id=None, client_id="tool"),
    ]  # fmt: skip
    traffic = [
        fetched("orders"), fetched("late"), fetched("empty", records=0, bytes=0), fetched("written", api="Produce"),
        fetched("nameless", client_id=None), fetched("elsewhere", client_ip="10.0.0.8"),
        fetched("of-a-tool", client_id="tool"), fetched("of-another-day", day=after(100_000).date()),
    ]  # fmt: skip
    assert sources(members, traffic) == {
        ("invoicing", "m1", "orders", "commit"), ("invoicing", "m1", "clicks", "connection"),
        ("invoicing", "m1", "late", "client"), ("invoicing", "m2", "nameless", "client"),
        ("invoicing", "m3", None, None), ("invoicing", None, None, None),
    }  # fmt: skip


@pytest.mark.promise(
    "groups.md", "A topic of a client that was in several groups that day is marked as `shared_client`."
)
def test_a_client_in_two_groups_is_not_taken_for_sure() -> None:
    members = [member(), member("orders", committed_at=after(5)), member(group_id="shipping", member_id="s1")]
    assert sources(members, [fetched("orders"), fetched("parcels")]) == {
        ("invoicing", "m1", "orders", "commit"), ("invoicing", "m1", "parcels", "shared_client"),
        ("shipping", "s1", "orders", "shared_client"), ("shipping", "s1", "parcels", "shared_client"),
    }  # fmt: skip


@pytest.mark.promise(
    "tables/groups.md", "A member has one row a day for each topic, whichever brokers coordinated its group."
)
def test_what_several_brokers_saw_of_a_member_is_added_up() -> None:
    later = {"first_seen": after(-60), "last_seen": after(90), "group_type": "consumer", "generation_id": 4}
    members = [member(requests=10, commits=2), member(broker_id=2, requests=5, commits=1, **later), member("orders")]
    traffic = rows(TRAFFIC, fetched("clicks"))
    found = derived.rows("groups", {"group_members": rows(GROUP_MEMBERS, *members), "traffic": traffic})
    assert {row.topic for row in found} == {"orders", "clicks"}
    for row in found:
        assert (row.requests, row.commits, row.first_seen, row.last_seen) == (15, 3, after(-60), after(90)), row
        assert (row.group_type, row.generation_id, row.principal) == ("consumer", 4, "User:billing"), row


def took(offset: int, at: float, **changes: Any) -> dict[str, Any]:
    minute = after(at).replace(second=0)
    key = {"day": minute.date(), "minute": minute, "cluster_id": "cluster", "group_id": "g", "topic": "t"}
    value = {"committed_offset": offset, "committed_at": after(at), "transactional": False}
    return {**key, "partition": 0, **value, **changes}


def ended(offset: int, at: float, **changes: Any) -> dict[str, Any]:
    minute = after(at).replace(second=0)
    key = {"day": minute.date(), "minute": minute, "cluster_id": "cluster", "topic": "t", "partition": 0}
    return {**key, "end_offset": offset, "end_offset_at": after(at), **changes}


def lags(committed: Sequence[Any], ends: Sequence[Any], since: Any = None) -> list[Any]:
    inputs = {"committed_offsets": rows(COMMITTED_OFFSETS, *committed), "end_offsets": rows(END_OFFSETS, *ends)}
    every = sorted(
        derived.rows("lag", inputs, derived.NO_DEFINITIONS, since),
        key=lambda row: (row.minute, row.group_id, row.partition),
    )
    return [
        (int((row.minute - after(0)).total_seconds()), row.group_id, row.committed_offset, row.end_offset, row.lag)
        for row in every
    ]


@pytest.mark.promise(
    "groups.md", "`lag` has a row for each minute with a commit or an end, with the last known value of both."
)
def test_lag_is_the_last_end_against_the_last_commit() -> None:
    """Minutes without a change have no row; before the first commit there is none; an end may be older."""
    commits = [took(10, 70), took(40, 310), took(7, 70, group_id="slow"), took(1, 70, topic="unseen")]
    found = lags(commits, [ended(5, 10), ended(30, 80), ended(35, 200), ended(99, 80, topic="unread")])
    assert found == [
        (60, "g", 10, 30, 20), (60, "g", 1, None, None), (60, "slow", 7, 30, 23), (180, "g", 10, 35, 25),
        (180, "slow", 7, 35, 28), (300, "g", 40, 35, 0),
    ]  # fmt: skip
    commits = rows(COMMITTED_OFFSETS, took(10, 70, transactional=True), took(40, 310))
    inputs = {"committed_offsets": commits, "end_offsets": rows(END_OFFSETS, ended(30, 80), ended(35, 200))}
    found = sorted(derived.rows("lag", inputs), key=lambda row: row.minute)
    assert [(row.transactional, row.committed_at, row.end_offset_at) for row in found] == [
        (True, after(70), after(80)), (True, after(70), after(200)), (False, after(310), after(200)),
    ]  # fmt: skip


@pytest.mark.promise("groups.md", "Where a newer end is below the last commit, `lag` is NULL, with the reason.")
def test_lag_of_a_topic_that_was_created_again_is_not_known() -> None:
    """Until the group commits again; not where sidecars differ by seconds."""
    commits = rows(COMMITTED_OFFSETS, took(100, 70), took(5, 240))
    ends = rows(
        END_OFFSETS, ended(100, 50), ended(99, 80), ended(20, 130), ended(150, 185), ended(30, 250), ended(50, 310)
    )
    found = sorted(derived.rows("lag", {"committed_offsets": commits, "end_offsets": ends}), key=lambda row: row.minute)
    assert [(row.minute, row.lag, row.unknown_because) for row in found] == [
        (after(60), 0, None), (after(120), None, "end_below_commit"), (after(180), None, "end_below_commit"),
        (after(240), 25, None), (after(300), 45, None),
    ]  # fmt: skip
    [alone] = derived.rows(
        "lag", {"committed_offsets": rows(COMMITTED_OFFSETS, took(1, 0)), "end_offsets": rows(END_OFFSETS)}
    )
    assert (alone.lag, alone.unknown_because) == (None, "no_end")


@pytest.mark.promise("groups.md", "Rows of a group end seven days after its last commit.")
def test_lag_of_a_later_day_starts_from_what_was_committed_before() -> None:
    day = 86_400
    commits = [took(10, 0)]
    written = [ended(20 + number, number * day) for number in range(10)]
    assert lags(commits, written)[-1] == (7 * day, "g", 10, 27, 17)
    since = after(7 * day).date()
    assert [one for one in lags(commits, written, since) if one[0] >= 7 * day] == [(7 * day, "g", 10, 27, 17)]
    assert not [one for one in lags(commits, written, after(8 * day).date()) if one[0] >= 8 * day]


def listed(*topics: InventoryTopic, **changes: Any) -> InventoryEvent:
    values: dict[str, Any] = {"seq": 0, "ts": NOON, "part": 1, "parts": 1, "inventory": topics}
    return InventoryEvent(**{**values, **changes})


@pytest.mark.promise("tables/inventory.md", "`inventory` has one row an hour for each topic that the cluster has.")
def test_the_lists_of_an_hour_are_one_row_for_each_topic() -> None:
    """Of two brokers' sidecars; the topic grew, and one of them knew no ids."""
    first = listed(InventoryTopic("orders", "id-1", 3), InventoryTopic("__offsets", None, 50, True))
    later = {"ts": NOON + 59 * MINUTE, "parts": 2}
    grown = listed(InventoryTopic("orders", None, 6), part=2, **later)
    values = [encoded(first, event()), encoded(grown, listed(part=1, **later), broker_id=2)]
    internal, orders = sorted(decoded("inventory", values), key=lambda row: row.topic)
    assert orders == {
        "day": date(2026, 9, 22), "hour": datetime(2026, 9, 22, 12), "cluster_id": "cluster", "topic": "orders",
        "topic_id": "id-1", "partitions": 6, "internal": False, "part": 2, "parts": 2,
        "first_seen": datetime(2026, 9, 22, 12), "last_seen": datetime(2026, 9, 22, 12, 59), "listings": 2,
    }  # fmt: skip
    assert (internal.topic, internal.internal, internal.partitions, internal.listings) == ("__offsets", True, 50, 1)
