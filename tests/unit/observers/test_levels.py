"""The audit writes no record above the level that the fleet has finalized, and a change loses nothing."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observers.account_events import GapEvent, StatusEvent
from observers.api import LevelObserver
from observers.event import ROLLUP_LEVEL, SCHEMA_LEVEL, RequestEvent, RollupEvent
from observers.observed_counter import SHARED_MEMORY
from observers.opentelemetry import OpenTelemetryLogsObserver
from proxy.features.catalog import AUDIT_EVENT_SCHEMA, SUPPORTED
from tests.unit.observers.audit_levels import Audit, check_records, configs, fake_producers, levels_of, without_pump
from tests.unit.observers.samples import exchange, report
from tests.unit.observers.test_outbox import MIB, FakeProducer

ROLLUP: dict[str, Any] = {"mode": "rollup", "rollup.interval.ms": 60_000}


@pytest.fixture(autouse=True)
def producers() -> Iterator[None]:
    with fake_producers(), without_pump():
        yield


@pytest.fixture
def boot_id() -> Iterator[str]:
    boot_id = uuid.uuid4().hex
    yield boot_id
    (SHARED_MEMORY / f"brokerside-{boot_id}").unlink(missing_ok=True)


@pytest.mark.promise("opentelemetry.md", "The schema level of OpenTelemetry logs is that of their mode.")
def test_the_opentelemetry_logs_have_the_level_of_their_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: Any, settings: Any, version: Any, admin: Any, on_settled: Any) -> FakeProducer:
        return FakeProducer(on_settled, max_bytes=MIB, max_record_bytes=MIB)

    monkeypatch.setattr(OpenTelemetryLogsObserver, "_make_exporter", make)
    observer = OpenTelemetryLogsObserver()
    observer.configure({**configs("b"), "settings": {"mode": "rollup"}})
    assert not isinstance(observer, LevelObserver)
    assert observer._outbox.schema_level == ROLLUP_LEVEL
    observer.close(0)
    assert SUPPORTED[AUDIT_EVENT_SCHEMA] == (SCHEMA_LEVEL, ROLLUP_LEVEL)


@pytest.mark.promise("audit-event.md", "A sidecar writes level 1 until the fleet has finalized level 2.")
def test_at_the_start_it_is_the_mode_s_and_with_features_the_lowest() -> None:
    for features, mode, level, kind in (
        (False, "event", 1, RequestEvent),
        (False, "rollup", 2, RollupEvent),
        (True, "event", 1, RequestEvent),
        (True, "rollup", 1, RequestEvent),
    ):
        audit = Audit("b", features=features, mode=mode)
        audit.observer.record_exchanges([exchange()] * 3, 0)
        audit.close()
        (record,) = audit.envelopes()
        assert record.schema_level == level, (features, mode)
        assert {type(event) for event in record.events} == {kind, StatusEvent}, (features, mode)


@pytest.mark.promise("audit-event.md", "A change of the schema level loses nothing and counts nothing twice.")
def test_rollups_begin_and_end_with_their_level() -> None:
    audit = Audit("b", **ROLLUP)
    for level in (None, 2, 1, 1, 2):
        if level is not None:
            audit.use(level)
        audit.observer.finalized_levels({"brokerside.quota.ip": 1})  # what is unknown changes nothing
        audit.observer.record_exchanges([exchange()] * 2, 0)
        audit.observer.record_exchanges([exchange()], 0)
    audit.observer.finalized_levels({})
    audit.close()
    read = audit.envelopes()
    assert levels_of(read) == [1, 2, 1, 2]
    assert check_records(read) == {"alone": 3 + 6, "in rollups": 6}
    assert [event.requests for e in read for event in e.events if isinstance(event, RollupEvent)] == [3, 3]
    assert audit.stats().emitted == audit.stats().delivered
    assert audit.stats().taken == 15


def test_no_level_is_in_use_before_all_above_it_is_counted_as_undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees that level 1 is in use must not miss what was gathered at level 2."""
    audit = Audit("b", features=False, **ROLLUP)
    audit.observer.record_exchanges([exchange()] * 5, 0)
    seen = []
    counted = audit.outbox._accounting.record_numbered

    def record_numbered(*args: Any, **options: Any) -> None:
        seen.append(audit.stats())
        counted(*args, **options)

    monkeypatch.setattr(audit.outbox._accounting, "record_numbered", record_numbered)
    audit.use(1)
    seen.append(audit.stats())
    assert [(stats.levels, stats.undelivered[2]) for stats in seen] == [({2: 1}, 0), ({1: 1}, 1)]


@pytest.mark.promise("audit-event.md", "Without a level that it can write events are lost as schema_level.")
def test_without_any_level_nothing_is_written_and_all_is_counted() -> None:
    audit = Audit("b", **ROLLUP)
    audit.observer.record_exchanges([exchange()], 0)
    audit.use(2)
    audit.observer.record_exchanges([exchange()] * 5, 0)
    audit.use(0)
    audit.observer.record_exchanges([exchange()] * 3, 2)
    audit.observer.record_throttles([report()], 0)
    for _ in range(3):
        audit.turn()
    assert audit.stats().dropped == {"observer_queue": 2, "schema_level": 4}
    assert audit.stats().levels == {0: 1}
    audit.use(1)
    audit.observer.record_exchanges([exchange()], 0)
    audit.deliver()
    audit.turn()
    audit.close()
    read = audit.envelopes()
    assert levels_of(read) == [1, 2, 1]
    assert check_records(read) == {"alone": 2, "in rollups": 5, "missing": 6}
    gaps = [event for e in read for event in e.events if isinstance(event, GapEvent)]
    got = [(gap.reason, gap.lost_first_seq, gap.lost_last_seq) for gap in gaps]
    assert got == [("observer_queue", 3, 4), ("schema_level", 5, 8)]


def test_both_levels_survive_a_kill_and_come_at_theirs(tmp_path: Path, boot_id: str) -> None:
    """The next run may only write level 1. It sends what is on disk as it is, and counts it."""
    audit = Audit(boot_id, tmp_path, **ROLLUP)
    for level in (1, 2, 1, 2):
        audit.use(level)
        audit.observer.record_exchanges([exchange()] * 10, 0)
    audit.use(1)
    assert audit.stats().undelivered == {1: 20, 2: 2}
    audit.turn()
    audit.die()
    after = Audit(f"{boot_id}-after", tmp_path, **ROLLUP)
    after.observer.record_exchanges([exchange()], 0)
    after.turn()
    assert after.stats().undelivered == {1: 21, 2: 2}
    after.deliver()
    assert set(after.stats().undelivered.values()) == {0}
    left = after.envelopes(boot_id)
    assert levels_of(left) == [1, 2, 1, 2]
    assert check_records(left) == {"alone": 20, "in rollups": 20}
    assert levels_of(after.envelopes()) == [1]
    assert (after.stats().replayed, after.stats().replay_lost) == (22, 0)
    after.close()
