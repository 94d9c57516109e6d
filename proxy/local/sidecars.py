"""The sidecars of a local cluster: one process in front of each broker, run from the configuration the cluster wrote.

Which of them run is in ``sidecars.json`` in the cluster's folder, so that any later process can find and stop them.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.errors import LocalError
from proxy.local import process
from proxy.local.process import Process
from proxy.local.state import ClusterState

SIDECAR_START_TIMEOUT = 60.0
"""Seconds until a started sidecar has to be ready; it needs about one, and many times that on a busy machine."""

SIDECAR_STOP_TIMEOUT = 30.0
"""Seconds until a sidecar is killed: a drain takes 10, the observers' last flush 2, and a busy machine adds to that."""

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer of the admin endpoint: one takes milliseconds, and seconds on a busy machine."""

READY_POLL_INTERVAL = 0.05
SIDECARS_FILE = "sidecars.json"
LOG_TAIL_LINES = 5
"""Lines of a log that an error shows."""

MAX_CONSUMERS = 1000
"""``coordinator.max.consumers`` of a local sidecar: the default needs more descriptors than most shells have."""


@dataclass(frozen=True)
class SidecarProcess:
    """One running ``brokerside run``; ``admin`` is host:port of its admin endpoint."""

    process: Process
    config: Path
    log: Path
    admin: str

    @classmethod
    def start(cls, config: Path, log: Path, admin: str) -> SidecarProcess:
        """Start it and wait until it is ready. Raises LocalError with the end of its log."""
        sidecar = cls.spawn(config, log, admin)
        sidecar.wait_ready()
        return sidecar

    @classmethod
    def spawn(cls, config: Path, log: Path, admin: str) -> SidecarProcess:
        """Start it, and wait for nothing."""
        return cls(process.spawn([sys.executable, "-m", "proxy", "run", "-c", str(config)], log), config, log, admin)

    def wait_ready(self) -> None:
        """Wait until it is ready; it is stopped where it does not become so. Raises LocalError with its log's end."""
        deadline = time.monotonic() + SIDECAR_START_TIMEOUT
        try:
            while not self.ready():
                if not self.process.alive() or time.monotonic() > deadline:
                    tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
                    raise LocalError(
                        f"the sidecar of {self.config} did not become ready; the end of {self.log}:\n{tail}"
                    )
                time.sleep(READY_POLL_INTERVAL)
        except BaseException:
            self.stop()
            raise

    def ready(self) -> bool:
        """Whether ``/readyz`` says ok."""
        try:
            return bool(self._get("readyz"))
        except OSError:
            return False

    def metrics(self) -> str:
        """The text of ``/metrics``."""
        return self._get("metrics")

    def metric(self, name: str) -> float:
        """Sum of the samples of one metric."""
        families = text_string_to_metric_families(self.metrics())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def stop(self) -> bool:
        """End it with SIGTERM, and with SIGKILL if that takes too long; return whether SIGTERM was enough."""
        return process.stop([self.process], SIDECAR_STOP_TIMEOUT)

    def _get(self, path: str) -> str:
        for _ in range(2):  # a request of a process that was held still meanwhile is closed
            with (
                suppress(ConnectionResetError),
                urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=ANSWER_TIMEOUT) as response,
            ):
                return str(response.read().decode())
        raise LocalError(f"the sidecar at {self.admin} closes the connection without an answer")


def enable_coordinator(folder: Path, state: ClusterState) -> None:
    """Write ``coordinator.enabled`` into the sidecars' configurations. Raises LocalError where they run without it."""
    running = {sidecar.config.name for sidecar in running_in(folder)}
    for node in state.nodes:
        config = folder / f"sidecar-{node.id}.yaml"
        document = yaml.safe_load(config.read_text())
        section = document.get("coordinator") or {}
        if section.get("enabled"):
            continue
        if config.name in running:
            raise LocalError(
                f"{config.name}: the sidecar runs without coordinator.enabled; stop the cluster first: "
                f"brokerside cluster down --dir {folder}"
            )
        document["coordinator"] = {"max.consumers": MAX_CONSUMERS} | section | {"enabled": True}
        config.write_text(yaml.safe_dump(document, sort_keys=False))


def start_all(folder: Path, state: ClusterState) -> list[SidecarProcess]:
    """Start the sidecars that do not run, all at the same time, and wait until all are ready."""
    folder = folder.absolute()
    running = {sidecar.config: sidecar for sidecar in running_in(folder)}
    for node in state.nodes:
        config = folder / f"sidecar-{node.id}.yaml"
        if config not in running:
            running[config] = SidecarProcess.spawn(config, folder / f"sidecar-{node.id}.log", node.admin)
            (folder / SIDECARS_FILE).write_bytes(msgspec.json.encode(list(running.values()), enc_hook=str))
    for sidecar in running.values():
        sidecar.wait_ready()
    return list(running.values())


def running_in(folder: Path) -> list[SidecarProcess]:
    """Return the sidecars that were started for the cluster in ``folder`` and still run."""
    try:
        content = (folder.absolute() / SIDECARS_FILE).read_bytes()
    except FileNotFoundError:
        return []
    found = msgspec.json.decode(content, type=list[SidecarProcess], dec_hook=lambda kind, value: kind(value))
    return [sidecar for sidecar in found if sidecar.process.alive()]


def stop_all(folder: Path) -> None:
    """Stop them all at the same time; does nothing where none runs."""
    process.stop([sidecar.process for sidecar in running_in(folder)], SIDECAR_STOP_TIMEOUT)
    (folder.absolute() / SIDECARS_FILE).unlink(missing_ok=True)


def describe(folder: Path, state: ClusterState) -> str:
    """Return text about what runs and how to use it."""
    running = {sidecar.config.name for sidecar in running_in(folder)}
    lines = [f"Kafka {state.kafka_version} in {folder}"]
    for node in state.nodes:
        sidecar = "running" if f"sidecar-{node.id}.yaml" in running else "stopped"
        broker = f"running (pid {node.pid})" if node.process else "stopped"
        lines.append(f"  broker {node.id}: {broker}, INTERNAL {node.internal}, log {node.log}")
        lines.append(
            f"  sidecar {node.id}: {sidecar}, {node.advertised} -> {node.upstream}, http://{node.admin}/metrics"
        )
    lines.append(f"clients: bootstrap.servers={state.bootstrap}")
    return "\n".join(lines)
