"""What a checkpoint may continue with: pure decisions."""

import pytest

from spark_jobs.checkpoint import (
    CheckpointIdentity,
    CheckpointPosition,
    TableState,
    check_identity,
    check_new_checkpoint,
    check_position,
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


@pytest.mark.promise("jobs.md", "A new checkpoint over tables that the same topic already filled is refused.")
def test_tables_may_have_one_new_checkpoint_for_each_topic_of_each_cluster() -> None:
    for writer in (writer_prefix("kafka", "other") + "1", writer_prefix("elsewhere", "audit") + "1"):
        check_new_checkpoint(
            {"traffic": table("t-1", 5, writer), "dead_letters": TableState()}, "kafka", "audit", WHERE
        )
    there = {"traffic": table("t-1", 1), "dead_letters": TableState("d-1", 0)}
    with pytest.raises(
        JobError, match="no checkpoint at /data/checkpoint, but table traffic is already filled from au"
    ):
        check_new_checkpoint(there, "kafka", "audit", WHERE)


@pytest.mark.promise("jobs.md", "A checkpoint of another topic, of another cluster or of other tables is refused.")
def test_a_checkpoint_of_something_else_is_refused() -> None:
    for cluster, topic, stored, only, message in (
        ("kafka", "other", tables(), None, "belongs to the topic audit, not to other"),
        ("elsewhere", "audit", tables(), None, "belongs to the Kafka cluster kafka, not to elsewhere"),
        ("kafka", "audit", tables(), ["traffic"], "fills all tables, not only traffic"),
        ("kafka", "audit", tables(traffic_id="t-2"), None, "table traffic that is another table"),
        ("kafka", "audit", {**tables(), "traffic": TableState()}, None, "table traffic that is missing"),
    ):
        with pytest.raises(JobError, match=message):
            check_identity(IDENTITY, cluster, topic, stored, only, WHERE)


@pytest.mark.promise("jobs.md", "A job goes on from every state that a crash can leave of checkpoint and tables.")
def test_every_state_that_a_crash_can_leave_may_go_on() -> None:
    check(position(-1, -1), tables(-1, -1))  # new
    check(position(0, -1), tables(-1, -1))  # killed before the first write
    check(position(0, -1), tables(0, -1))  # after it
    check(position(7, 7), tables(7, 3))  # at rest
    check(position(8, 7), tables(7, 3))  # killed before a write
    check(position(8, 7), tables(8, 8))  # after both writes
    # A table that gets every batch may be newer than the checkpoint.
    check(position(7, 7), {"traffic": table("t-1", -1), "dead_letters": table("d-1", 7)})


@pytest.mark.promise("jobs.md", "Tables and checkpoint of different moments are refused.")
def test_checkpoint_and_tables_of_different_moments_are_refused() -> None:
    for where, stored, message in (
        (position(-1, -1), tables(7), r"older than the table traffic \(batch -1 against 7\)"),
        (position(6, 6), tables(7), r"older than the table traffic \(batch 6 against 7\)"),
        (position(2, 2), tables(2, 3), r"older than the table dead_letters \(batch 2 against 3\)"),
        (position(7, 7), tables(-1, 6), r"table dead_letters is older than the checkpoint .* \(batch 6 against 7\)"),
        (position(7, 7), tables(6), r"table traffic is older than the checkpoint .* \(batch 6 against 7\)"),
    ):
        with pytest.raises(JobError, match=message):
            check(where, stored)
