"""A stderr that nobody reads, as when a log collector is paused: clients and probes do not notice."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from proxy import admin_client
from proxy.config import Endpoint
from proxy.local.cluster import ClusterState
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, until

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
        self.admin = Endpoint.parse(admin)
        self.config = config
        self.log, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
        self.process = subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", str(config)], stderr=write)
        os.close(write)

    def answers(self, path: str) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{self.admin}/{path}", timeout=PATIENCE) as response:
            return bool(response.read())
        return False

    def dropped(self) -> float:
        return sample(admin_client.get_metrics(self.admin), "brokerside_log_lines_dropped_total")

    def read_log(self, lines: list[str]) -> None:
        with os.fdopen(os.dup(self.log)) as file:
            lines += iter(file.readline, "")


@contextmanager
def running(cluster: ClusterState, workers: int) -> Iterator[Sidecar]:
    path, node = cluster.nodes[0].home.parent / "unread.yaml", cluster.nodes[0]
    path.write_text(yaml.safe_dump(config_of(node, workers=workers, **{"log.level": "debug"})))
    sidecar = Sidecar(path, node.admin)
    try:
        until(lambda: sidecar.answers("readyz"))
        yield sidecar
    finally:
        sidecar.process.kill()
        sidecar.process.wait()
        os.close(sidecar.log)


def make_it_log(sidecar: Sidecar, address: tuple[str, int]) -> None:
    """Fill the pipe and the queue behind it, by reloads of a file with many mistakes; clients make it log as well."""
    right = sidecar.config.read_text()
    sidecar.config.write_text(right + "".join(f"no.such.key.{n}.{'x' * 200}: 1\n" for n in range(MISTAKES)))
    while not sidecar.dropped():
        for _ in range(20):
            sidecar.process.send_signal(signal.SIGHUP)
            with socket.create_connection(address, PATIENCE) as sock:
                sock.sendall(UNSUPPORTED)
                assert sock.recv(8) == struct.pack(">ii", 4, 7)
            assert admin_client.post_reload(sidecar.admin).result == "rejected"
    sidecar.config.write_text(right)


@pytest.mark.promise(
    "logging.md", "Traffic and probes do not wait for a log that nobody reads; dropped lines are counted and reported."
)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_clients_and_probes_do_not_notice(cluster: ClusterState, topic: str, workers: int) -> None:
    host, _, port = cluster.nodes[0].advertised.rpartition(":")
    with running(cluster, workers) as sidecar:
        make_it_log(sidecar, (host, int(port)))
        assert sidecar.answers("livez")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"value")
        assert producer.flush(PATIENCE) == 0
        assert sidecar.dropped() > 0

        lines: list[str] = []
        reader = threading.Thread(target=sidecar.read_log, args=(lines,), daemon=True)
        reader.start()
        until(lambda: any('"log_lines_dropped"' in line for line in lines))
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
