"""The tables ``topics``, with from when on the sidecars of all brokers saw everything, and ``quota_advice``."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from proxy.limits.sampled_rate import SampledRate
from spark_jobs.computation import add_rows, open_database
from spark_jobs.schemas import COMPLETENESS, CONNECTIONS, INVENTORY, THROTTLES, TRAFFIC
from spark_jobs.tables.coverage import COVERAGE
from tests.spark import derived
from tests.spark.derived import NOON, after, alive
from tests.spark.stored import Row, rows

Rows = Sequence[dict[str, Any]]

ALWAYS_ON = [*alive(0, 3_600), *alive(0, 3_600, broker=2, boot="b2")]


def made(traffic: Rows, inventory: Rows, completeness: Rows = ALWAYS_ON) -> dict[str, Row]:
    given = {TRAFFIC: traffic, INVENTORY: inventory, COMPLETENESS: completeness}
    found = derived.rows("topics", {table.name: rows(table, *each) for table, each in given.items()})
    assert len({(row.cluster_id, row.topic) for row in found}) == len(found)
    return {row.topic: row for row in found}


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
    sorted_: dict[str, list[str]] = {}
    for name in sorted(found):
        sorted_.setdefault(found[name].state, []).append(name)
    return sorted_


TEN = [f"t{number}" for number in range(10)]
TEN_USED = [produced("t0"), produced("t1"), produced("t2"), consumed("t1"), consumed("t3"), polled("t4")]
TEN_STATES = {"used": ["t0", "t1", "t2", "t3"], "polled_only": ["t4"], "unused": ["t5", "t6", "t7", "t8", "t9"]}


@pytest.mark.promise("tables/topics.md", "`topics` distinguishes used, only polled and unused topics.")
def test_ten_topics_of_which_some_are_used() -> None:
    """Three are produced to, two consumed from, one is only polled, and five are not used at all."""
    found = made([*TEN_USED, did(None, requests=9)], listed(*TEN))
    assert states(found) == TEN_STATES
    assert [name for name in sorted(found) if found[name].last_produced] == ["t0", "t1", "t2"]
    assert [name for name in sorted(found) if found[name].last_consumed] == ["t1", "t3"]
    assert [name for name in sorted(found) if found[name].last_polled] == ["t4"]
    assert {(row.coverage, tuple(row.uncovered_brokers), row.present) for row in found.values()} == {(1.0, (), True)}


@pytest.mark.promise("tables/topics.md", "While a sidecar is silent, no topic is called unused.")
def test_as_long_as_a_sidecar_is_away_nothing_is_called_unused() -> None:
    away = [*alive(0, 3_600), *alive(0, 900, broker=2, boot="b2")]
    found = made(TEN_USED, listed(*TEN), away)
    assert states(found) == {"used": ["t0", "t1", "t2", "t3"], "unknown": ["t4", "t5", "t6", "t7", "t8", "t9"]}
    assert {row.unused_since for row in found.values()} == {after(3_600)}
    found = made(TEN_USED, listed(*TEN), [*away, *alive(1_800, 3_600, broker=2, boot="b3")])
    assert states(found) == TEN_STATES, "once it is back, they are judged since then"
    assert {row.unused_since for row in found.values()} == {after(1_800)}
    assert {(row.coverage, tuple(row.uncovered_brokers)) for row in found.values()} == {(1 - 900 / 7_200, (2,))}


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


def test_where_traffic_is_kept_for_a_shorter_time_it_is_judged_from_there() -> None:
    """Two days of completeness, of which traffic has the second one."""
    day = 86_400
    reported = [{**alive(0, 60)[0], "last_status": after(2 * day)}]
    (row,) = made([did(None, at=day)], listed("t"), reported).values()
    assert (row.since, row.covered_since, row.unused_since) == (after(day / 2),) * 3
    assert row.state == "unused"


HOUR = 3600
DAY = 24 * HOUR


def judged(**cases: list[dict[str, Any]]) -> dict[str, Row]:
    """The rows of many cases at once, each of which is a cluster: by the name of the case."""
    reported = [{**row, "cluster_id": name} for name, case in cases.items() for row in case]
    with open_database() as database:
        add_rows(database, COMPLETENESS, rows(COMPLETENESS, *reported), merged=False)
        found = database.sql(f"WITH {COVERAGE} SELECT * FROM coverage").to_arrow_table().to_pylist()
    return {row["cluster_id"]: Row(row) for row in found}


def ended(run: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*run[:-1], {**run[-1], "ended": True}]


def lost(at: float, first: int, last: int, **changes: Any) -> dict[str, Any]:
    minute = after(at).replace(second=0)
    numbers = {"lost": last - first + 1, "lost_first_seq": first, "lost_last_seq": last}
    key = {"day": minute.date(), "minute": minute, "broker_id": 1, "boot_id": "boot", "reason": "queue_full"}
    return {**key, **numbers, **changes}


def without(run: list[dict[str, Any]], *minutes: int) -> list[dict[str, Any]]:
    """The run without its events of these minutes, though it lived: its numbers are as if there was nothing else."""
    left = [row for number, row in enumerate(run) if number not in minutes]
    at = 0
    for index, row in enumerate(left):
        left[index] = {**row, "first_seq": at + 1, "last_seq": at + row["events"]}
        at += row["events"]
    return left


@pytest.mark.promise(
    "tables/topics.md",
    "A broker without a living sidecar for a minute or more ends the time from which everything was seen.",
)
def test_one_that_was_away_for_a_minute_does_not() -> None:
    cases = {
        # away from second 330 to 389 and to 390, of 1,000
        "restart": ended(alive(0, 330)) + alive(389, 1_000, boot="next"),
        "away": ended(alive(0, 330)) + alive(390, 1_000, boot="next"),
        # from 130 to 430 and from 630 to 700, of 1,000
        "twice": ended(alive(0, 130)) + ended(alive(430, 630, boot="b")) + alive(700, 1_000, boot="c"),
        # the second of two brokers began at 250 and ended at 750, of 1,000
        "second": alive(0, 1_000) + ended(alive(250, 750, broker=2, boot="b2")),
        # no status of the minutes from 60 to 180: as of 170 it had sent none since 50
        "silent": without(alive(0, 1_000), 1, 2),
        # one of two workers is enough
        "worker": alive(0, 1_000) + ended(alive(0, 300, boot="w2")) + alive(600, 1_000, boot="w3"),
    }
    found = judged(**cases)
    assert {name: row.coverage for name, row in found.items()} == pytest.approx(
        {
            "restart": 1.0, "away": 1 - 60 / 1_000, "twice": 1 - 370 / 1_000, "second": 1 - 500 / 2_000,
            "silent": 1 - 130 / 1_000, "worker": 1.0,
        },
        abs=1e-12,
    )  # fmt: skip
    assert found["restart"].coverage == found["worker"].coverage == 1.0
    assert {name: (row.covered_since, row.uncovered_brokers) for name, row in found.items()} == {
        "restart": (after(0), []), "away": (after(390), [1]), "twice": (after(700), [1]), "second": (after(1_000), [2]),
        "silent": (after(180), [1]), "worker": (after(0), []),
    }  # fmt: skip


@pytest.mark.promise(
    "tables/topics.md", "A broker whose sidecar was stopped cleanly counts as decommissioned a day later."
)
def test_a_broker_that_was_taken_down_a_day_ago_is_not_missed() -> None:
    """The statuses of broker 1 from noon on, of which those in between are as one."""
    on = [{**row, "last_status": after(2 * DAY)} for row in alive(0, 60)]
    second = alive(0, 600, broker=2, boot="b2")
    found = judged(
        ended=on + ended(second),
        killed=on + second,
        half_a_day=[{**row, "last_status": after(DAY / 2)} for row in alive(0, 60)] + ended(second),
        back=on + ended(second) + alive(DAY * 2 - 600, DAY * 2, broker=2, boot="b3"),
    )
    assert {name: (row.uncovered_brokers, row.covered_since) for name, row in found.items()} == {
        "ended": ([], after(0)), "killed": ([2], after(2 * DAY)), "half_a_day": ([2], after(DAY / 2)),
        "back": ([2], after(2 * DAY - 600)),
    }  # fmt: skip


def test_a_clock_that_was_ahead_for_a_minute_makes_nobody_silent() -> None:
    """Its statuses of the seconds from 300 to 350 are dated a year ahead."""
    run, year = alive(0, 1_000), timedelta(days=365)
    ahead = {**run[5], **{name: run[5][name] + year for name in ("day", "minute", "last_status")}}
    found = judged(ahead=[*run[:5], ahead, *run[6:], *alive(0, 1_000, broker=2, boot="b2")])
    assert (found["ahead"].as_of, found["ahead"].covered_since) == (after(1_000), after(360))
    assert found["ahead"].uncovered_brokers == [1]  # from 290 to 360 it sent none in time


@pytest.mark.promise("tables/topics.md", "Lost or missing events begin the time anew from which everything was seen.")
def test_what_was_lost_was_not_seen() -> None:
    run = alive(0, 1_000)
    fewer = [*run[:3], {**run[3], "events": run[3]["events"] - 2}, *run[4:]]
    cases = {
        "reported": [*fewer, lost(250, 20, 21)],
        # members of groups beyond the bounds of an interval
        "groups": [*fewer, lost(250, 20, 21, reason="interval_full")],
        "missing": fewer,
        "disputed": [*run[:4], {**run[4], "conflicts": 1}, *run[5:]],
        # its numbers are reported by the next run
        "killed": [*alive(0, 330), *alive(350, 1_000, boot="next"), lost(360, 34, 40, reason="killed")],
        "killed_in_silence": [*alive(0, 330), *alive(350, 1_000, boot="next")],
        # sent in minute 9 from a spool
        "filled": [*fewer, {**lost(540, 0, 0), "reason": None, "events": 2, "first_seq": 20, "last_seq": 21, "lost": 0,
                            "lost_first_seq": None, "lost_last_seq": None}],
        # of the last minute: they may still come
        "on_the_way": [*run[:-1], {**run[-1], "events": run[-1]["events"] - 1}],
        # it began long before the oldest row that is kept
        "older": [{**row, "started_at": after(-9 * HOUR), "first_seq": row["first_seq"] + 900,
                   "last_seq": row["last_seq"] + 900} for row in run],
        "older_and_missing": [{**row, "started_at": after(-9 * HOUR), "first_seq": row["first_seq"] + 900,
                               "last_seq": row["last_seq"] + 900} for row in fewer],
        "ended": ended(alive(0, 330)) + alive(350, 1_000, boot="next"),
    }  # fmt: skip
    found = judged(**cases)
    assert {name: row.covered_since for name, row in found.items() if row.covered_since > row.since} == {
        "reported": after(300), "disputed": after(300), "missing": after(240), "killed": after(420),
        "killed_in_silence": after(390), "older_and_missing": after(240),
    }  # fmt: skip
    assert {name: row.uncovered_brokers for name, row in found.items() if row.uncovered_brokers} == {
        name: [1] for name in ("reported", "disputed", "missing", "killed", "killed_in_silence", "older_and_missing")
    }
    assert {row.coverage for row in found.values()} == {1.0}


RATE, NUMBER = "connection_creation_rate", "connections"


def opened(at: float, until: float | None = None, **changes: Any) -> dict[str, Any]:
    key = {"day": after(at).date(), "cluster_id": "cluster", "broker_id": 1, "boot_id": "boot"}
    who = {"listener": "CLIENT", "client_ip": "10.0.0.7", "principal": "User:alice"}
    closed = None if until is None else after(until)
    return {**key, **who, "opened_at": after(at), "closed_at": closed, **changes}


def advised(connections: Rows, throttles: Rows = (), completeness: Rows | None = None) -> dict[tuple[Any, ...], Row]:
    """The rows of the table by cluster, broker, scope, listener and quota; every connection has an id of its own."""
    numbered = [{"connection_id": f"c{number}", **one} for number, one in enumerate(connections)]
    reported = alive(0, 3_600) if completeness is None else completeness
    given = {CONNECTIONS: numbered, THROTTLES: throttles, COMPLETENESS: reported}
    found = derived.rows("quota_advice", {table.name: rows(table, *each) for table, each in given.items()})
    by = {(row.cluster_id, row.broker_id, row.scope, row.listener, row.quota): row for row in found}
    assert len(by) == len(found)
    return by


@pytest.mark.promise(
    "tables/quota_advice.md", "`quota_advice` names rates that would have let through every connection that came."
)
def test_a_rate_is_about_what_the_sidecar_would_have_measured() -> None:
    random = Random(7)
    poisson, at = [], 0.0
    while at < 60_000:
        poisson.append(int(at))
        at += random.expovariate(5) * 1_000
    milliseconds = {
        "even": [130 + 100 * number for number in range(300)], "slow": [2_500 * number for number in range(20)],
        "one": [0], "storm": sorted(random.randrange(3_000) for _ in range(300)), "poisson": poisson,
        "bursts": sorted(random.randrange(200) + 8_000 * burst for burst in range(5) for _ in range(40)),
    }  # fmt: skip
    reported = [opened(ms / 1_000, cluster_id=name) for name, all_ms in milliseconds.items() for ms in all_ms]
    found = advised(reported)
    for name, all_ms in milliseconds.items():
        row = found[name, 1, "broker", None, RATE]
        seconds = Counter(ms // 1_000 for ms in all_ms)
        of_window = {second: sum(seconds[second - back] for back in range(11)) for second in seconds}
        assert row.peak == max(of_window.values()) / 10, name
        sidecar, measured = SampledRate(11, 1_000), 0.0
        for ms in all_ms:
            sidecar.record(1, ms)
            measured = max(measured, sidecar.per_second(ms))
        assert 0.9 <= row.peak / measured <= 1.11, name
        assert row.advice == max(1, math.ceil(row.peak * 1.5)) >= measured, name
        ordered = sorted(of_window.values())
        assert row.p99 == ordered[math.ceil(0.99 * len(ordered)) - 1] / 10, name
        assert row.observations == len(all_ms)


@pytest.mark.promise(
    "tables/quota_advice.md",
    "`quota_advice` has the highest number of connections that were open at once, and whose the last one was.",
)
def test_the_number_that_was_open_at_a_time() -> None:
    """3 from second 20 to 30; what ends in an instant makes room for what begins in it."""
    reported = [
        opened(0, 50), opened(10, 30), opened(20, 40, principal="User:bob"), opened(30, 60), opened(40, 41),
        opened(50, 50), opened(55),
    ]  # fmt: skip
    row = advised(reported)["cluster", 1, "ip", None, NUMBER]
    assert row == {
        "day": NOON.date(), "cluster_id": "cluster", "scope": "ip", "broker_id": 1, "listener": None, "quota": NUMBER,
        "config": "max.connections.per.ip", "observations": 7, "since": after(0), "until": after(55), "p99": 3.0,
        "peak": 3.0, "peak_at": after(20), "peak_by": "10.0.0.7 User:bob", "throttled": 0, "advice": 5,
    }  # fmt: skip


@pytest.mark.promise(
    "tables/quota_advice.md", "`quota_advice` has a value for each limit of the sidecar, by broker and for all of them."
)
def test_each_limit_counts_its_own() -> None:
    reported = [
        *[opened(0) for _ in range(4)],
        *[opened(0, listener="TLS", client_ip="10.0.0.8", principal="User:bob") for _ in range(5)],
        *[opened(0, listener="TLS", client_ip="10.0.0.9") for _ in range(3)],
        *[opened(0, broker_id=2, boot_id="b2", client_ip="10.0.0.9") for _ in range(10)],
    ]
    found = advised(reported)
    numbers = {key[1:4]: row.peak for key, row in found.items() if key[4] == NUMBER}
    assert numbers == {
        (1, "broker", None): 12, (1, "listener", "CLIENT"): 4, (1, "listener", "TLS"): 8, (1, "ip", None): 5,
        (2, "broker", None): 10, (2, "listener", "CLIENT"): 10, (2, "ip", None): 10, (None, "broker", None): 12,
        (None, "listener", "CLIENT"): 10, (None, "listener", "TLS"): 8, (None, "ip", None): 10,
    }  # fmt: skip
    assert {key[1:4]: row.peak for key, row in found.items() if key[4] == RATE} == {
        key: number / 10 for key, number in numbers.items()
    }
    assert {row.config for row in found.values()} == {
        "max.connection.creation.rate", "max.connections", "listener.name.client.max.connection.creation.rate",
        "listener.name.client.max.connections", "listener.name.tls.max.connection.creation.rate",
        "listener.name.tls.max.connections", "ips.<default>.connection_creation_rate", "max.connections.per.ip",
    }  # fmt: skip
    who = {key[1]: row.peak_by for key, row in found.items() if key[2:] == ("ip", None, NUMBER)}
    assert who == {1: "10.0.0.8 User:bob", 2: "10.0.0.9 User:alice", None: "10.0.0.9 User:alice"}
    assert found["cluster", None, "broker", None, NUMBER].observations == 22


def test_one_whose_end_was_not_reported_is_open_as_long_as_its_sidecar_ran() -> None:
    """Three at second 5; then one each at second 1,000, when the first run may be gone."""
    cases = {
        "alive": alive(0, 3_600),
        "killed": [*alive(0, 330), *alive(400, 3_600, boot="next")],
        "ended": [*alive(0, 330, ended=True), *alive(335, 3_600, boot="next")],
        "worker": [*alive(0, 3_600), *alive(0, 3_590, boot="next")],
    }
    reported = [opened(5, cluster_id=name) for name in cases for _ in range(3)]
    reported += [opened(1_000, 1_001, cluster_id=name, boot_id="next") for name in cases]
    seen = [{**row, "cluster_id": name} for name, case in cases.items() for row in case]
    found = advised(reported, completeness=seen)
    assert {name: found[name, 1, "broker", None, NUMBER].peak for name in cases} == {
        "alive": 4, "killed": 3, "ended": 3, "worker": 4,
    }  # fmt: skip


def test_one_that_says_it_was_open_for_30_000_years_does_not_count() -> None:
    """Its row would be of a day that Python does not have, and the table could not be computed."""
    assert not advised([opened(0, 90, opened_at=None, duration_ms=10**15)])


def test_connections_that_met_a_limit_of_the_kind() -> None:
    def throttled(scope: str, count: int, *, at: float = 10, **changes: Any) -> dict[str, Any]:
        key = {"day": NOON.date(), "minute": NOON, "cluster_id": "cluster", "broker_id": 1, "listener": "CLIENT"}
        reported = {
            "first_at": after(at), "last_at": after(at) + timedelta(seconds=1), "client_ip": "*", "action": "hold",
        }  # fmt: skip
        return {**key, **reported, "scope": scope, "quota": RATE, "count": count, **changes}

    reported = [
        throttled("broker", 1), throttled("broker", 2, listener="TLS"), throttled("broker", 4, broker_id=2),
        throttled("listener", 8), throttled("listener", 16, listener="TLS"), throttled("ip", 32),
        throttled("ip", 64, action="observe"), throttled("ip", 128, quota=NUMBER), throttled("broker", 256, at=100),
        throttled("broker", 512, cluster_id="west"),
    ]  # fmt: skip
    found = advised([opened(0), opened(20), opened(1, broker_id=2, boot_id="b2")], reported)
    assert {key[1:]: row.throttled for key, row in found.items() if row.throttled} == {
        (1, "broker", None, RATE): 3, (None, "broker", None, RATE): 7, (1, "listener", "CLIENT", RATE): 8,
        (None, "listener", "CLIENT", RATE): 8, (1, "ip", None, RATE): 96, (None, "ip", None, RATE): 96,
        (1, "ip", None, NUMBER): 128, (None, "ip", None, NUMBER): 128,
    }  # fmt: skip
