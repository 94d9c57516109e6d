"""What the outbox does with events, before a producer that does what the test says and a disk that may fail."""

import json
import math
import shutil
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from observers.delivery_accounting import Gap
from observers.event import EVENTS_PER_RECORD
from observers.event_blocks import BLOCK_LINGER, Chunk
from observers.observed_counter import SHARED_MEMORY
from observers.outbox import Outbox, OutboxStats
from observers.record_sender import DeliveryCallback
from observers.spool import Spool
from observers.spool_runs import SpoolSettings
from observers.spool_store import SPOOL_RETRY_INTERVAL
from tests.unit.observers.test_event_blocks import chunk

BLOCK = EVENTS_PER_RECORD
MIB = 1024 * 1024


class FakeProducer:
    """Holds records until the test says what becomes of them."""

    def __init__(self, on_settled: DeliveryCallback, *, max_bytes: int, max_record_bytes: int) -> None:
        self.ready = threading.Event()
        self.cluster_id, self.problems = "cluster", dict[str, str]()
        self.queued_bytes = self.records_delivered = self.bytes_delivered = 0
        self.max_bytes, self.max_record_bytes = max_bytes, max_record_bytes
        self.sent: deque[tuple[Any, bytes]] = deque()
        self.arrived: list[dict[str, Any]] = []
        self._on_settled = on_settled

    @property
    def queued(self) -> int:
        return len(self.sent)

    def start(self) -> None:
        """The test makes it ready."""

    def send(self, value: bytes, load: Any) -> bool:
        if self.queued_bytes + len(value) > self.max_bytes:
            return False
        self.sent.append((load, value))
        self.queued_bytes += len(value)
        return True

    def poll(self, timeout: float) -> None:
        """Nothing becomes of anything by itself."""

    def close(self, timeout: float) -> None:
        while self.sent:
            self.end("closed", retriable=True)

    def end(self, reason: str | None = None, *, retriable: bool = False, lost: int | None = None) -> None:
        """Let the oldest record be delivered, or fail, or only ``lost`` of its events."""
        load, value = self.sent.popleft()
        self.queued_bytes -= len(value)
        if reason is None:
            self.arrived.append(json.loads(value))
        self._on_settled(load, reason, retriable, value if reason == "too_large" else None, lost)


def padded(first: int, count: int, size: int) -> Chunk:
    """Events of ``size`` bytes each."""
    return Chunk(
        first, count, b",".join(b'{"seq":%d,"pad":"%s"}' % (n, b"x" * (size - 24)) for n in range(first, first + count))
    )


class Desk:
    """An outbox whose pump is the test."""

    def __init__(self, folder: Path | None, *, boot_id: str, max_bytes: int = 64 * MIB, room: int = 16 * MIB) -> None:
        self.now = 100.0
        self.outbox = Outbox(
            lambda on_settled: FakeProducer(on_settled, max_bytes=room, max_record_bytes=min(8 * MIB, max_bytes)),
            broker_id=1,
            boot_id=boot_id,
            sidecar_version="0.1",
            schema_level=1,
            spool=None if folder is None else SpoolSettings(str(folder), max_bytes),
            clock=lambda: self.now,
        )
        producer: Any = self.outbox._sender
        self.producer: FakeProducer = producer
        self.boot_id = boot_id

    def add(
        self,
        events: int = BLOCK,
        *,
        size: int | None = None,
        each: int | None = None,
        lost: Mapping[str, int] | None = None,
    ) -> None:
        """Number some that are lost, and then ``events``: usual ones, ``size`` bytes of something, or ``each`` of so
        many bytes."""
        first = self.outbox.seq + sum((lost or {}).values()) + 1
        last = first + events - 1
        observed = last - self.outbox.seq
        self.outbox.observed[0] += observed
        with self.outbox.sequence_lock:
            made = chunk(first, events, size) if each is None else padded(first, events, each)
            self.outbox.add_events([made] if events else [], last, lost or {}, observed, 0)

    def level(self, level: int) -> None:
        with self.outbox.sequence_lock:
            self.outbox.set_schema_level(level)

    def turn(self, seconds: float = 0.1) -> None:
        """What the pump does."""
        self.now += seconds
        with self.outbox.sequence_lock:
            self.outbox._store_and_send(self.outbox._block_builder.complete_expired(self.now))
        self.outbox._store.maintain(self.now)
        self.outbox._send_waiting()

    def deliver(self) -> None:
        """Everything, over as many turns as it takes."""
        self.producer.ready.set()
        self.turn(BLOCK_LINGER + 0.1)
        while self.producer.sent:
            while self.producer.sent:
                self.producer.end()
            self.turn()

    def deliver_up_to(self, size: int) -> None:
        """The same, to a topic that refuses records of more bytes."""
        self.producer.ready.set()
        self.turn(BLOCK_LINGER + 0.1)
        while self.producer.sent:
            while self.producer.sent:
                self.producer.end("too_large" if len(self.producer.sent[0][1]) > size else None)
            self.turn()

    def stats(self) -> OutboxStats:
        """Present counts, which must agree."""
        stats = self.outbox.stats()
        assert stats.emitted == stats.delivered + sum(stats.dropped.values()) + stats.spooled + stats.queued
        own = self.outbox._accounting.counts().undelivered
        assert sum(own.values()) == stats.spooled + stats.queued
        assert all(events >= own.get(level, 0) >= 0 for level, events in stats.undelivered.items())
        return stats

    def arrived(self, boot_id: str | None = None) -> list[int]:
        """Numbers on the topic."""
        mine = [e for e in self.producer.arrived if e["boot_id"] == (boot_id or self.boot_id)]
        return [n for e in mine for n in range(e["first_seq"], e["last_seq"] + 1)]

    def die(self) -> None:
        """Leave everything as a kill does."""
        for run in self.outbox._store._all_runs():
            run.release()

    def gaps(self) -> list[Gap]:
        with self.outbox.sequence_lock:
            return self.outbox.drain_gaps()


