"""What the audit counts, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from observers.audit import AuditObserver
from observers.translate import MAX_EVENT, room_of
from tests.unit.observers.samples import exchange, produce


@pytest.fixture
def observer() -> Iterator[AuditObserver]:
    """Takes records of 2,000 bytes."""
    configs: dict[str, Any] = {
        "broker.id": 1,
        "boot.id": "boot",
        "sidecar.version": "0",
        "internal": {"bootstrap.servers": "127.0.0.1:1"},
        "audit": {"producer": {"message.max.bytes": 2000}},
        "api.names": {},
    }
    observer = AuditObserver()
    observer.configure(configs)
    yield observer
    observer.close(0)


def test_too_large_an_event_is_emitted_and_dropped(observer: AuditObserver) -> None:
    large = produce([(b"a", n, 1, 1) for n in range(MAX_EVENT // room_of("a", None) + 1)])
    observer.record_exchanges([exchange(), large, exchange()], 0)
    stats = observer.stats()
    assert (stats.emitted, stats.queued, stats.dropped) == (3, 2, {"too_large": 1})


def test_what_is_too_large_for_the_producer_counts_with_it(observer: AuditObserver) -> None:
    large = produce([(b"a", n, 1, 1) for n in range(MAX_EVENT // room_of("a", None) + 1)])
    observer.record_exchanges([large], 0)
    observer._sink.send(b"x" * 3000, 5)
    assert observer.stats().dropped == {"too_large": 6}
