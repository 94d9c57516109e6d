"""Listening sockets that systemd has opened: by its protocol, and by its own program."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from proxy import admin_client
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.local import process
from proxy.local.ports import HOST, free_ports
from proxy.net.listening_sockets import ListeningSockets, PassedSocket, sockets_of_systemd

PATIENCE = 60.0


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as sock:
        yield sock


def endpoint(sock: socket.socket) -> Endpoint:
    return Endpoint(*sock.getsockname())


def test_a_passed_socket_is_taken_by_its_address_and_an_address_without_one_is_bound(listening: socket.socket) -> None:
    passed = socket.socket(fileno=os.dup(listening.fileno()))
    sockets = ListeningSockets([PassedSocket("CLIENT", passed)])
    with sockets.open("CLIENT", endpoint(listening), 10) as taken, socket.create_connection(endpoint_of(listening)):
        assert taken is passed
        assert not taken.getblocking()
        assert sockets.close_unused() == []
    (port,) = free_ports(1)
    with sockets.open("OTHER", Endpoint(HOST, port), 10) as bound:
        assert endpoint(bound) == Endpoint(HOST, port)


def endpoint_of(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()
    return host, port


def test_a_passed_socket_of_a_host_name_is_taken_by_its_name(listening: socket.socket) -> None:
    port = endpoint(listening).port
    passed = PassedSocket("CLIENT", socket.socket(fileno=os.dup(listening.fileno())))
    with ListeningSockets([passed]).open("CLIENT", Endpoint("localhost", port), 10) as taken:
        assert taken is passed.sock


def test_a_passed_socket_that_nobody_reads_is_an_error(listening: socket.socket) -> None:
    passed = PassedSocket("CLIENT", socket.socket(fileno=os.dup(listening.fileno())))
    sockets = ListeningSockets([passed])
    with pytest.raises(LocalError, match=f"is the address of the socket CLIENT {endpoint(listening)}"):
        sockets.check_all_used()
    assert passed.sock.fileno() == -1


def test_variables_of_another_process_are_not_used() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "CLIENT", "HOME": "/"}
    sockets_of_systemd(environ).check_all_used()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_descriptor_that_does_not_listen_is_an_error(kind: int) -> None:
    """In a process of its own, since descriptor 3 of this one is anything."""
    with socket.socket(socket.AF_INET, kind) as sock:
        program = (
            f"import os; os.dup2({sock.fileno()}, 3)\n"
            "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}\n"
            "from proxy.net.listening_sockets import sockets_of_systemd\n"
            "sockets_of_systemd()"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], pass_fds=[sock.fileno()], capture_output=True, text=True, check=False
        )
    assert "LISTEN_FDS: unknown: descriptor 3 is no TCP socket that listens" in done.stderr


class Activated:
    """A sidecar that systemd's own program starts with the first connection to one of its sockets."""

    def __init__(self, folder: Path, names: str = "CLIENT:admin") -> None:
        self.port, self.admin, upstream = free_ports(3)
        self.log, path = folder / "sidecar.log", folder / "sidecar.yaml"
        listener = {"name": "CLIENT", "bind": f"{HOST}:{self.port}", "upstream": f"{HOST}:{upstream}"}
        path.write_text(
            yaml.safe_dump({"broker.id": 1, "listeners": [listener], "admin": {"bind": f"{HOST}:{self.admin}"}})
        )
        activate = shutil.which("systemd-socket-activate")
        if activate is None:
            pytest.skip("systemd-socket-activate (Debian: systemd) is not installed")
        sockets = ["-l", f"{HOST}:{self.port}", "-l", f"{HOST}:{self.admin}", f"--fdname={names}"]
        environ = [f"--setenv={name}" for name in os.environ if name != "NOTIFY_SOCKET"]
        command = [activate, *sockets, *environ, sys.executable, "-m", "proxy", "run", "-c", str(path)]
        self.process = process.spawn(command, self.log)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def connect(self) -> socket.socket:
        """Connect as soon as somebody listens."""
        made: list[socket.socket] = []

        def connected() -> bool:
            try:
                made.append(socket.create_connection((HOST, self.port)))
            except ConnectionRefusedError:
                return False
            return True

        self.until(connected)
        return made[0]


@pytest.mark.parametrize("names", ["CLIENT:admin", "any:any"])
def test_the_first_client_of_an_activated_sidecar_is_served(tmp_path: Path, names: str) -> None:
    sidecar = Activated(tmp_path, names)
    try:
        with sidecar.connect():  # before anything of the sidecar runs
            sidecar.until(lambda: '"started"' in sidecar.log.read_text())
            sidecar.until(lambda: 'accepted_total{listener="CLIENT"} 1' in metrics(sidecar))
    finally:
        assert process.stop([sidecar.process], 60)


def metrics(sidecar: Activated) -> str:
    return admin_client.get_metrics(Endpoint(HOST, sidecar.admin))
