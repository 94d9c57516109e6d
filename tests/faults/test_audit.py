"""The way to the audit topic in trouble: B1 to B5 and B7 of the fault table, each with exact accounts."""

import gc
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but without __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from observers import spool_store
from observers.delivery_accounting import Gap
from observers.event_blocks import Chunk
from observers.outbox import Outbox, OutboxStats
from proxy.local import cluster as local
from proxy.local.state import ClusterState
from tests.faults.emitter import TOPIC, emit, outbox
from tests.faults.gate import Gate
from tests.faults.site import FULL
from tests.integration.test_audit import envelopes, until

pytestmark = pytest.mark.kafka

RATE = 5000
OUTAGE = 600.0 if FULL else 8.0
KILLS = 50 if FULL else 5
MIB = 1024 * 1024
OPEN_TO_ALL = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class Line:
    """A broker behind a gate, whose address is the only one that it advertises."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.state: ClusterState = local.up(folder, broker_properties=OPEN_TO_ALL, progress=False)
        (node,) = self.state.nodes
        self.bootstrap = self.state.bootstrap
        self.behind = self.state.internal_bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.behind})
        self.gate = Gate(int(self.bootstrap.rpartition(":")[2]), int(node.upstream.rpartition(":")[2]))

    def topic_id(self) -> str | None:
        """The id of the audit topic, if there is one."""
        try:
            return str(self.admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(180).topic_id)
        except KafkaException:
            return None

    def numbers(self, boot_id: str) -> list[int]:
        """What the topic has of one run, duplicates included."""
        found = [e for e in envelopes(self.behind, TOPIC) if e.boot_id == boot_id]
        for envelope in found:
            assert [e.seq for e in envelope.events] == list(range(envelope.first_seq, envelope.last_seq + 1))
        return sorted(event.seq for envelope in found for event in envelope.events)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    line = Line(folder)
    with line.gate:
        yield line
    local.down(folder)


@pytest.fixture
def line(shared: Line) -> Line:
    shared.gate.bytes_a_second = None
    shared.gate.open()
    return shared


class Run:
    """An outbox of this process, and its gap events."""

    def __init__(self, line: Line, spool: Path | None, *, max_bytes: int = 1 << 30) -> None:
        self.boot_id = uuid.uuid4().hex
        self.outbox: Outbox = outbox(line.bootstrap, spool, self.boot_id, max_bytes=max_bytes)
        self.gaps: list[Gap] = []
        self.outbox.start(self.tick)

    def tick(self) -> None:
        """Emit gaps, each as an event."""
        with self.outbox.sequence_lock:
            gaps = self.outbox.drain_gaps()
            if gaps:
                self.gaps += gaps
                first = self.outbox.seq + 1
                json = b",".join(b'{"kind":"gap","seq":%d,"reason":"a","lost_boot_id":"a","lost_first_seq":1,'
                                 b'"lost_last_seq":1}' % (first + n) for n in range(len(gaps)))  # fmt: skip
                self.outbox.add_events([Chunk(first, len(gaps), json)], first + len(gaps) - 1, {}, 0, 0)

    def emit(self, seconds: float, rate: float = RATE) -> None:
        begun, emitted, passed = time.monotonic(), 0, 0.0
        while passed < seconds:
            passed = min(time.monotonic() - begun, seconds)  # so that all come, however late
            due = int(passed * rate) - emitted
            if due:
                emitted += due
                self.outbox.observed[0] += due
                emit(self.outbox, due)
                self.stats()
            time.sleep(0.02)

    def stats(self) -> OutboxStats:
        """Present counts, which must agree."""
        stats = self.outbox.stats()
        assert stats.emitted == stats.delivered + sum(stats.dropped.values()) + stats.spooled + stats.queued
        return stats

    def settled(self) -> bool:
        stats = self.stats()
        return stats.spooled == stats.queued == 0


@pytest.fixture
def run_of(line: Line, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(spool: bool = True, **settings: int) -> Run:
        runs.append(Run(line, tmp_path / "spool" if spool else None, **settings))
        return runs[-1]

    yield make
    line.gate.open()
    while runs:
        runs.pop().outbox.close(0)
    until(lambda: not any(thread.name.startswith("audit ") for thread in threading.enumerate()))
    gc.collect()  # their clients continue connecting until they are gone


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def missing(numbers: list[int], last: int) -> list[int]:
    return sorted(set(range(1, last + 1)) - set(numbers))


@pytest.mark.promise("README.md", "An outage of the audit's cluster loses no event.")
@pytest.mark.parametrize("seconds", [2.0, pytest.param(OUTAGE, marks=pytest.mark.slow)])
def test_an_outage_loses_nothing(line: Line, run_of: Callable[..., Run], seconds: float) -> None:
    """B1: 5,000 events/s, 8 s (10 minutes). The cluster is away at the start, too."""
    line.gate.shut()
    run = run_of()
    run.emit(0.5)
    line.gate.open()
    until(run.settled)
    before = resident()
    line.gate.shut()
    run.emit(seconds)
    until(lambda: run.stats().spooled >= RATE * seconds * 0.9)
    stats = run.stats()
    assert (stats.dropped, stats.spool_failed) == ({}, False)
    assert stats.spool_bytes < 1 << 30
    assert resident() - before < 48 * MIB
    line.gate.open()
    run.emit(0.5)
    until(run.settled, 600)
    run.outbox.close(20)
    stats = run.stats()
    assert (stats.delivered, stats.dropped, run.gaps) == (stats.emitted, {}, [])
    assert line.numbers(run.boot_id) == list(range(1, stats.emitted + 1))


@pytest.mark.promise("README.md", "Beyond the size of the spool losses are counted exactly, and gap events name them.")
def test_beyond_the_spool_losses_are_exact_and_each_run_of_them_is_one_gap(
    line: Line, run_of: Callable[..., Run]
) -> None:
    """B2: a spool of 16 MiB, filled two times."""
    run = run_of(max_bytes=16 * MIB)
    run.emit(0.5)
    until(run.settled)
    for _ in range(2):
        line.gate.shut()
        before = sum(run.stats().dropped.values())
        while sum(run.stats().dropped.values()) < before + 10 * 200:
            run.outbox.observed[0] += 10_000
            emit(run.outbox, 10_000)
        stats = run.stats()
        assert set(stats.dropped) == {"spool_full"}
        assert stats.spool_bytes <= 16 * MIB
        line.gate.open()
        until(run.settled)
        run.emit(0.5, 100)
        until(run.settled)
    until(lambda: run.settled() and sum(gap.last - gap.first + 1 for gap in run.gaps) == stats_lost(run))
    run.outbox.close(20)
    stats = run.stats()
    lost = [n for gap in run.gaps for n in range(gap.first, gap.last + 1)]
    numbers = line.numbers(run.boot_id)
    assert missing(numbers, stats.emitted) == sorted(lost)
    assert (len(lost), len(numbers)) == (stats_lost(run), stats.delivered)


def stats_lost(run: Run) -> int:
    return sum(run.stats().dropped.values())


@pytest.mark.promise("audit-delivery.md", "Without a disk events wait in memory and losses are exact.")
def test_without_a_disk_events_wait_in_memory_and_losses_are_exact(
    line: Line, run_of: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3: the spool cannot be made at first, and later no byte can be written any more."""
    monkeypatch.setattr(spool_store, "SPOOL_RETRY_INTERVAL", 1.0)
    (tmp_path / "spool").write_text("a file, not a folder")
    run = run_of()
    run.emit(0.5)
    until(run.settled)
    assert run.stats().spool_failed
    line.gate.shut()
    while stats_lost(run) < 10_000:
        run.outbox.observed[0] += 10_000
        emit(run.outbox, 10_000)
    assert run.stats().spooled == 0
    line.gate.open()
    until(run.settled)
    (tmp_path / "spool").unlink()
    lost = stats_lost(run)

    def works_again() -> bool:
        run.emit(0.2)
        return not run.stats().spool_failed

    until(works_again)
    until(run.settled)
    line.gate.shut()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        run.emit(0.5)
        until(lambda: run.stats().spool_failed)
        assert run.stats().queued > 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    line.gate.open()
    until(works_again)
    until(run.settled)
    run.outbox.close(20)
    stats = run.stats()
    assert stats.dropped == {"queue_full": lost}
    numbers = line.numbers(run.boot_id)
    assert len(missing(numbers, stats.emitted)) == lost
    assert len(numbers) == stats.delivered


