"""The configurations of local sidecars."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import yaml

from proxy.config import load
from proxy.errors import LocalError
from proxy.local.broker import write_sidecar_config
from proxy.local.sidecars import SIDECARS_FILE, enable_coordinator
from proxy.local.state import ClusterState
from tests.unit.local.samples import planned


def written(folder: Path) -> ClusterState:
    state = planned(folder, 3)
    for node in state.nodes:
        write_sidecar_config(folder / f"sidecar-{node.id}.yaml", node)
    return state


@pytest.mark.promise("local-cluster.md", "A cluster enables the coordinator, and keeps other keys as edited.")
def test_the_coordinator_is_enabled_for_as_many_consumers_as_a_shell_has_descriptors_for(tmp_path: Path) -> None:
    enable_coordinator(tmp_path, written(tmp_path))
    for number in (1, 2, 3):
        section = load(tmp_path / f"sidecar-{number}.yaml", environ={}).coordinator
        assert (section.enabled, section.max_consumers) == (True, 1000)


def test_other_keys_of_an_edited_configuration_stay(tmp_path: Path) -> None:
    state = written(tmp_path)
    config = tmp_path / "sidecar-2.yaml"
    config.write_text(config.read_text() + "workers: 2\ncoordinator:\n  max.consumers: 7\n")
    enable_coordinator(tmp_path, state)
    edited = yaml.safe_load(config.read_text())
    assert (edited["workers"], edited["coordinator"]) == (2, {"max.consumers": 7, "enabled": True})


def test_a_sidecar_that_runs_without_it_has_to_be_stopped_first(tmp_path: Path) -> None:
    state = written(tmp_path)
    config = tmp_path / "sidecar-1.yaml"
    before = config.read_text()
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    running = {"process": {"pid": os.getpid(), "started": started}, "log": "log", "admin": "127.0.0.1:9644"}
    (tmp_path / SIDECARS_FILE).write_bytes(msgspec.json.encode([{**running, "config": str(config)}]))
    with pytest.raises(LocalError, match=r"sidecar-1\.yaml: the sidecar runs without coordinator\.enabled; stop"):
        enable_coordinator(tmp_path, state)
    assert config.read_text() == before
