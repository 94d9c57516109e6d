"""Limits of principals before a real broker with SASL: who behind one address is closed or held, and what is left."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy import admin_client
from proxy.config import Endpoint
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.brokers import SharedBroker
from tests.frames import METADATA
from tests.integration.metrics import sample
from tests.integration.quotas import Peer, text
from tests.integration.test_limits import throttles, until

pytestmark = pytest.mark.kafka

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
NUMBER, RATE = "connections", "connection_creation_rate"


class Site:
    """A sidecar before a SASL listener, and the clients of it."""

    def __init__(self, secured: SharedBroker, folder: Path, settings: dict[str, Any]) -> None:
        port, admin = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.admin = Endpoint("127.0.0.1", admin)
        listener = {"name": "SASL", "bind": self.address, "security.protocol": "SASL_PLAINTEXT"}
        listener["upstream"] = secured.listeners["SASL"].address
        self.config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": str(self.admin)}, **settings}
        self.path = folder / f"principals-{uuid.uuid4().hex[:8]}.yaml"
        self.log = self.path.with_suffix(".log")
        self.path.write_text(yaml.safe_dump(self.config))
        self.sidecar = SidecarProcess.start(self.path, self.log, str(self.admin))
        self.peers: list[Peer] = []

    def reload(self, **quotas: Any) -> None:
        self.path.write_text(yaml.safe_dump({**self.config, "quotas": quotas}))
        assert admin_client.post_reload(self.admin).result == "applied"

    def log_in(self, user: str) -> Peer:
        self.peers.append(Peer(self.address, user=(user, f"{user}-secret")))
        return self.peers[-1]

    def close(self) -> None:
        for peer in self.peers:
            peer.sock.close()
        until(lambda: not self.metric("connections_active"))
        until(lambda: not self.metric("quota_principals", quota=NUMBER))
        assert self.connections() == {}

    def metric(self, name: str, **labels: str) -> float:
        return sample(self.sidecar.metrics(), f"brokerside_{name}", **labels)

    def throttled(self, quota: str, action: str) -> float:
        return self.metric("connections_throttled_total", scope="principal", quota=quota, action=action)

    def closed(self) -> float:
        return self.metric("connections_closed_total", cause="principal_quota_exceeded")

    def connections(self) -> dict[str, int]:
        return {one.principal: one.connections for one in admin_client.get_quotas(self.admin).principals}

    def throttle_lines(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in found if line["event"] == "connections_throttled"]


Sites = Callable[..., Site]


@pytest.fixture
def limited(secured: SharedBroker, tmp_path: Path) -> Iterator[Sites]:
    sites: list[Site] = []

    def start(**settings: Any) -> Site:
        sites.append(Site(secured, tmp_path, settings))
        return sites[-1]

    yield start
    for site in sites:
        for peer in site.peers:
            peer.sock.close()
        assert site.sidecar.stop()
        assert "-secret" not in site.log.read_text()


def works(peer: Peer) -> bool:
    """Whether the broker answers a request after the login."""
    try:
        return bool(peer.ask(METADATA, 1, b"\0\0\0\0"))
    except (ConnectionError, BrokenPipeError):
        return False


def is_closed(peer: Peer) -> bool:
    """Whether the sidecar closes it, without another request of its client."""
    try:
        return peer.sock.recv(1) == b""
    except ConnectionResetError:
        return True


def die_in_their_login(site: Site) -> None:
    """Connections that end before, during and after the message with the password; none of them may count."""
    for token in ("", "alice-secre", "alice-secret"):
        with Peer(site.address) as peer:
            peer.ask(SASL_HANDSHAKE, 1, text("PLAIN"))
            if token:
                raw = f"\0alice\0{token}".encode()
                body = len(raw).to_bytes(4, "big") + raw
                head = SASL_AUTHENTICATE.to_bytes(2, "big") + b"\0\0" + (9).to_bytes(4, "big") + text("peer")
                peer.sock.sendall((len(head) + len(body)).to_bytes(4, "big") + head + body)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.promise("limits.md", "A login that fails never counts for its principal.")
@pytest.mark.promise(
    "limits.md",
    "Beyond its number a principal's connection is closed after its login, and others at its address are not.",
)
def test_one_connection_too_many_of_a_principal_is_closed_and_those_of_another_are_not(
    limited: Sites, secured: SharedBroker
) -> None:
    """After a reload, which knows the connections that were open before."""
    topic = f"audit-{uuid.uuid4().hex[:8]}"
    audit = {"observer.class.names": ["observers.audit:AuditObserver"], "audit": {"topic": topic}}
    audit |= {"internal.bootstrap.servers": secured.node.internal, "observer.shutdown.timeout.ms": 20_000}
    site = limited(workers=2, **audit)
    alices = [site.log_in("alice") for _ in range(3)]
    assert all(map(works, alices))
    assert site.connections() == {}
    quotas = {"ip.store": "file", "max.connections.per.principal": 50}
    site.reload(**quotas, **{"max.connections.per.principal.overrides": "alice:2"})
    until(lambda: site.connections() == {"User:alice": 3})
    assert all(map(works, alices))
    alices.pop().sock.close()
    until(lambda: site.connections() == {"User:alice": 2})
    assert all(is_closed(site.log_in("alice")) for _ in range(2))
    bobs = [site.log_in("bob") for _ in range(6)]
    assert all(map(works, [*alices, *bobs]))
    until(lambda: site.connections() == {"User:alice": 2, "User:bob": 6})
    assert site.throttled(NUMBER, "drop") == 2
    until(lambda: site.closed() == 2)
    assert site.metric("quota_principals", quota=NUMBER) == 2
    until(site.throttle_lines)
    line = site.throttle_lines()[0]
    assert (line["scope"], line["action"], line["limit"]) == ("principal", "drop", 2)
    assert (line["top_principal"], line["top_address"]) == ("User:alice", "127.0.0.1")
    alices[0].sock.close()
    until(lambda: site.connections().get("User:alice") == 1)
    assert works(site.log_in("alice"))
    site.close()
    site.reload(**{"ip.store": "file", "max.connections.per.principal": 1})
    die_in_their_login(site)
    until(lambda: not site.metric("connections_active"))
    until(lambda: site.connections() == {})
    assert works(site.log_in("alice"))
    assert site.throttled(NUMBER, "drop") == 2
    site.close()
    site.reload(**{"ip.store": "file"})
    assert works(site.log_in("alice"))
    assert site.connections() == {}
    assert site.sidecar.stop()
    found = throttles(secured.node.internal, topic)
    assert {(one.scope, one.principal, one.client_ip, one.action, one.limit) for one in found} == {
        ("principal", "User:alice", "127.0.0.1", "drop", 2)
    }
    assert sum(one.count for one in found) == 2


@pytest.mark.promise(
    "limits.md",
    "Beyond its rate a principal's client is not read for a second at most; then it continues or is closed.",
)
@pytest.mark.slow
def test_beyond_its_rate_a_principal_is_held_and_goes_on_or_is_closed(limited: Sites) -> None:
    site = limited(quotas={"users": {"alice": 1, "bob": 1000}})
    alices = [site.log_in("alice") for _ in range(30)]  # ten at once, and one in each second
    bobs = [site.log_in("bob") for _ in range(13)]
    assert all(map(works, bobs))
    worked = list(map(works, alices))
    assert all(worked[:10])
    closed = worked.count(False)
    assert closed > 0
    until(lambda: site.connections() == {"User:alice": 30 - closed, "User:bob": 13})
    held = site.metric("principal_connection_throttle_time_seconds_count")
    assert held == site.throttled(RATE, "hold") >= closed
    assert 0 < site.metric("principal_connection_throttle_time_seconds_sum") <= held
    assert site.throttled(RATE, "drop") == closed
    until(lambda: site.closed() == closed)
    view = {one.principal: one for one in admin_client.get_quotas(site.admin).principals}
    assert (view["User:alice"].rate_limit, view["User:bob"].rate_limit) == (1, 1000)
    window = {"quota.window.num": 2, "quota.window.size.seconds": 30}
    site = limited(workers=2, quotas={"users": {"alice": 1}, **window})
    alices = [site.log_in("alice") for _ in range(30)]
    until(lambda: site.connections() == {"User:alice": 30})
    while not site.throttled(RATE, "hold"):
        alices.append(site.log_in("alice"))
        until(lambda: site.connections().get("User:alice") == len(alices))
    assert works(alices[-1]), "held, and then allowed"
    assert site.throttled(RATE, "drop") == site.closed() == 0
