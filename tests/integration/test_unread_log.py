"""A stderr that nobody reads, as when a log collector is paused: clients and probes do not notice."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from proxy.local.cluster import ClusterState
from tests.integration.metrics import sample

pytestmark = pytest.mark.kafka

PIPE = 4096
"""Bytes of the pipe, the least that Linux has: a few lines of the log fill it."""

MISTAKES = 12
"""In the configuration: what a rejected one is logged with stays below the 4096 bytes that a pipe takes as a whole."""

UNSUPPORTED = struct.pack(">ihhih", 10, 20_000, 0, 7, -1)
PATIENCE = 60.0


class Sidecar:
    """A sidecar whose stderr is the other end of ``log``."""

    def __init__(self, config: Path, admin: str) -> None:
        self.admin = admin
        self.config = config
        self.log, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
        self.process = subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", str(config)], stderr=write)
        os.close(write)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=PATIENCE) as response:
            return str(response.read().decode())

    def reload(self) -> None:
        """Have it read its file, which it rejects."""
        asked = urllib.request.Request(f"http://{self.admin}/reload", method="POST")
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=PATIENCE) as response:
            response.read()

    def dropped(self) -> float:
        return sample(self.get("metrics"), "brokerside_log_lines_dropped_total")

    def read_log(self, lines: list[str]) -> None:
        """Read it to its end."""
        with os.fdopen(os.dup(self.log)) as file:
            lines += iter(file.readline, "")

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                self.get("readyz")
            except OSError:
                assert self.process.poll() is None, os.read(self.log, PIPE)
                time.sleep(0.1)
            else:
                return
        raise AssertionError("not ready")


@contextmanager
def running(cluster: ClusterState, workers: int) -> Iterator[Sidecar]:
    folder, node = cluster.nodes[0].home.parent, cluster.nodes[0]
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    (folder / "unread.yaml").write_text(yaml.safe_dump({**config, "workers": workers, "log.level": "debug"}))
    sidecar = Sidecar(folder / "unread.yaml", node.admin)
    try:
        sidecar.until_ready()
        yield sidecar
    finally:
        sidecar.process.kill()
        sidecar.process.wait()
        os.close(sidecar.log)


def make_it_log(sidecar: Sidecar, address: tuple[str, int]) -> None:
    """Fill the pipe and the queue behind it, by reloads of a file with many mistakes; clients make it log as well."""
    right = sidecar.config.read_text()
    sidecar.config.write_text(right + "".join(f"no.such.key.{n}.{'x' * 200}: 1\n" for n in range(MISTAKES)))
    deadline = time.monotonic() + PATIENCE
    while not sidecar.dropped() and time.monotonic() < deadline:
        for _ in range(20):
            sidecar.process.send_signal(signal.SIGHUP)
            with socket.create_connection(address, PATIENCE) as sock:
                sock.sendall(UNSUPPORTED)
                assert sock.recv(8) == struct.pack(">ii", 4, 7)
            sidecar.reload()
    sidecar.config.write_text(right)


@pytest.mark.promise(
    "logging.md", "Traffic and probes do not wait for a log that nobody reads; dropped lines are counted and reported."
)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_clients_and_probes_do_not_notice(cluster: ClusterState, topic: str, workers: int) -> None:
    host, _, port = cluster.nodes[0].advertised.rpartition(":")
    with running(cluster, workers) as sidecar:
        make_it_log(sidecar, (host, int(port)))
        assert sidecar.get("livez") == "ok\n"
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"value")
        assert producer.flush(PATIENCE) == 0
        assert sidecar.dropped() > 0

        lines: list[str] = []
        reader = threading.Thread(target=sidecar.read_log, args=(lines,), daemon=True)
        reader.start()
        deadline = time.monotonic() + PATIENCE
        while not any('"log_lines_dropped"' in line for line in lines) and time.monotonic() < deadline:
            time.sleep(0.1)
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(PATIENCE) == 0
        reader.join(PATIENCE)
    parsed = [json.loads(line) for line in lines]
    (gap, *_) = [line for line in parsed if line["event"] == "log_lines_dropped"]
    assert gap["error"] > 0
    assert parsed[-1]["event"] == "stopped"


@pytest.mark.promise("logging.md", "A sidecar ends though nobody reads its log.")
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_it_ends_while_nobody_reads(cluster: ClusterState, workers: int) -> None:
    host, _, port = cluster.nodes[0].advertised.rpartition(":")
    with running(cluster, workers) as sidecar:
        make_it_log(sidecar, (host, int(port)))
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(PATIENCE) == 0
