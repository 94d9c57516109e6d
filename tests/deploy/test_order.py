"""A native sidecar of a pod: its container starts before the broker's, and is stopped after it has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from tests.deploy.running import Running, configuration, transfer, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.promise("operations.md", "A native sidecar starts before its broker, and ends well after it.")
def test_it_lives_without_a_broker_is_ready_with_it_and_ends_well_after_it(
    cluster: ClusterState, topic: str, tmp_path: Path
) -> None:
    node = cluster.nodes[0]
    folder = node.home.parent
    config = configuration(cluster)
    config["audit"]["spool.path"] = str(tmp_path / "spool")
    (tmp_path / "brokerside.yaml").write_text(yaml.safe_dump(config))
    sidecar = Running(node.admin)
    local_cluster.stop_node(folder, node.id)
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "run", "-c", tmp_path / "brokerside.yaml"], stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: sidecar.get("livez"), "the startup probe succeeds")
        assert not sidecar.ready()
        local_cluster.start_node(folder, node.id)
        sidecar.wait_ready()
        transfer(node.advertised, topic, 50)
        local_cluster.stop_node(folder, node.id)
        until(lambda: not sidecar.ready(), "the readiness probe fails")
        assert sidecar.get("livez"), "the liveness probe does not"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        local_cluster.start_node(folder, node.id)
