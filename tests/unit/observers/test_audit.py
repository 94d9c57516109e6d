"""What the audit counts, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from observers.audit import MAX_WAITING, AuditObserver
from observers.translate import MAX_EVENT, room_of
from tests.unit.observers.samples import exchange, produce, report

CONFIGS: dict[str, Any] = {
    "broker.id": 1,
    "boot.id": "boot",
    "sidecar.version": "0",
    "internal": {"bootstrap.servers": "127.0.0.1:1"},
    "api.names": {},
}


@pytest.fixture
def observer() -> Iterator[AuditObserver]:
    """Takes records of 2,000 bytes."""
    observer = AuditObserver()
    observer.configure({**CONFIGS, "audit": {"producer": {"message.max.bytes": 2000}}})
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


def test_a_throttle_is_an_event_among_the_others(observer: AuditObserver) -> None:
    observer.record_exchanges([exchange()], 0)
    observer.record_throttles([report(), report(address="*")], 0)
    observer.record_exchanges([exchange()], 0)
    stats = observer.stats()
    assert (stats.emitted, stats.queued, stats.dropped) == (4, 4, {})


def test_lost_throttles_are_emitted_and_dropped(observer: AuditObserver) -> None:
    observer.record_throttles([report(), report(observed=float("nan")), report()], 5)
    observer.record_throttles([], 2)
    observer.record_exchanges([exchange()], 0)
    stats = observer.stats()
    assert (stats.emitted, stats.queued, stats.dropped) == (11, 3, {"observer_queue": 7, "failed": 1})


def test_throttles_that_wait_for_a_cluster_are_bounded(observer: AuditObserver) -> None:
    for _ in range(MAX_WAITING // 1000 + 1):
        observer.record_throttles([report()] * 1000, 0)
    stats = observer.stats()
    assert (stats.emitted, stats.queued) == (MAX_WAITING + 1000, MAX_WAITING)
    assert stats.dropped == {"no_cluster": 1000}


def test_no_exclusion_hides_a_throttle() -> None:
    observer = AuditObserver()
    observer.configure({**CONFIGS, "audit": {"exclude.principals": ["User:ANONYMOUS"], "exclude.topics": ["a"]}})
    observer.record_exchanges([exchange()], 0)
    observer.record_throttles([report()], 0)
    stats = observer.stats()
    observer.close(0)
    assert (stats.emitted, stats.hidden) == (1, 1)
