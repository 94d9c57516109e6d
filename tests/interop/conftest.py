"""A cluster of one broker behind a sidecar, for all clients."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from proxy.config import load
from proxy.local import cluster
from proxy.local.sidecars import SidecarProcess
from tests.integration.conftest import free_port
from tests.integration.metrics import sample
from tests.tools.authority import Authority

DELIVERY_TIMEOUT = 120.0
"""Seconds until all connections have ended, or until the last event of a client that has ended is in the audit topic.
It takes few, and many times that on a busy machine."""


@dataclass(frozen=True)
class Proxied:
    """The broker and the sidecar before it, with a listener that terminates TLS beside the one without.

    ``tls_bootstrap``: where clients of the former connect to. ``ca``: the file they trust.
    """

    state: cluster.ClusterState
    sidecar: SidecarProcess
    tls_bootstrap: str
    ca: Path

    def metric(self, name: str) -> int:
        return int(sample(self.sidecar.metrics(), name))

    def quiet(self) -> str:
        """The metrics once every client has gone: those that were let go of end on threads of their own."""
        deadline = time.monotonic() + DELIVERY_TIMEOUT
        while sample(text := self.sidecar.metrics(), "brokerside_connections_active"):
            assert time.monotonic() < deadline, "a client stays connected"
            time.sleep(0.1)
        return text


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("interop")
    state = cluster.up(folder, progress=False)
    try:
        config = folder / "sidecar-1.yaml"
        bootstrap = f"127.0.0.1:{free_port()}"
        authority = Authority(folder / "tls")
        pair = authority.issue("sidecar")
        tls = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
        keys = yaml.safe_load(config.read_text())
        listener = {"name": "TLS", "bind": bootstrap, "advertised": bootstrap, "upstream": state.nodes[0].upstream}
        # The broker advertises the other listener.
        keys["listeners"].append(listener | {"security.protocol": "SSL", "tls": tls, "rewrite.addresses": True})
        keys["features"] = {"enabled": False}  # the sizes of ApiVersions responses are compared with the broker's
        config.write_text(yaml.safe_dump(keys))
        sidecar = SidecarProcess.start(config, folder / "sidecar-1.log", str(load(config).admin.bind))
        try:
            yield Proxied(state, sidecar, bootstrap, authority.ca)
        finally:
            sidecar.stop()
    finally:
        cluster.down(folder)
