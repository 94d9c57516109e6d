"""The units, checked by systemd and run by it before a real broker."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from proxy.cli import _parser
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from tests.deploy import nspawn
from tests.deploy.nspawn import Machine
from tests.deploy.podman import podman
from tests.deploy.running import MountedConfig, Running, configuration, transfer, until
from tests.tools.conformance.crowd import REQUEST, Plan, Visits

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ("brokerside.service", "brokerside-jobs.service")
MAX_EXPOSURE = 12
"""Tenths, of 100, as ``systemd-analyze security`` counts what a service could do; the sidecar's 1.2 is mostly that it
has the network."""

WATCHDOG = "[Service]\nWatchdogSec=2s\n"
SIDECAR = "brokerside.service"
SOCKET = "brokerside.socket"

MORE = """
[Socket]
ListenStream=127.0.0.1:{port}
FileDescriptorName=MORE
Service=brokerside.service
"""
WANTS_MORE = "[Service]\nSockets=brokerside-more.socket\n"
"""What a further listener needs, docs/install.md."""

CONNECTS, SECONDS = 200, 20
"""Connects per second while the sidecar is replaced, and how long they last."""


@pytest.mark.promise("install.md", "The service of the jobs runs with the settings of jobs.env.")
def test_the_command_of_the_jobs_is_one_that_there_is() -> None:
    environment = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / "jobs.env").read_text(), re.MULTILINE))
    command = re.findall(r"^ExecStart=(.*)$", (UNITS / "brokerside-jobs.service").read_text(), re.MULTILINE)
    assert len(command) == 1
    filled = re.sub(r"\$\{?(\w+)\}?", lambda found: environment[found[1]], command[0])
    arguments = vars(_parser().parse_args(shlex.split(filled)[1:]))
    assert arguments["bootstrap_servers"] == environment["BOOTSTRAP_SERVERS"]
    assert arguments["tables"] == environment["TABLES"]
    assert arguments["available_now"] is True


@pytest.fixture(scope="module")
def opt() -> Iterator[Path]:
    """The environment that the image has, which was made for the same Debian."""
    images = podman()
    with images.mounted(images.build("deploy/image/Containerfile", "localhost/brokerside")) as root:
        yield root / "opt/brokerside"


def units() -> dict[Path, str]:
    kinds = ("*.service", "*.socket", "*.timer")
    found = {path: f"/etc/systemd/system/{path.name}" for kind in kinds for path in UNITS.glob(kind)}
    return {**found, UNITS / "sysusers.conf": "/etc/sysusers.d/brokerside.conf"}


@pytest.mark.deploy
@pytest.mark.promise("install.md", "systemd finds no mistake in the units, with and without the drop-in.")
def test_systemd_finds_no_mistake_in_the_units(opt: Path) -> None:
    drop_in = {UNITS / "before-253.conf": f"/etc/systemd/system/{SIDECAR}.d/before-253.conf"}
    names = [name for name in units().values() if "sysusers" not in name]
    assert len(names) == 4
    for more in ({}, drop_in):
        code, said = nspawn.run(
            ["sh", "-c", f"systemd-sysusers && systemd-analyze verify {' '.join(names)}"],
            {**units(), **more, opt: "/opt/brokerside"},
        )
        # Only of the user that it makes.
        assert (code, [line for line in said.splitlines() if not line.startswith("Creating ")]) == (0, [])


@pytest.mark.deploy
@pytest.mark.promise("install.md", "systemd-analyze security counts an exposure of at most 1.2 for each service.")
def test_a_service_may_do_little() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}"]
    for service in SERVICES:
        code, said = nspawn.run([*command, f"/etc/systemd/system/{service}"], units())
        assert code == 0, said
        assert "Overall exposure level" in said


class Site:
    """A machine with the sidecar before the cluster's first node."""

    def __init__(self, cluster: ClusterState, folder: Path) -> None:
        self.cluster = cluster
        self.address = cluster.nodes[0].advertised
        self.running = Running(cluster.nodes[0].admin)
        self.config = configuration(cluster)
        self.config["audit"]["spool.path"] = "/var/lib/brokerside/spool"
        self.config["takeover.socket.path"] = "/run/brokerside/takeover.sock"
        self.mounted = MountedConfig(folder / "etc")
        self.mounted.write(self.config)
        self.machine: Machine

    @property
    def pid(self) -> int:
        """Of the sidecar, as its machine sees it."""
        return int(self.machine.show(SIDECAR, "MainPID"))

    @property
    def port(self) -> int:
        """Of the listener."""
        return int(self.address.rpartition(":")[2])

    @property
    def processes(self) -> set[int]:
        """All of the unit."""
        groups = self.machine("sh", "-c", f"grep -ls /{SIDECAR} /proc/[0-9]*/cgroup", check=False)
        return {int(path.split("/")[2]) for path in groups.split()}

    def write(self, unit: str, text: str) -> None:
        """Give a file of a unit this content."""
        self.machine("sh", "-c", f"printf %s {shlex.quote(text)} >/etc/systemd/system/{unit}")

    def take_over(self) -> None:
        """Ask for a successor."""
        self.machine("systemctl", "kill", "--kill-whom=main", "--signal=SIGUSR2", SIDECAR)

    def is_replaced(self, by: str, *pids: int) -> int:
        """Wait until the main process is another one than these; return it."""
        until(lambda: self.pid not in (0, *pids), f"it is replaced {by}")
        return self.pid

    def listens(self) -> str:
        """Return what the socket unit needs instead of the addresses that it has."""
        binds = [*(listener["bind"] for listener in self.config["listeners"]), self.config["admin"]["bind"]]
        return "[Socket]\nListenStream=\n" + "".join(f"ListenStream={bind}\n" for bind in binds)


