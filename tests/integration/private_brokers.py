"""Three brokers that advertise addresses of their own, a sidecar before each, and all that clients receive of these.

The brokers have addresses that nothing else has: so wherever one of them is found, it came from a broker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from proxy.interceptors.address_rewriter import METADATA
from proxy.local import broker, cluster, process
from proxy.local.ports import HOST, free_ports
from proxy.local.readiness import known_brokers
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node, save
from tests.integration.asking import Asker
from tests.integration.tap import Tapped, tap

NODES = 3
PRIVATE = "127.0.0.19"
"""What the hosts of the brokers begin with."""


@dataclass(frozen=True)
class Site:
    """``dialled``: where clients reach each sidecar, through a tap. ``taps``: what passed there."""

    state: ClusterState
    dialled: list[str]
    sidecars: list[SidecarProcess]
    taps: list[list[Tapped]]

    @property
    def known(self) -> dict[int, tuple[str, int]]:
        """What clients dial, by node id."""
        return {node.id: _parsed(address) for node, address in zip(self.state.nodes, self.dialled, strict=True)}

    @property
    def bootstrap(self) -> str:
        """For clients."""
        return ",".join(self.dialled)

    def tapped(self) -> list[Tapped]:
        """All connections of clients."""
        return [one for connections in self.taps for one in connections]


@contextmanager
def site(folder: Path, kafka: str, *, registry: bool) -> Iterator[Site]:
    """All of it. ``registry``: whether the sidecars learn of each other by themselves; else each has a map."""
    _plan(folder, kafka)
    dialled = [f"{HOST}:{port}" for port in free_ports(NODES)]
    with ExitStack() as stack:
        stack.callback(cluster.discard, folder)
        state = cluster.up(folder, nodes=NODES, kafka_version=kafka, progress=False)
        sidecars, taps = [], []
        for node, address in zip(state.nodes, dialled, strict=True):
            config = broker.sidecar_config(node)
            [listener] = config["listeners"]
            [bind] = free_ports(1)
            listener |= {"bind": f"{HOST}:{bind}", "advertised": address, "rewrite.addresses": True}
            if not registry:
                others = {str(other): at for other, at in enumerate(dialled, 1) if other != node.id}
                listener["rewrite.addresses.map"] = others
            path = folder / f"rewriting-{node.id}.yaml"
            path.write_text(yaml.safe_dump(config))
            taps.append(stack.enter_context(tap(address, listener["bind"])))
            sidecars.append(SidecarProcess.spawn(path, path.with_suffix(".log"), node.admin))
            stack.callback(sidecars[-1].stop)
        for sidecar in sidecars:
            sidecar.wait_ready()
        for address in dialled:
            with Asker(address) as asker:
                met = asker.until(METADATA, 1, {"Topics": ()}, lambda body: b".unmapped." not in body)
                assert b".unmapped." not in met, "the sidecars do not know each other"
        yield Site(state, dialled, sidecars, taps)


@contextmanager
def plain_sidecar(made: Site) -> Iterator[str]:
    """One more before the first broker, without rewriting; yields its address. It never says that it is ready: its
    broker has clients dial another address. It stays out of the registry, where it would be broker 1's sidecar."""
    node = made.state.nodes[0]
    address, admin = (f"{HOST}:{port}" for port in free_ports(2))
    config = broker.sidecar_config(node)
    config["listeners"][0]["bind"] = address
    config["admin"] = {"bind": admin}
    del config["observer.class.names"], config["audit"], config["internal.bootstrap.servers"]
    path = node.home.parent / "plain.yaml"
    path.write_text(yaml.safe_dump(config))
    sidecar = process.spawn([sys.executable, "-m", "proxy", "run", "-c", str(path)], path.with_suffix(".log"))
    try:
        while not known_brokers(address):
            assert sidecar.alive()
            time.sleep(0.1)
        yield address
    finally:
        process.stop([sidecar], 10)


def _plan(folder: Path, kafka: str) -> None:
    """Write the cluster that ``cluster.up`` is to start: with every listener of a broker on its private address."""
    ports = iter(free_ports(4 * NODES))

    def node(number: int) -> Node:
        upstream, internal, controller = (f"{PRIVATE}{number}:{next(ports)}" for _ in range(3))
        return Node(number, upstream, upstream, internal, controller, f"{HOST}:{next(ports)}", folder / f"n-{number}")

    folder.mkdir(parents=True)
    state = ClusterState(kafka, broker.new_id(), "broker", tuple(node(number) for number in range(1, NODES + 1)))
    for one in state.nodes:
        broker.write_properties(state, one, {})
    save(folder, state)


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
