"""A real sidecar under something that listens as systemd does, and with sockets that systemd has opened."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import yaml

from proxy import admin_client
from proxy.config import Endpoint
from proxy.errors import LocalError
from proxy.local import process
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.net.listening_sockets import ListeningSockets, PassedSocket, sockets_of_systemd
from tests.integration.quotas import Peer
from tests.integration.sidecars import config_of, running, until
from tests.tools.bench.measure import children
from tests.unit.test_sd_notify import Manager


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    yield manager
    manager.close()


@pytest.mark.kafka
@pytest.mark.promise("install.md", "systemctl start and reload return when the sidecar has done it.")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_sidecar_notifies_of_its_start_each_reload_and_its_stop(
    workers: int, cluster: ClusterState, manager: Manager, tmp_path: Path
) -> None:
    config = config_of(cluster.nodes[0], workers=workers)
    seen: list[dict[str, str]] = []

    def count(key: str) -> int:
        seen.extend(manager.received())
        return sum(key in message for message in seen)

    with running(config, tmp_path) as sidecar:
        until(lambda: count("READY") == 1)
        until(lambda: count("WATCHDOG") >= 5)
        assert count("RELOADING") == 0
        os.kill(sidecar.process.pid, signal.SIGHUP)
        until(lambda: count("READY") == 2)
        sidecar.config.write_text(yaml.safe_dump(config | {"log.level": "loud"}))
        until(lambda: count("READY") == 3)
        assert count("RELOADING") == 2
        states = [message for message in seen if "WATCHDOG" not in message]
        assert [next(iter(message)) for message in states] == ["READY", "RELOADING", "READY", "RELOADING", "READY"]
        assert states[2]["STATUS"] == "Running"
        assert states[4]["STATUS"].startswith("The last reload was rejected: log.level")
        os.kill(sidecar.process.pid, signal.SIGUSR2)
        failed = {"STATUS": "The last takeover failed: takeover.socket.path is not set"}
        until(lambda: count("STATUS") == 4)
        assert failed in seen
        for child in children(sidecar.process.pid):
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()
    assert count("STOPPING") == 1
    assert next(message for message in seen if "STOPPING" in message)["EXTEND_TIMEOUT_USEC"] == "15000000"


@pytest.mark.kafka
@pytest.mark.promise("restart.md", "systemd gets the name of the successor from the old process.")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_successor_becomes_the_service(workers: int, cluster: ClusterState, manager: Manager, tmp_path: Path) -> None:
    """systemd believes the main process alone: the first one until it has named the second, then the second."""
    config = config_of(cluster.nodes[0], workers=workers, **{"takeover.socket.path": str(tmp_path / "takeover.sock")})
    seen: list[tuple[int, dict[str, str]]] = []

    def said(pid: int, **wanted: str) -> bool:
        seen.extend(manager.received_from())
        return any(sender == pid and wanted.items() <= message.items() for sender, message in seen)

    def named() -> list[int]:
        return [int(message["MAINPID"]) for _, message in seen if "MAINPID" in message]

    with running(config, tmp_path) as sidecar, ExitStack() as stack:
        first = sidecar.process.pid
        until(lambda: said(first, WATCHDOG="1"))
        os.kill(first, signal.SIGUSR2)
        until(lambda: said(first) and not sidecar.process.alive())
        said(first)  # all the rest, up to its end
        [second] = named()
        stack.callback(end, second)
        until(lambda: said(second, READY="1", STATUS="Running") and said(second, WATCHDOG="1"))
        at = next(at for at, (_, message) in enumerate(seen) if "MAINPID" in message)
        assert {sender for sender, _ in seen[: at + 1]} == {first}
        assert {sender for sender, _ in seen[at + 1 :]} == {second}
        assert not any("STOPPING" in message for _, message in seen)

        sidecar.config.unlink()
        os.kill(second, signal.SIGUSR2)
        until(lambda: said(second, STATUS="The last takeover failed: the successor has ended; its log says why"))
        assert sidecar.ready()
    assert said(second, STOPPING="1")


def end(pid: int) -> None:
    """End a process that is no child of this one."""
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    ended, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    assert ended


@pytest.mark.promise("restart.md", "A socket of systemd that is nobody's `bind` refuses the start.")
def test_a_passed_socket_that_nobody_reads_is_an_error() -> None:
    """But not one that is passed to another process."""
    with socket.create_server((HOST, 0)) as listening:
        given = PassedSocket("CLIENT", socket.socket(fileno=os.dup(listening.fileno())))
        address = ":".join(map(str, listening.getsockname()))
        with pytest.raises(LocalError, match=f"is the address of the socket CLIENT {address}"):
            ListeningSockets([given]).check_all_used()
        assert given.sock.fileno() == -1
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "CLIENT", "HOME": "/"}
    sockets_of_systemd(environ).check_all_used()
    assert environ == {"HOME": "/"}


@pytest.mark.promise("restart.md", "A sidecar that systemd starts with the first connection serves that connection.")
def test_the_first_client_of_an_activated_sidecar_is_served(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate (Debian: systemd) is not installed")
    client, admin, upstream = (f"{HOST}:{port}" for port in free_ports(3))
    log, path = tmp_path / "sidecar.log", tmp_path / "sidecar.yaml"
    listener = {"name": "CLIENT", "bind": client, "upstream": upstream}
    path.write_text(yaml.safe_dump({"broker.id": 1, "listeners": [listener], "admin": {"bind": admin}}))
    environ = [f"--setenv={name}" for name in os.environ if name != "NOTIFY_SOCKET"]
    command = [activate, "-l", client, "-l", admin, "--fdname=any:any", *environ]
    activated = process.spawn([*command, sys.executable, "-m", "proxy", "run", "-c", str(path)], log)

    def connected() -> Peer | None:
        with suppress(ConnectionRefusedError):
            return Peer(client)
        return None

    try:
        first = until(connected)  # before anything of the sidecar runs
        assert first is not None
        with first:
            until(lambda: '"started"' in log.read_text())
            until(lambda: 'accepted_total{listener="CLIENT"} 1' in admin_client.get_metrics(Endpoint.parse(admin)))
    finally:
        assert process.stop([activated], 60)
