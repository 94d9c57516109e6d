"""CPU of proxies that terminate TLS 1.3 (ECDSA P-256, AES-256-GCM): bytes, small requests, handshakes.

The clients are Python's, on another CPU; only the proxy's CPU counts. A handshake includes the connection to the
broker, one small request and the end: without a request HAProxy sees that the client has gone, and does not connect at
all.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from proxy.errors import LocalError
from proxy.local.ports import HOST, free_ports
from tests.tools.authority import Authority
from tests.tools.bench.contestants import TLS_PAIR, Contestant, listener
from tests.tools.bench.measure import awaiting
from tests.tools.bench.scenarios import MIB, Measured, Scenario
from tests.tools.bench.stage import Stage

TERMINATING = ("haproxy", "nginx", "brokerside", "brokerside-audit")
SETTLE = 0.1
"""Seconds in which a proxy ends what it still does for a load."""

TIMEOUT = 60.0
"""Seconds for a connection, a handshake, or a part of an answer, on a machine that others use."""

Work = Callable[[], float]
"""One unit of a load; returns how many of what is counted it was."""


class Tls(Scenario):
    name, whom = "tls", TERMINATING

    def measure(self, stage: Stage, contestant: Contestant) -> Measured:
        authority = Authority(stage.folder / "tls")
        pair = authority.issue("proxy", names=("localhost", HOST))
        both = authority.folder / "proxy.pem"
        both.write_text(pair.certificate.read_text() + pair.key.read_text())
        [port] = free_ports(1)
        files = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
        tls = {"security.protocol": "SSL", "tls": files}
        ours = listener("CLIENT", f"{HOST}:{port}", f"{HOST}:{stage.stub_port}", **tls)
        keys: dict[str, object] = {"listeners": [ours]} if contestant.ours else {TLS_PAIR: str(both)}
        figures: dict[str, float] = {}
        foreign = 0.0
        with stage.started(contestant, keys=keys, listen=port) as running:
            clients = Clients(port, authority.ca, stage.frame("small"))
            loads: dict[str, tuple[Work, float]] = {
                "request_cpu_us": (clients.requester(stage.frame("small")), 1e6),
                "produce_cpu_ms_mib": (clients.requester(stage.frame("produce"), sent=True), MIB * 1e3),
                "fetch_cpu_ms_mib": (clients.requester(stage.frame("fetch"), received=True), MIB * 1e3),
                "full_cpu_us": (clients.full_handshake, 1e6),
                "resumed_cpu_us": (clients.resumed_handshake, 1e6),
            }
            for name, (work, unit) in loads.items():
                with awaiting(f"first answer to a client with TLS within {TIMEOUT:.0f} s, for {name}"):
                    work()
                before = stage.read(running.pids)
                until = time.monotonic() + stage.sizes.seconds
                with awaiting(f"answer to a client with TLS within {TIMEOUT:.0f} s, for {name}"):
                    count = work()
                    while time.monotonic() < until:
                        count += work()
                time.sleep(SETTLE)
                after = stage.read(running.pids)
                figures[name] = (after.measured - before.measured) / count * unit
                foreign = max(foreign, after.foreign(before))
        return Measured(figures, foreign)


class Clients:
    """Clients of one port, which trust ``ca``. ``request``: what each connection of a handshake sends."""

    def __init__(self, port: int, ca: Path, request: bytes) -> None:
        self._port = port
        self._request = request
        self._context = ssl.create_default_context(cafile=str(ca))
        self._session: ssl.SSLSession | None = None

    def requester(self, frame: bytes, *, sent: bool = False, received: bool = False) -> Work:
        """Requests on one connection; counts them, or their bytes that were ``sent`` or ``received``."""
        sock = self._dial(None)
        answers = sock.makefile("rb")

        def work() -> float:
            sock.sendall(frame)
            answer = _read_frame(answers)
            return len(frame) if sent else answer if received else 1

        return work

    def full_handshake(self) -> float:
        return self._ask(None)

    def resumed_handshake(self) -> float:
        if self._session is None:
            self._ask(None)
        return self._ask(self._session)

    def _ask(self, session: ssl.SSLSession | None) -> float:
        with self._dial(session) as sock, sock.makefile("rb") as answers:
            if sock.session_reused != (session is not None):
                raise LocalError("a handshake was not " + ("full" if session is None else "resumed"))
            sock.sendall(self._request)
            _read_frame(answers)  # the ticket comes before it
            self._session = self._session or sock.session
        return 1

    def _dial(self, session: ssl.SSLSession | None) -> ssl.SSLSocket:
        plain = socket.create_connection((HOST, self._port), TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(plain, server_hostname="localhost", session=session)


def _read_frame(answers: IO[bytes]) -> int:
    """Read one frame, and return how many bytes it has."""
    left = int.from_bytes(answers.read(4), "big")
    if not left or len(answers.read(left)) < left:
        raise LocalError("the proxy has closed the connection of a client that waits for its answer")
    return 4 + left
