"""How soon a changed limit acts."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass

from proxy.errors import LocalError
from proxy.local.ports import HOST
from tests.tools.conformance.crowd import REQUEST, Plan
from tests.tools.conformance.stage import Limits, Stage, crowd_process, finished

CONNECTIONS = 100
TIMEOUT = 20.0


@dataclass(frozen=True)
class Reload:
    """``acts``: seconds from SIGHUP until one more connection is served; ``closed``: connections that it cost."""

    acts: float
    connections: int
    closed: int


def measure(stage: Stage) -> Reload:
    """Raise the limit of an address that has all its connections. Raises LocalError where that never acts."""
    key = "max.connections.per.ip"
    port = stage.ports["CLIENT"]
    with stage.sidecar(Limits({key: CONNECTIONS})) as sidecar:
        crowd = crowd_process(Plan(port, CONNECTIONS, ask=False, watch=4))
        deadline = time.monotonic() + TIMEOUT
        while sidecar.metric("brokerside_connections_active") < CONNECTIONS or _served(port):
            _not_after(deadline)
        text = sidecar.config.read_text()
        sidecar.config.write_text(text.replace(f"{key}: {CONNECTIONS}", f"{key}: {2 * CONNECTIONS}"))
        began = time.monotonic()
        os.kill(sidecar.process.pid, signal.SIGHUP)
        while not _served(port):
            _not_after(deadline)
        acts = time.monotonic() - began
        visits = finished(crowd)
    return Reload(acts, CONNECTIONS, len(visits.how) - visits.how.count("open"))


def _served(port: int) -> bool:
    """Whether a connection is answered, and not closed."""
    try:
        with socket.create_connection((HOST, port), TIMEOUT) as sock:
            sock.sendall(REQUEST)
            return bool(sock.recv(1))
    except ConnectionError:
        return False


def _not_after(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise LocalError(f"a limit that was raised did not act in {TIMEOUT:.0f} s")
    time.sleep(0.002)