class TestRefused:
    """B4."""

    @pytest.mark.promise("audit-delivery.md", "A deleted audit topic is created again, and nothing is missing.")
    def test_a_deleted_topic_is_made_again_and_what_was_on_its_way_arrives(
        self, line: Line, run_of: Callable[..., Run]
    ) -> None:
        run = run_of()
        run.emit(0.5)
        until(run.settled)
        kept, before = run.stats().emitted, line.topic_id()
        line.admin.delete_topics([TOPIC])[TOPIC].result()

        def made_again() -> bool:
            run.emit(0.5)
            return line.topic_id() not in (None, before)

        run.emit(3)
        until(made_again)  # the broker may end the old one later than that
        until(run.settled)
        run.outbox.close(20)
        stats = run.stats()
        assert (stats.delivered, stats.dropped) == (stats.emitted, {})
        numbers = line.numbers(run.boot_id)
        # What the old topic took just before its end is not known; nothing is missing behind it.
        assert missing(numbers, stats.emitted) == list(range(1, numbers[0]))
        assert kept - 200 <= numbers[0] <= stats.emitted

    @pytest.mark.promise("audit-delivery.md", "A revoked right to write is waited for, and nothing is lost meanwhile.")
    def test_a_revoked_right_is_waited_for(self, line: Line, run_of: Callable[..., Run]) -> None:
        run = run_of()
        run.emit(0.5)
        until(run.settled)
        rule = AclBinding(
            ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
            AclOperation.WRITE, AclPermissionType.DENY,
        )  # fmt: skip
        anything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        line.admin.create_acls([rule])[rule].result()
        try:

            def waits() -> bool:
                before = run.stats().delivered
                run.emit(1, 500)
                stats = run.stats()
                return stats.delivered == before and stats.spooled > 0

            until(waits)
        finally:
            line.admin.delete_acls([anything])[anything].result()
        until(run.settled)
        run.outbox.close(20)
        stats = run.stats()
        assert (stats.delivered, stats.dropped) == (stats.emitted, {})
        numbers = line.numbers(run.boot_id)
        assert sorted(set(numbers)) == list(range(1, stats.emitted + 1))


