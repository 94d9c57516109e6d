"""Explains errors of a streaming query, whose text Spark wraps in stack traces, in one sentence."""

from __future__ import annotations

import re

from spark_jobs.errors import JobError

_DATA_LOSS_TEXT = "Some data may have been lost"
_DATA_LOSS_REASON = re.compile(r"^Reason: (?P<reason>.+?)\.?(?: SQLSTATE.*)?$", re.MULTILINE)

_JOB_ERROR = re.compile(r"^spark_jobs\.errors\.JobError: (?P<message>.+)$", re.MULTILINE)

_REFUSED = re.compile(r"\b(?:\w+AuthorizationException|SaslAuthenticationException|SslAuthenticationException): .+")

_CONCURRENT_RUN_TEXTS = ("CONCURRENT_STREAM_LOG_UPDATE", "ConcurrentTransactionException", "CONCURRENT_QUERY")


def explain_spark_error(text: str, topic: str, checkpoint: str) -> JobError | None:
    """Return an error that explains ``text``, the text of Spark's error; None if its cause is not known here."""
    own = _JOB_ERROR.search(text)
    if own:  # raised while a batch was written: Spark reports it with a traceback
        return JobError(own["message"])
    if _DATA_LOSS_TEXT in text:
        found = _DATA_LOSS_REASON.search(text)
        reason = found["reason"] if found else "Kafka no longer has them"
        return JobError(
            f"records of {topic} were deleted before this job read them: {reason}; to continue without them, start over"
            f" with new folders for the tables and for the checkpoint {checkpoint}"
        )
    if "UnknownTopicOrPartitionException" in text:
        return JobError(f"the topic {topic} was deleted; sidecars create it again, but its records are lost")
    if refused := _REFUSED.search(text):
        why = refused[0].strip()
        advice = "; the job needs Read and Describe on it" if why.startswith("TopicAuthorization") else ""
        return JobError(f"the topic {topic} cannot be read: {why}{advice}")
    if any(mark in text for mark in _CONCURRENT_RUN_TEXTS):
        return JobError(f"another run of this job uses the checkpoint {checkpoint}; stop one of them")
    return None
