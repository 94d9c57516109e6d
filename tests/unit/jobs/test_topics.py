"""The table ``topics``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from spark_jobs.schemas import COMPLETENESS, INVENTORY, TRAFFIC
from tests.spark import derived
from tests.spark.derived import NOON, after, alive
from tests.spark.stored import Row, rows

Rows = Sequence[dict[str, Any]]

ALWAYS_ON = [*alive(0, 3_600), *alive(0, 3_600, broker=2, boot="b2")]


def made(traffic: Rows, inventory: Rows, completeness: Rows = ALWAYS_ON) -> dict[str, Row]:
    """The rows of the table, by topic."""
    found = topics(traffic, inventory, completeness)
    assert len({(row.cluster_id, row.topic) for row in found}) == len(found)
    return {row.topic: row for row in found}


def topics(traffic: Rows, inventory: Rows, completeness: Rows) -> list[Row]:
    given = {TRAFFIC: traffic, INVENTORY: inventory, COMPLETENESS: completeness}
    return derived.rows("topics", {table.name: rows(table, *each) for table, each in given.items()})


def did(topic: str | None, api: str = "Produce", *, at: float = 600, **changes: Any) -> dict[str, Any]:
    minute = after(at)
    key = {"day": minute.date(), "minute": minute, "cluster_id": "cluster", "api": api, "principal": "User:alice"}
    return {**key, "topic": topic, "topic_requests": 1, **changes}


def produced(topic: str, **changes: Any) -> dict[str, Any]:
    return did(topic, **{"records": 10, "bytes": 100, **changes})


def consumed(topic: str, **changes: Any) -> dict[str, Any]:
    return did(topic, "Fetch", **{"records": 10, "bytes": 100, **changes})


def polled(topic: str, **changes: Any) -> dict[str, Any]:
    return did(topic, "Fetch", **{"polled": 1, "topic_requests": 0, **changes})


def listed(*names: str, at: float = 60, part: int | None = 1, parts: int | None = 1, **changes: Any) -> Rows:
    """One part of a list that was sent ``at``."""
    seen = {"cluster_id": "cluster", "first_seen": after(at), "last_seen": after(at), "listings": 1}
    hour = after(at).replace(minute=0, second=0)
    key = {"day": hour.date(), "hour": hour, "partitions": 3, "internal": False, "part": part, "parts": parts}
    return [{**key, **seen, "topic": name, "topic_id": f"id-{name}", **changes} for name in names]


def states(found: dict[str, Row]) -> dict[str, list[str]]:
    """Names by state."""
    sorted_: dict[str, list[str]] = {}
    for name in sorted(found):
        sorted_.setdefault(found[name].state, []).append(name)
    return sorted_


TEN = [f"t{number}" for number in range(10)]
TEN_USED = [produced("t0"), produced("t1"), produced("t2"), consumed("t1"), consumed("t3"), polled("t4")]


@pytest.mark.promise("tables/topics.md", "`topics` distinguishes used, only polled and unused topics.")
def test_ten_topics_of_which_some_are_used() -> None:
    """Three are produced to, two consumed from, one is only polled, and five are not used at all."""
    found = made([*TEN_USED, did(None, requests=9)], listed(*TEN))
    assert states(found) == {
        "used": ["t0", "t1", "t2", "t3"], "polled_only": ["t4"], "unused": ["t5", "t6", "t7", "t8", "t9"],
    }  # fmt: skip
    assert [name for name in sorted(found) if found[name].last_produced] == ["t0", "t1", "t2"]
    assert [name for name in sorted(found) if found[name].last_consumed] == ["t1", "t3"]
    assert [name for name in sorted(found) if found[name].last_polled] == ["t4"]
    assert {(row.coverage, tuple(row.uncovered_brokers), row.present) for row in found.values()} == {(1.0, (), True)}


def test_after_a_sidecar_was_away_topics_are_judged_since_it_is_back() -> None:
    away = [*alive(0, 3_600), *alive(0, 900, broker=2, boot="b2"), *alive(1_800, 3_600, broker=2, boot="b3")]
    found = made(TEN_USED, listed(*TEN), away)
    assert states(found) == {
        "used": ["t0", "t1", "t2", "t3"], "polled_only": ["t4"], "unused": ["t5", "t6", "t7", "t8", "t9"],
    }  # fmt: skip
    assert {row.unused_since for row in found.values()} == {after(1_800)}
    assert {(row.coverage, tuple(row.uncovered_brokers)) for row in found.values()} == {(1 - 900 / 7_200, (2,))}


@pytest.mark.promise("tables/topics.md", "While a sidecar is silent, no topic is called unused.")
def test_as_long_as_a_sidecar_is_away_nothing_is_called_unused() -> None:
    found = made(TEN_USED, listed(*TEN), [*alive(0, 3_600), *alive(0, 900, broker=2, boot="b2")])
    assert states(found) == {"used": ["t0", "t1", "t2", "t3"], "unknown": ["t4", "t5", "t6", "t7", "t8", "t9"]}
    assert {row.unused_since for row in found.values()} == {after(3_600)}


def test_what_is_known_of_a_topic() -> None:
    traffic = [
        produced("orders", at=60),
        produced("orders", at=120, principal="User:bob", bytes=50),
        produced("orders", at=180, principal="User:eve", records=0, bytes=0, rejected_records=9, rejected_bytes=90),
        consumed("orders", at=240, principal="User:carol", bytes=7),
        did("orders", "ShareFetch", at=300, bytes=8, records=1, principal="User:carol"),
        did("orders", "Fetch", at=360, principal="User:dan", topic_errors=1),
        *(polled("orders", at=at, principal="User:dan") for at in (390, 420)),
    ]
    before = listed("orders", at=-3_600, topic_id="id-before", partitions=1)
    reported = [*before, *listed("orders", at=30), *listed("orders", at=3_000, topic_id=None, partitions=6)]
    (row,) = made(traffic, reported).values()
    assert row == {
        "day": NOON.date(), "cluster_id": "cluster", "topic": "orders", "topic_id": "id-orders", "partitions": 6,
        "internal": False, "present": True, "state": "used", "last_produced": after(120), "last_consumed": after(300),
        "last_polled": after(420), "unused_since": after(300), "producers": ["User:alice", "User:bob"],
        "consumers": ["User:carol"], "produced_bytes": 150, "consumed_bytes": 15, "since": after(0),
        "covered_since": after(0), "coverage": 1.0, "uncovered_brokers": [],
    }  # fmt: skip


def test_records_sent_without_waiting_for_an_answer_are_a_use_and_no_bytes() -> None:
    (row,) = made([did("t", unconfirmed_records=3, unconfirmed_bytes=30)], listed("t")).values()
    assert (row.state, row.last_produced, row.producers, row.produced_bytes) == (
        "used", after(600), ["User:alice"], 0,
    )  # fmt: skip


@pytest.mark.promise("tables/topics.md", "`present` says whether the newest complete inventory has the topic.")
def test_what_is_there_is_said_by_the_newest_complete_list() -> None:
    """The newest list of all lacks its second part; ``gone`` is in neither, and was used once."""
    reported = [*listed("gone", at=0), *listed("a", at=600, part=1, parts=2), *listed("z", at=600, part=2, parts=2),
            *listed("a", "b", at=3_700, part=1, parts=2)]  # fmt: skip
    found = made([produced("gone", at=60), produced("never-listed", at=60)], reported)
    assert {name: row.present for name, row in found.items()} == {
        "gone": False, "a": True, "b": True, "z": True, "never-listed": False,
    }  # fmt: skip
    assert found["gone"].state == "used"
    assert {row.present for row in made([produced("t")], []).values()} == {None}


def test_a_topic_known_by_its_id_alone_is_the_one_that_has_it() -> None:
    found = made(
        [produced("t", at=60), consumed("id:id-t", at=120, principal="User:bob"), consumed("id:strange")],
        listed("t", "other"),
    )
    assert sorted(found) == ["id:strange", "other", "t"]
    assert (found["t"].last_produced, found["t"].last_consumed) == (after(60), after(120))
    assert (found["t"].producers, found["t"].consumers) == (["User:alice"], ["User:bob"])


@pytest.mark.promise("tables/topics.md", "Internal topics are flagged, and never called unused.")
def test_internal_topics_are_flagged_and_never_unused() -> None:
    found = made(
        [consumed("__consumer_offsets"), consumed("__mine")],
        [*listed("__transaction_state", internal=True), *listed("__brokerside_registry", "__brokerside", "quiet")],
    )
    assert {name: (row.internal, row.state) for name, row in found.items()} == {
        "__consumer_offsets": (True, "used"), "__mine": (False, "used"), "__transaction_state": (True, "unknown"),
        "__brokerside_registry": (True, "unknown"), "__brokerside": (False, "unused"), "quiet": (False, "unused"),
    }  # fmt: skip


def test_clusters_are_judged_apart() -> None:
    reported = topics(
        [produced("t"), produced("t", cluster_id="dark")],
        [*listed("u"), *listed("u", cluster_id="west"), *listed("u", cluster_id="dark")],
        [*alive(0, 600), *alive(0, 100, cluster_id="west"), *alive(400, 600, cluster_id="west", boot="b")],
    )
    assert {(row.cluster_id, row.topic): (row.state, row.since) for row in reported} == {
        ("cluster", "t"): ("used", after(0)), ("cluster", "u"): ("unused", after(0)),
        ("west", "u"): ("unused", after(0)), ("dark", "t"): ("used", None), ("dark", "u"): ("unknown", None),
    }  # fmt: skip


def test_where_traffic_is_kept_for_a_shorter_time_it_is_judged_from_there() -> None:
    """Two days of completeness, of which traffic has the second one."""
    day = 86_400
    reported = [{**alive(0, 60)[0], "last_status": after(2 * day)}]
    (row,) = made([did(None, at=day)], listed("t"), reported).values()
    assert (row.since, row.covered_since, row.unused_since) == (after(day / 2),) * 3
    assert row.state == "unused"
