"""The image, built, looked into, and run before a real broker with as little allowed as possible."""

import os
import signal
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.local.cluster import ClusterState
from tests.deploy.podman import Podman, podman, sidecar
from tests.deploy.running import MountedConfig, Running, configuration, transfer, until

pytestmark = [pytest.mark.deploy, pytest.mark.kafka, pytest.mark.timeout(900)]

USER = 65532
MAX_BYTES, MAX_COMPRESSED_BYTES = 90_000_000, 33_000_000
"""Of all files in the image, and of these compressed as registries store them."""

UNWANTED = {"sh", "bash", "dash", "busybox", "cc", "gcc", "ld", "as", "pip", "pip3", "apt", "apt-get", "dpkg", "perl"}
MEMORY, PROCESSES = "160m", 512


@pytest.fixture(scope="module")
def images() -> Podman:
    return podman()


@pytest.fixture(scope="module")
def image(images: Podman) -> str:
    return sidecar(images)


@pytest.fixture(scope="module")
def files(images: Podman, image: str) -> Iterator[Path]:
    with images.mounted(image) as root:
        yield root


@pytest.mark.promise("install.md", "The image has no shell, no compiler and nothing that installs.")
def test_no_shell_no_compiler_and_nothing_that_installs(files: Path) -> None:
    programs = {path.name for path in files.rglob("*") if path.is_file() and os.access(path, os.X_OK)}
    assert programs & UNWANTED == set()
    assert {path.name for path in (files / "usr/bin").iterdir()} == {"python3", "python3.13"}
    assert not list(files.rglob("pip"))


@pytest.mark.promise("install.md", "Files of the image are of root but its state, and none gives more rights.")
def test_all_is_roots_but_the_state_and_nothing_gives_more_rights(files: Path) -> None:
    states = {path.relative_to(files): path.lstat() for path in files.rglob("*")}
    owned = {str(path) for path, found in states.items() if found.st_uid == USER}
    assert owned == {"var/lib/brokerside", "var/lib/brokerside/spool"}
    assert {found.st_uid for found in states.values()} == {0, USER}
    assert [path for path, found in states.items() if found.st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    writable = [
        path for path, found in states.items() if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
    ]
    assert [str(path) for path in writable] == ["tmp"]


@pytest.mark.promise("install.md", "The image has at most 90 MB, and 33 MB compressed.")
def test_it_is_small(files: Path) -> None:
    regular = [path for path in files.rglob("*") if path.is_file() and not path.is_symlink()]
    compressor = zlib.compressobj(6)
    total = compressed = 0
    for path in regular:
        content = path.read_bytes()
        total += len(content)
        compressed += len(compressor.compress(content))
    assert total <= MAX_BYTES
    assert compressed <= MAX_COMPRESSED_BYTES


@pytest.mark.promise("install.md", "The image names its Debian packages for scanners, and has their licences.")
def test_each_package_of_debian_is_there_with_its_licence_and_its_entry_for_scanners(files: Path) -> None:
    packages = {path.name for path in (files / "var/lib/dpkg/status.d").iterdir()}
    assert {"libc6", "libssl3t64", "python3.13-minimal", "libpython3.13-stdlib", "ca-certificates"} <= packages
    for package in packages:
        entry = (files / "var/lib/dpkg/status.d" / package).read_text()
        assert f"Package: {package}\n" in entry
        assert "\nVersion: " in entry
        assert (files / "usr/share/doc" / package / "copyright").stat().st_size > 0


class Container:
    """A sidecar in a container before the cluster's first node."""

    def __init__(self, images: Podman, image: str, cluster: ClusterState, folder: Path) -> None:
        folder.chmod(0o755)
        self.images = images
        self.cluster = cluster
        self.address = cluster.nodes[0].advertised
        self.running = Running(cluster.nodes[0].admin)
        self.config = configuration(cluster)
        self.config["audit"]["spool.path"] = "/var/lib/brokerside/spool"
        self.mounted = MountedConfig(folder / "etc")
        self.mounted.write(self.config)
        self.name = images.run(
            image, "--volume", f"{self.mounted.folder}:/etc/brokerside:ro",
            "--memory", MEMORY, "--memory-swap", MEMORY, "--pids-limit", PROCESSES,
        )  # fmt: skip
        self.running.wait_ready()

    def exit_code(self) -> int:
        return int(self.images("wait", self.name))

    def pid(self) -> int:
        """Of the sidecar's process, as this machine sees it."""
        return int(self.images("inspect", "--format", "{{.State.Pid}}", self.name))


@pytest.fixture
def container(images: Podman, image: str, cluster: ClusterState, tmp_path: Path) -> Iterator[Container]:
    made = None
    try:
        made = Container(images, image, cluster, tmp_path)
        yield made
    finally:
        if made is not None:
            print(images("logs", made.name))
            images("rm", "--force", "--volumes", made.name)


@pytest.mark.promise("install.md", "The image runs without rights, reloads a mount, and ends with code 0.")
def test_traffic_passes_a_container_that_may_do_nothing_until_it_is_stopped(container: Container, topic: str) -> None:
    status = Path(f"/proc/{container.pid()}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == [str(USER)] * 4
    assert {name: int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == dict.fromkeys(
        ("CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    root = next(line for line in Path(f"/proc/{container.pid()}/mounts").read_text().splitlines() if " / " in line)
    assert root.split()[3].startswith("ro")

    transfer(container.address, topic)

    until(lambda: container.running.metric("brokerside_audit_delivered_total") > 0, "events are delivered")
    assert container.running.metric("brokerside_audit_spool_failed") == 0
    assert container.running.metric("brokerside_audit_dropped_total") == 0

    container.mounted.write(container.config | {"quotas": {"max.connections.per.ip": 77}})
    limit = "brokerside_quota_limit"
    until(lambda: container.running.metric(limit, scope="ip", quota="connections") == 77, "the new limit")
    container.images("stop", "--time", "30", container.name)
    assert container.exit_code() == 0


@pytest.mark.promise("install.md", "Several workers run in the image.")
def test_several_workers_run_in_it(container: Container, topic: str) -> None:
    container.images("stop", container.name)
    container.mounted.write(container.config | {"workers": 2})
    container.images("start", container.name)
    container.running.wait_ready()
    transfer(container.address, topic)
    assert container.running.metric("brokerside_worker_restarts_total") == 0
    text = container.running.get("metrics") or ""
    assert text.count("brokerside_worker_connections{") == 2


@pytest.mark.promise("install.md", "Events that wait on the volume of the image outlive a kill of the container.")
def test_events_outlive_a_kill_of_the_container(container: Container, topic: str) -> None:
    broker = container.cluster.nodes[0].process
    assert broker is not None
    transfer(container.address, topic)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        host, _, port = container.address.rpartition(":")
        connections = [socket.create_connection((host, int(port)), 10) for _ in range(50)]
        until(lambda: container.running.metric("brokerside_audit_spooled") > 0, "events wait on disk")
        container.images("kill", "--signal", "KILL", container.name)
        assert container.exit_code() == 128 + signal.SIGKILL
        for sock in connections:
            sock.close()
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    container.images("start", container.name)
    container.running.wait_ready()
    until(lambda: container.running.metric("brokerside_audit_replayed_total") > 0, "they are delivered")
    transfer(container.address, topic, 100)
