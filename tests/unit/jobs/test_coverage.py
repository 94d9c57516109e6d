"""From when on the sidecars of all brokers saw everything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spark_jobs.computation import add_rows, open_database
from spark_jobs.schemas import COMPLETENESS
from spark_jobs.tables.coverage import COVERAGE
from tests.spark.derived import after, alive
from tests.spark.stored import Row, rows

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
    """The run ends in good order with its last status."""
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
