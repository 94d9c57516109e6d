"""One example of each kind of event, made by what makes the events, for docs/audit-event.md."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from observers.account_events import GapEvent, StatusEvent
from observers.audit_filter import AuditFilter
from observers.audit_writer import RequestEventEncoder
from observers.connection_writer import encode_connection_changes
from observers.event_blocks import BlockBuilder, EncodedEvents, RecordWriter
from observers.inventory import inventory_events, inventory_topic
from observers.kafka_admin import TopicDescription
from observers.numbered_events import encode_numbered, encode_throttle_reports
from observers.offset_tracker import OffsetTracker
from observers.rollup_writer import RollupAggregator
from observers.topic_names import TopicNames
from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    AnsweredPartition,
    CommittedOffset,
    Connection,
    ConnectionTransition,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    RequestResources,
)

WALL_OFFSET = 1_795_260_000.0
"""Seconds since 1970 at the monotonic clock's zero."""

INVOICES = bytes(range(16))
BOOT_ID = "5f0c4c0d9a4b4e0f8a86b6c2f6f0f3a1"
API_NAMES = {0: "Produce", 1: "Fetch", 3: "Metadata"}


def encode_event(kind: str) -> bytes:
    """Return the example event of ``kind``, as JSON."""
    return _encode_all()[kind].chunks[0].json


def encode_envelope() -> bytes:
    """Return an example envelope with one request, as JSON."""
    made = _encode_all()["request"]
    builder = BlockBuilder()
    (block,) = builder.add_chunks(made.chunks, made.last, 0.0) + builder.complete()
    writer = RecordWriter("ThK9ZFduS0ONy_eg3SRv7w", 1, BOOT_ID, "0.1.0")
    sent_at = int(WALL_OFFSET * 1e6) + 652_500_000
    return writer.encode_record(block.first, block.last, block.json(), level=block.level, dropped=0, sent_at=sent_at)


def _encode_all() -> dict[str, EncodedEvents]:
    names = TopicNames(lambda: {INVOICES: "invoices"})
    audit_filter = AuditFilter(names, topics=(), principals=())
    rollup = RollupAggregator(API_NAMES, names, audit_filter)
    rollup.add_exchanges([_produce(n) for n in range(3)], 0, WALL_OFFSET)
    topic = inventory_topic(TopicDescription("invoices", INVOICES, 12, internal=False))
    return {
        "request": RequestEventEncoder(API_NAMES, names, audit_filter).encode_exchanges([_produce(0)], 41, WALL_OFFSET),
        "rollup": encode_numbered(rollup.drain(), 42),
        "connection": encode_connection_changes([_CLOSED], 43, WALL_OFFSET, audit_filter),
        "throttle": encode_throttle_reports([_HeldConnections()], 44, WALL_OFFSET),
        "topic_inventory": encode_numbered(inventory_events([topic], round(WALL_OFFSET * 1e6) + 660_000_000), 45),
        "group": encode_numbered(_offset_events(names, audit_filter)[:1], 46),
        "end_offsets": encode_numbered(_offset_events(names, audit_filter)[1:], 47),
        "gap": encode_numbered([_GAP], 48),
        "sidecar_status": encode_numbered([_STATUS], 49),
    }


def _offset_events(names: TopicNames, audit_filter: AuditFilter) -> list[Any]:
    """What a member of a group committed, and the end of the partition that it reads."""
    tracker = OffsetTracker(names, audit_filter)
    commit: Any = Exchange(
        connection=_BILLING,
        api_key=8,
        api_version=10,
        correlation_id=13,
        client_id="billing-1",
        received_at=653.0,
        request_bytes=190,
        forwarded_at=653.0001,
        responded_at=653.0031,
        answered_at=653.0032,
        response_bytes=60,
        outcome="answered",
        decode="none",
    )
    commit.resources = RequestResources(
        commits=(CommittedOffset(INVOICES, True, 3, 5_090),),
        commit_count=1,
        group_id=b"invoicing",
        member_id=b"billing-1-8f3c",
        generation_id=4,
    )
    tracker.record_exchanges([_produce(0), commit], WALL_OFFSET)
    return tracker.drain(round(WALL_OFFSET * 1e6) + 661_000_000)


def _produce(n: int) -> Any:
    """An ``Exchange``: ten records, acknowledged after two milliseconds."""
    at = 652.123456 + n / 10
    records = RecordSet(1100, 1, 10, 2, 4000, 0, 120 + 10 * n, -1)
    return Exchange(
        connection=_BILLING,
        api_key=0,
        api_version=13,
        correlation_id=12 + n,
        client_id="billing-1",
        received_at=at,
        request_bytes=1211,
        forwarded_at=at + 0.00004,
        responded_at=at + 0.00211 + n / 1000,
        answered_at=at + 0.00215 + n / 1000,
        response_bytes=74,
        outcome="answered",
        decode="full",
        request=ProduceRequest(-1, 30_000, None, (ProducedPartition(INVOICES, 3, records),), topics_are_ids=True),
        response=ProduceResponse(0, (AnsweredPartition(INVOICES, 3, 0, 5120 + 10 * n),), topics_are_ids=True),
    )


class _HeldConnections(Struct):
    """A ``ThrottleReport``."""

    listener: str = "CLIENT"
    address: str = "10.1.2.4"
    scope: str = "ip"
    quota: str = "connection_creation_rate"
    action: str = "hold"
    count: int = 37
    limit: int = 20
    observed: float = 25.118
    delay_ms: int = 1000
    first_at: float = 651.3
    last_at: float = 652.19
    principal: str = ""


_BILLING = Connection(
    id="c7",
    listener="CLIENT",
    client_ip="10.1.2.3",
    client_port=40112,
    opened_at=600.25,
    principal="User:billing",
    client_software_name="apache-kafka-java",
    client_software_version="4.3.1",
    principal_source="sasl",
    sasl_mechanism="SCRAM-SHA-512",
    tls_version="TLSv1.3",
    tls_cipher="TLS_AES_256_GCM_SHA384",
)
_CLOSED = ConnectionTransition(
    _BILLING,
    "closed",
    at=655.75,
    cause="client",
    requests=108,
    received_bytes=130_788,
    sent_bytes=9_412,
    client_id="billing-1",
)
_GAP = GapEvent(seq=0, reason="observer_queue", lost_boot_id=BOOT_ID, lost_first_seq=30, lost_last_seq=40)
_STATUS = StatusEvent(
    seq=0,
    ts=round(WALL_OFFSET * 1e6) + 662_000_000,
    started_at=round(WALL_OFFSET * 1e6) + 590_000_000,
    seen=61,
    emitted=46,
    delivered=30,
    hidden=14,
    waiting=3,
    queued=5,
    dropped={"observer_queue": 11},
)
