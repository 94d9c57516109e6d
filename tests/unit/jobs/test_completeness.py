"""The table ``completeness``."""

from __future__ import annotations

from datetime import date, datetime

import pytest

from spark_jobs.events import MAX_SUM
from tests.spark.decoded import decoded
from tests.spark.envelopes import MINUTE, NOON, encoded, event, gap, of_kind, status

NONE_LOST = {"conflicts": 0, "lost": 0, "lost_first_seq": None, "lost_last_seq": None}
NOTHING_ARRIVED = {"envelopes": 0, "events": 0, "first_seq": None, "last_seq": None}
NO_STATUS = {
    "statuses": 0, "last_status": None, "started_at": None, "seen": None, "emitted": None, "delivered": None,
    "hidden": None, "partly_hidden": None, "dropped": None, "waiting": None, "clock_step_ms": 0, "ended": None,
}  # fmt: skip
KEY = {
    "day": date(2026, 9, 22), "minute": datetime(2026, 9, 22, 12), "cluster_id": "cluster", "broker_id": 1,
    "boot_id": "boot", "reason": None, "hidden_by": None,
}  # fmt: skip


@pytest.mark.promise("tables/completeness.md", "A record counts in `completeness` in the minute in which it was sent.")
def test_records_count_in_the_minute_in_which_they_were_sent() -> None:
    values = [
        encoded(event(), event(), event(), first_seq=4),
        encoded(event(), first_seq=7, sent_at=NOON + MINUTE - 1),
        b"poison",
    ]
    (row,) = decoded("completeness", values)
    assert row == {
        **KEY, "envelopes": 2, "events": 4, "first_seq": 4, "last_seq": 7, **NONE_LOST, **NO_STATUS,
        "sidecar_version": "0.1.0",
    }  # fmt: skip


def test_statuses_count_in_their_own_minute_and_the_newest_is_reported() -> None:
    """They were spooled, and sent an hour later."""
    reported = [
        status(clock_step_ms=-5_000, spooled=70),
        status(ts=NOON + 10_000_000, seen=20, emitted=19, delivered=9, hidden=4, partly_hidden=3, queued=0, waiting=2,
               clock_step_ms=7, spooled=30, dropped={"queue_full": 4, "failed": 1}, last=True),
    ]  # fmt: skip
    sent, of_status = sorted(
        decoded("completeness", [encoded(*reported, sent_at=NOON + 60 * MINUTE)]),
        key=lambda row: row.statuses,
    )
    assert (sent.minute, sent.envelopes, sent.events) == (datetime(2026, 9, 22, 13), 1, 2)
    assert of_status == {
        **KEY, **NOTHING_ARRIVED, **NONE_LOST, "statuses": 2, "last_status": datetime(2026, 9, 22, 12, 0, 10),
        "started_at": datetime(2026, 9, 22, 11, 59), "seen": 20, "emitted": 19, "delivered": 9, "hidden": 4,
        "partly_hidden": 3, "dropped": 5, "waiting": 32, "clock_step_ms": 5_007, "ended": True,
        "sidecar_version": "0.1.0",
    }  # fmt: skip


@pytest.mark.promise(
    "queries.md",
    "`hidden` has a row for each principal and topic that configuration hides, with what lacks it in part.",
)
def test_what_configuration_hides_has_rows_of_its_own() -> None:
    """Of each name the highest count holds; what is hidden in part stands beside it."""
    counts = {"principal User:probe": 3, "topic secret": 1}
    values = [encoded(status(hidden=2, hidden_by={"topic secret": 2}), status(hidden=9, hidden_by=counts))]
    rows = [row for row in decoded("completeness", values) if row.statuses or row.hidden is not None]
    assert {row.hidden_by: row.hidden for row in rows} == {None: 9, "principal User:probe": 3, "topic secret": 2}
    assert sum(row.statuses for row in rows) == 2

    reported = status(
        hidden=5, hidden_by={"principal User:probe": 3, "topic secret": 2}, partly_hidden=8,
        partly_hidden_by={"topic secret": 7, "topic audit": 4},
    )  # fmt: skip
    earlier = status(partly_hidden=1, partly_hidden_by={"topic audit": 1})
    rows = [row for row in decoded("completeness", [encoded(earlier, reported)]) if row.statuses or row.hidden_by]
    assert {row.hidden_by: (row.hidden, row.partly_hidden) for row in rows} == {
        None: (5, 8), "principal User:probe": (3, None), "topic secret": (2, 7), "topic audit": (None, 4),
    }  # fmt: skip


def test_a_forged_status_hides_a_bounded_number_of_names() -> None:
    counts = {"n" * 400 + str(number): -number for number in range(200)}
    reported = [encoded(status(hidden_by=counts, partly_hidden_by=counts))]
    rows = decoded("completeness", reported)
    assert {(row.hidden_by, row.hidden, row.partly_hidden) for row in rows if row.hidden_by} == {("n" * 300, 0, 0)}


@pytest.mark.promise("tables/completeness.md", "Lost events are counted with their reason, on the boot that lost them.")
def test_gaps_are_of_the_run_that_lost_the_events() -> None:
    reported = [
        gap(3, 5, lost_boot_id="boot"), gap(9, 9, lost_boot_id="boot"),
        gap(10, 13, lost_boot_id="boot", reason="failed"), gap(100, 102, reason="killed"),
    ]  # fmt: skip
    rows = [row for row in decoded("completeness", [encoded(*reported, first_seq=20)]) if row.reason is not None]
    lost = {(row.boot_id, row.reason): (row.lost, row.lost_first_seq, row.lost_last_seq) for row in rows}
    assert lost == {
        ("boot", "queue_full"): (4, 3, 9), ("boot", "failed"): (4, 10, 13), ("dead", "killed"): (3, 100, 102),
    }  # fmt: skip
    assert {(row.events, row.envelopes, row.statuses, row.minute) for row in rows} == {
        (0, 0, 0, datetime(2026, 9, 22, 12))
    }


@pytest.mark.promise(
    "tables/completeness.md", "Numbers of events that neither arrived nor are reported as lost are missing."
)
def test_what_is_neither_there_nor_lost_is_missing() -> None:
    """20 numbers: 1 to 4 arrived, 5 to 8 are reported as lost, 9 to 17 are missing, 18 to 20 arrived."""
    values = [
        encoded(*[event()] * 4),
        encoded(gap(5, 8, lost_boot_id="boot"), event(), status(), first_seq=18, sent_at=NOON + MINUTE),
    ]
    rows = decoded("completeness", values)
    assert sum(row.events for row in rows) == 7
    assert sum(row.lost for row in rows) == 4
    assert max(row.last_seq for row in rows if row.last_seq) == 20


def test_numbers_that_cannot_be_do_not_end_the_job() -> None:
    values = [
        of_kind(gap(1, 2**63 - 1), "reason", "strange"),
        of_kind(gap(1, 2**63 - 1), "reason", "strange"),
        of_kind(gap(5, 1), "reason", "backwards"),
        of_kind(status(clock_step_ms=-(2**63)), "dropped", {"a": 2**63 - 1, "b": None}),
    ]
    rows = {row.reason: row for row in decoded("completeness", values)}
    assert {reason: rows[reason].lost for reason in ("strange", "backwards")} == {
        "strange": 2 * MAX_SUM,
        "backwards": 0,
    }
    assert (rows[None].clock_step_ms, rows[None].dropped) == (MAX_SUM, MAX_SUM)
