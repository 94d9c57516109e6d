"""A broker that dies, a sidecar that gets SIGTERM: clients recover by themselves and lose nothing acknowledged."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.local import cluster as local_cluster
from proxy.local import process
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample
from tests.integration.test_audit import until
from tests.integration.test_documented import led

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    """A cluster whose broker a test may kill, as long as it starts it again."""
    folder = tmp_path_factory.mktemp("faults")
    yield local_cluster.up(folder, progress=False)
    local_cluster.down(folder)


def create_topic(state: ClusterState) -> str:
    name = f"f-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": state.internal_bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    until(lambda: led(admin, name))
    return name


def start_sidecar(state: ClusterState, folder: Path) -> SidecarProcess:
    return SidecarProcess.start(folder / "sidecar-1.yaml", folder / "sidecar-1.log", state.nodes[0].admin)


class Load:
    """An idempotent producer on its own thread; keeps the values that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: set[str] = set()
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
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acknowledged.add(message.value().decode())  # type: ignore[attr-defined]

        while not self._stop.is_set():
            self._producer.produce(self._topic, str(self.sent), on_delivery=delivered)
            self.sent += 1
            self._producer.poll(0)
            time.sleep(0.0005)

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


def read_all(bootstrap: str, topic: str) -> list[str]:
    """Every value of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            break
        values.append((message.value() or b"").decode())
    consumer.close()
    return values


def test_a_broker_killed_under_load_loses_nothing_acknowledged(own_cluster: ClusterState) -> None:
    folder = own_cluster.nodes[0].home.parent
    topic = create_topic(own_cluster)
    sidecar = start_sidecar(own_cluster, folder)
    load = Load(own_cluster.bootstrap, topic)
    try:
        for _ in range(2):
            load.wait_for(1000)
            local_cluster.stop_node(folder, 1, kill=True)
            local_cluster.start_node(folder, 1)
        load.wait_for(1000)
        load.finish()
        values = read_all(own_cluster.bootstrap, topic)
        assert load.acknowledged <= set(values)
        assert len(values) == len(set(values))
        text = sidecar.metrics()
        assert sample(text, "brokerside_connections_closed_total", cause="broker_out_of_sync") == 0
        assert sample(text, "brokerside_frames_invalid_total") == 0
    finally:
        load.finish()
        assert sidecar.stop()


def test_a_sidecar_that_is_restarted_under_load_loses_nothing_acknowledged(own_cluster: ClusterState) -> None:
    folder = own_cluster.nodes[0].home.parent
    topic = create_topic(own_cluster)
    sidecar = start_sidecar(own_cluster, folder)
    load = Load(own_cluster.bootstrap, topic)
    try:
        load.wait_for(500)
        assert sidecar.stop()
        sidecar = start_sidecar(own_cluster, folder)
        load.wait_for(500)
        process.stop([sidecar.process], 5, kill=True)
        sidecar = start_sidecar(own_cluster, folder)
        load.wait_for(500)
        load.finish()
        values = read_all(own_cluster.bootstrap, topic)
        assert load.acknowledged <= set(values)
        assert len(values) == len(set(values))
    finally:
        load.finish()
        sidecar.stop()


def test_a_second_sigterm_ends_a_drain_at_once(own_cluster: ClusterState) -> None:
    node = own_cluster.nodes[0]
    folder = node.home.parent
    topic = create_topic(own_cluster)
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    (folder / "patient.yaml").write_text(yaml.safe_dump(config | {"drain.timeout.ms": 250_000}))
    sidecar = SidecarProcess.start(folder / "patient.yaml", folder / "patient.log", node.admin)
    consumer = Consumer(
        {
            "bootstrap.servers": own_cluster.bootstrap,
            "group.id": "g",
            "fetch.wait.max.ms": 250_000,
            "fetch.min.bytes": 1000,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 60
        while sample(sidecar.metrics(), "brokerside_requests_total", api="Fetch") == 0:
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        os.kill(sidecar.process.pid, signal.SIGTERM)
        until(lambda: '"draining"' in sidecar.log.read_text())  # two signals before that would be one
        time.sleep(1)
        assert sidecar.process.alive()  # the long poll holds the drain
        os.kill(sidecar.process.pid, signal.SIGTERM)
        until(lambda: not sidecar.process.alive())
        assert '"event":"stopped"' in sidecar.log.read_text().replace(" ", "")
    finally:
        consumer.close()
        sidecar.stop()