@pytest.fixture
def desk_of() -> Iterator[Callable[..., Desk]]:
    made: list[str] = []

    def make(folder: Path | None = None, *, ready: bool = False, **settings: Any) -> Desk:
        made.append(uuid.uuid4().hex)
        desk = Desk(folder, boot_id=made[-1], **settings)
        if ready:
            desk.producer.ready.set()
        return desk

    yield make
    for boot_id in made:
        (SHARED_MEMORY / f"brokerside-{boot_id}").unlink(missing_ok=True)


DeskOf = Callable[..., Desk]


@pytest.mark.promise("audit-delivery.md", "Without a spool events wait in memory up to a bound.")
def test_without_a_cluster_they_wait_up_to_what_memory_may_hold(desk_of: DeskOf) -> None:
    desk = desk_of(room=MIB)
    for _ in range(20):
        desk.add(size=100_000)
    stats = desk.stats()
    assert (stats.queued, stats.dropped) == (10 * BLOCK, {"no_cluster": 10 * BLOCK})
    assert stats.queued_bytes == 1_000_000
    assert desk.gaps() == [], "it may grow"


@pytest.mark.promise("opentelemetry.md", "Events that a collector rejects are lost as rejected.")
def test_events_that_the_destination_refused_are_counted_beside_those_it_took(desk_of: DeskOf) -> None:
    desk = desk_of(ready=True)
    for refused in (3, 0, BLOCK, BLOCK + 7):
        desk.add()
        desk.producer.end("rejected", lost=refused)
    stats = desk.stats()
    assert (stats.delivered, stats.dropped, stats.queued) == (2 * BLOCK - 3, {"rejected": 2 * BLOCK + 3}, 0)
    desk.add()
    desk.deliver()
    got = desk.gaps()
    assert got == [Gap("rejected", desk.boot_id, 1, BLOCK), Gap("rejected", desk.boot_id, 2 * BLOCK + 1, 4 * BLOCK)]


