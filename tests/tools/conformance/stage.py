"""What a run needs: one real broker with a listener for each schedule, its limits, and a sidecar with the same ones."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from proxy.errors import LocalError
from proxy.limits.model import DEFAULT_ADDRESS
from proxy.local import broker, cluster
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, Node, save
from tests.tools.conformance.crowd import Plan, Visits
from tests.tools.kafka_tools import KafkaTools

LISTENERS = ("CLIENT", "RATE20", "RATE5", "SLOTS")
"""CLIENT has no limits of its own; the others are for one schedule each, so that none sees another's samples."""

CROWD_TIMEOUT = 120.0
DESCRIPTORS = 65_536


@dataclass(frozen=True)
class Limits:
    """What is set on the broker with ``kafka-configs`` and written into the sidecar's file.

    ``broker``: by Kafka's names. ``ips``: connections per second by address. ``sidecar``: what only the sidecar knows.
    """

    broker: Mapping[str, str | int] = field(default_factory=dict)
    ips: Mapping[str, int] = field(default_factory=dict)
    sidecar: Mapping[str, Any] = field(default_factory=dict)

    def quotas(self) -> dict[str, Any]:
        """Return the sidecar's section ``quotas``."""
        ips = {address: {"connection_creation_rate": rate} for address, rate in self.ips.items()}
        return {"ip.store": "file", **self.broker, **({"ips": ips} if ips else {}), **self.sidecar}

    def alterations(self, *, remove: bool = False) -> Iterator[list[str]]:
        """Yield the arguments of ``kafka-configs`` that set all of it on broker 1, or take it away again."""
        how = "--delete-config" if remove else "--add-config"
        if self.broker:
            # A value with commas in it stands in brackets.
            pairs = self.broker if remove else [f"{name}=[{value}]" for name, value in self.broker.items()]
            yield ["--entity-type", "brokers", "--entity-name", "1", "--alter", how, ",".join(pairs)]
        for address, rate in self.ips.items():
            entity = ["--entity-default"] if address == DEFAULT_ADDRESS else ["--entity-name", address]
            key = "connection_creation_rate" if remove else f"connection_creation_rate={rate}"
            yield ["--entity-type", "ips", *entity, "--alter", how, key]


class Stage:
    """Use as a context manager: what was started is ended, and the folder removed, whatever happens."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brokerside-conformance-"))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
        ports = free_ports(2 * len(LISTENERS))
        self.ports = dict(zip(LISTENERS, ports, strict=False))
        """Of the sidecar, by listener."""
        self.broker_ports = dict(zip(LISTENERS, ports[len(LISTENERS) :], strict=True))

    def __enter__(self) -> Stage:
        taken = {*self.ports.values(), *self.broker_ports.values()}
        planned = _plan(self.folder, self.ports["CLIENT"], self.broker_ports["CLIENT"], taken)
        node = planned.nodes[0]
        own = broker.server_properties(planned, node, {})
        further = LISTENERS[1:]
        properties = {
            "listeners": [own["listeners"], *(f"{name}://{HOST}:{self.broker_ports[name]}" for name in further)],
            "advertised.listeners": [
                own["advertised.listeners"],
                *(f"{name}://{HOST}:{self.ports[name]}" for name in further),
            ],
            "listener.security.protocol.map": [
                own["listener.security.protocol.map"],
                *(f"{name}:PLAINTEXT" for name in further),
            ],
            # As the sidecar has it; Kafka's own 50 would be what limits a storm.
            "socket.listen.backlog.size": ["4096"],
        }
        self.cluster = cluster.up(
            self.folder,
            progress=False,
            broker_properties={key: ",".join(values) for key, values in properties.items()},
        )
        return self

    def __exit__(self, *_: object) -> None:
        cluster.stop_node(self.folder, 1, kill=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def limited(self, limits: Limits) -> Iterator[None]:
        """Set limits on the broker, and take them away at the end."""
        self._configs(list(limits.alterations()))
        try:
            yield
        finally:
            self._configs(list(limits.alterations(remove=True)))

    @contextmanager
    def sidecar(self, limits: Limits) -> Iterator[SidecarProcess]:
        """Run a sidecar with these limits, each listener before the broker's of the same name."""
        node = self.cluster.nodes[0]
        config = broker.sidecar_config(node)
        config["listeners"] = [
            {"name": name, "bind": f"{HOST}:{self.ports[name]}", "upstream": f"{HOST}:{self.broker_ports[name]}"}
            for name in LISTENERS
        ]
        config["quotas"] = limits.quotas()
        path = self.folder / "sidecar.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        running = SidecarProcess.start(path, self.folder / "sidecar.log", node.admin)
        try:
            yield running
        finally:
            running.stop()

    def _configs(self, alterations: Sequence[Sequence[str]]) -> None:
        """Run ``kafka-configs`` once for each. Raises LocalError."""
        with KafkaTools() as tools:
            for arguments in alterations:
                done = tools.run("configs", "--bootstrap-server", self.cluster.internal_bootstrap, *arguments)
                if done.returncode or "Completed" not in done.stdout:
                    raise LocalError(f"kafka-configs {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def _plan(folder: Path, dialled: int, client: int, taken: Collection[int]) -> ClusterState:
    """Return a cluster of one node whose ports are known before it starts, so that listeners can be added to it."""
    internal, controller, admin = (f"{HOST}:{port}" for port in free_ports(3, avoid=taken))
    node = Node(1, f"{HOST}:{dialled}", f"{HOST}:{client}", internal, controller, admin, folder / "node-1")
    planned = ClusterState("4.3.1", broker.new_id(), "sidecar", (node,))
    save(folder, planned)
    return planned


def run_together(plans: Mapping[str, Plan]) -> dict[str, Visits]:
    """Run every plan in a process of its own, all at once, and return what became of each. Raises LocalError."""
    running = {name: crowd_process(plan) for name, plan in plans.items()}
    return {name: finished(process) for name, process in running.items()}


def crowd_process(plan: Plan) -> subprocess.Popen[str]:
    command = ["nice", sys.executable, "-m", "tests.tools.conformance.crowd", json.dumps(asdict(plan))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> Visits:
    """Wait for a crowd. Raises LocalError."""
    try:
        said, _ = process.communicate(timeout=CROWD_TIMEOUT)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise LocalError(f"a crowd ended with {process.returncode}; what it said is above")
    return Visits(**json.loads(said))
