"""Limits of principals before a real broker with SASL: who behind one address is closed or held, and what is left."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.event import ThrottleEvent
from proxy import admin_client
from proxy.config import Endpoint
from proxy.local import broker
from proxy.local import cluster as local_cluster
from proxy.local.cluster import Node
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.metrics import sample
from tests.integration.quotas import Peer, text
from tests.integration.test_audit import envelopes, events

pytestmark = pytest.mark.kafka

PATIENCE = 60.0
SASL_HANDSHAKE, METADATA = 17, 3
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
NUMBER, RATE = "connections", "connection_creation_rate"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """A broker, and the address of its SASL listener, which advertises the other one."""
    folder = tmp_path_factory.mktemp("principal-limits")
    found = local_cluster.plan(folder).nodes[0]
    behind = f"127.0.0.1:{free_ports(1)[0]}"
    listeners = {"CLIENT": found.upstream, "INTERNAL": found.internal, "CONTROLLER": found.controller, "SASL": behind}
    advertised = {name: address for name, address in listeners.items() if name != "CONTROLLER"}
    protocols = dict.fromkeys(listeners, "PLAINTEXT") | {"SASL": "SASL_PLAINTEXT"}
    properties = {
        "listeners": ",".join(f"{name}://{address}" for name, address in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "sasl.enabled.mechanisms": "PLAIN",
        "connection.failed.authentication.delay.ms": "100",
        "listener.name.sasl.plain.sasl.jaas.config": f'{LOGIN} user_alice="alice-secret" user_bob="bob-secret";',
    }
    try:
        yield local_cluster.up(folder, broker_properties=properties, progress=False).nodes[0], behind
    finally:
        local_cluster.down(folder)


class Site:
    """A sidecar before the SASL listener, and the clients of it."""

    def __init__(self, node: Node, behind: str, folder: Path, settings: dict[str, Any]) -> None:
        port, admin = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.admin = Endpoint("127.0.0.1", admin)
        listener = {"name": "SASL", "bind": self.address, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
        self.config = {"broker.id": 1, "listeners": [listener], "admin": {"bind": str(self.admin)}, **settings}
        self.path = folder / f"principals-{uuid.uuid4().hex[:8]}.yaml"
        self.log = self.path.with_suffix(".log")
        self.write()
        self.sidecar = SidecarProcess.start(self.path, self.log, str(self.admin))
        self.peers: list[Peer] = []

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.config))

    def log_in(self, user: str) -> Peer:
        self.peers.append(Peer(self.address, user=(user, f"{user}-secret")))
        return self.peers[-1]

    def close(self) -> None:
        for peer in self.peers:
            peer.sock.close()
        until(lambda: not self.metric("connections_active"))

    def metric(self, name: str, **labels: str) -> float:
        return sample(self.sidecar.metrics(), f"brokerside_{name}", **labels)

    def throttled(self, quota: str, action: str) -> float:
        return self.metric("connections_throttled_total", scope="principal", quota=quota, action=action)

    def connections(self) -> dict[str, int]:
        return {one.principal: one.connections for one in admin_client.get_quotas(self.admin).principals}

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [
            line for written in self.log.read_text().splitlines() if (line := json.loads(written))["event"] == event
        ]


Sites = Callable[..., Site]


@pytest.fixture
def limited(node: tuple[Node, str], tmp_path: Path) -> Iterator[Sites]:
    sites: list[Site] = []

    def start(**settings: Any) -> Site:
        sites.append(Site(*node, tmp_path, settings))
        return sites[-1]

    yield start
    for site in sites:
        for peer in site.peers:
            peer.sock.close()
        assert site.sidecar.stop()
        assert "-secret" not in site.log.read_text()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


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


@pytest.mark.parametrize("workers", [1, 2])
def test_one_connection_too_many_of_a_principal_is_closed_and_those_of_another_are_not(
    limited: Sites, workers: int
) -> None:
    quotas = {"max.connections.per.principal": 50, "max.connections.per.principal.overrides": "alice:3"}
    site = limited(workers=workers, quotas=quotas)
    alices = [site.log_in("alice") for _ in range(3)]
    until(lambda: site.connections() == {"User:alice": 3})
    outside = [site.log_in("alice") for _ in range(2)]
    assert all(map(is_closed, outside))
    bobs = [site.log_in("bob") for _ in range(6)]
    assert all(map(works, [*alices, *bobs]))
    until(lambda: site.connections() == {"User:alice": 3, "User:bob": 6})
    assert site.throttled(NUMBER, "drop") == 2
    until(lambda: site.metric("connections_closed_total", cause="principal_quota_exceeded") == 2)
    assert site.metric("quota_principals", quota=NUMBER) == 2
    until(lambda: site.lines("connections_throttled"))
    line = site.lines("connections_throttled")[0]
    assert (line["scope"], line["action"], line["limit"]) == ("principal", "drop", 3)
    assert (line["top_principal"], line["top_address"]) == ("User:alice", "127.0.0.1")
    alices[0].sock.close()
    until(lambda: site.connections().get("User:alice") == 2)
    assert works(site.log_in("alice"))
    site.close()
    until(lambda: not site.metric("quota_principals", quota=NUMBER))
    assert site.connections() == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_beyond_its_rate_a_principal_is_held_and_goes_on_or_is_closed(limited: Sites, workers: int) -> None:
    site = limited(workers=workers, quotas={"users": {"alice": 1, "bob": 1000}})
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
    until(lambda: site.metric("connections_closed_total", cause="principal_quota_exceeded") == closed)
    view = {one.principal: one for one in admin_client.get_quotas(site.admin).principals}
    assert (view["User:alice"].rate_limit, view["User:bob"].rate_limit) == (1, 1000)
    until(lambda: site.lines("connections_throttled"))
    assert {line["top_principal"] for line in site.lines("connections_throttled")} == {"User:alice"}
    site.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_held_and_then_allowed_goes_on(limited: Sites, workers: int) -> None:
    window = {"quota.window.num": 2, "quota.window.size.seconds": 30}
    site = limited(workers=workers, quotas={"users": {"alice": 1}, **window})
    alices = [site.log_in("alice") for _ in range(30)]
    until(lambda: site.connections() == {"User:alice": 30})
    while not site.throttled(RATE, "hold"):
        alices.append(site.log_in("alice"))
        until(lambda: site.connections().get("User:alice") == len(alices))
    assert works(alices[-1])
    assert not site.throttled(RATE, "drop")
    assert not site.metric("connections_closed_total", cause="principal_quota_exceeded")
    site.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dry_run_counts_and_closes_nobody(limited: Sites, workers: int) -> None:
    quotas = {
        "max.connections.per.principal": 1,
        "max.connections.per.principal.action": "observe",
        "users": {"<default>": 1},
        "user.connection_creation_rate.action": "observe",
    }
    site = limited(workers=workers, quotas=quotas)
    alices = [site.log_in("alice") for _ in range(15)]
    assert all(map(works, [*alices, site.log_in("bob")]))
    until(lambda: site.connections() == {"User:alice": 15, "User:bob": 1})
    assert site.throttled(NUMBER, "observe") == 14
    assert site.throttled(RATE, "observe") > 0
    assert site.throttled(NUMBER, "drop") == site.throttled(RATE, "hold") == 0
    assert not site.metric("principal_connection_throttle_time_seconds_count")
    assert site.metric("connections_active") == 16
    site.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_connection_that_dies_in_its_login_never_counts(limited: Sites, workers: int) -> None:
    site = limited(workers=workers, quotas={"max.connections.per.principal": 1})
    for token in ("", "alice-secre", "alice-secret"):
        with Peer(site.address) as peer:
            peer.ask(SASL_HANDSHAKE, 1, text("PLAIN"))
            if token:
                raw = f"\0alice\0{token}".encode()
                body = len(raw).to_bytes(4, "big") + raw
                head = b"\0\x24\0\0" + (9).to_bytes(4, "big") + text("peer")
                peer.sock.sendall((len(head) + len(body)).to_bytes(4, "big") + head + body)
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: not site.metric("connections_active"))
    until(lambda: site.connections() == {})
    assert works(site.log_in("alice"))
    assert site.throttled(NUMBER, "drop") == 0
    site.close()
    until(lambda: site.connections() == {})


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_limits_new_logins_and_knows_the_open_connections(limited: Sites, workers: int) -> None:
    site = limited(workers=workers)
    open_ = [site.log_in("alice") for _ in range(3)]
    assert all(map(works, open_))
    assert site.connections() == {}
    site.config["quotas"] = {"max.connections.per.principal": 2}
    site.write()
    assert admin_client.post_reload(site.admin).result == "applied"
    until(lambda: site.connections() == {"User:alice": 3})
    assert is_closed(site.log_in("alice"))
    assert all(map(works, open_))
    assert works(site.log_in("bob"))
    site.config["quotas"] = {}
    site.write()
    assert admin_client.post_reload(site.admin).result == "applied"
    assert works(site.log_in("alice"))
    assert site.connections() == {}
    site.close()


def test_the_audit_names_the_principal(limited: Sites, node: tuple[Node, str]) -> None:
    config = broker.sidecar_config(node[0])
    kept = {name: value for name, value in config.items() if name not in ("broker.id", "listeners", "admin")}
    kept["observer.shutdown.timeout.ms"] = 20_000
    site = limited(**{**kept, "quotas": {"max.connections.per.principal.overrides": "alice:0"}})
    assert is_closed(site.log_in("alice"))
    assert works(site.log_in("bob"))
    until(lambda: site.throttled(NUMBER, "drop"))
    site.close()
    assert site.sidecar.stop()
    found = events(envelopes(node[0].internal, broker.AUDIT_TOPIC), ThrottleEvent)
    assert [(one.scope, one.principal, one.client_ip, one.action, one.limit) for one in found] == [
        ("principal", "User:alice", "127.0.0.1", "drop", 0)
    ]
