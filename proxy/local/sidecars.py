"""The sidecars of a local cluster: one process per broker, started from the config files the cluster wrote."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import LocalError

START_TIMEOUT = 20.0
"""Seconds until a started sidecar has to be ready."""

STOP_TIMEOUT = 15.0
"""Seconds for a drain (10) and the observers' last flush (2) before a sidecar is killed."""


@dataclass
class SidecarProcess:
    """One running ``brokerside run``; ``admin`` is host:port of its admin endpoint."""

    process: subprocess.Popen[bytes]
    config: Path
    log: Path
    admin: str

    @classmethod
    def start(cls, config: Path, log: Path, admin: str) -> SidecarProcess:
        """Start it and wait until it is ready. Raises LocalError with the end of its log."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "proxy", "run", "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        sidecar = cls(process, config, log, admin)
        deadline = time.monotonic() + START_TIMEOUT
        while not sidecar.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                sidecar.stop()
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                raise LocalError(f"the sidecar of {config} did not become ready; the end of {log}:\n{tail}")
            time.sleep(0.05)
        return sidecar

    def ready(self) -> bool:
        """Whether ``/readyz`` says ok."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}/readyz", timeout=2) as response:  # http, loopback
                return bool(response.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def metrics(self) -> str:
        """The text of ``/metrics``."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as response:  # http, loopback
            return str(response.read().decode())

    def stop(self) -> int:
        """End it with SIGTERM, and with SIGKILL if that takes too long; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()
