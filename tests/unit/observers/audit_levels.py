"""The audit observer with its real outbox, before a producer that does what the test says; the pump is the test."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from observers.audit import AuditObserver
from observers.event import SCHEMA_FEATURE, Envelope, RequestEvent, RollupEvent
from observers.event_observer import AuditStats
from observers.inventory import Inventory
from observers.outbox import Outbox
from observers.record_sender import DeliveryCallback
from observers.topic_names import TopicNames
from tests.unit.observers.test_outbox import MIB, FakeProducer


@contextmanager
def fake_producers() -> Iterator[None]:
    """Audits have a ``FakeProducer``, which is not ready, and no inventory."""

    def make(admin: Any, settings: Any, topic: str, on_settled: DeliveryCallback, authenticator: Any) -> FakeProducer:
        return FakeProducer(on_settled, max_bytes=64 * MIB, max_record_bytes=8 * MIB)

    with ExitStack() as patches:
        patches.enter_context(patch("observers.audit.AuditProducer", make))
        patches.enter_context(patch.object(Inventory, "start", lambda self: None))
        yield


@contextmanager
def without_pump() -> Iterator[None]:
    """Outboxes start no thread, and no status comes because a test takes its time."""

    def start(self: Outbox, tick: Callable[[], None]) -> None:
        self.tick = tick  # type: ignore[attr-defined]

    with patch.object(Outbox, "start", start), patch("observers.event_observer.STATUS_INTERVAL", 3600.0):
        yield


def configs(boot_id: str, *, features: bool = True, **audit: Any) -> dict[str, Any]:
    """What an observer is configured with."""
    return {
        "broker.id": 1, "boot.id": boot_id, "sidecar.version": "0", "internal": {"bootstrap.servers": "127.0.0.1:1"},
        "topic.names": TopicNames(dict), "api.names": {3: "Metadata"}, "features": features, "audit": audit,
    }  # fmt: skip


def configured(boot_id: str, folder: Path | None = None, **settings: Any) -> AuditObserver:
    """An audit observer. ``folder``: of its spool."""
    if folder is not None:
        settings |= {"spool.path": str(folder), "spool.max.bytes": 64 * MIB}
    observer = AuditObserver()
    observer.configure(configs(boot_id, **settings))
    return observer


class Audit:
    """One that is configured ``without_pump``."""

    def __init__(self, boot_id: str, folder: Path | None = None, **settings: Any) -> None:
        self.boot_id = boot_id
        self.observer = configured(boot_id, folder, **settings)
        self.outbox: Any = self.observer._outbox
        self.producer: FakeProducer = self.outbox._sender

    def use(self, level: int) -> None:
        self.observer.finalized_levels({SCHEMA_FEATURE: level})

    def turn(self) -> None:
        """What the pump does, late enough for every block to be complete."""
        with self.outbox.sequence_lock:
            self.outbox._store_and_send(self.outbox._block_builder.complete())
        self.outbox._store.maintain(self.outbox._clock())
        self.outbox._send_waiting()
        self.outbox.tick()

    def deliver(self) -> None:
        """Everything that waits."""
        self.producer.ready.set()
        self.turn()
        while self.producer.sent:
            self.producer.end()
            self.turn()

    def close(self) -> None:
        """Emit what is left, and deliver all."""
        self.producer.ready.set()
        with patch.object(self.producer, "poll", lambda timeout: self.producer.sent and self.producer.end()):
            self.observer.close(60)

    def die(self) -> None:
        """Leave everything as a kill does."""
        for run in self.outbox._store._all_runs():
            run.release()

    def stats(self) -> AuditStats:
        """Present counts, which must agree."""
        stats = self.observer.stats()
        assert stats.emitted == stats.delivered + sum(stats.dropped.values()) + stats.spooled + stats.queued
        return stats

    def envelopes(self, boot_id: str | None = None) -> list[Envelope]:
        """Records on the topic, by number."""
        read = [msgspec.convert(value, Envelope) for value in self.producer.arrived]
        return sorted((e for e in read if e.boot_id == (boot_id or self.boot_id)), key=lambda e: e.first_seq)


def check_records(read: list[Envelope]) -> Counter[str]:
    """Assert that no number is there twice, and no rollup below its level. Return how many requests are events
    (``alone``) and how many are in rollups, and how many numbers are missing."""
    found = Counter[str](missing=read[0].first_seq - 1 if read else 0)
    for envelope in read:
        assert [event.seq for event in envelope.events] == list(range(envelope.first_seq, envelope.last_seq + 1))
        for event in envelope.events:
            if isinstance(event, RollupEvent):
                assert envelope.schema_level == 2
                found["in rollups"] += event.requests
            elif isinstance(event, RequestEvent):
                found["alone"] += 1
    for before, after in pairwise(read):
        assert before.last_seq < after.first_seq
        found["missing"] += after.first_seq - before.last_seq - 1
    return +found


def levels_of(read: list[Envelope]) -> list[int]:
    """Levels of consecutive records, each once."""
    levels = [envelope.schema_level for envelope in read]
    return [level for before, level in pairwise([0, *levels]) if level != before]
