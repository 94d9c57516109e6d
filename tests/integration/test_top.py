"""``brokerside top`` before a real broker: once when piped, live in a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest
import yaml
from confluent_kafka import Producer

from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def admin(cluster: ClusterState) -> Iterator[str]:
    """The admin endpoint of a sidecar through which a producer has just written."""
    node = cluster.nodes[0]
    folder = node.home.parent
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    config["observer.class.names"] = ["observers.request_metrics:RequestMetricsObserver"]
    path = folder / "top.yaml"
    path.write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(path, path.with_suffix(".log"), node.admin)
    producer = Producer({"bootstrap.servers": node.advertised, "client.id": "of-top", "linger.ms": 0})
    try:
        producer.produce(f"t-{uuid.uuid4().hex[:8]}", b"x")
        assert producer.flush(30) == 0
        yield node.admin
    finally:
        assert process.stop()


def command(admin: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "proxy", "top", "--admin", admin, "--interval", "0.3", *arguments]


@pytest.mark.promise("operations.md", "brokerside top prints one page where its output is no terminal.")
def test_piped_it_prints_one_page(admin: str) -> None:
    done = subprocess.run(command(admin, "--by", "client_id"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    summary, clients = done.stdout.split("\n\n")[:2]
    assert "connections/s throttled" in summary
    assert clients.splitlines()[0].split() == [
        *("CLIENT", "ID", "CONNECTIONS", "IN", "FLIGHT", "REQUESTS/S", "BYTES", "IN/S", "BYTES", "OUT/S")
    ]
    assert any(line.startswith("of-top ") for line in clients.splitlines())
    assert "\x1b" not in done.stdout
    done = subprocess.run(command("127.0.0.1:1"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("brokerside: no sidecar answers at 127.0.0.1:1")


def test_in_a_terminal_keys_change_what_is_shown(admin: str) -> None:
    """``b`` groups by the next field, ``q`` ends."""
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    process = subprocess.Popen(command(admin), stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    try:
        assert shown(master, "PRINCIPAL")
        os.write(master, b"sb")
        assert shown(master, "of-top")
        os.write(master, b"q")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def shown(master: int, text: str) -> bool:
    """Whether ``text`` comes within some seconds."""
    found, deadline = "", time.monotonic() + 60
    while text not in found and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            found += os.read(master, 65_536).decode("utf-8", "replace")
    return text in found
