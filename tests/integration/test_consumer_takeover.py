"""A hot restart of the sidecar that coordinates: its consumers end, register with the successor, and read on."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import yaml

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.consuming import handed_out, shut_down, until
from tests.integration.test_group_coordinator import MESSAGES, Coordinating

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


class Succeeding(Coordinating):
    """With a socket for a successor."""

    def __init__(self, cluster: ClusterState, folder: Path, workers: int) -> None:
        self._workers = workers
        self._socket = folder / "takeover.sock"
        super().__init__(cluster)

    def start(self) -> SidecarProcess:
        config = yaml.safe_load(self.config.read_text())
        config |= {"workers": self._workers, "takeover.socket.path": str(self._socket), "drain.timeout.ms": 2000}
        self.config.write_text(yaml.safe_dump(config))
        return super().start()

    def succeed(self) -> SidecarProcess:
        """Start a successor; returns its predecessor."""
        predecessor = self.sidecar
        self.sidecar = self.spawn("--takeover")
        return predecessor


@pytest.mark.promise(
    "restart.md", "After a hot restart coordinated consumers register with the successor, and nothing is read twice."
)
@pytest.mark.parametrize("workers", [1, 2])
def test_consumers_register_with_the_successor_and_no_message_is_missing(
    cluster: ClusterState, tmp_path: Path, workers: int
) -> None:
    running = Succeeding(cluster, tmp_path, workers)
    topic, group = running.create_topic(), f"g-{uuid.uuid4().hex[:8]}"
    first, second = (running.consumer(group, name, topic) for name in ("c1", "c2"))
    predecessor = None
    try:
        until(lambda: first.owned | second.owned == {0, 1, 2, 3} and first.count + second.count == MESSAGES)
        predecessor = running.succeed()
        until(lambda: not predecessor.process.alive(), "the predecessor has not ended")
        until(lambda: running.sidecar.ready(), "the successor is not ready")
        until(lambda: running.state(group) == "stable", "the group has not come back")
        until(lambda: len(running.group(group)["consumers"]) == 2, "a consumer has not come back")
        running.produce(topic, MESSAGES)
        until(lambda: first.count + second.count >= 2 * MESSAGES)
        until(lambda: "brokerside_predecessor_connections 0" in running.sidecar.metrics())
    finally:
        shut_down(first, second)
        if predecessor is not None:
            predecessor.stop()
        assert running.sidecar.stop(), "SIGTERM was not enough"
    got = handed_out(first, second)
    expected = {(partition, offset) for partition in range(4) for offset in range(MESSAGES // 2)}
    assert got.keys() == expected
    assert set(got.values()) == {1}, "nobody was stopped: nothing is read twice"
    for path in running._logs:
        assert "Traceback" not in path.read_text()
