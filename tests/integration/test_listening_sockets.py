"""Listening sockets that systemd has opened: by its protocol, and by its own program."""

from __future__ import annotations

import os
import shutil
import socket
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


def passed(listening: socket.socket, name: str = "CLIENT") -> PassedSocket:
    return PassedSocket(name, socket.socket(fileno=os.dup(listening.fileno())))


def test_a_passed_socket_is_taken_by_its_address_or_its_name_and_others_are_bound(listening: socket.socket) -> None:
    host, port = listening.getsockname()
    given = passed(listening)
    sockets = ListeningSockets([given])
    with sockets.open("CLIENT", Endpoint(host, port), 10) as taken, socket.create_connection((host, port)):
        assert taken is given.sock
        assert not taken.getblocking()
        assert sockets.close_unused() == []
    (other,) = free_ports(1)
    with sockets.open("OTHER", Endpoint(HOST, other), 10) as bound:
        assert bound.getsockname() == (HOST, other)
    given = passed(listening)
    with ListeningSockets([given]).open("CLIENT", Endpoint("localhost", port), 10) as taken:
        assert taken is given.sock


@pytest.mark.promise("restart.md", "A socket of systemd that is nobody's `bind` refuses the start.")
def test_a_passed_socket_that_nobody_reads_is_an_error(listening: socket.socket) -> None:
    given = passed(listening)
    address = ":".join(map(str, listening.getsockname()))
    with pytest.raises(LocalError, match=f"is the address of the socket CLIENT {address}"):
        ListeningSockets([given]).check_all_used()
    assert given.sock.fileno() == -1


def test_variables_of_another_process_are_not_used() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "CLIENT", "HOME": "/"}
    sockets_of_systemd(environ).check_all_used()
    assert environ == {"HOME": "/"}


class Activated:
    """A sidecar that systemd's own program starts with the first connection to one of its sockets."""

    def __init__(self, folder: Path) -> None:
        self.port, self.admin, upstream = free_ports(3)
        self.log, path = folder / "sidecar.log", folder / "sidecar.yaml"
        listener = {"name": "CLIENT", "bind": f"{HOST}:{self.port}", "upstream": f"{HOST}:{upstream}"}
        path.write_text(
            yaml.safe_dump({"broker.id": 1, "listeners": [listener], "admin": {"bind": f"{HOST}:{self.admin}"}})
        )
        activate = shutil.which("systemd-socket-activate")
        if activate is None:
            pytest.skip("systemd-socket-activate (Debian: systemd) is not installed")
        sockets = ["-l", f"{HOST}:{self.port}", "-l", f"{HOST}:{self.admin}", "--fdname=any:any"]
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


@pytest.mark.promise("restart.md", "A sidecar that systemd starts with the first connection serves that connection.")
def test_the_first_client_of_an_activated_sidecar_is_served(tmp_path: Path) -> None:
    sidecar = Activated(tmp_path)
    try:
        with sidecar.connect():  # before anything of the sidecar runs
            sidecar.until(lambda: '"started"' in sidecar.log.read_text())
            admin = Endpoint(HOST, sidecar.admin)
            sidecar.until(lambda: 'accepted_total{listener="CLIENT"} 1' in admin_client.get_metrics(admin))
    finally:
        assert process.stop([sidecar.process], 60)
