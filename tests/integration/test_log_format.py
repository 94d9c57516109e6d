"""The form of the log of a real sidecar, on a terminal and after a reload."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from proxy.admin_client import post_reload
from proxy.config import Endpoint
from proxy.local import process
from tests.integration.conftest import free_port
from tests.integration.test_reload import until

TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z (?:debug|info|warning|error) ")


def config_of(**more: object) -> dict[str, object]:
    listener = {"name": "CLIENT", "bind": f"127.0.0.1:{free_port()}", "upstream": f"127.0.0.1:{free_port()}"}
    return {"broker.id": 1, "listeners": [listener], "admin": {"bind": f"127.0.0.1:{free_port()}"}, **more}


@pytest.mark.promise("logging.md", "On a terminal the log of a sidecar is text for people.")
def test_on_a_terminal_it_is_text(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(yaml.safe_dump(config_of()))
    ours, terminal = pty.openpty()
    try:
        with subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", str(path)], stderr=terminal) as sidecar:
            text = b""
            while b" started " not in text:
                text += os.read(ours, 4096)
            sidecar.terminate()
            assert sidecar.wait(60) == 0
    finally:
        os.close(ours)
        os.close(terminal)
    lines = text.decode().splitlines()
    assert all(TEXT.match(line) for line in lines[:-1])
    assert any("listening" in line and "listener=CLIENT" in line for line in lines)


@pytest.mark.promise("logging.md", "A reload changes the form of the log in every process.")
@pytest.mark.slow
def test_a_reload_changes_it_in_every_process(tmp_path: Path) -> None:
    path, log = tmp_path / "sidecar.yaml", tmp_path / "log"
    config = config_of(workers=2)
    path.write_text(yaml.safe_dump(config))
    sidecar = process.spawn([sys.executable, "-m", "proxy", "run", "-c", str(path)], log)
    try:
        admin = Endpoint.parse(config["admin"]["bind"])  # type: ignore[index]
        # Each process has said by then all that it says by itself: nobody listens where the broker should be.
        until(lambda: '"started"' in log.read_text())
        for event in ("data_plane_started", "upstream_versions_unknown"):
            until(lambda event=event: log.read_text().count(f'"{event}"') == 2)
        path.write_text(yaml.safe_dump({**config, "log.format": "text"}))
        assert post_reload(admin).result in ("applied", "unchanged")
    finally:
        assert process.stop([sidecar], 60)
    lines = log.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if TEXT.match(line))
    assert all(line.startswith("{") for line in lines[:first])
    assert all(TEXT.match(line) for line in lines[first:])
    assert {"worker=1", "worker=2"} <= set(" ".join(lines[first:]).split())
