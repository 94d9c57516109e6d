"""Exchanges as the session makes them and reports as the gate's, each stating only what differs."""

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
    values = {"id": "c1", "listener": "CLIENT", "client_ip": "10.0.0.7", "client_port": 40000, "opened_at": 1.0}
    return Connection(**{**values, "principal": "User:ANONYMOUS", **changes})


def exchange(**changes: Any) -> Exchange:
    """An answered Metadata request."""
    request = {"api_key": METADATA, "api_version": 12, "correlation_id": 5, "client_id": "app", "request_bytes": 50}
    response = {"answered_at": 100.002, "response_bytes": 80, "outcome": "answered"}
    return Exchange(**{"connection": connection(), "received_at": 100.0, **request, **response, **changes})


def change(**changes: Any) -> ConnectionTransition:
    """A connection that was opened."""
    return ConnectionTransition(**{"connection": connection(), "change": "opened", "at": 100.0, **changes})


def report(**changes: Any) -> AggregatedThrottle:
    """Three connections held."""
    limit = {"scope": "ip", "quota": "connection_creation_rate", "action": "hold", "limit": 20, "observed": 21.5}
    held = {"count": 3, "delay_ms": 750, "first_at": 100.0, "last_at": 100.25}
    return AggregatedThrottle(**{"listener": "CLIENT", "address": "10.0.0.7", **limit, **held, **changes})


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
    sent = tuple(
        ProducedPartition(topic, partition, record_set(size, records, producer_id=7, base_sequence=3))
        for topic, partition, size, records in parts
    )
    # In another order than the request: nothing says that a broker keeps it.
    answered = tuple(
        AnsweredPartition(topic, partition, error_code, 500 + partition) for topic, partition, _, _ in parts[::-1]
    )
    request = ProduceRequest(-1, 30_000, transactional_id, partitions=sent, topics_are_ids=ids)
    response = ProduceResponse(throttle_ms=4, partitions=answered, topics_are_ids=ids)
    values = {"api_key": PRODUCE, "api_version": 13 if ids else 9, "decode": "full"}
    return exchange(**{**values, "request": request, "response": response, **changes})


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
    asked = tuple(WantedPartition(topic, partition, 0) for topic, partition in wanted)
    request = FetchRequest(
        -1, max_wait_ms, 1, session_id, session_epoch, asked, topics_are_ids=ids, forgotten=forgotten
    )
    returned = []
    for topic, partition, size, records, error_code in got:
        sums = record_set(size, records, base_offset=40) if size else EMPTY_RECORD_SET
        returned.append(FetchedPartition(topic, partition, error_code, 1000, sums))
    response = FetchResponse(0, answered_error, answered_session, tuple(returned), topics_are_ids=ids)
    values = {"api_key": FETCH, "api_version": 13 if ids else 12, "decode": "full"}
    return exchange(**{**values, "request": request, "response": response, **changes})
