"""A sidecar that something else has started, and traffic through it."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from proxy.local.cluster import ClusterState
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample

PATIENCE = 60.0


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true; ``what``: for the message if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:.0f} s not yet: {what}"
        time.sleep(0.05)


def output_of(*command: object, timeout: float = 120, **options: Any) -> str:
    """What a command prints, which has to succeed. ``options``: of ``subprocess.run``."""
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Running:
    """What can be seen of a sidecar from outside; ``admin``: host:port of its admin endpoint."""

    admin: str

    def get(self, path: str) -> str | None:
        """Return the body of a response with status 200; None of another one, or of none."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=5) as response:
                return str(response.read().decode())
        except OSError:
            return None

    def ready(self) -> bool:
        return self.get("readyz") is not None

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples; -1 while there is no answer."""
        text = self.get("metrics")
        return -1 if text is None else sample(text, name, **labels)

    def wait_ready(self) -> None:
        until(self.ready, f"{self.admin} is ready")


def configuration(cluster: ClusterState, **changes: Any) -> dict[str, Any]:
    """Return the configuration of the sidecar before the first node, with the keys of ``changes`` (``_`` for ``.``)."""
    node = cluster.nodes[0]
    config: dict[str, Any] = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    return config | {key.replace("_", "."): value for key, value in changes.items()}


class MountedConfig:
    """A folder with ``brokerside.yaml`` that changes as Kubernetes changes a mounted ConfigMap: all of it at once, by
    another target of a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        (folder / "brokerside.yaml").symlink_to("..data/brokerside.yaml")

    def write(self, config: Mapping[str, Any]) -> None:
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        (version / "brokerside.yaml").write_text(yaml.safe_dump(dict(config)))
        (self.folder / "..new").symlink_to(version.name)
        os.rename(self.folder / "..new", self.folder / "..data")


def transfer(bootstrap: str, topic: str, records: int = 500, **settings: str) -> None:
    """Produce so many records, and read all of them. ``settings``: further ones of librdkafka."""
    assert produce(bootstrap, topic, [bytes(200)] * records, **settings) == records
    assert len(consume(bootstrap, topic, records, **settings)) >= records
