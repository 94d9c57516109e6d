"""From changes of connections to encoded audit events: what ``observers.connection_writer`` does, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from observers.api import ConnectionChange
from observers.audit_filter import AuditFilter
from observers.event import ConnectionChangeKind, ConnectionEvent, PrincipalSource, encoder
from observers.event_blocks import Chunk, EncodedEvents
from observers.numbered_events import epoch_us
from proxy.core.names import clip, clip_optional


def encode_connection_changes(
    changes: Sequence[ConnectionChange], first: int, wall_offset: float, audit_filter: AuditFilter
) -> EncodedEvents:
    """Return the events of ``changes``, each as a chunk of its own."""
    made = EncodedEvents(last=first - 1)
    for change in changes:
        if _is_hidden(audit_filter, change):
            made.hidden += 1
            continue
        made.last += 1
        try:
            made.chunks.append(Chunk(made.last, 1, encoder.encode(_event_of(change, made.last, wall_offset))))
        except UnicodeError:
            made.not_encodable += 1
    return made


def _is_hidden(audit_filter: AuditFilter, change: ConnectionChange) -> bool:
    known = change.connection.principal_source != "unauthenticated" and change.change != "authentication_failed"
    return known and audit_filter.hides_principal(change.connection.principal)


def _event_of(change: ConnectionChange, seq: int, wall_offset: float) -> ConnectionEvent:
    connection = change.connection
    event = ConnectionEvent(
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
        client_software_name=clip_optional(connection.client_software_name),
        client_software_version=clip_optional(connection.client_software_version),
    )
    if change.change == "closed":
        event.client_id = clip_optional(change.client_id)
        event.cause = change.cause
        event.duration_ms = max(0, round((change.at - connection.opened_at) * 1000))
        event.requests, event.received_bytes, event.sent_bytes = (
            change.requests,
            change.received_bytes,
            change.sent_bytes,
        )
    elif change.change != "opened":
        event.error_code, event.session_lifetime_ms = change.error_code, change.session_lifetime_ms
    return event
