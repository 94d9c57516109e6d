"""What both writers of request events share: bounds of an event, an error code, and the log line of a failure."""

from __future__ import annotations

import structlog

from observers.api import ObservedExchange
from observers.event import encoder

UNKNOWN_ERROR_CODE = -1
"""Error code of a partition whose answer could not be read (Kafka's own −1, UNKNOWN_SERVER_ERROR)."""

MAX_EVENT_BYTES = 8_000_000
"""Bytes that the partitions of one event may need, as ``max_partition_bytes`` counts: more than 20,000 of topics with
usual names. A larger event is lost. Any other fits a record of ``audit_producer.MAX_RECORD_BYTES``."""

MAX_PARTITION_BASE_BYTES = 320
"""Upper bound in bytes of a partition in an event, without its texts."""

log = structlog.get_logger("observers")


def max_partition_bytes(name: str, topic_id: str | None) -> int:
    """Return the most bytes that a partition of this topic can need in an event."""
    return MAX_PARTITION_BASE_BYTES + len(encoder.encode(name)) + len(topic_id or "")


def log_event_failure(exchange: ObservedExchange) -> None:
    """Log the exception at hand, which left ``exchange`` without an event."""
    log.exception("audit_event_failed", api_key=exchange.api_key, api_version=exchange.api_version)
