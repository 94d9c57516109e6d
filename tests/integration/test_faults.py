"""A broker that dies, a sidecar that ends: clients recover by themselves and lose nothing acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from proxy.local import cluster as local_cluster
from proxy.local import process
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample
from tests.integration.topics import new_topic
from tests.tools.topic import messages

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[ClusterState]:
    """A cluster whose broker a test may kill."""
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
                self.acknowledged.add(message.value().decode())  # type: ignore[attr-defined]
            else:
                self.errors.append(str(error))

        while not self._stop.is_set():
            self._producer.produce(self._topic, str(self.sent), on_delivery=delivered)
            self.sent += 1
            self._producer.poll(0)
            time.sleep(self.pause)

    def wait_for(self, more: int, seconds: float = 90) -> None:
        """Wait until ``more`` further values are acknowledged."""
        goal = len(self.acknowledged) + more
        deadline = time.monotonic() + seconds
        while len(self.acknowledged) < goal:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {goal} acknowledged"
            time.sleep(0.02)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(90) == 0


@pytest.mark.promise(
    "operations.md",
    "When a broker or a sidecar is killed or restarted, clients reconnect and lose nothing that was acknowledged.",
)
def test_brokers_and_sidecars_that_are_killed_under_load_lose_nothing_acknowledged(own_cluster: ClusterState) -> None:
    node = own_cluster.nodes[0]
    folder, topic = node.home.parent, new_topic(own_cluster)

    def start() -> SidecarProcess:
        return SidecarProcess.start(folder / "sidecar-1.yaml", folder / "sidecar-1.log", node.admin)

    sidecar = start()
    load = Load(own_cluster.bootstrap, topic)
    try:
        for _ in range(2):
            load.wait_for(1000)
            local_cluster.stop_node(folder, 1, kill=True)
            local_cluster.start_node(folder, 1)
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
