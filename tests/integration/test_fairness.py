"""A client that asks more than any client does: others are served in between, whatever it asks for. Real broker, real
sidecar process; what came before what is in the order of an observer's calls, not how long it took."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from proxy.core.session import TURN
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, METADATA, request
from tests.integration import recorder
from tests.integration.metrics import sample
from tests.integration.recorder import RECORDER, Recorded
from tests.integration.sidecars import config_of, running, until

pytestmark = pytest.mark.kafka

BROKER_METADATA, UNKNOWN, PRODUCE = 30_000, 9999, 0
CHUNK = 120_000
"""Bytes that a client has sent before the sidecar reads: less than it takes at once, or the kernel."""

KINDS = {
    "unsupported": request(UNKNOWN, 0, 1, client_id=None),
    "BrokerMetadata": request(BROKER_METADATA, 0, 1, bytes(4), client_id=None),
    "forwarded": request(API_VERSIONS, 0, 1, client_id=None),
}
"""One request of each kind that costs work, as short as it can be."""


@dataclass(frozen=True)
class Site:
    address: tuple[str, int]
    sidecar: SidecarProcess
    reported: Path

    def dial(self) -> socket.socket:
        return socket.create_connection(self.address)


@pytest.fixture(scope="module")
def site(cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    node, folder = cluster.nodes[0], tmp_path_factory.mktemp("fairness")
    config = config_of(node, **{"observer.class.names": [RECORDER], "unsupported.request.max.consecutive": CHUNK})
    reported = folder / "reported"
    host, _, port = node.advertised.rpartition(":")
    with running(config, folder, **{recorder.FILE: str(reported)}) as process:
        yield Site((host, int(port)), process, reported)


def answer(sock: socket.socket) -> bytes:
    return receive(sock, int.from_bytes(receive(sock, 4), "big"))


def receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size, socket.MSG_WAITALL)
    assert len(data) == size, "the connection has ended"
    return data


@pytest.mark.promise(
    "security.md",
    "Others are served between the requests of a client that sends thousands at once, whatever it asks for.",
)
def test_a_client_that_asks_much_at_once_has_its_turn_like_others(site: Site) -> None:
    for kind, one in KINDS.items():
        count = CHUNK // len(one)
        with site.dial() as greedy, site.dial() as honest:
            for sock in (greedy, honest):  # it is known what the broker supports, and both are carried
                sock.sendall(request(API_VERSIONS, 0, 1))
                answer(sock)
            os.kill(site.sidecar.process.pid, signal.SIGSTOP)
            try:
                greedy.sendall(one * count)
                honest.sendall(request(BROKER_METADATA, 0, 77, bytes(4), client_id=f"honest {kind}"))
            finally:
                os.kill(site.sidecar.process.pid, signal.SIGCONT)
            assert answer(honest)[:4] == struct.pack(">i", 77)
            for _ in range(count):
                answer(greedy)

        until(lambda kind=kind: before(site, f"honest {kind}") is not None)
        assert len(before(site, f"honest {kind}") or ()) <= 5 * TURN, kind


def before(site: Site, client_id: str) -> list[Recorded] | None:
    """The exchanges of others that were reported right before that of this client, once it is there."""
    exchanges = [each for each in recorder.read(site.reported) if each.what == "exchange"]
    at = next((n for n, one in enumerate(exchanges) if (one.client_id, one.correlation_id) == (client_id, 77)), None)
    if at is None:
        return None
    return list(takewhile(lambda each: each.connection != exchanges[at].connection, reversed(exchanges[:at])))


@pytest.mark.promise(
    "unsupported-requests.md",
    "So many unsupported requests in a row end the connection; any other request in between begins a new count.",
)
def test_a_client_that_asks_without_end_for_what_is_not_supported_is_closed(site: Site) -> None:
    config = yaml.safe_load(site.sidecar.config.read_text())
    config["unsupported.request.max.consecutive"] = 300
    unsupported, other = request(UNKNOWN, 0, 7), request(METADATA, 1, 8, bytes(4))

    def closed() -> float:
        name = "brokerside_connections_closed_total"
        return sample(site.sidecar.metrics(), name, listener="CLIENT", cause="unsupported_request")

    before = site.sidecar.config.read_text()
    site.sidecar.config.write_text(yaml.safe_dump(config))
    try:
        _reload(site)
        with site.dial() as sock:
            sock.sendall((unsupported * 300 + other) * 2 + unsupported * 300)
            for _ in range(2):
                assert [answer(sock) for _ in range(300)] == [unsupported[8:12]] * 300
                assert len(answer(sock)) > 30
            assert [answer(sock) for _ in range(300)] == [unsupported[8:12]] * 300
            assert closed() == 0
            sock.sendall(unsupported)
            assert sock.recv(1) == b""
        assert closed() == 1
    finally:
        site.sidecar.config.write_text(before)
        _reload(site)


def _reload(site: Site) -> None:
    count = site.sidecar.metric("brokerside_config_reloads_total")
    os.kill(site.sidecar.process.pid, signal.SIGHUP)
    until(lambda: site.sidecar.metric("brokerside_config_reloads_total") != count)
