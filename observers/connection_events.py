"""Encodes and numbers every event that is not of requests: connections, throttles and others. No IO, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import structlog

from observers.api import ConnectionChange, ThrottleReport
from observers.audit_filter import AuditFilter
from observers.event import (
    ConnectionChangeKind,
    ConnectionEvent,
    PrincipalSource,
    ThrottleAction,
    ThrottleEvent,
    ThrottleQuota,
    ThrottleScope,
    encoder,
)
from observers.event_blocks import Chunk, EncodedEvents
from proxy.core.names import clip, clip_optional

log = structlog.get_logger("observers")

Observation = TypeVar("Observation")


def encode_throttle_reports(reports: Sequence[ThrottleReport], first: int, wall_offset: float) -> EncodedEvents:
    """Return the events of ``reports``, numbered from ``first`` on.

    ``wall_offset``: seconds to add to their times to get seconds since the epoch.
    """
    return _encode(reports, first, lambda report, seq: _throttle_event(report, seq, wall_offset))


def encode_connection_changes(
    changes: Sequence[ConnectionChange], first: int, wall_offset: float, audit_filter: AuditFilter
) -> EncodedEvents:
    """Return the events of ``changes``, numbered from ``first`` on. Changes of excluded principals are hidden.

    ``wall_offset``: seconds to add to their times to get seconds since the epoch.
    """
    for change in changes:
        if change.change == "closed":
            audit_filter.muting.forget_connection(change.connection.id)
    visible = []
    for change in changes:
        if _is_hidden(audit_filter, change):
            audit_filter.count_hidden_by_principal(change.connection.principal)
        else:
            visible.append(change)
    encoded = _encode(visible, first, lambda change, seq: _connection_event(change, seq, wall_offset))
    encoded.hidden = len(changes) - len(visible)
    return encoded


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


def _is_hidden(audit_filter: AuditFilter, change: ConnectionChange) -> bool:
    """Whether ``change`` gives no event. An unauthenticated principal hides nothing, since any client can claim it."""
    connection = change.connection
    if change.change == "authentication_failed" or connection.principal_source == "unauthenticated":
        return False
    return audit_filter.hides_principal(connection.principal)


def _connection_event(change: ConnectionChange, seq: int, wall_offset: float) -> ConnectionEvent:
    connection = change.connection
    closed = change.change == "closed"
    return ConnectionEvent(
        seq=seq,
        change=cast(ConnectionChangeKind, change.change),
        ts=epoch_us(change.at, wall_offset),
        listener=connection.listener,
        connection_id=connection.id,
        principal=clip(connection.principal),
        client_ip=connection.client_ip,
        client_port=connection.client_port,
        principal_source=cast(PrincipalSource, connection.principal_source),
        sasl_mechanism=clip_optional(connection.sasl_mechanism),
        tls_version=connection.tls_version,
        tls_cipher=connection.tls_cipher,
        tls_client_serial=clip_optional(connection.tls_client_serial),
        client_id=clip_optional(change.client_id),
        client_software_name=clip_optional(connection.client_software_name),
        client_software_version=clip_optional(connection.client_software_version),
        cause=change.cause,
        error_code=change.error_code,
        session_lifetime_ms=change.session_lifetime_ms,
        duration_ms=max(0, round((change.at - connection.opened_at) * 1000)) if closed else 0,
        requests=change.requests,
        received_bytes=change.received_bytes,
        sent_bytes=change.sent_bytes,
    )


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
