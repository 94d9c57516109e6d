"""A real broker, a sidecar whose log nobody reads, and the processes of clients and attackers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from proxy.errors import LocalError
from proxy.local import cluster
from proxy.local.cluster import ClusterState
from tests.integration.metrics import unbalanced
from tests.tools.bench.measure import memory
from tests.tools.hostile.checks import Probe

TOPIC = "honest"
CONSUMED = "honest-consumed"
"""What the honest consumers read; nobody else writes it."""

CONSUMED_PARTITIONS = 4
COMMITTED = "honest-committed"
"""What transactions write past the sidecar."""

PER_IP = 100
"""Connections of one address: without such a limit 600 silent ones have all descriptors, and who has lost its
connection waits for minutes until it is accepted again."""

DESCRIPTORS = 1536
"""Limit of the sidecar's open files: all attackers take up to 900 of them as ``PER_IP`` allows, the sidecar's own
clients 250, and listeners leave as many free. With less, attackers that say nothing have all connections, as clients
notice that connect again. Of many hostile consumers each gets four more, two of which a connection has before it is a
consumer's."""

PIPE = 4096
"""Bytes of the pipe that is the sidecar's stderr."""

START = 120.0
"""Seconds until the sidecar has to be ready."""

PROBE_PATIENCE = 20.0
"""Seconds until a ``/livez`` counts as not answered."""

RELOAD_EVERY = 10.0
ADDRESSES = 3000
"""Addresses in the configuration that is loaded again all the time."""

Settings = Callable[[Path, int], Mapping[str, Any]]
"""Sections of the configuration, given the folder and the descriptors."""


@dataclass
class Watched:
    """What is measured of the sidecar during an attack."""

    peak_rss: float = 0.0
    """MiB."""
    peak_descriptors: int = 0
    probes: list[Probe] = field(default_factory=list)
    """Each ``/livez``."""
    scraped: int = 0
    """Samples of ``/metrics``."""
    unbalanced: list[str] = field(default_factory=list)
    """What ``unbalanced`` has found in them."""


