"""A running sidecar and its configuration file."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from proxy import admin_client
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.local import process
from proxy.local.ports import free_ports
from tests.integration.sidecars import until
from tests.tools.bench.measure import children


class Sidecar:
    """Before a port where nobody is. ``start`` does not wait for anything."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "sidecar.yaml", folder / "sidecar.log"
        self.port, self.upstream, admin = free_ports(3)
        self.admin = Endpoint("127.0.0.1", admin)
        self.command = [sys.executable, "-m", "proxy", "run", "-c", str(self.path)]

    def write(self, limit: int, workers: int = 1, more: int | None = None) -> None:
        """``more``: port of another listener."""
        listener = {"name": "CLIENT", "bind": f"127.0.0.1:{self.port}", "upstream": f"127.0.0.1:{self.upstream}"}
        listeners = [listener]
        if more is not None:
            listeners.append(listener | {"name": "MORE", "bind": f"127.0.0.1:{more}", "advertised": listener["bind"]})
        config = {"broker.id": 1, "listeners": listeners, "admin": {"bind": str(self.admin)}, "workers": workers}
        part = self.path.with_suffix(".part")
        part.write_text(yaml.safe_dump({**config, "quotas": {"max.connections": limit}}))
        part.replace(self.path)

    def start(self) -> None:
        self.process = process.spawn(self.command, self.log)

    def limit(self) -> int | None:
        """What acts now; None before there is an answer."""
        try:
            found = admin_client.get_quotas(self.admin)
        except LocalError:
            return None
        return next(one.limit for one in found.limits if one.quota == "connections")

    def says(self, event: str) -> bool:
        return f'"{event}"' in self.log.read_text()


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    sidecar = Sidecar(tmp_path)
    yield sidecar
    assert process.stop([sidecar.process], 60)


@pytest.mark.promise("config.md", "What is written to the file while the sidecar starts acts once it runs.")
@pytest.mark.slow
def test_what_is_written_while_it_starts_acts_when_it_runs(sidecar: Sidecar) -> None:
    (port,) = free_ports(1)
    sidecar.write(7, workers=2)
    sidecar.start()
    until(lambda: sidecar.log.exists() and sidecar.says("descriptors"))
    sidecar.write(9, workers=2, more=port)
    until(lambda: sidecar.says("started"))
    until(lambda: sidecar.limit() == 9)

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
        folder = tmp_path / f"{workers}"
        folder.mkdir()
        sidecar = Sidecar(folder)
        sidecar.write(7, workers)
        sidecar.start()
        try:
            until(lambda started=sidecar: started.log.exists() and started.says("descriptors"))
            while not sidecar.says("started"):
                for pid in (sidecar.process.pid, *children(sidecar.process.pid)):  # as systemd may
                    os.kill(pid, signal.SIGHUP)
                time.sleep(0.02)
            sidecar.write(9, workers)
            os.kill(sidecar.process.pid, signal.SIGHUP)
            until(lambda started=sidecar: started.limit() == 9)
        finally:
            assert process.stop([sidecar.process], 60)


# ---- the form of the log --------------------------------------------------------------------------------------

TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z (?:debug|info|warning|error) ")


@pytest.mark.promise("logging.md", "On a terminal the log of a sidecar is text for people.")
def test_on_a_terminal_it_is_text(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path)
    sidecar.write(7)
    ours, terminal = pty.openpty()
    try:
        with subprocess.Popen(sidecar.command, stderr=terminal) as process:
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
def test_a_reload_changes_it_in_every_process(sidecar: Sidecar) -> None:
    sidecar.write(7, workers=2)
    sidecar.start()
    # Each process has said by then all that it says by itself: nobody listens where the broker should be.
    until(lambda: sidecar.says("started"))
    for event in ("data_plane_started", "upstream_versions_unknown"):
        until(lambda event=event: sidecar.log.read_text().count(f'"{event}"') == 2)
    with sidecar.path.open("a") as file:
        file.write("log.format: text\n")
    assert admin_client.post_reload(sidecar.admin).result in ("applied", "unchanged")
    assert process.stop([sidecar.process], 60)
    lines = sidecar.log.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if TEXT.match(line))
    assert all(line.startswith("{") for line in lines[:first])
    assert all(TEXT.match(line) for line in lines[first:])
    assert {"worker=1", "worker=2"} <= set(" ".join(lines[first:]).split())
