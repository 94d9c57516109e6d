"""A real sidecar under something that listens as systemd does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.integration.test_audit import until
from tests.unit.test_sd_notify import Manager

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sidecar_notifies_of_its_start_each_reload_and_its_stop(
    workers: int, cluster: ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    node = cluster.nodes[0]
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text()) | {"workers": workers}
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config))
    sidecar = SidecarProcess.start(path, tmp_path / "sidecar.log", node.admin)
    seen: list[dict[str, str]] = []

    def count(key: str) -> int:
        seen.extend(manager.received())
        return sum(key in message for message in seen)

    try:
        until(lambda: count("READY") == 1)
        until(lambda: count("WATCHDOG") >= 5)
        assert count("RELOADING") == 0
        os.kill(sidecar.process.pid, signal.SIGHUP)
        until(lambda: count("READY") == 2)
        path.write_text(yaml.safe_dump(config | {"log.level": "loud"}))
        until(lambda: count("READY") == 3)
        assert count("RELOADING") == 2
        states = [message for message in seen if "WATCHDOG" not in message]
        assert [next(iter(message)) for message in states] == ["READY", "RELOADING", "READY", "RELOADING", "READY"]
        assert states[2]["STATUS"] == "Running"
        assert states[4]["STATUS"].startswith("The last reload was rejected: log.level")
        for child in children(sidecar.process.pid):
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()
    finally:
        stopped = sidecar.stop()
    assert stopped
    assert count("STOPPING") == 1
    assert next(message for message in seen if "STOPPING" in message)["EXTEND_TIMEOUT_USEC"] == "15000000"
    manager.close()


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
