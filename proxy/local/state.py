"""What is known about a local cluster, and ``cluster.json``, the file in its folder that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from proxy.errors import LocalError, describe_os_error
from proxy.local.process import Process

Advertise = Literal["sidecar", "broker"]

CLUSTER_FILE = "cluster.json"


@dataclass(frozen=True)
class Node:
    """One combined KRaft node. Addresses are ``host:port``."""

    id: int
    advertised: str
    """What the broker advertises to clients: the sidecar's bind, or ``upstream`` where it advertises itself."""
    upstream: str
    """The broker's CLIENT listener."""
    internal: str
    """The broker's INTERNAL listener."""
    controller: str
    """The node's CONTROLLER listener."""
    admin: str
    """Where the sidecar before this broker answers ``/metrics`` and ``/readyz``."""
    home: Path
    """Folder with everything of this node."""
    process: Process | None = None
    """None: it was not started, or it has ended."""

    @property
    def pid(self) -> int | None:
        """Process id, None where it does not run."""
        return self.process.pid if self.process else None

    @property
    def data(self) -> Path:
        """Kafka's ``log.dirs``: one folder below for each partition."""
        return self.home / "data"

    @property
    def properties(self) -> Path:
        """Kafka's configuration file."""
        return self.home / "server.properties"

    @property
    def log(self) -> Path:
        """What Kafka logs; two older files of 10 MB stay beside it."""
        return self.home / "broker.log"

    @property
    def output(self) -> Path:
        """What the JVM itself says."""
        return self.home / "jvm.log"


@dataclass(frozen=True)
class ClusterState:
    """A cluster of one or three nodes."""

    kafka_version: str
    cluster_id: str
    advertise: Advertise
    nodes: tuple[Node, ...]

    @property
    def bootstrap(self) -> str:
        """``bootstrap.servers`` for clients: what the brokers advertise."""
        return ",".join(node.advertised for node in self.nodes)

    @property
    def broker_bootstrap(self) -> str:
        """The brokers' CLIENT listeners themselves. They send clients on to what they advertise."""
        return ",".join(node.upstream for node in self.nodes)

    @property
    def internal_bootstrap(self) -> str:
        """The INTERNAL listeners, which advertise themselves."""
        return ",".join(node.internal for node in self.nodes)

    @property
    def running(self) -> bool:
        """Whether every node runs."""
        return all(node.process for node in self.nodes)

    def node(self, node_id: int) -> Node:
        """Return a node by its id. Raises LocalError."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise LocalError(f"there is no node {node_id}; there are {', '.join(str(node.id) for node in self.nodes)}")


def load(folder: Path) -> ClusterState | None:
    """Read what is known about the cluster in ``folder``; None if there is none. Raises LocalError if unreadable."""
    path = folder / CLUSTER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterState, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LocalError(f"{path} cannot be read ({describe_os_error(error)}); remove {folder} to begin anew") from None


def save(folder: Path, state: ClusterState) -> None:
    """Write it, whole or not at all."""
    partial = folder / f".{CLUSTER_FILE}.part"
    content = msgspec.json.encode(state, enc_hook=str)
    partial.write_bytes(msgspec.json.format(content) + b"\n")
    partial.replace(folder / CLUSTER_FILE)
