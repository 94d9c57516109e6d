"""What follows from a collector's response, as OTLP 1 says: delivered, refused, or to be sent again. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec
from msgspec import Struct

from observers.record_sender import FIRST_RETRY_DELAY, LAST_RETRY_DELAY

RETRYABLE_STATUSES = frozenset((429, 502, 503, 504))
"""Status codes after which a request is sent again. After any other one its events are lost."""

CONTENT_TOO_LARGE = 413

MAX_RETRY_AFTER = 300.0
"""Longest time in seconds that a ``Retry-After`` is obeyed."""


class ExportOutcome(Struct, frozen=True):
    """What became of a request. ``reason``: why it failed; None if it is delivered.

    ``retry_after``: after how many seconds it may be sent again; None if it may not. ``lost``: how many events were
    refused; None for all. ``too_large``: whether smaller requests would be accepted.
    """

    reason: str | None = None
    retry_after: float | None = None
    lost: int | None = None
    too_large: bool = False


DELIVERED = ExportOutcome()


class _PartialSuccess(Struct, rename="camel"):
    rejected_log_records: int | str = 0


class _ExportLogsServiceResponse(Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


_decoder = msgspec.json.Decoder(_ExportLogsServiceResponse)


def outcome_of(status: int, headers: Mapping[str, str], body: bytes | None, now: float) -> ExportOutcome:
    """Return what a response says. ``body``: None if it was too large. ``now``: seconds since 1970."""
    if 200 <= status <= 299:
        if body is None:
            return ExportOutcome("response_too_large")
        rejected = _rejected_log_records(body)
        return ExportOutcome("rejected", lost=rejected) if rejected else DELIVERED
    if status in RETRYABLE_STATUSES:
        return ExportOutcome(f"http_{status}", retry_after=_retry_after(headers.get("retry-after", ""), now))
    if status == CONTENT_TOO_LARGE:
        return ExportOutcome("too_large", too_large=True)
    return ExportOutcome(f"http_{status}")


def retry_delay(attempt: int, retry_after: float, jitter: float) -> float:
    """Return the seconds until the next attempt. ``attempt``: from 0. ``jitter``: 0 to 1, by chance."""
    delay: float = min(FIRST_RETRY_DELAY * 2 ** min(attempt, 10), LAST_RETRY_DELAY)
    return max(retry_after, delay * (0.5 + 0.5 * jitter))


def _rejected_log_records(body: bytes) -> int:
    """Return ``partialSuccess.rejectedLogRecords``; 0 if there is none, or the body is no such message."""
    try:
        partial = _decoder.decode(body).partial_success
        return 0 if partial is None else max(0, int(partial.rejected_log_records))
    except ValueError:
        return 0


def _retry_after(text: str, now: float) -> float:
    """Return the seconds of a ``Retry-After``, a number or a date (RFC 9110); 0 for what is neither."""
    try:
        seconds = float(text) if text[:1].isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), MAX_RETRY_AFTER) if math.isfinite(seconds) else 0.0
