"""What ``/readyz`` says of a real sidecar: whether clients are served, and what works in part only."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from proxy.config import load
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.net import upstream_check
from proxy.net.upstream import Upstream
from tests.brokers import TlsBroker
from tests.integration.conftest import free_port
from tests.integration.sidecars import spawned, until

pytestmark = pytest.mark.kafka


def readiness(sidecar: SidecarProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{sidecar.admin}/readyz", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def become(sidecar: SidecarProcess, status: int, text: str) -> None:
    deadline = time.monotonic() + 60
    while (found := readiness(sidecar)) != (status, text):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def admin() -> dict[str, str]:
    return {"bind": f"127.0.0.1:{free_port()}"}


@pytest.mark.promise("rollout.md", "readyz refuses a wrong broker.id also behind logins and TLS.")
@pytest.mark.slow
def test_a_wrong_broker_id_behind_logins_and_tls_alone(tls_broker: TlsBroker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        sidecars = []
        for protocol, upstream in (("SASL_PLAINTEXT", "SASL"), ("SSL", "TLS")):
            listener = {"name": "CLIENT", "bind": f"127.0.0.1:{free_port()}", "security.protocol": protocol}
            config = {
                "broker.id": 9,
                "admin": admin(),
                "internal.bootstrap.servers": tls_broker.node.internal,
                "listeners": [{**listener, "upstream": tls_broker.listeners[upstream].address}],
            }
            sidecars.append(stack.enter_context(spawned(config, tmp_path)))
        for sidecar in sidecars:
            become(sidecar, 503, "broker.id is 9, but the cluster of internal.bootstrap.servers has only 1\n")


OPENTELEMETRY = "observers.opentelemetry:OpenTelemetryLogsObserver"


@pytest.mark.slow
@pytest.mark.promise("audit-delivery.md", "readyz says that a spool cannot be used, until it can be.")
def test_a_spool_that_cannot_be_written_degrades_the_audit_and_keeps_no_client_away(
    cluster: ClusterState, tmp_path: Path
) -> None:
    """Of one process and of workers, of the audit's topic and of a collector, at the same time: each looks at its spool
    every ten seconds."""
    with ExitStack() as stack:
        sidecars = {}
        for workers, observer in ((1, "audit"), (2, OPENTELEMETRY)):
            config = yaml.safe_load((cluster.nodes[0].home.parent / "sidecar-1.yaml").read_text())
            [listener] = config["listeners"]
            listener |= {"advertised": listener["bind"], "bind": f"127.0.0.1:{free_port()}"}
            spool = tmp_path / f"spool-{workers}"
            spool.write_text("a file")
            config |= {"workers": workers, "admin": admin()}
            if observer == OPENTELEMETRY:
                own = {"endpoint": f"http://127.0.0.1:{free_port()}", "spool.path": str(spool)}
                config |= {"observer.class.names": [observer], "observers": {observer: own}}
                config["observer.shutdown.timeout.ms"] = 1000
            else:
                config["audit"] = {"topic": "degraded", "spool.path": str(spool)}
            sidecars[spool] = stack.enter_context(spawned(config, tmp_path))
        for spool, sidecar in sidecars.items():
            said = f"degraded: the spool {spool} cannot be used: File exists; audit events wait in memory alone\n"
            become(sidecar, 200, said)
            spool.unlink()
        for sidecar in sidecars.values():
            become(sidecar, 200, "ok\n")


@pytest.mark.promise("operations.md", "A sidecar starts without its broker: livez is 200, readyz 503.")
def test_a_sidecar_starts_without_its_broker(tmp_path: Path) -> None:
    bind, upstream = (f"127.0.0.1:{free_port()}" for _ in range(2))
    listener = {"name": "CLIENT", "bind": bind, "upstream": upstream}
    with spawned({"broker.id": 1, "listeners": [listener], "admin": admin()}, tmp_path) as sidecar:
        until(lambda: upstream in readiness(sidecar)[1])
        assert readiness(sidecar)[0] == 503
        assert urllib.request.urlopen(f"http://{sidecar.admin}/livez", timeout=60).status == 200
        host, _, port = bind.rpartition(":")
        socket.create_connection((host, int(port)), 60).close()


CASES: list[tuple[int, dict[str, object], str | None]] = [
    (1, {}, None),
    (9, {}, "is what broker 1 advertises, but broker.id is 9"),
    (1, {"bind": "FREE"}, "so clients bypass this sidecar"),
    (9, {"bind": "FREE"}, "has no broker 9, only 1"),
    (1, {"bind": "FREE", "advertised": "ADVERTISED"}, None),
    (1, {"bind": "FREE", "rewrite.addresses": True}, None),
    (9, {"rewrite.addresses": True}, "has no broker 9, only 1"),
]


@pytest.mark.promise(
    "config/listeners.md", "`/readyz` names a listener whose `upstream` is another broker, or that clients bypass."
)
async def test_the_broker_behind_a_listener(cluster: ClusterState, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    free = f"{HOST}:{free_ports(1)[0]}"
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    texts = {"FREE": free, "ADVERTISED": node.advertised}

    async def problem(broker_id: int, change: dict[str, object]) -> str | None:
        listener = config["listeners"][0] | {key: texts.get(str(value), value) for key, value in change.items()}
        path = tmp_path / "sidecar.yaml"
        path.write_text(yaml.safe_dump(config | {"broker.id": broker_id, "listeners": [listener]}))
        [loaded] = load(path).listeners
        return await upstream_check.find_problem(loaded, Upstream(loaded.upstream, 60.0), broker_id)

    for broker_id, change, said in CASES:
        found = await problem(broker_id, change)
        assert found is None if said is None else said in (found or ""), (broker_id, change, found)
    with pytest.raises(ConnectionRefusedError):
        await problem(1, {"upstream": "FREE"})
