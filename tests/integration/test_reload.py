"""A running sidecar, its configuration file and its log, also a stderr that nobody reads, as when a log collector is
paused."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from proxy import admin_client
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample
from tests.integration.sidecars import config_of, spawned, until
from tests.tools.bench.measure import children

TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z (?:debug|info|warning|error) ")

PIPE = 4096
"""Bytes of the pipe, the least that Linux has: a few lines of the log fill it."""

MISTAKES = 12
"""In the configuration: what a rejected one is logged with stays below the 4096 bytes that a pipe takes as a whole."""

UNSUPPORTED = struct.pack(">ihhih", 10, 20_000, 0, 7, -1)
PATIENCE = 60.0


def alone(workers: int = 1) -> dict[str, Any]:
    """The configuration of a sidecar before a port where nobody is."""
    bind, upstream, admin = (f"127.0.0.1:{port}" for port in free_ports(3))
    listener = {"name": "CLIENT", "bind": bind, "upstream": upstream}
    return {"broker.id": 1, "listeners": [listener], "admin": {"bind": admin}, "workers": workers}


def write(sidecar: SidecarProcess, config: dict[str, Any]) -> None:
    part = sidecar.config.with_suffix(".part")
    part.write_text(yaml.safe_dump(config))
    part.replace(sidecar.config)


def limit(sidecar: SidecarProcess) -> int | None:
    """What acts now; None before there is an answer."""
    try:
        found = admin_client.get_quotas(Endpoint.parse(sidecar.admin))
    except LocalError:
        return None
    return next(one.limit for one in found.limits if one.quota == "connections")


def says(sidecar: SidecarProcess, event: str, count: int = 1) -> bool:
    return sidecar.log.exists() and sidecar.log.read_text().count(f'"{event}"') >= count


@pytest.mark.promise("config.md", "What is written to the file while the sidecar starts acts once it runs.")
@pytest.mark.slow
def test_what_is_written_while_it_starts_acts_when_it_runs(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = alone(workers=2) | {"quotas": {"max.connections": 7}}
    with spawned(config, tmp_path) as sidecar:
        until(lambda: says(sidecar, "descriptors"))
        [listener] = config["listeners"]
        more = listener | {"name": "MORE", "bind": f"127.0.0.1:{port}", "advertised": listener["bind"]}
        write(sidecar, config | {"listeners": [listener, more], "quotas": {"max.connections": 9}})
        until(lambda: says(sidecar, "started"))
        until(lambda: limit(sidecar) == 9)

        def connects() -> bool:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                return False
            return True

        until(connects)


@pytest.mark.promise("restart.md", "SIGHUP during the start of a sidecar does not end it.")
def test_a_reload_asked_for_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    for workers in (1, 2):
        config = alone(workers)
        with spawned(config, tmp_path) as sidecar:
            until(lambda sidecar=sidecar: says(sidecar, "descriptors"))  # type: ignore[misc]
            while not says(sidecar, "started"):
                for pid in (sidecar.process.pid, *children(sidecar.process.pid)):  # as systemd may
                    os.kill(pid, signal.SIGHUP)
                time.sleep(0.02)
            write(sidecar, config | {"quotas": {"max.connections": 9}})
            os.kill(sidecar.process.pid, signal.SIGHUP)
            until(lambda sidecar=sidecar: limit(sidecar) == 9)  # type: ignore[misc]


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_start(tmp_path: Path) -> None:
    observed = {"internal.bootstrap.servers": "127.0.0.1:1", "observer.class.names": "nowhere:Observer"}
    with spawned(alone(workers=2) | observed, tmp_path) as sidecar:
        until(lambda: not sidecar.process.alive())
    assert "brokerside: observer.class.names: observer 'nowhere:Observer'" in sidecar.log.read_text()
    assert not says(sidecar, "listening")


@pytest.mark.promise("logging.md", "On a terminal the log of a sidecar is text for people.")
def test_on_a_terminal_it_is_text(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(alone()))
    ours, terminal = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", path], stderr=terminal) as process:
            text = b""
            while b" started " not in text:
                text += os.read(ours, 4096)
            process.terminate()
            assert process.wait(60) == 0
    finally:
        os.close(ours)
        os.close(terminal)
    lines = text.decode().splitlines()
    assert all(TEXT.match(line) for line in lines[:-1])
    assert any("listening" in line and "listener=CLIENT" in line for line in lines)


@pytest.mark.promise("logging.md", "A reload changes the form of the log in every process.")
@pytest.mark.slow
def test_a_reload_changes_it_in_every_process(tmp_path: Path) -> None:
    config = alone(workers=2)
    with spawned(config, tmp_path) as sidecar:
        # Each process has said by then all that it says by itself: nobody listens where the broker should be.
        until(lambda: says(sidecar, "started"))
        for event in ("data_plane_started", "upstream_versions_unknown"):
            until(lambda event=event: says(sidecar, event, 2))  # type: ignore[misc]
        write(sidecar, config | {"log.format": "text"})
        assert admin_client.post_reload(Endpoint.parse(sidecar.admin)).result in ("applied", "unchanged")
    lines = sidecar.log.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if TEXT.match(line))
    assert all(line.startswith("{") for line in lines[:first])
    assert all(TEXT.match(line) for line in lines[first:])
    assert {"worker=1", "worker=2"} <= set(" ".join(lines[first:]).split())


def answers(admin: Endpoint, path: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://{admin}/{path}", timeout=PATIENCE) as response:
        return bool(response.read())
    return False


def dropped(admin: Endpoint) -> float:
    return sample(admin_client.get_metrics(admin), "brokerside_log_lines_dropped_total")


@contextmanager
def unread(cluster: ClusterState, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], int, Endpoint]]:
    """A sidecar, its admin endpoint, and the end of a pipe that nobody reads: it is full, and so is what waits behind
    it, by reloads of a file with many mistakes, and clients."""
    node = cluster.nodes[0]
    path, admin = node.home.parent / "unread.yaml", Endpoint.parse(node.admin)
    right = yaml.safe_dump(config_of(node, workers=workers, **{"log.level": "debug"}))
    path.write_text(right)
    host, _, port = node.advertised.rpartition(":")
    log, end = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE)
    process = subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", path], stderr=end)
    os.close(end)
    try:
        until(lambda: answers(admin, "readyz"))
        path.write_text(right + "".join(f"no.such.key.{n}.{'x' * 200}: 1\n" for n in range(MISTAKES)))
        while not dropped(admin):
            for _ in range(20):
                process.send_signal(signal.SIGHUP)
                with socket.create_connection((host, int(port)), PATIENCE) as sock:
                    sock.sendall(UNSUPPORTED)
                    assert sock.recv(8) == struct.pack(">ii", 4, 7)
                assert admin_client.post_reload(admin).result == "rejected"
        path.write_text(right)
        yield process, log, admin
    finally:
        process.kill()
        process.wait()
        os.close(log)


@pytest.mark.kafka
@pytest.mark.promise(
    "logging.md", "Traffic and probes do not wait for a log that nobody reads; dropped lines are counted and reported."
)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_clients_and_probes_do_not_notice(cluster: ClusterState, topic: str, workers: int) -> None:
    with unread(cluster, workers) as (process, log, admin):
        assert answers(admin, "livez")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"value")
        assert producer.flush(PATIENCE) == 0
        assert dropped(admin) > 0

        lines: list[str] = []

        def read() -> None:
            with os.fdopen(os.dup(log)) as file:
                lines.extend(iter(file.readline, ""))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        until(lambda: any('"log_lines_dropped"' in line for line in lines))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        reader.join(PATIENCE)
    parsed = [json.loads(line) for line in lines]
    (gap, *_) = [line for line in parsed if line["event"] == "log_lines_dropped"]
    assert gap["error"] > 0
    assert parsed[-1]["event"] == "stopped"


@pytest.mark.kafka
@pytest.mark.promise("logging.md", "A sidecar ends though nobody reads its log.")
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_it_ends_while_nobody_reads(cluster: ClusterState, workers: int) -> None:
    with unread(cluster, workers) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
