"""Clients, sidecars and the topic count the same requests, with outages of the audit's cluster and kills on the way.

The clients write whole requests and count them by hand. What a killed sidecar had seen and had not yet on disk is the
only difference there may be, and the next run names its numbers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record.default_records import DefaultRecordBatchBuilder

from observers.account_events import GapEvent, StatusEvent
from observers.event import Envelope, RequestEvent, decoder
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.faults.gate import Gate
from tests.faults.site import FULL
from tests.frames import produce
from tests.integration.metrics import sample
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

AUDIT = "brokerside-audit"
CLIENTS = 8
RECORDS = 3
"""Records of each request."""

OUTAGE = 60.0 if FULL else 1.5
"""Seconds that the audit's cluster is away, twice."""

CALM = 10.0 if FULL else 1.0
"""Seconds of load in between."""

PACE = 0.002
"""Seconds between two requests of a client."""


@dataclass
class Run:
    """What clients counted while one sidecar ran."""

    written: int = 0
    answered: int = 0
    rejected: int = 0


@dataclass
class Crowd:
    """Clients that each send one request after the other, and dial again when they are cut off."""

    port: int
    topic: str
    runs: list[Run] = field(default_factory=lambda: [Run()])
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        for n in range(RECORDS):
            builder.append(n, timestamp=1, key=None, value=b"x" * 100, headers=[])
        self.frame = produce(7, -1, bytes(builder.build()), topic=self.topic)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    async def _all(self) -> None:
        await asyncio.gather(*[self._one() for _ in range(CLIENTS)])

    async def _one(self) -> None:
        while not self.stopping.is_set():
            try:
                reader, writer = await asyncio.open_connection(HOST, self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            run = self.runs[-1]  # of whom it has reached: it began before that sidecar did
            try:
                while not self.stopping.is_set():
                    writer.write(self.frame)
                    run.written += 1
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
                    run.answered += 1
                    # correlation id, one topic, its name, one partition, its number; then the error code
                    run.rejected += struct.unpack_from(">h", answer, 4 + 4 + 2 + len(self.topic) + 4 + 4)[0] != 0
                    await asyncio.sleep(PACE)
            except (OSError, asyncio.IncompleteReadError):
                continue
            finally:
                writer.close()


class Site(NamedTuple):
    """``internal``: the broker's INTERNAL listener, through the gate."""

    state: ClusterState
    gate: Gate
    internal: str


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Site]:
    """A broker whose INTERNAL listener is reached through a gate."""
    (port,) = free_ports(1)
    node = local_cluster.plan(tmp_path / "cluster").nodes[0]
    advertised = f"CLIENT://{node.advertised},INTERNAL://{HOST}:{port}"
    properties = {"advertised.listeners": advertised}
    state = local_cluster.up(tmp_path / "cluster", broker_properties=properties, progress=False)
    try:
        with Gate(port, int(node.internal.rpartition(":")[2])) as gate:
            yield Site(state, gate, f"{HOST}:{port}")
    finally:
        local_cluster.down(tmp_path / "cluster")


@pytest.mark.promise("README.md", "Each event is on the topic, on disk, in memory, or dropped and counted.")
@pytest.mark.timeout(600)
def test_every_request_is_accounted_for(cluster: Site, tmp_path: Path) -> None:
    gate, internal, node = cluster.gate, cluster.internal, cluster.state.nodes[0]
    topic = f"ledger-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": internal})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)

    config = yaml.safe_load((tmp_path / "cluster" / "sidecar-1.yaml").read_text())
    config["internal.bootstrap.servers"] = internal
    config["audit"] |= {"spool.path": str(tmp_path / "spool")}
    config["observer.shutdown.timeout.ms"] = 20_000
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))

    def start() -> SidecarProcess:
        return SidecarProcess.start(path, tmp_path / "sidecar.log", node.admin)

    def kill(sidecar: SidecarProcess) -> None:
        os.kill(sidecar.process.pid, signal.SIGKILL)
        sidecar.stop()

    sidecar = start()
    crowd = Crowd(int(node.advertised.rpartition(":")[2]), topic)
    try:
        time.sleep(CALM)
        gate.shut()
        time.sleep(OUTAGE)
        gate.open()
        time.sleep(CALM)
        kill(sidecar)  # with everything well
        crowd.runs.append(Run())
        sidecar = start()
        time.sleep(CALM)
        gate.shut()
        time.sleep(OUTAGE)
        kill(sidecar)  # with all of the outage on disk
        crowd.runs.append(Run())
        sidecar = start()
        time.sleep(CALM)
        gate.open()
        time.sleep(CALM)
        crowd.stop()
        wait_delivered(sidecar)
    finally:
        crowd.stop()
        assert sidecar.stop()

    received = read(internal)
    boots = list(received)
    assert len(boots) == 3
    gaps = [event for events in received.values() for event in events.values() if isinstance(event, GapEvent)]
    assert {gap.reason for gap in gaps} <= {"killed"}
    assert {gap.lost_boot_id for gap in gaps} <= set(boots[:2])
    for boot, run in zip(boots, crowd.runs, strict=True):
        events = received[boot]
        lost = [number for gap in gaps if gap.lost_boot_id == boot for number in whole(gap)]
        assert sorted([*events, *lost]) == list(range(1, len(events) + len(lost) + 1)), "numbers without a gap"
        requests = [event for event in events.values() if isinstance(event, RequestEvent) and event.topics]
        assert {event.request_bytes for event in requests} == {len(crowd.frame)}
        assert {part.records for event in requests for part in event.topics} == {RECORDS}
        if boot == boots[-1]:
            assert run.answered == len(requests)
            acknowledged = [e for e in requests if e.outcome == "answered" and not e.topics[0].error_code]
            assert len(acknowledged) == run.answered - run.rejected
            last = max(events)
            assert isinstance(status := events[last], StatusEvent)
            assert status.last
            assert status.dropped == {}
        else:  # killed: what it answered has an event, or is among the numbers that the next run names
            # A response is sent before it is observed, and a client that it wakes may run first.
            assert run.answered <= len(requests) + len(lost) + 1
            assert len(requests) <= run.written
            assert len(lost) < run.answered / 2


def whole(gap: GapEvent) -> range:
    return range(gap.lost_first_seq, gap.lost_last_seq + 1)


def wait_delivered(sidecar: SidecarProcess, patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while True:
        text = sidecar.metrics()
        if not sample(text, "brokerside_audit_queued") and not sample(text, "brokerside_audit_spooled"):
            return
        assert time.monotonic() < deadline, "events still wait"
        time.sleep(0.2)


def read(bootstrap: str) -> dict[str, dict[int, object]]:
    """The events of the audit topic by run, in the order of the runs, and by number."""
    received: dict[str, dict[int, object]] = defaultdict(dict)
    first: dict[str, int] = {}
    for envelope in envelopes(bootstrap):
        first[envelope.boot_id] = min(first.get(envelope.boot_id, envelope.sent_at), envelope.sent_at)
        for event in envelope.events:
            held = received[envelope.boot_id].setdefault(event.seq, event)
            assert held == event, "one number, two events"
    return {boot: received[boot] for boot in sorted(received, key=lambda boot: first[boot])}


def envelopes(bootstrap: str) -> Iterator[Envelope]:
    return map(decoder.decode, envelopes_raw(bootstrap))


def envelopes_raw(bootstrap: str) -> Iterator[bytes]:
    return (message.value() or b"" for message in messages(bootstrap, AUDIT))