@pytest.mark.promise("audit-delivery.md", "After kill -9 each number is delivered or named in a gap event.")
@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_a_killed_run_loses_what_is_named_and_no_more(
    line: Line, run_of: Callable[..., Run], tmp_path: Path, kills: int
) -> None:
    """B5: 5 (50) times kill -9 at a random instant, the topic there or not."""
    rnd = random.Random(5)
    truths: dict[str, list[tuple[int, int]]] = {}
    for n in range(kills):
        boot_id = uuid.uuid4().hex
        truth = tmp_path / boot_id
        rate = rnd.choice((20, 1000, RATE))
        command = [sys.executable, "-m", "tests.faults.emitter", line.bootstrap, str(tmp_path / "spool"), boot_id]
        (line.gate.shut if n % 2 else line.gate.open)()
        process = subprocess.Popen([*command, str(truth), str(rate)], stdout=subprocess.DEVNULL)
        until(truth.exists)
        time.sleep(rnd.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        truths[boot_id] = list(struct.iter_unpack("<qq", truth.read_bytes()))
    line.gate.open()
    run = run_of()
    until(lambda: [folder.name for folder in (tmp_path / "spool").iterdir()] == [f"7-{run.boot_id}"], 120)
    run.outbox.close(20)
    assert list((tmp_path / "spool").iterdir()) == []
    for boot_id, truth in truths.items():
        numbers = line.numbers(boot_id)
        gaps = [gap for gap in run.gaps if gap.boot_id == boot_id]
        named = [n for gap in gaps for n in range(gap.first, gap.last + 1)]
        assert len(gaps) <= 1
        assert {gap.reason for gap in gaps} <= {"killed"}
        # The last step may have been written down and not been made.
        ends = {truth[-1][1], truth[-2][1] if len(truth) > 1 else 0} if truth else {0}
        assert max([*numbers, *named], default=0) in ends
        assert sorted({*numbers, *named}) == list(range(1, max([*numbers, *named], default=0) + 1))
        assert not set(numbers) & set(named)


@pytest.mark.promise("audit-delivery.md", "A broker that is away is dialled about once a second.")
@pytest.mark.slow
def test_a_narrow_and_flapping_line_loses_nothing(line: Line, run_of: Callable[..., Run]) -> None:
    """B7: 1 KB/s, cut every 2 s (5 s), reconnects about once a second to each address."""
    run = run_of()
    run.emit(0.5)
    until(run.settled)
    line.gate.bytes_a_second = 1000
    seen, begun = line.gate.connections, time.monotonic()
    for _ in range(12 if FULL else 3):
        line.gate.shut()
        run.emit(2.5 if FULL else 1)
        line.gate.open()
        run.emit(2.5 if FULL else 1)
    seconds = time.monotonic() - begun
    assert line.gate.connections - seen <= 5 + 3 * seconds  # two clients, and what is counted when they are cut
    line.gate.bytes_a_second = None
    until(run.settled)
    run.outbox.close(20)
    stats = run.stats()
    assert (stats.delivered, stats.dropped) == (stats.emitted, {})
    assert sorted(set(line.numbers(run.boot_id))) == list(range(1, stats.emitted + 1))
