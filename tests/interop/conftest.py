"""A cluster of one broker behind a sidecar, for all clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from proxy.config import load
from proxy.local import cluster
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample


@dataclass(frozen=True)
class Proxied:
    """The broker and the sidecar before it."""

    state: cluster.ClusterState
    sidecar: SidecarProcess

    def metric(self, name: str) -> int:
        """The sum of a metric's samples now."""
        return int(sample(self.sidecar.metrics(), name))


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("interop")
    state = cluster.up(folder, progress=False)
    try:
        config = folder / "sidecar-1.yaml"
        sidecar = SidecarProcess.start(config, folder / "sidecar-1.log", str(load(config).admin.bind))
        try:
            yield Proxied(state, sidecar)
        finally:
            sidecar.stop()
    finally:
        cluster.down(folder)
