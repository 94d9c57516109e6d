"""The event loop waits for nothing but its sockets: its thread makes no call that a disk or a peer can hold up."""

import contextlib
import os
import signal
import socket
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from proxy.client import BrokerMetadataClient
from proxy.local.sidecars import SidecarProcess
from tests.frames import METADATA, produce, request, sized
from tests.integration import librdkafka as producing
from tests.integration.metrics import sample
from tests.integration.quotas import ALTER, RATE, Peer, alter, error_of
from tests.integration.sidecars import config_of, preloaded, running, until
from tests.tools.bench.measure import children

pytestmark = pytest.mark.kafka

THROTTLED = "127.0.0.9"
RECORDS = 500


class Call(NamedTuple):
    """``subject``: a path or a name, where there is one."""

    pid: int
    at: float
    name: str
    subject: str


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 2])
def watched(request, cluster, tmp_path):
    """A sidecar of one or two workers, whose broker has a name that must be looked up, and its calls so far."""
    node = cluster.nodes[0]
    config = config_of(node, workers=request.param, **{"log.level": "debug"})
    config["listeners"][0]["upstream"] = "localhost:" + str(node.upstream).rpartition(":")[2]
    library = preloaded(Path(__file__).with_name("blocking_calls.c"), tmp_path)
    (notes := tmp_path / "notes").touch()

    def calls():
        fields = (line.split(" ", 3) for line in notes.read_text().splitlines())
        return [Call(int(pid), float(at), name, subject) for pid, at, name, subject in fields]

    with running(config, tmp_path, LD_PRELOAD=str(library), BLOCKING_CALLS=str(notes)) as sidecar:
        yield sidecar, calls


@pytest.mark.promise(
    "security.md", "The event loop's thread makes no call that a disk, a resolver or another process could hold up."
)
def test_the_loop_makes_no_call_that_may_wait(cluster, topic, watched):
    sidecar, calls = watched
    address = cluster.nodes[0].advertised
    workers = children(sidecar.process.pid)
    pids = {sidecar.process.pid, *workers}
    assert {"open", "stat", "read", "close"} <= {call.name for call in calls() if call.pid in pids}, "its start"
    began = time.monotonic()

    transfer(cluster.bootstrap, topic)
    with contextlib.closing(BrokerMetadataClient(address)) as client:
        assert client.brokers()
    hostile(address)
    throttled(sidecar, address)
    administered(sidecar)
    replaced(sidecar, workers)
    transfer(cluster.bootstrap, topic)

    ended = time.monotonic()
    done = sidecar.metrics()
    assert sample(done, "brokerside_intercepted_requests_total", api="BrokerMetadata") > 0
    assert sample(done, "brokerside_frames_invalid_total") > 0
    assert sample(done, "brokerside_config_reloads_total", result="applied") > 0
    seen = [call for call in calls() if call.pid in pids and began < call.at < ended]
    # No disk is behind /proc.
    assert {(call.pid, call.name, call.subject) for call in seen if not call.subject.startswith("/proc/")} == set()


def transfer(bootstrap: str, topic: str) -> None:
    assert producing.produce(bootstrap, topic, [bytes(1000)] * RECORDS) == RECORDS
    assert len(producing.consume(bootstrap, topic, RECORDS)) >= RECORDS


def hostile(address: str) -> None:
    """Frames that no client sends, and connections that are dropped."""
    frames = (
        struct.pack(">i", -5),
        struct.pack(">i", 2_000_000_000),
        sized(b"\xff" * 40),
        request(20_000, 0, 7),
        request(METADATA, 99, 1),
        produce(1, 1, b"\xff" * 100),
        request(METADATA, 12, 1, b"\xff" * 50),
        b"",
    )
    for frame in frames * 5:
        with Peer(address) as peer, contextlib.suppress(OSError):
            peer.sock.sendall(frame)
            peer.sock.shutdown(socket.SHUT_WR)
            peer.sock.settimeout(5)
            while peer.sock.recv(4096):
                pass


def throttled(sidecar: SidecarProcess, address: str) -> None:
    entity = [("ip", THROTTLED)]
    with Peer(address) as peer:
        assert error_of(ALTER, 1, peer.ask(ALTER, 1, alter(entity, (RATE, 1.0, False), version=1)))[0] == 0
        while not sidecar.metric("brokerside_connections_throttled_total"):
            for _ in range(20):
                with contextlib.suppress(OSError):
                    Peer(address, source=THROTTLED).sock.close()
        peer.ask(ALTER, 1, alter(entity, (RATE, 0.0, True), version=1))


def administered(sidecar: SidecarProcess) -> None:
    """Ask for all there is, and reload: rejected, applied, unchanged; by request, by signal, as the file changes."""
    right = sidecar.config.read_text()
    for text in (right + "no.such.key: 1\n", right.replace("debug", "info"), right):
        sidecar.config.write_text(text)
        for path in ("metrics", "livez", "readyz", "quotas", "config", "none"):
            asked(sidecar, path, "GET")
        asked(sidecar, "reload", "POST")
        os.kill(sidecar.process.pid, signal.SIGHUP)
    sidecar.config.unlink()
    time.sleep(1)
    sidecar.config.write_text(right)
    until(lambda: "config_unchanged" in sidecar.log.read_text().rpartition("config_vanished")[2])


def replaced(sidecar: SidecarProcess, workers: list[int]) -> None:
    if workers:
        os.kill(workers[0], signal.SIGKILL)
        until(lambda: sidecar.metric("brokerside_worker_restarts_total"))


def asked(sidecar: SidecarProcess, path: str, method: str) -> None:
    wanted = urllib.request.Request(f"http://{sidecar.admin}/{path}", method=method)
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(wanted, timeout=60) as response:
        response.read()
