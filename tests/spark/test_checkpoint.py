"""What a checkpoint may go on with: pure decisions, no Spark."""

from __future__ import annotations

import pytest

from spark_jobs.checkpoint import Identity, Position, Stored, check_belongs, check_new, check_position
from spark_jobs.errors import JobError

WHERE = "/data/checkpoint"
HOUR = 3600.0
IDENTITY = Identity("writer", "traffic", "audit", {"traffic": "t-1", "dead_letters": "d-1"})


def tables(traffic: int = 7, dead: int = 3, *, traffic_id: str = "t-1") -> dict[str, Stored]:
    return {
        "traffic": Stored(traffic_id, 9, traffic),
        "dead_letters": Stored("d-1", 9, dead),
    }


def position(planned: int = 7, committed: int = 7, planned_at: float = 0.0) -> Position:
    return Position(planned, committed, planned_at)


def check(where: Position, stored: dict[str, Stored], now: float = 0.0) -> None:
    check_position(where, stored, "traffic", WHERE, window_seconds=2 * HOUR, clock=lambda: now)


def test_new_tables_may_have_a_new_checkpoint() -> None:
    check_new({"traffic": Stored("", -1, -1), "dead_letters": Stored("d-1", 0, -1)}, WHERE)


def test_filled_tables_may_not() -> None:
    with pytest.raises(JobError, match="no checkpoint at /data/checkpoint, but table traffic is already filled"):
        check_new({"traffic": Stored("t-1", 1, -1), "dead_letters": Stored("d-1", 0, -1)}, WHERE)


def test_a_checkpoint_goes_on_with_its_own_tables() -> None:
    check_belongs(IDENTITY, "traffic", "audit", tables(), WHERE)


@pytest.mark.parametrize(
    ("job", "topic", "stored", "message"),
    [
        ("cost", "audit", tables(), "is of the job traffic, not of cost"),
        ("traffic", "other", tables(), "is of the topic audit, not of other"),
        ("traffic", "audit", tables(traffic_id="t-2"), "table traffic that is another table"),
        ("traffic", "audit", {**tables(), "traffic": Stored("", -1, -1)}, "table traffic that is missing"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    job: str, topic: str, stored: dict[str, Stored], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        check_belongs(IDENTITY, job, topic, stored, WHERE)


@pytest.mark.parametrize(
    ("where", "stored"),
    [
        (position(-1, -1), tables(-1, -1)),
        (position(0, -1), tables(-1, -1)),
        (position(0, -1), tables(0, -1)),
        (position(7, 7), tables(7, 3)),
        (position(8, 7), tables(7, 3)),
        (position(8, 7), tables(8, 8)),
    ],
    ids=["new", "killed before the first write", "after it", "at rest", "killed before a write", "after both writes"],
)
def test_every_state_that_a_crash_can_leave_may_go_on(where: Position, stored: dict[str, Stored]) -> None:
    check(where, stored)


@pytest.mark.parametrize(
    ("where", "stored", "message"),
    [
        (position(-1, -1), tables(7), r"older than the table traffic \(batch -1 against 7\)"),
        (position(6, 6), tables(7), r"older than the table traffic \(batch 6 against 7\)"),
        (position(2, 2), tables(2, 3), r"older than the table dead_letters \(batch 2 against 3\)"),
        (position(7, 7), tables(6), r"table traffic is older than the checkpoint .* \(batch 6 against 7\)"),
    ],
)
def test_checkpoint_and_tables_of_different_moments_are_refused(
    where: Position, stored: dict[str, Stored], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        check(where, stored)


def test_a_clock_that_is_far_behind_is_refused() -> None:
    check(position(planned_at=10 * HOUR), tables(), now=8 * HOUR)
    with pytest.raises(JobError, match=r"clock is 2\.5 hours behind"):
        check(position(planned_at=10 * HOUR), tables(), now=7.5 * HOUR)