class Stage:
    """One broker and one sidecar."""

    def __init__(self, folder: Path, settings: Settings, connections: int) -> None:
        self.connections = connections
        self.descriptors = max(DESCRIPTORS, 4 * connections)
        # Of a request with 190,000 partitions the broker makes 20 MB of objects, and it has 80 of these at a time.
        os.environ.setdefault("KAFKA_HEAP_OPTS", "-Xmx4g")
        self.state: ClusterState = cluster.up(folder)
        self.folder = folder
        self.node = self.state.nodes[0]
        self._config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
        for section, keys in settings(folder, self.descriptors).items():
            self._config.setdefault(section, {}).update(keys)
        listener = self._config["listeners"][0]
        listener["rewrite.addresses"] = True
        self.upstream: str = listener["upstream"]
        self._path = folder / "hostile.yaml"
        self.load(0)
        admin = AdminClient({"bootstrap.servers": self.state.internal_bootstrap})
        partitions = {TOPIC: 1, CONSUMED: CONSUMED_PARTITIONS, COMMITTED: 1}
        for future in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
            future.result(180)
        self._log, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
        limited = f'ulimit -n {self.descriptors}; exec "$@"'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", limited, "sh", sys.executable, "-m", "proxy", "run", "-c", self._path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=write,
        )
        os.close(write)
        deadline = time.monotonic() + START
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = "" if self.process.poll() is None else os.read(self._log, PIPE).decode(errors="replace")
                raise LocalError(f"the sidecar did not become ready: {said}")
            time.sleep(0.1)

    def load(self, generation: int) -> None:
        """Write the configuration, with addresses that are other ones in each generation."""
        ips = {f"10.{generation % 200}.{n >> 8}.{n & 255}": 50 for n in range(ADDRESSES if generation else 0)}
        quotas = {
            "max.connection.creation.rate": 500,
            "max.connections.per.ip": PER_IP,
            "ips": {"<default>": {"connection_creation_rate": 50}, **ips},
        }
        part = self._path.with_suffix(".part")
        part.write_text(yaml.safe_dump({**self._config, "quotas": quotas}))
        part.replace(self._path)

    def end(self) -> float | None:
        """End the sidecar with SIGTERM, its log still unread; return the seconds that took, None if it was killed."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            os.close(self._log)
        return time.monotonic() - began

    def metrics(self) -> str:
        """The text of ``/metrics``."""
        return self._get("metrics", 10)

    @contextmanager
    def watched(self, reload: bool) -> Iterator[Watched]:
        """Measure the sidecar each second, and have it load its configuration again all the time, where wanted."""
        watched, stop = Watched(), threading.Event()

        def ask() -> None:
            generation = 0
            reload_at = time.monotonic()
            while not stop.wait(1):
                watched.peak_rss = max(watched.peak_rss, memory([self.process.pid]).rss)
                watched.peak_descriptors = max(watched.peak_descriptors, self._descriptors())
                watched.probes.append(self._probe())
                with suppress(OSError):
                    watched.unbalanced += unbalanced(self.metrics())
                    watched.scraped += 1
                if reload and time.monotonic() >= reload_at:
                    reload_at += RELOAD_EVERY
                    generation += 1
                    self.load(generation)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield watched
        finally:
            stop.set()
            thread.join()

    def _is_ready(self) -> bool:
        try:
            return bool(self._get("readyz", 1))
        except OSError:
            return False

    def _probe(self) -> Probe:
        began, waited, error = time.monotonic(), self._waited(), ""
        try:
            self._get("livez", PROBE_PATIENCE)
        except OSError as problem:
            error = str(problem)
        return Probe(time.monotonic() - began, self._waited() - waited, error)

    def _waited(self) -> float:
        """Return the seconds in which the sidecar's main thread could run, and had no processor."""
        try:
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9
        except OSError:
            return 0.0

    def _get(self, path: str, patience: float) -> str:
        with urllib.request.urlopen(f"http://{self.node.admin}/{path}", timeout=patience) as response:
            return str(response.read().decode())

    def _descriptors(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        except OSError:
            return 0


@contextmanager
def staged(settings: Settings, connections: int) -> Iterator[Stage]:
    """A stage in a new folder; everything ends with it. ``settings``: keys of its configuration."""
    with tempfile.TemporaryDirectory(prefix="brokerside-hostile-") as name:
        folder = Path(name)
        try:
            stage = Stage(folder, settings, connections)
            try:
                yield stage
            finally:
                if stage.process.poll() is None:
                    stage.process.kill()
                    stage.process.wait()
        finally:
            cluster.down(folder)


class Running:
    """Processes that end by themselves; what each one has printed."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[str, Path] = {}

    def start(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start it; its output goes to a file of ``folder``."""
        self._outputs[name] = folder / f"{name}.out"
        with self._outputs[name].open("wb") as output, (folder / f"{name}.err").open("wb") as errors:
            self._processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)

    def first_line(self, name: str, patience: float) -> str:
        """The first line that it prints. Raises LocalError where none comes."""
        deadline = time.monotonic() + patience
        while "\n" not in (text := self._outputs[name].read_text()):
            if time.monotonic() > deadline or self._processes[name].poll() is not None:
                raise LocalError(f"{name} printed nothing within {patience:.0f} s")
            time.sleep(0.1)
        return text.partition("\n")[0]

    def output(self, name: str, patience: float) -> str:
        """What it has printed, once it has ended. Raises LocalError where it does not end, or failed."""
        process = self._processes[name]
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            raise LocalError(f"{name} did not end within {patience:.0f} s") from None
        if code:
            errors = self._outputs[name].with_suffix(".err").read_text(errors="replace")
            raise LocalError(f"{name} ended with {code}: {errors[-2000:]}")
        return self._outputs[name].read_text()

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this package."""
    return [sys.executable, "-m", f"tests.tools.hostile.{module}", *arguments]


def attack(name: str, stage: Stage, number: int, seconds: float) -> list[str]:
    target = {
        "client": stage.node.advertised, "internal": stage.node.internal, "admin": stage.node.admin, "topic": TOPIC,
        "seconds": seconds, "source": f"127.0.{number + 1}.1", "connections": stage.connections,
    }  # fmt: skip
    return python("attacks", name, json.dumps(target))