@pytest.fixture
def site(cluster: ClusterState, opt: Path, tmp_path: Path) -> Iterator[Site]:
    made = Site(cluster, tmp_path)
    (tmp_path / "watchdog.conf").write_text(WATCHDOG)
    (tmp_path / "addresses.conf").write_text(made.listens())
    binds = {
        **units(),
        opt: "/opt/brokerside-1",
        made.mounted.folder: "/etc/brokerside",
        tmp_path / "watchdog.conf": f"/etc/systemd/system/{SIDECAR}.d/watchdog.conf",
        tmp_path / "addresses.conf": f"/etc/systemd/system/{SOCKET}.d/addresses.conf",
    }
    with nspawn.booted(binds, tmp_path / "machine.log") as machine:
        made.machine = machine
        machine("systemd-sysusers")
        machine("ln", "-s", "brokerside-1", "/opt/brokerside")
        machine("systemctl", "start", SIDECAR)
        try:
            yield made
        finally:
            print(machine("journalctl", "--no-pager", "--unit", SIDECAR, check=False))


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.promise("install.md", "systemd runs the sidecar, and replaces one that is killed or hangs.")
def test_systemd_runs_the_sidecar(site: Site, topic: str) -> None:
    machine = site.machine
    assert machine.show(SIDECAR, "ActiveState") == "active"
    assert machine.show(SIDECAR, "StatusText") == "Running"
    assert site.running.get("livez") is not None, "it is started once it accepts"
    site.running.wait_ready()
    status = dict(
        line.split(":\t", 1) for line in machine("cat", f"/proc/{site.pid}/status").splitlines() if ":\t" in line
    )
    assert (int(status["CapBnd"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    assert status["Uid"].split() == [machine("id", "-u", "brokerside")] * 4
    transfer(site.address, topic)
    until(lambda: site.running.metric("brokerside_audit_delivered_total") > 0, "events are delivered")
    assert site.running.metric("brokerside_audit_spool_failed") == 0

    # A reload has ended when systemctl returns.
    site.mounted.write(site.config | {"quotas": {"max.connections.per.ip": 77}})
    machine("systemctl", "reload", SIDECAR)
    assert site.running.metric("brokerside_quota_limit", scope="ip", quota="connections") == 77
    site.mounted.write(site.config | {"log.level": "loud"})
    machine("systemctl", "reload", SIDECAR)
    assert machine.show(SIDECAR, "StatusText").startswith("The last reload was rejected: log.level")
    assert site.running.metric("brokerside_quota_limit", scope="ip", quota="connections") == 77
    site.mounted.write(site.config)

    # A sidecar that is killed, or whose loop hangs, is replaced.
    for number in (signal.SIGKILL, signal.SIGSTOP):
        before = site.pid
        machine("systemctl", "kill", "--kill-whom=main", f"--signal={number.name}", SIDECAR)
        site.is_replaced(f"after {number.name}", before)
        site.running.wait_ready()
    assert machine.show(SIDECAR, "NRestarts") == "2"
    transfer(site.address, topic, 100)

    machine("systemctl", "stop", SIDECAR)
    assert machine.show(SIDECAR, "Result") == "success"
    assert machine.show(SIDECAR, "ExecMainStatus") == "0"


def connecting(port: int) -> subprocess.Popen[str]:
    """Start to connect, ``CONNECTS`` times a second."""
    plan = Plan(port, CONNECTS * SECONDS, rate=CONNECTS, leave="answered", watch=60)
    crowd = [sys.executable, "-m", "tests.tools.conformance.crowd", json.dumps(asdict(plan))]
    return subprocess.Popen(crowd, stdout=subprocess.PIPE, text=True)


def visits_of(crowd: subprocess.Popen[str]) -> Visits:
    """Wait until all have connected and were answered."""
    said, _ = crowd.communicate(timeout=SECONDS + 120)
    return Visits(**json.loads(said))


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.promise("restart.md", "With brokerside.socket a restart or a crash refuses no connection.")
def test_connections_wait_in_the_socket_of_systemd_while_no_sidecar_runs(site: Site) -> None:
    site.running.wait_ready()
    replace_among_connects(site, site.port, "kill", "--kill-whom=main", "--signal=SIGKILL")

    # A further listener, as docs/install.md says: its port is the sidecar's until the next restart.
    [client], [port] = site.config["listeners"], free_ports(1)
    more = {**client, "name": "MORE", "bind": f"localhost:{port}", "advertised": client["bind"]}
    site.mounted.write(site.config | {"listeners": [client, more]})
    site.machine("systemctl", "reload", SIDECAR)
    site.write("brokerside-more.socket", MORE.format(port=port))
    site.write(f"{SIDECAR}.d/more.conf", WANTS_MORE)
    site.machine("systemctl", "daemon-reload")
    replace_among_connects(site, site.port, "restart")
    assert site.machine.show("brokerside-more.socket", "SubState") == "running"
    replace_among_connects(site, port, "restart")


def replace_among_connects(site: Site, port: int, *command: str) -> None:
    before = site.pid
    crowd = connecting(port)
    time.sleep(1)
    site.machine("systemctl", *command, SIDECAR)
    done = time.monotonic()
    site.is_replaced(f"after {command[0]}", before)
    site.running.wait_ready()
    restarted = time.monotonic()
    visits = visits_of(crowd)
    assert visits.began + visits.dialled[-1] > restarted, "there were connects before, during and after the restart"
    waited = max(answered - visits.dialled[at] for at, answered in enumerate(visits.answered))
    print(f"{Counter(visits.how)}, the longest wait {waited:.1f} s")
    assert "refused" not in visits.how
    closed = visits.refused()
    assert len(visits.accepted()) + len(closed) == CONNECTS * SECONDS
    assert len(closed) < CONNECTS, "only those that the old process had accepted, and not yet answered"
    assert all(visits.began + visits.dialled[at] < done for at in closed)


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.promise("restart.md", "Under systemd a takeover refuses no connection, and a failed one is said.")
def test_systemd_follows_a_takeover(site: Site, topic: str) -> None:
    machine = site.machine
    site.running.wait_ready()
    machine("cp", "-a", "/opt/brokerside-1", "/opt/brokerside-2")  # the new version
    machine("ln", "-sfn", "brokerside-2", "/opt/brokerside")
    first = site.pid
    crowd = connecting(site.port)
    time.sleep(1)
    site.take_over()
    second = site.is_replaced("by a successor", first)
    until(lambda: site.processes == {second}, "the predecessor has ended")
    replaced = time.monotonic()
    visits = visits_of(crowd)
    assert visits.began + visits.dialled[-1] > replaced, "there were connects before, during and after the takeover"
    assert (visits.refused(), len(visits.accepted())) == ([], CONNECTS * SECONDS)
    assert "/opt/brokerside-2/" in machine("cat", f"/proc/{second}/maps")
    states = [machine.show(SIDECAR, name) for name in ("ActiveState", "SubState", "StatusText", "NRestarts", "MainPID")]
    assert states == ["active", "running", "Running", "0", str(second)]
    transfer(site.address, topic, 100)

    # One that fails changes nothing, and says so.
    site.mounted.write(site.config | {"log.level": "loud"})
    site.take_over()
    said = "The last takeover failed: the successor has ended; its log says why"
    until(lambda: machine.show(SIDECAR, "StatusText") == said, "it says that the takeover failed")
    assert site.pid == second
    site.mounted.write(site.config)
    machine("systemctl", "reload", SIDECAR)
    assert machine.show(SIDECAR, "StatusText") == "Running"

    # It is replaced when it is killed, also while its predecessor still drains.
    machine("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", SIDECAR)
    third = site.is_replaced("after SIGKILL", second)
    site.running.wait_ready()
    with socket.create_connection((HOST, site.port)) as client:
        client.sendall(REQUEST[:6])
        until(lambda: site.running.metric("brokerside_connections_active") >= 1, "it has a connection")
        site.take_over()
        fourth = site.is_replaced("by a successor", third)
        assert third in site.processes
        machine("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", SIDECAR)
        site.is_replaced("after SIGKILL", third, fourth)
    journal = machine("journalctl", "--no-pager", "--unit", SIDECAR)
    assert "not our child" not in journal, "systemd notices the end of a successor"
    assert "Watchdog timeout" not in journal
    site.running.wait_ready()
    transfer(site.address, topic, 100)

    machine("systemctl", "stop", SIDECAR)
    assert machine.show(SIDECAR, "Result") == "success"


@pytest.mark.deploy
@pytest.mark.kafka
@pytest.mark.promise("install.md", "The timer of systemd starts the jobs again and again.")
def test_the_timer_has_a_next_time(site: Site) -> None:
    site.machine("systemctl", "start", "brokerside-jobs.timer")
    assert site.machine.show("brokerside-jobs.timer", "ActiveState") == "active"
    assert site.machine.show("brokerside-jobs.timer", "NextElapseUSecRealtime")
