"""A sidecar process: its configuration file, its log, also a stderr that nobody reads, what ``/readyz`` says, and what
passes between it and systemd."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from proxy import admin_client
from proxy.config import Endpoint, load
from proxy.errors import LocalError
from proxy.local import process
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from proxy.net import upstream_check
from proxy.net.listening_sockets import ListeningSockets, PassedSocket, sockets_of_systemd
from proxy.net.upstream import Upstream
from tests.frames import request
from tests.integration.conftest import free_port
from tests.integration.metrics import sample
from tests.integration.quotas import Peer
from tests.integration.sidecars import config_of, running, spawned, until
from tests.tools.admin import get
from tests.tools.bench.measure import children
from tests.unit.test_sd_notify import Manager

TEXT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z (?:debug|info|warning|error) ")

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
    try:
        found = admin_client.get_quotas(Endpoint.parse(sidecar.admin))
    except LocalError:
        return None
    return next(one.limit for one in found.limits if one.quota == "connections")


def says(sidecar: SidecarProcess, event: str, count: int = 1) -> bool:
    return sidecar.log.exists() and sidecar.log.read_text().count(f'"{event}"') >= count


@pytest.mark.promise("config.md", "What is written to the file while the sidecar starts acts once it runs.")
@pytest.mark.slow
def test_what_is_written_while_it_starts_acts_when_it_runs(tmp_path):
    (port,) = free_ports(1)
    config = alone(workers=2) | {"quotas": {"max.connections": 7}}
    with spawned(config, tmp_path) as sidecar:
        until(lambda: says(sidecar, "descriptors"))
        [listener] = config["listeners"]
        more = listener | {"name": "MORE", "bind": f"127.0.0.1:{port}", "advertised": listener["bind"]}
        write(sidecar, config | {"listeners": [listener, more], "quotas": {"max.connections": 9}})
        until(lambda: says(sidecar, "started"))
        until(lambda: limit(sidecar) == 9)

        def connects():
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                return False
            return True

        until(connects)


@pytest.mark.promise("restart.md", "SIGHUP during the start of a sidecar does not end it.")
def test_a_reload_asked_for_while_it_starts_does_not_end_it(tmp_path):
    for workers in (1, 2):
        config = alone(workers)
        with spawned(config, tmp_path) as sidecar:
            until(lambda sidecar=sidecar: says(sidecar, "descriptors"))
            while not says(sidecar, "started"):
                for pid in (sidecar.process.pid, *children(sidecar.process.pid)):  # as systemd may
                    os.kill(pid, signal.SIGHUP)
                time.sleep(0.02)
            write(sidecar, config | {"quotas": {"max.connections": 9}})
            os.kill(sidecar.process.pid, signal.SIGHUP)
            until(lambda sidecar=sidecar: limit(sidecar) == 9)


@pytest.mark.promise("restart.md", "A reload sets, moves and removes the socket for a successor.")
@pytest.mark.promise("security.md", "A folder that every user may write is refused for the socket of a successor.")
def test_a_reload_moves_the_socket_for_a_successor(tmp_path: Path) -> None:
    config = alone()
    first, second, refused = tmp_path / "1.sock", tmp_path / "2.sock", tmp_path / "o" / "3.sock"
    refused.parent.mkdir()
    refused.parent.chmod(0o777)
    with spawned(config, tmp_path) as sidecar:

        def reload(path: Path | None) -> tuple[str, set[str]]:
            """Return the result and all sockets that there are after it."""
            write(sidecar, config if path is None else config | {"takeover.socket.path": str(path)})
            done = admin_client.post_reload(Endpoint.parse(sidecar.admin))
            return "".join(done.errors), {one.name for one in tmp_path.rglob("*") if one.is_socket()}

        until(lambda: says(sidecar, "started"))
        assert reload(first) == ("", {"1.sock"})
        assert reload(second) == ("", {"2.sock"})
        error, sockets = reload(refused)
        assert error.startswith(
            f"takeover.socket.path: {refused.parent} has mode 0777, and every user may write there;"
        )
        assert sockets == {"2.sock"}
        missing = tmp_path / "m" / "3.sock"
        assert reload(missing) == (
            f"takeover.socket.path: cannot create {missing}: No such file or directory",
            {"2.sock"},
        )
        assert reload(None) == ("", set())


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_start(tmp_path):
    observed = {"internal.bootstrap.servers": "127.0.0.1:1", "observer.class.names": "nowhere:Observer"}
    with spawned(alone(workers=2) | observed, tmp_path) as sidecar:
        until(lambda: not sidecar.process.alive())
    assert "brokerside: observer.class.names: observer 'nowhere:Observer'" in sidecar.log.read_text()
    assert not says(sidecar, "listening")


@pytest.mark.promise("logging.md", "On a terminal the log of a sidecar is text for people.")
def test_on_a_terminal_it_is_text(tmp_path):
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
def test_a_reload_changes_it_in_every_process(tmp_path):
    config = alone(workers=2)
    with spawned(config, tmp_path) as sidecar:
        # Each process has said by then all that it says by itself: nobody listens where the broker should be.
        until(lambda: says(sidecar, "started"))
        for event in ("data_plane_started", "upstream_versions_unknown"):
            until(lambda event=event: says(sidecar, event, 2))
        write(sidecar, config | {"log.format": "text"})
        assert admin_client.post_reload(Endpoint.parse(sidecar.admin)).result in ("applied", "unchanged")
    lines = sidecar.log.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if TEXT.match(line))
    assert all(line.startswith("{") for line in lines[:first])
    assert all(TEXT.match(line) for line in lines[first:])
    assert {"worker=1", "worker=2"} <= set(" ".join(lines[first:]).split())


def readiness(admin: object, path: str = "readyz") -> tuple[int, str]:
    try:
        return get(f"http://{admin}/{path}", PATIENCE)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


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
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)  # the least that Linux has: a few lines of the log fill it
    process = subprocess.Popen([sys.executable, "-m", "proxy", "run", "-c", path], stderr=end)
    os.close(end)
    try:
        until(lambda: readiness(admin)[0] == 200)
        numbers = count()
        while not dropped(admin):
            for _ in range(20):
                # Others each time, or they are not logged; below what a pipe takes as a whole.
                wrong = f"no.such.key.{next(numbers)}.{'x' * 200}"
                path.write_text(right + "".join(f"{wrong}.{n}: 1\n" for n in range(12)))
                process.send_signal(signal.SIGHUP)
                with socket.create_connection((host, int(port)), PATIENCE) as sock:
                    sock.sendall(request(20_000, 0, 7))
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
def test_clients_and_probes_do_not_notice(cluster, topic, workers):
    with unread(cluster, workers) as (process, log, admin):
        assert readiness(admin, "livez")[0] == 200
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, b"value")
        assert producer.flush(PATIENCE) == 0
        assert dropped(admin) > 0

        lines: list[str] = []

        def read():
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
def test_it_ends_while_nobody_reads(cluster, workers):
    with unread(cluster, workers) as (process, _, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def become(sidecar: SidecarProcess, status: int, text: str) -> None:
    deadline = time.monotonic() + 60
    while (found := readiness(sidecar.admin)) != (status, text):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def admin() -> dict[str, str]:
    return {"bind": f"127.0.0.1:{free_port()}"}


@pytest.mark.kafka
@pytest.mark.promise("rollout.md", "readyz refuses a wrong broker.id also behind logins and TLS.")
@pytest.mark.slow
def test_a_wrong_broker_id_behind_logins_and_tls_alone(tls_broker, tmp_path):
    with ExitStack() as stack:
        sidecars = []
        for protocol, upstream in (("SASL_PLAINTEXT", "SASL"), ("SSL", "TLS")):
            listener = {"name": "CLIENT", "bind": f"127.0.0.1:{free_port()}", "security.protocol": protocol}
            config = {
                "broker.id": 9,
                "admin": admin(),
                "internal.bootstrap.servers": tls_broker.node.internal,
                "listeners": [{**listener, "upstream": tls_broker.listeners[upstream].address}],
            }
            sidecars.append(stack.enter_context(spawned(config, tmp_path)))
        for sidecar in sidecars:
            become(sidecar, 503, "broker.id is 9, but the cluster of internal.bootstrap.servers has only 1\n")


OPENTELEMETRY = "observers.opentelemetry:OpenTelemetryLogsObserver"


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.promise("audit-delivery.md", "readyz says that a spool cannot be used, until it can be.")
def test_a_spool_that_cannot_be_written_degrades_the_audit_and_keeps_no_client_away(cluster, tmp_path):
    """Of one process and of workers, of the audit's topic and of a collector: each looks at its spool every ten
    seconds."""
    for workers, observer in ((1, "audit"), (2, OPENTELEMETRY)):
        config = yaml.safe_load((cluster.nodes[0].home.parent / "sidecar-1.yaml").read_text())
        [listener] = config["listeners"]
        listener |= {"advertised": listener["bind"], "bind": f"127.0.0.1:{free_port()}"}
        spool = tmp_path / f"spool-{workers}"
        spool.write_text("a file")
        config |= {"workers": workers, "admin": admin()}
        if observer == OPENTELEMETRY:
            own = {"endpoint": f"http://127.0.0.1:{free_port()}", "spool.path": str(spool)}
            config |= {"observer.class.names": [observer], "observers": {observer: own}}
            config["observer.shutdown.timeout.ms"] = 1000
        else:
            config["audit"] = {"topic": "degraded", "spool.path": str(spool)}
        with spawned(config, tmp_path) as sidecar:
            said = f"degraded: the spool {spool} cannot be used: File exists; audit events wait in memory alone\n"
            become(sidecar, 200, said)
            spool.unlink()
            become(sidecar, 200, "ok\n")


@pytest.mark.promise("operations.md", "A sidecar starts without its broker: livez is 200, readyz 503.")
def test_a_sidecar_starts_without_its_broker(tmp_path):
    bind, upstream = (f"127.0.0.1:{free_port()}" for _ in range(2))
    listener = {"name": "CLIENT", "bind": bind, "upstream": upstream}
    with spawned({"broker.id": 1, "listeners": [listener], "admin": admin()}, tmp_path) as sidecar:
        until(lambda: upstream in readiness(sidecar.admin)[1])
        assert readiness(sidecar.admin)[0] == 503
        assert get(f"http://{sidecar.admin}/livez")[0] == 200
        host, _, port = bind.rpartition(":")
        socket.create_connection((host, int(port)), 60).close()


CASES: list[tuple[int, dict[str, object], str | None]] = [
    (1, {}, None),
    (9, {}, "is what broker 1 advertises, but broker.id is 9"),
    (1, {"bind": "FREE"}, "so clients bypass this sidecar"),
    (9, {"bind": "FREE"}, "has no broker 9, only 1"),
    (1, {"bind": "FREE", "advertised": "ADVERTISED"}, None),
    (1, {"bind": "FREE", "rewrite.addresses": True}, None),
    (9, {"rewrite.addresses": True}, "has no broker 9, only 1"),
]


@pytest.mark.kafka
@pytest.mark.promise(
    "config/listeners.md", "`/readyz` names a listener whose `upstream` is another broker, or that clients bypass."
)
async def test_the_broker_behind_a_listener(cluster, tmp_path):
    node = cluster.nodes[0]
    free = f"{HOST}:{free_ports(1)[0]}"
    config = yaml.safe_load((node.home.parent / "sidecar-1.yaml").read_text())
    texts = {"FREE": free, "ADVERTISED": node.advertised}

    async def problem(broker_id, change):
        listener = config["listeners"][0] | {key: texts.get(str(value), value) for key, value in change.items()}
        path = tmp_path / "sidecar.yaml"
        path.write_text(yaml.safe_dump(config | {"broker.id": broker_id, "listeners": [listener]}))
        [loaded] = load(path).listeners
        return await upstream_check.find_problem(loaded, Upstream(loaded.upstream, 60.0), broker_id)

    for broker_id, change, said in CASES:
        found = await problem(broker_id, change)
        assert found is None if said is None else said in (found or ""), (broker_id, change, found)
    with pytest.raises(ConnectionRefusedError):
        await problem(1, {"upstream": "FREE"})


@pytest.fixture
def manager(tmp_path, monkeypatch):
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    yield manager
    manager.close()


@pytest.mark.kafka
@pytest.mark.promise("install.md", "systemctl start and reload return when the sidecar has done it.")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_a_sidecar_notifies_of_its_start_each_reload_and_its_stop(workers, cluster, manager, tmp_path):
    config = config_of(cluster.nodes[0], workers=workers)
    seen: list[dict[str, str]] = []

    def count(key):
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
def test_a_successor_becomes_the_service(workers, cluster, manager, tmp_path):
    """systemd believes the main process alone: the first one until it has named the second, then the second."""
    config = config_of(cluster.nodes[0], workers=workers, **{"takeover.socket.path": str(tmp_path / "takeover.sock")})
    seen: list[tuple[int, dict[str, str]]] = []

    def said(pid, **wanted):
        seen.extend(manager.received_from())
        return any(sender == pid and wanted.items() <= message.items() for sender, message in seen)

    def named():
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
def test_a_passed_socket_that_nobody_reads_is_an_error():
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
def test_the_first_client_of_an_activated_sidecar_is_served(tmp_path):
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

    def connected():
        with suppress(ConnectionRefusedError):
            return Peer(client)
        return None

    try:
        first = until(connected)  # before anything of the sidecar runs
        with first:
            until(lambda: '"started"' in log.read_text())
            until(lambda: 'accepted_total{listener="CLIENT"} 1' in admin_client.get_metrics(Endpoint.parse(admin)))
    finally:
        assert process.stop([activated], 60)
