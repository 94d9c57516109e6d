"""Encodes and numbers events that are neither of requests nor of connections. No IO, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import structlog

from observers.api import ThrottleReport
from observers.event import (
    ThrottleAction,
    ThrottleEvent,
    ThrottleQuota,
    ThrottleScope,
    encoder,
)
from observers.event_blocks import Chunk, EncodedEvents

log = structlog.get_logger("observers")

Observation = TypeVar("Observation")


def encode_throttle_reports(reports: Sequence[ThrottleReport], first: int, wall_offset: float) -> EncodedEvents:
    """Return the events of ``reports``, numbered from ``first`` on.

    ``wall_offset``: seconds to add to their times to get seconds since the epoch.
    """
    return _encode(reports, first, lambda report, seq: _throttle_event(report, seq, wall_offset))


def encode_numbered(events: Sequence[Any], first: int) -> EncodedEvents:
    """Set the ``seq`` of ``events`` from ``first`` on, and encode them."""

    def with_number(event: Any, seq: int) -> Any:
        event.seq = seq
        return event

    return _encode(events, first, with_number)


def _encode(
    observations: Sequence[Observation], first: int, event_of: Callable[[Observation, int], Any]
) -> EncodedEvents:
    encoded = EncodedEvents(last=first - 1)
    for one in observations:
        encoded.last += 1
        try:
            encoded.chunks.append(Chunk(encoded.last, 1, encoder.encode(event_of(one, encoded.last))))
        except UnicodeError:
            encoded.not_encodable += 1
        except Exception:
            log.exception("audit_event_failed", of=type(one).__name__)
            encoded.failed += 1
    return encoded


def _throttle_event(report: ThrottleReport, seq: int, wall_offset: float) -> ThrottleEvent:
    return ThrottleEvent(
        seq=seq,
        listener=report.listener,
        client_ip=report.address,
        scope=cast(ThrottleScope, report.scope),
        quota=cast(ThrottleQuota, report.quota),
        action=cast(ThrottleAction, report.action),
        count=report.count,
        limit=report.limit,
        observed=round(report.observed * 1000) / 1000,  # raises for NaN, which JSON does not have
        ts_first=epoch_us(report.first_at, wall_offset),
        ts_last=epoch_us(report.last_at, wall_offset),
        delay_ms=report.delay_ms,
        principal=report.principal,
    )


def epoch_us(seconds: float, wall_offset: float) -> int:
    """Return µs since 1970 of ``seconds`` on the monotonic clock. Raises for NaN and infinity."""
    return round((seconds + wall_offset) * 1e6)
