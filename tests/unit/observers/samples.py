"""Exchanges as the session makes them and reports as the gate's, each stating only what differs."""

from __future__ import annotations

from typing import Any

from proxy.compiled.exchange import Exchange
from proxy.core.exchange import (
    EMPTY_RECORD_SET,
    AnsweredPartition,
    Connection,
    ConnectionTransition,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordSet,
    WantedPartition,
)
from proxy.limits.throttle_reports import AggregatedThrottle

PRODUCE, FETCH, METADATA = 0, 1, 3
TOPIC_ID = bytes(range(16))
PRINTED_ID = "AAECAwQFBgcICQoLDA0ODw"


def connection(**changes: Any) -> Connection:
    values: dict[str, Any] = {
        "id": "c1",
        "listener": "CLIENT",
        "client_ip": "10.0.0.7",
        "client_port": 40000,
        "opened_at": 1.0,
        "principal": "User:ANONYMOUS",
    }
    return Connection(**{**values, **changes})


def exchange(**changes: Any) -> Exchange:
    """An answered Metadata request."""
    values: dict[str, Any] = {
        "connection": connection(),
        "api_key": METADATA,
        "api_version": 12,
        "correlation_id": 5,
        "client_id": "app",
        "received_at": 100.0,
        "request_bytes": 50,
        "answered_at": 100.002,
        "response_bytes": 80,
        "outcome": "answered",
    }
    return Exchange(**{**values, **changes})


def change(**changes: Any) -> ConnectionTransition:
    """A connection that was opened."""
    return ConnectionTransition(**{"connection": connection(), "change": "opened", "at": 100.0, **changes})


def report(**changes: Any) -> AggregatedThrottle:
    """Three connections held."""
    values: dict[str, Any] = {
        "listener": "CLIENT",
        "address": "10.0.0.7",
        "scope": "ip",
        "quota": "connection_creation_rate",
        "action": "hold",
        "count": 3,
        "limit": 20,
        "observed": 21.5,
        "delay_ms": 750,
        "first_at": 100.0,
        "last_at": 100.25,
    }
    return AggregatedThrottle(**{**values, **changes})


def record_set(size: int, records: int, **changes: Any) -> RecordSet:
    return RecordSet(size, 1, records, magic=2, **changes)


def produce(
    parts: list[tuple[bytes, int, int, int]],
    *,
    error_code: int = 0,
    ids: bool = False,
    transactional_id: bytes | None = None,
    **changes: Any,
) -> Exchange:
    """An answered Produce; ``parts``: (topic, partition, bytes, records)."""
    values: dict[str, Any] = {
        "api_key": PRODUCE,
        "api_version": 13 if ids else 9,
        "decode": "full",
        "request": ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            transactional_id=transactional_id,
            partitions=tuple(
                ProducedPartition(topic, partition, record_set(size, records, producer_id=7, base_sequence=3))
                for topic, partition, size, records in parts
            ),
            topics_are_ids=ids,
        ),
        "response": ProduceResponse(
            throttle_ms=4,
            # In another order than the request: nothing says that a broker keeps it.
            partitions=tuple(
                AnsweredPartition(topic, partition, error_code, 500 + partition)
                for topic, partition, _, _ in parts[::-1]
            ),
            topics_are_ids=ids,
        ),
    }
    return exchange(**{**values, **changes})


def fetch(
    wanted: list[tuple[bytes, int]],
    got: list[tuple[bytes, int, int, int, int]],
    *,
    session_id: int = 0,
    session_epoch: int = -1,
    answered_session: int = 0,
    answered_error: int = 0,
    ids: bool = False,
    forgotten: tuple[tuple[bytes, int], ...] = (),
    max_wait_ms: int = 500,
    **changes: Any,
) -> Exchange:
    """An answered Fetch; ``got``: (topic, partition, bytes, records, error code)."""
    values: dict[str, Any] = {
        "api_key": FETCH,
        "api_version": 13 if ids else 12,
        "decode": "full",
        "request": FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=session_id,
            session_epoch=session_epoch,
            partitions=tuple(WantedPartition(topic, partition, 0) for topic, partition in wanted),
            topics_are_ids=ids,
            forgotten=forgotten,
        ),
        "response": FetchResponse(
            throttle_ms=0,
            error_code=answered_error,
            session_id=answered_session,
            partitions=tuple(
                FetchedPartition(
                    topic,
                    partition,
                    error_code,
                    1000,
                    record_set(size, records, base_offset=40) if size else EMPTY_RECORD_SET,
                )
                for topic, partition, size, records, error_code in got
            ),
            topics_are_ids=ids,
        ),
    }
    return exchange(**{**values, **changes})
