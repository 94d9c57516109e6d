"""What a checkpoint may continue with: pure decisions, no Spark."""

from __future__ import annotations

import pytest

from spark_jobs.checkpoint import (
    CheckpointIdentity,
    CheckpointPosition,
    TableState,
    check_identity,
    check_new_checkpoint,
    check_position,
    with_added_tables,
    writer_prefix,
)
from spark_jobs.errors import JobError

WHERE = "/data/checkpoint"
WRITER = writer_prefix("kafka", "audit") + "1"
IDENTITY = CheckpointIdentity(WRITER, "kafka", "audit", {"traffic": "t-1", "dead_letters": "d-1"})


def table(id: str, last_batch: int, writer: str = WRITER) -> TableState:
    return TableState(id, 9, {writer: last_batch} if last_batch >= 0 else {})


def tables(traffic: int = 7, dead: int = 3, *, traffic_id: str = "t-1") -> dict[str, TableState]:
    return {"traffic": table(traffic_id, traffic), "dead_letters": table("d-1", dead)}


def position(planned: int = 7, committed: int = 7) -> CheckpointPosition:
    return CheckpointPosition(planned, committed)


def check(where: CheckpointPosition, stored: dict[str, TableState]) -> None:
    check_position(where, IDENTITY, stored, "traffic", WHERE)


@pytest.mark.parametrize(
    "writer",
    [writer_prefix("kafka", "other") + "1", writer_prefix("elsewhere", "audit") + "1"],
    ids=["topic", "cluster"],
)
def test_tables_may_have_a_new_checkpoint_for_each_topic_of_each_cluster(writer: str) -> None:
    there = {"traffic": table("t-1", 5, writer), "dead_letters": TableState()}
    check_new_checkpoint(there, "kafka", "audit", WHERE)


def test_but_not_two_for_the_same() -> None:
    with pytest.raises(
        JobError, match="no checkpoint at /data/checkpoint, but table traffic is already filled from aud"
    ):
        check_new_checkpoint(
            {"traffic": table("t-1", 1), "dead_letters": TableState("d-1", 0)}, "kafka", "audit", WHERE
        )


def test_a_checkpoint_goes_on_with_its_own_tables() -> None:
    check_identity(IDENTITY, "kafka", "audit", tables(), None, WHERE)
    check_identity(CheckpointIdentity(WRITER, "kafka", "audit", {}, ["slo"]), "kafka", "audit", {}, ["slo"], WHERE)


def test_a_checkpoint_gets_the_tables_that_are_new() -> None:
    before = CheckpointIdentity(WRITER, "kafka", "audit", {"traffic": "t-1"})
    after = with_added_tables(before, {"traffic": "t-1", "latency": "l-1"})
    assert after == CheckpointIdentity(WRITER, "kafka", "audit", {"traffic": "t-1", "latency": "l-1"})


@pytest.mark.parametrize(
    ("cluster", "topic", "stored", "only", "message"),
    [
        ("kafka", "other", tables(), None, "belongs to the topic audit, not to other"),
        ("elsewhere", "audit", tables(), None, "belongs to the Kafka cluster kafka, not to elsewhere"),
        ("kafka", "audit", tables(), ["traffic"], "fills all tables, not only traffic"),
        ("kafka", "audit", tables(traffic_id="t-2"), None, "table traffic that is another table"),
        ("kafka", "audit", {**tables(), "traffic": TableState()}, None, "table traffic that is missing"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    cluster: str, topic: str, stored: dict[str, TableState], only: list[str] | None, message: str
) -> None:
    with pytest.raises(JobError, match=message):
        check_identity(IDENTITY, cluster, topic, stored, only, WHERE)


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
def test_every_state_that_a_crash_can_leave_may_go_on(where: CheckpointPosition, stored: dict[str, TableState]) -> None:
    check(where, stored)


@pytest.mark.parametrize(
    ("where", "stored", "message"),
    [
        (position(-1, -1), tables(7), r"older than the table traffic \(batch -1 against 7\)"),
        (position(6, 6), tables(7), r"older than the table traffic \(batch 6 against 7\)"),
        (position(2, 2), tables(2, 3), r"older than the table dead_letters \(batch 2 against 3\)"),
        (position(7, 7), tables(-1, 6), r"table dead_letters is older than the checkpoint .* \(batch 6 against 7\)"),
        (position(7, 7), tables(6), r"table traffic is older than the checkpoint .* \(batch 6 against 7\)"),
    ],
)
def test_checkpoint_and_tables_of_different_moments_are_refused(
    where: CheckpointPosition, stored: dict[str, TableState], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        check(where, stored)


def test_a_table_that_gets_every_batch_may_be_newer_than_the_checkpoint() -> None:
    check(position(7, 7), {"traffic": table("t-1", -1), "dead_letters": table("d-1", 7)})
