"""Real brokers and sidecars from files as they are written for people: each host of these on a loopback address."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from proxy.local import broker, cluster
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node, save
from tests.deploy.running import Running

NETWORK = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250}"
"""Addresses of this process's own, so that ports as people write them are free."""

SMALL = "num.network.threads=1\nnum.io.threads=2\nlog.cleaner.dedupe.buffer.size=2097152\n"
REPLICAS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")


def host(number: int) -> str:
    return f"{NETWORK}.{number}"


def localized(text: str, number: int, names: Mapping[str, str]) -> str:
    """Return a file of broker ``number`` with addresses of this machine; ``names``: what stands for host names."""
    for name, address in sorted(names.items(), key=lambda one: -len(one[0])):
        text = text.replace(name, address)
    return text.replace("0.0.0.0", host(number)).replace("127.0.0.1", host(number))


def properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@dataclass
class Lab:
    folder: Path
    sidecars: list[SidecarProcess] = field(default_factory=list)

    def start_brokers(self, files: Mapping[int, str]) -> ClusterState:
        """Start brokers from their ``server.properties``; ready when they answer on their internal listener."""
        nodes = []
        for number, text in files.items():
            found = properties(text)
            advertised = dict(one.split("://") for one in found["advertised.listeners"].split(","))
            internal = advertised[found["inter.broker.listener.name"]]
            controller = dict(one.split("://") for one in found["listeners"].split(","))["CONTROLLER"]
            node = Node(
                number, advertised["CLIENT"], internal, internal, controller, "", self.folder / f"node-{number}"
            )
            node.home.mkdir(parents=True)
            more = f"log.dirs={node.data}\n" + "".join(f"{name}={len(files)}\n" for name in REPLICAS)
            node.properties.write_text(text + SMALL + more)
            nodes.append(node)
        state = ClusterState("4.3.1", broker.new_id(), "sidecar", tuple(nodes))
        save(self.folder, state)
        return cluster.up(self.folder, nodes=len(nodes), progress=False)

    def start_sidecar(self, number: int, text: str) -> Running:
        """Start a sidecar from its configuration, and wait until it is ready."""
        config = yaml.safe_load(text)
        config["audit"]["spool.path"] = str(self.folder / f"spool-{number}")
        config["takeover.socket.path"] = str(self.folder / f"{number}.sock")
        path = self.folder / f"brokerside-{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        admin = config["admin"]["bind"]
        self.sidecars.append(SidecarProcess.start(path, path.with_suffix(".log"), admin))
        return Running(admin)


@contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    made = Lab(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield made
        for sidecar in made.sidecars:
            assert sidecar.stop()
    finally:
        for sidecar in made.sidecars:
            sidecar.stop()
        cluster.discard(folder)