@pytest.mark.promise("audit-delivery.md", "What cannot be delivered at the end stays on disk.")
def test_a_part_of_the_time_to_close_is_the_disk_s(
    desk_of: DeskOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(tmp_path)
    desk.add()
    begun = desk.now

    def poll(timeout: float) -> None:
        desk.now += timeout

    monkeypatch.setattr(desk.producer, "poll", poll)
    desk.outbox.close(2.0)
    assert 1.0 < desk.now - begun < 1.9
    assert desk.stats().spooled == BLOCK


def test_a_run_that_still_lives_is_counted_by_a_search_after_its_end(desk_of: DeskOf, tmp_path: Path) -> None:
    """As the spool of a predecessor, which drains: only what a later search says is complete."""
    assert desk_of(None).outbox.searched_at == math.inf, "without a spool nothing is searched"
    old, new = desk_of(tmp_path), desk_of(tmp_path)
    assert (new.stats().undelivered, new.outbox.searched_at) == ({1: 0, 2: 0}, 0), "before it has looked"
    old.level(2)
    old.add()
    new.turn()
    searched, ended = new.outbox.searched_at, new.now
    assert 0 < searched <= ended
    old.die()
    assert new.stats().undelivered[2] == 0
    new.turn()
    assert new.outbox.searched_at == searched
    new.turn(SPOOL_RETRY_INTERVAL)
    assert (new.stats().undelivered[2], new.outbox.searched_at > ended) == (BLOCK, True)
    new.outbox.close(0)
    assert new.outbox.searched_at == 0, "dead runs that it had found are counted by nobody"


@pytest.mark.promise("audit-delivery.md", "Blocks beyond the queue stay on disk, and are read back in order.")
def test_an_outage_longer_than_memory_loses_nothing_and_keeps_the_order(desk_of: DeskOf, tmp_path: Path) -> None:
    desk = desk_of(tmp_path, room=MIB, ready=True)
    for _ in range(100):
        desk.add()
        desk.turn()
    stats = desk.stats()
    assert (stats.spooled, stats.dropped) == (100 * BLOCK, {})
    assert stats.queued_bytes <= MIB
    held = desk.producer.queued
    assert 0 < held < 100
    desk.deliver()
    assert desk.arrived() == list(range(1, 100 * BLOCK + 1))
    assert desk.stats().spool_bytes <= 8 * MIB
    desk.add()
    assert desk.producer.queued == 1, "what is new goes at once again"


@pytest.mark.promise("audit-delivery.md", "A full spool loses new events, and one gap event names them.")
def test_a_full_spool_loses_the_newest_and_counts_one_run(desk_of: DeskOf, tmp_path: Path) -> None:
    desk = desk_of(tmp_path, room=MIB, max_bytes=100_000)
    for _ in range(1000):
        desk.add()
    stats = desk.stats()
    lost = sum(stats.dropped.values())
    assert set(stats.dropped) == {"spool_full"}
    assert stats.spool_bytes <= 100_000
    assert lost > 0
    desk.deliver()
    desk.add()
    desk.deliver()
    (gap,) = desk.gaps()
    assert gap.last - gap.first + 1 == lost
    assert sorted(desk.arrived()) == [n for n in range(1, 1001 * BLOCK + 1) if not gap.first <= n <= gap.last]


@pytest.mark.promise("audit-delivery.md", "While the topic takes nothing events wait on disk.")
def test_what_passes_is_sent_again_one_first_and_then_all(desk_of: DeskOf, tmp_path: Path) -> None:
    desk = desk_of(tmp_path, ready=True)
    with capture_logs() as logged:
        for _ in range(3):
            desk.add()
        while desk.producer.sent:
            desk.producer.end("topic_authorization_failed", retriable=True)
        desk.add()
        assert desk.producer.queued == 0
        for reason in ("unknown_topic_or_part", "producer_failed", "topic_authorization_failed"):
            desk.turn(10)
            assert desk.producer.queued == 1
            desk.turn(10)
            assert desk.producer.queued == 1, "one alone, until it is known what became of it"
            desk.producer.end(reason, retriable=True)
            desk.turn(0.01)
            assert desk.producer.queued == 0, "there is a pause"
        desk.turn(10)
        desk.deliver()
    assert sorted(desk.arrived()) == list(range(1, 4 * BLOCK + 1))
    assert desk.stats().dropped == {}
    got = [(one["event"], one.get("reason")) for one in logged]
    assert got == [("audit_delivery_failed", "topic_authorization_failed"), ("audit_delivery_works_again", None)]


def test_a_refused_record_and_one_that_no_empty_producer_takes_is_lost_and_holds_up_nothing(
    desk_of: DeskOf, tmp_path: Path
) -> None:
    desk = desk_of(tmp_path, room=MIB, ready=True)
    for _ in range(2):
        desk.add()
    desk.producer.end("invalid_record")
    desk.add(1, size=2 * MIB)
    desk.add()
    desk.deliver()
    assert desk.stats().dropped == {"invalid_record": BLOCK, "too_large": 1}
    assert desk.arrived() == [*range(BLOCK + 1, 2 * BLOCK + 1), *range(2 * BLOCK + 2, 3 * BLOCK + 2)]
    assert desk.gaps()[0] == Gap("invalid_record", desk.boot_id, 1, BLOCK)


def test_it_sends_what_a_clean_end_could_not(desk_of: DeskOf, tmp_path: Path) -> None:
    old = desk_of(tmp_path)
    old.add()
    old.add(7)
    old.outbox.close(0)
    assert (old.stats().spooled, old.stats().dropped) == (BLOCK + 7, {})
    new = desk_of(tmp_path)
    new.turn()
    new.deliver()
    assert new.arrived(old.boot_id) == list(range(1, BLOCK + 8))
    assert (new.stats().replayed, new.stats().emitted, new.gaps()) == (BLOCK + 7, 0, [])
    new.turn()
    new.outbox.close(0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("audit-delivery.md", "The next run names the numbers that a killed one lost.")
def test_it_names_what_a_killed_one_lost(desk_of: DeskOf, tmp_path: Path) -> None:
    old = desk_of(tmp_path)
    old.add()
    old.add(7)  # waits for others
    old.outbox.observed[0] += 3  # which an observer has not got yet
    old.die()
    new = desk_of(tmp_path)
    new.turn()
    new.deliver()
    (gap,) = new.gaps()
    assert gap == Gap("killed", old.boot_id, BLOCK + 1, BLOCK + 10)
    assert len(list(tmp_path.iterdir())) == 2, "its folder stays until that is reported"
    new.add(1)
    new.deliver()
    assert [folder.name for folder in tmp_path.iterdir()] == [f"1-{new.boot_id}"]


def test_it_is_killed_too_and_a_third_one_sends_both_and_says_what_was_lost(desk_of: DeskOf, tmp_path: Path) -> None:
    first = desk_of(tmp_path)
    first.add()
    first.add(7)
    first.die()
    second = desk_of(tmp_path)
    second.turn()
    second.add()
    second.die()
    third = desk_of(tmp_path)
    third.turn()
    third.deliver()
    third.turn()
    assert third.arrived(first.boot_id) == third.arrived(second.boot_id) == list(range(1, BLOCK + 1))
    assert third.stats().replayed == 2 * BLOCK
    assert third.gaps() == [Gap("killed", first.boot_id, BLOCK + 1, BLOCK + 7)]


def test_the_living_other_brokers_and_what_nobody_can_read_are_left_alone(desk_of: DeskOf, tmp_path: Path) -> None:
    living = desk_of(tmp_path)
    living.add()
    other = desk_of(tmp_path)
    other.add()
    other.die()
    (tmp_path / f"1-{other.boot_id}").rename(tmp_path / f"11-{other.boot_id}")
    (tmp_path / "1-a file").write_text("")
    (tmp_path / "1-future").mkdir()
    (tmp_path / "1-future" / "ledger").write_bytes(b"another version")
    new = desk_of(tmp_path)
    with capture_logs() as logged:
        for _ in range(3):
            new.turn(SPOOL_RETRY_INTERVAL)
        new.deliver()
    assert [(one["event"], one["folder"]) for one in logged] == [("audit_spool_left", "1-future")]
    assert (new.stats().replayed, new.stats().spool_failed) == (0, False)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.promise("audit-delivery.md", "A run adopts folders up to half of spool.max.bytes.")
def test_it_leaves_room_for_its_own_and_folders_for_others(desk_of: DeskOf, tmp_path: Path) -> None:
    for _ in range(3):
        old = desk_of(tmp_path)
        for _ in range(20):
            old.add()
        old.die()
    size = old.stats().spool_bytes
    new = desk_of(tmp_path, max_bytes=3 * size)
    new.turn()
    assert new.stats().spool_bytes == size
    assert new.stats().undelivered == {1: 60 * BLOCK, 2: 0}, "those that wait for their adoption, too"
    new.deliver()
    assert new.stats().undelivered == {1: 40 * BLOCK, 2: 0}
    new.turn(SPOOL_RETRY_INTERVAL)
    new.deliver()
    assert new.stats().undelivered == {1: 20 * BLOCK, 2: 0}
    new.turn(SPOOL_RETRY_INTERVAL)
    new.deliver()
    assert (new.stats().replayed, new.stats().undelivered) == (60 * BLOCK, {1: 0, 2: 0})


@pytest.mark.promise("audit-delivery.md", "A record that is refused as too large is sent in parts.")
def test_what_is_too_large_comes_in_parts_and_only_an_event_too_large_by_itself_is_lost(
    desk_of: DeskOf, tmp_path: Path
) -> None:
    for folder in (None, tmp_path):
        desk = desk_of(folder, ready=True)
        for _ in range(2):
            desk.add(each=250)
        desk.add(50)
        desk.add(1, each=20_000)
        desk.add(50)
        desk.deliver_up_to(6000)
        for _ in range(BLOCK):
            desk.add(1, each=250)
        desk.turn(BLOCK_LINGER)
        assert len(desk.producer.sent) > 5, "later blocks are small to begin with"
        assert all(len(value) <= 6000 for _, value in desk.producer.sent)
        desk.deliver_up_to(6000)
        large = 2 * BLOCK + 51
        stats = desk.stats()
        assert (stats.dropped, stats.spooled) == ({"too_large": 1}, 0), folder
        assert desk.gaps() == [Gap("too_large", desk.boot_id, large, large)], folder
        assert sorted(desk.arrived()) == [n for n in range(1, 3 * BLOCK + 102) if n != large], folder
        for envelope in desk.producer.arrived:
            seqs = [e["seq"] for e in envelope["events"]]
            assert seqs == list(range(envelope["first_seq"], envelope["last_seq"] + 1))
            assert len(msgspec.json.encode(envelope)) <= 6000


@pytest.mark.promise("audit-delivery.md", "Events in a deleted spool folder are lost as spool_torn.")
def test_what_is_on_its_way_arrives_and_what_was_on_disk_alone_is_lost(desk_of: DeskOf, tmp_path: Path) -> None:
    desk = desk_of(tmp_path / "spool", room=MIB)
    desk.turn()
    desk.producer.ready.set()
    for _ in range(100):
        desk.add()
    held = desk.producer.queued
    assert 0 < held < 100
    shutil.rmtree(tmp_path / "spool")
    with capture_logs() as logged:
        desk.turn(SPOOL_RETRY_INTERVAL)
    lost = (100 - held) * BLOCK
    assert [(one["event"], one["lost"]) for one in logged] == [("audit_spool_gone", lost)]
    assert (desk.stats().spooled, desk.stats().dropped) == (held * BLOCK, {"spool_torn": lost})
    for _ in range(3):
        desk.add()
    desk.deliver()
    assert sorted(desk.arrived()) == [*range(1, held * BLOCK + 1), *range(100 * BLOCK + 1, 103 * BLOCK + 1)]
    assert desk.gaps() == [Gap("spool_torn", desk.boot_id, held * BLOCK + 1, 100 * BLOCK)]
    assert (desk.stats().spooled, desk.stats().spool_failed) == (0, False)


class TestDisk:
    @pytest.mark.promise("audit-delivery.md", "While the disk fails events wait in memory alone.")
    def test_while_it_fails_events_wait_in_memory_and_losses_are_counted(
        self, desk_of: DeskOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        desk = desk_of(tmp_path, room=MIB, ready=True)
        desk.add(size=100_000)
        monkeypatch.setattr(Spool, "append", fail)
        for _ in range(15):
            desk.add(size=100_000)
        stats = desk.stats()
        assert (stats.spool_failed, stats.spooled) == (True, BLOCK)
        assert stats.queued + sum(stats.dropped.values()) == 15 * BLOCK
        assert stats.dropped == {"queue_full": 6 * BLOCK}
        monkeypatch.undo()
        desk.add(size=100)
        assert desk.stats().spool_failed, "it is not tried yet"
        desk.turn(SPOOL_RETRY_INTERVAL)
        desk.add(size=100)
        assert (desk.stats().spool_failed, desk.stats().spooled) == (False, 2 * BLOCK)

    @pytest.mark.promise("audit-delivery.md", "Blocks that are not delivered soon are synced to the disk.")
    def test_what_waits_long_is_made_to_be_on_the_disk(
        self, desk_of: DeskOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[Path] = []
        monkeypatch.setattr(Spool, "sync", lambda self: synced.append(self._folder))
        desk = desk_of(tmp_path, ready=True)
        desk.add()
        desk.turn(0.1)
        desk.producer.end()
        desk.turn(1)
        assert synced == [], "it was delivered before"
        desk.add()
        desk.turn(0.5)
        assert len(synced) == 1
