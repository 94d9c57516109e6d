"""Spark's own words, as its versions of today say them, and ours."""

from __future__ import annotations

import pytest

from spark_jobs.error_messages import explain_spark_error

LOST = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Some data may have been lost because they are"
    " not available in Kafka any more;\neither the data was aged out by Kafka or the topic may have been deleted before"
    " all the data in the\ntopic was processed.\nIf you don't want your streaming query to fail on such cases, set the"
    " source option failOnDataLoss to false.\nReason: {reason}\n=== Streaming Query ===\n"
)


@pytest.mark.parametrize(
    "reason",
    [
        "Could not read records in offset [10, 20) for topic partition audit-1",
        "Partition audit-0 offset was changed from 10 to 2",
        "Partitions Set(audit-2) have been deleted",
    ],
)
def test_lost_records_are_named(reason: str) -> None:
    said = str(explain_spark_error(LOST.format(reason=f"{reason}. SQLSTATE: XXKST"), "audit", "/cp"))
    assert said.startswith(f"records of audit were deleted before this job read them: {reason};")
    assert "\n" not in said


def test_a_topic_that_vanished_is_named() -> None:
    said = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic"
    assert str(explain_spark_error(said, "audit", "/cp")).startswith("the topic audit was deleted")


def test_what_the_jobs_say_themselves_is_taken_out_of_the_traceback() -> None:
    said = 'Traceback:\n  File "sink.py", line 40\nspark_jobs.errors.JobError: a backfill is at work\n\n\tat'
    assert str(explain_spark_error(said, "audit", "/cp")) == "a backfill is at work"


def test_what_is_not_known_is_left_to_the_log() -> None:
    assert explain_spark_error("java.lang.OutOfMemoryError: Java heap space", "audit", "/cp") is None
