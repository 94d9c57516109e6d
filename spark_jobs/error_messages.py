"""What Spark says when a query fails, in one sentence for a person."""

from __future__ import annotations

import re

from spark_jobs.errors import JobError

_DATA_LOSS_REASON = re.compile(r"^Reason: (?P<reason>.+?)\.?(?: SQLSTATE.*)?$", re.MULTILINE)
_DATA_LOSS_TEXT = "Some data may have been lost"

_JOB_ERROR = re.compile(r"^spark_jobs\.errors\.JobError: (?P<said>.+)$", re.MULTILINE)

_CONCURRENT_RUN_TEXTS = ("CONCURRENT_STREAM_LOG_UPDATE", "ConcurrentTransactionException", "CONCURRENT_QUERY")


def explain_spark_error(text: str, topic: str, checkpoint: str) -> JobError | None:
    """Return what failed by the ``text`` of Spark's error, None if there are no better words for it."""
    own = _JOB_ERROR.search(text)
    if own:  # raised while a batch was written, and told by Spark with a traceback
        return JobError(own["said"])
    if _DATA_LOSS_TEXT in text:
        found = _DATA_LOSS_REASON.search(text)
        reason = found["reason"] if found else "Kafka no longer has them"
        return JobError(
            f"records of {topic} were deleted before this job read them: {reason}; to go on without them, begin"
            f" anew with another folder for the tables and for the checkpoint {checkpoint}"
        )
    if "UnknownTopicOrPartitionException" in text:
        return JobError(f"the topic {topic} is gone; sidecars create it again, but what it held is lost")
    if any(mark in text for mark in _CONCURRENT_RUN_TEXTS):
        return JobError(f"another run of this job uses the checkpoint {checkpoint}; end one of them")
    return None
