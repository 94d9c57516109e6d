"""Feature levels of whole sidecars: one without them, one that is restarted without a gap."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.local import broker, process
from proxy.local import cluster as local_cluster
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState
from tests.integration.feature_sidecars import committed

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterState]:
    folder = tmp_path_factory.mktemp("cluster")
    yield local_cluster.up(folder, progress=False)
    local_cluster.down(folder)


def write_config(state: ClusterState, folder: Path, **settings: Any) -> Path:
    path = folder / "sidecar.yaml"
    path.write_text(yaml.safe_dump(broker.sidecar_config(state.nodes[0]) | settings))
    return path


def status(sidecar: SidecarProcess) -> Mapping[str, Any]:
    """``GET /features``."""
    found: dict[str, Any] = json.loads(sidecar._get("features"))
    return found


def until(fits: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"features": {"enabled": False}}, "features.enabled is false"),
        (
            {"internal.bootstrap.servers": None, "observer.class.names": [], "audit": {}},
            "internal.bootstrap.servers is missing",
        ),
    ],
)
def test_a_sidecar_without_features_keeps_none(
    state: ClusterState, tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    config = write_config(state, tmp_path, **settings)
    sidecar = SidecarProcess.start(config, tmp_path / "sidecar.log", state.nodes[0].admin)
    try:
        assert (status(sidecar)["reason"], status(sidecar)["supported"]) == (reason, {})
        assert not re.search("^brokerside_feature", sidecar.metrics(), re.MULTILINE)
        if settings.get("features"):
            until(lambda: committed_registry(state))
            assert all(json.loads(value)["features"] == {} for value in committed_registry(state))
    finally:
        assert sidecar.stop()
    assert FEATURES not in AdminClient({"bootstrap.servers": state.internal_bootstrap}).list_topics(timeout=20).topics


def committed_registry(state: ClusterState) -> list[bytes]:
    there = AdminClient({"bootstrap.servers": state.internal_bootstrap}).list_topics(timeout=20).topics
    return [value for _, value in committed(state.internal_bootstrap, REGISTRY) if value] if REGISTRY in there else []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_successor_takes_over_and_nobody_says_that_the_sidecar_stops(
    state: ClusterState, tmp_path: Path, workers: int
) -> None:
    node = state.nodes[0]
    config = write_config(state, tmp_path, workers=workers, **{"takeover.socket.path": str(tmp_path / "takeover.sock")})
    first = SidecarProcess.start(config, tmp_path / "first.log", node.admin)
    before = len(committed_registry(state))
    log = tmp_path / "second.log"
    try:
        until(lambda: status(first)["applied_epoch"] == status(first)["epoch"] >= 1)
        command = [sys.executable, "-m", "proxy", "run", "--takeover", "-c", str(config)]
        second = SidecarProcess(process.spawn(command, log), config, log, node.admin)
        try:
            until(lambda: not first.process.alive() and '"took_over"' in log.read_text())
            until(lambda: '"change": "taken"' in log.read_text())
            found = status(second)
            assert found["loaded"]
            until(lambda: status(second)["applied_epoch"] == found["epoch"])
            records = [json.loads(value) for value in committed_registry(state)[before:]]
            assert {one["state"] for one in records} == {"running"}
            boots = [one["boot_id"] for one in records]
            assert len(set(boots)) == 2
            assert boots == sorted(boots, key=boots.index), "the first one had ended to write when the second began"
        finally:
            assert second.stop()
    finally:
        first.stop()
    assert json.loads(committed_registry(state)[-1])["state"] == "stopped"
