"""Events of requests, one each or many rolled up: how large one may be, and what both writers say the same way."""

from __future__ import annotations

import structlog

from observers.api import ObservedExchange
from observers.event import encoder

UNKNOWN_RESULT = -1
"""Error code of a partition whose answer could not be read (Kafka's own −1, UNKNOWN_SERVER_ERROR)."""

MAX_EVENT = 8_000_000
"""Bytes that the partitions of one event may need, as ``room_of`` counts them: more than 20,000 of topics with usual
names. A larger event is lost; any other fits a record of ``audit_producer.MAX_RECORD_BYTES``, envelope included."""

PART_ROOM = 320
"""Bytes of a partition in an event besides its texts, more than there can be."""

log = structlog.get_logger("observers")


def room_of(name: str, topic_id: str | None) -> int:
    """Return the bytes that a partition of this topic can need at most in an event."""
    return PART_ROOM + len(encoder.encode(name)) + len(topic_id or "")


def report_failure(exchange: ObservedExchange) -> None:
    """Log the exception at hand, which left ``exchange`` without an event."""
    log.exception("audit_event_failed", api_key=exchange.api_key, api_version=exchange.api_version)
