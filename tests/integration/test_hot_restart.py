"""Under load a sidecar is replaced, or it or its broker is killed: nothing that was acknowledged or counted is lost."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from observers.account_events import GapEvent, StatusEvent
from observers.event import Envelope, RequestEvent
from proxy.local import cluster as local_cluster
from proxy.local import process
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.process import Process
from proxy.local.sidecars import SidecarProcess
from tests.brokers import start_again
from tests.faults.gate import Gate
from tests.integration import sidecars
from tests.integration.metrics import sample
from tests.integration.test_audit import envelopes, events
from tests.integration.topics import new_topic
from tests.tools.conformance.crowd import Plan, Visits
from tests.tools.topic import messages

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONNECTS = 200
"""Connects per second."""

LIMIT = 20
"""Connections per second of the limited listener. Its clients offer three times as much, for ``STORM`` seconds."""

STORM, WINDOW = 12, 10
"""``WINDOW`` seconds after the first connection, those of its burst begin to count no more."""

BURST = WINDOW * LIMIT
"""Connections until the window has nothing left. The sidecar is replaced when half of them were accepted."""


class HotSite:
    """One broker, and its sidecar with a listener without limits, another with one, and an audit topic of its own.

    The successor has one listener more, whose upstream is ``gate``: it is ready once that is open.
    """

    def __init__(self, cluster: ClusterState, folder: Path, audit: str, workers: int) -> None:
        self.node = cluster.nodes[0]
        self.folder = folder
        self.workers = workers
        self.limited, new, gate = free_ports(3)
        self.audit = audit
        self.gate = Gate(gate, int(self.node.upstream.rpartition(":")[2]))
        config = sidecars.config_of(self.node)
        [listener] = config["listeners"]
        more = {**listener, "name": "LIMITED", "bind": f"{HOST}:{self.limited}", "advertised": listener["bind"]}
        config |= {
            "listeners": [listener, more],
            "workers": workers,
            "audit": {"topic": audit, "spool.path": str(folder / "spool")},
            "takeover.socket.path": str(folder / "takeover.sock"),
            "observer.shutdown.timeout.ms": 15_000,  # all events come, also where the broker takes its time
            "quotas": {"listener.name.limited.max.connection.creation.rate": LIMIT},
        }
        first, self.config = folder / "first.yaml", folder / "second.yaml"
        first.write_text(yaml.safe_dump(config))
        config["listeners"].append({**more, "name": "NEW", "bind": f"{HOST}:{new}", "upstream": f"{HOST}:{gate}"})
        self.config.write_text(yaml.safe_dump(config))
        self.first = SidecarProcess.start(first, folder / "first.log", self.node.admin)
        self.port = int(listener["bind"].rpartition(":")[2])
        self.second: Process | None = None

    def succeed(self) -> None:
        command = [sys.executable, "-m", "proxy", "run", "--takeover", "-c", str(self.config)]
        self.second = process.spawn(command, self.folder / "second.log")

    def said(self, log: str, event: str) -> dict[str, Any] | None:
        text = (self.folder / log).read_text()
        lines = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
        return next((line for line in lines if line["event"] == event), None)

    def accepted(self, listener: str) -> float:
        return sample(self.first.metrics(), "brokerside_connections_accepted_total", listener=listener)

    def stop(self) -> bool:
        return process.stop([one for one in (self.first.process, self.second) if one is not None], 40)


async def finished(one: asyncio.subprocess.Process) -> dict[str, Any]:
    said, _ = await asyncio.wait_for(one.communicate(), 180)
    assert one.returncode == 0
    return dict(json.loads(said))


@pytest.fixture(params=[1, 2])
async def site(request, cluster, tmp_path, topic):
    made = HotSite(cluster, tmp_path, f"audit-{topic}", request.param)
    with made.gate:
        made.gate.shut()
        yield made
        await asyncio.to_thread(made.stop)


@pytest.fixture
def load(site, cluster, topic):
    made = Load(cluster.bootstrap, topic, pause=0.01)
    yield made
    made.finish()


@pytest.fixture
async def start():
    running: list[asyncio.subprocess.Process] = []

    async def start(plan):
        arguments = [sys.executable, "-m", "tests.tools.conformance.crowd", json.dumps(asdict(plan))]
        pipe = asyncio.subprocess.PIPE
        running.append(await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe))
        return running[-1]

    yield start
    for one in running:
        if one.returncode is None:
            one.kill()
            await one.communicate()


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(sidecars.until, condition)


@pytest.mark.promise(
    "restart.md",
    "In a takeover no connection is refused or reset, rates continue exactly, and no event of the audit is lost.",
)
async def test_a_hot_restart_under_load(site, cluster, topic, load, start):
    crowd = await start(Plan(site.port, 0, rate=CONNECTS, leave="answered"))
    storm = await start(Plan(site.limited, 3 * LIMIT * STORM, rate=3 * LIMIT, leave="answered", watch=1, on_line=True))
    site.succeed()
    await until(lambda: site.gate.connections)  # nothing else keeps it from taking over, for 10 s
    storm.stdin.write(b"\n")
    await until(lambda: site.accepted("LIMITED") >= BURST / 2)
    site.gate.open()
    limited = await finished(storm)
    await until(lambda: not site.first.process.alive())  # its drain may take 10 s
    crowd.terminate()
    unlimited = await finished(crowd)
    await asyncio.to_thread(load.finish)
    await until(lambda: site.said("second.log", "took_over"))
    took = site.said("second.log", "took_over")
    assert "ok" in await asyncio.to_thread(site.first._get, "readyz"), "the successor's, at the same address"
    text = await asyncio.to_thread(site.first.metrics)
    assert sample(text, "brokerside_connections_accepted_total") > 0
    accepted = Visits(**unlimited)
    assert accepted.refused() == []
    assert len(accepted.accepted()) == len(accepted.dialled) > CONNECTS
    assert load.errors == []
    values = [(message.value() or b"").decode() for message in messages(cluster.internal_bootstrap, topic)]
    assert sorted(values) == sorted(load.acknowledged)

    held_up = Visits(**limited)
    assert held_up.refused() == []
    changed_at = datetime.fromisoformat(took["timestamp"]).timestamp() - time.time() + time.monotonic() - held_up.began
    assert changed_at < WINDOW, "it was replaced while those of the burst count"
    early = [at for at in held_up.accepted() if at < WINDOW]
    assert BURST <= len(early) <= 1.2 * BURST, "with a fresh window it would be twice as many"

    assert await asyncio.to_thread(site.stop)
    read = envelopes(cluster.internal_bootstrap, site.audit)
    assert audited(read) == 2 * site.workers


def audited(read: list[Envelope]) -> int:
    """Check that each number of each run is on the topic once, or in a gap; return the number of runs."""
    reported: set[tuple[str, int]] = set()
    for gap in events(read, GapEvent):
        reported |= {(gap.lost_boot_id, number) for number in range(gap.lost_first_seq, gap.lost_last_seq + 1)}
    boots = {envelope.boot_id for envelope in read}
    for boot in boots:
        numbers = [number for one in read if one.boot_id == boot for number in range(one.first_seq, one.last_seq + 1)]
        numbers += [number for of, number in reported if of == boot]
        assert sorted(numbers) == list(range(1, max(numbers) + 1))
    last = [event for event in events(read, StatusEvent) if event.last]
    assert len(last) == len(boots)
    assert sum(event.waiting for event in last) == 0
    assert len(events(read, RequestEvent)) > 0
    return len(boots)


@pytest.fixture
def own_cluster(tmp_path):
    yield local_cluster.up(tmp_path, progress=False)
    local_cluster.down(tmp_path)


class Load:
    """An idempotent producer on its own thread; keeps the values that were acknowledged, and errors."""

    def __init__(self, bootstrap: str, topic: str, pause: float = 0.0005) -> None:
        self.pause = pause
        self.acknowledged: set[str] = set()
        self.errors: list[str] = []
        self.sent = 0
        self._stop = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acknowledged.add(message.value().decode())
            else:
                self.errors.append(str(error))

        while not self._stop.is_set():
            self._producer.produce(self._topic, str(self.sent), on_delivery=delivered)
            self.sent += 1
            self._producer.poll(0)
            time.sleep(self.pause)

    def wait_for(self, more: int, seconds: float = 90) -> None:
        goal = len(self.acknowledged) + more
        sidecars.until(lambda: len(self.acknowledged) >= goal, seconds)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(90) == 0


@pytest.mark.promise(
    "operations.md",
    "When a broker or a sidecar is killed or restarted, clients reconnect and lose nothing that was acknowledged.",
)
def test_brokers_and_sidecars_that_are_killed_under_load_lose_nothing_acknowledged(own_cluster):
    node = own_cluster.nodes[0]
    folder, topic = node.home.parent, new_topic(own_cluster)

    def start():
        return SidecarProcess.start(folder / "sidecar-1.yaml", folder / "sidecar-1.log", node.admin)

    sidecar = start()
    load = Load(own_cluster.bootstrap, topic)
    try:
        for _ in range(2):
            load.wait_for(1000)
            local_cluster.stop_node(folder, 1, kill=True)
            start_again(folder, 1)
        load.wait_for(1000)
        text = sidecar.metrics()
        assert sample(text, "brokerside_connections_closed_total", cause="broker_out_of_sync") == 0
        assert sample(text, "brokerside_frames_invalid_total") == 0
        assert sidecar.stop()
        sidecar = start()
        load.wait_for(500)
        process.stop([sidecar.process], 5, kill=True)
        sidecar = start()
        load.wait_for(500)
        load.finish()
        values = [(message.value() or b"").decode() for message in messages(own_cluster.internal_bootstrap, topic)]
        assert load.errors == []
        assert load.acknowledged == set(values)
        assert len(values) == len(set(values))
    finally:
        load.finish()
        assert sidecar.stop()
