"""Limits on connections in a whole sidecar before a real broker: who waits, who is closed, who is reported."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.event import ThrottleEvent, decoder
from proxy import admin_client
from proxy.config import Endpoint
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, request
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample, unbalanced
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

PATIENCE = 60.0
HELLO = request(API_VERSIONS, 0, 7)

Limited = Callable[..., "Site"]


class Site:
    """One sidecar with listeners CLIENT and, protected where it is asked for, INTER, before the same broker."""

    def __init__(self, cluster: ClusterState, folder: Path, settings: dict[str, Any]) -> None:
        node = cluster.nodes[0]
        self.client = int(node.advertised.rpartition(":")[2])
        self.inter, admin = free_ports(2)
        self.path = folder / f"limits-{uuid.uuid4().hex[:8]}.yaml"
        upstream = {"advertised": node.advertised, "upstream": node.upstream}
        listeners: list[dict[str, Any]] = [{"name": "CLIENT", "bind": node.advertised, **upstream}]
        listeners[0].update(settings.pop("listener", {}))
        if settings.pop("protected", False):
            bind = f"127.0.0.1:{self.inter}"
            listeners.append({"name": "INTER", "bind": bind, "inter.broker": True, **upstream})
        self.config = {"broker.id": 1, "listeners": listeners, "admin": {"bind": f"127.0.0.1:{admin}"}, **settings}
        self.sockets: list[socket.socket] = []
        self.admin = Endpoint("127.0.0.1", admin)
        self.log = self.path.with_suffix(".log")
        self.path.write_text(yaml.safe_dump(self.config))
        self.sidecar = SidecarProcess.start(self.path, self.log, str(self.admin))

    def reload(self, **quotas: Any) -> None:
        self.path.write_text(yaml.safe_dump({**self.config, "quotas": quotas}))
        assert admin_client.post_reload(self.admin).result == "applied"

    def dial(self, port: int = 0, source: str = "127.0.0.1", first: bytes = b"") -> socket.socket:
        """Connect, and ask for something."""
        sock = socket.create_connection(("127.0.0.1", port or self.client), PATIENCE, source_address=(source, 0))
        self.sockets.append(sock)
        sock.sendall(first + HELLO)
        return sock

    def dial_at_once(self, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
        """Connect while nobody accepts: for the sidecar all come within one moment, however long it takes here."""
        os.kill(self.sidecar.process.pid, signal.SIGSTOP)
        try:
            return [self.dial(source=source) for _ in range(count)]
        finally:
            os.kill(self.sidecar.process.pid, signal.SIGCONT)

    def metric(self, name: str, **labels: str) -> float:
        return sample(self.sidecar.metrics(), f"brokerside_{name}", **labels)

    def throttled(self, **labels: str) -> float:
        return self.metric("connections_throttled_total", **labels)

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for text in self.log.read_text().splitlines() if (line := json.loads(text))["event"] == event]


@pytest.fixture
def limited(cluster: ClusterState, tmp_path: Path) -> Iterator[Limited]:
    sites: list[Site] = []

    def start(**settings: Any) -> Site:
        sites.append(Site(cluster, tmp_path, settings))
        return sites[-1]

    yield start
    for site in sites:
        site.sidecar.stop()
        for sock in site.sockets:
            sock.close()


def answered(sock: socket.socket) -> bool:
    """Whether the broker answers through it; False where it is closed instead."""
    try:
        return bool(sock.recv(4))
    except ConnectionResetError:
        return False


def waits(sock: socket.socket) -> bool:
    """Whether nothing has happened to it in a while."""
    sock.settimeout(0.5)
    try:
        return bool(sock.recv(4)) and False
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)


def throttles(bootstrap: str, topic: str) -> list[ThrottleEvent]:
    """The events of throttled connections in an audit topic."""
    found = [event for message in messages(bootstrap, topic) for event in decoder.decode(message.value()).events]
    return [event for event in found if isinstance(event, ThrottleEvent)]


@pytest.mark.promise(
    "limits.md", "At `max.connections`, new connections wait until another one ends, and nobody is refused."
)
def test_connections_beyond_the_number_wait_for_a_slot_and_those_that_give_up_cost_the_broker_nothing(
    limited: Limited,
) -> None:
    site = limited(quotas={"max.connections": 3}, **{"drain.timeout.ms": 500})
    inside = [site.dial() for _ in range(3)]
    assert all(map(answered, inside))
    first = site.dial()
    until(lambda: site.metric("connections_waiting") == 1)
    assert waits(first)
    assert site.metric("connections_active") == 3
    for _ in range(5):
        site.dial().close()  # with a request of theirs in the queue, as clients have
    last, never = site.dial(), site.dial()
    first.close()
    until(lambda: site.metric("connections_queued") == 7)
    inside.pop().close()
    assert answered(last)
    assert site.metric("connections_closed_total", cause="client_closed", listener="CLIENT") == 6
    assert site.metric("connections_admitted_total") == 4
    assert site.throttled(quota="connections", action="delay", scope="broker") >= 1
    assert site.sidecar.stop()
    assert not answered(never), "a shutdown closes whoever waits"


@pytest.mark.promise(
    "limits.md",
    "For an inter-broker connection beyond `max.connections` the sidecar closes the client connection "
    "that has been idle for longest.",
)
def test_a_protected_listener_gets_the_slot_of_the_longest_idle_connection(limited: Limited) -> None:
    site = limited(workers=2, protected=True, quotas={"max.connections": 3})
    clients = [site.dial() for _ in range(3)]
    assert all(map(answered, clients))
    for sock in (clients[0], clients[2]):
        sock.recv(65536)
        time.sleep(0.05)
        sock.sendall(HELLO)
        assert answered(sock)
    inter = site.dial(site.inter)
    assert answered(inter)
    while clients[1].recv(65536):  # what is left of its only answer
        pass
    until(lambda: site.metric("connections_active") == 3)
    assert site.metric("connections_closed_total", cause="evicted", listener="CLIENT") == 1
    for sock in (clients[0], clients[2], inter):
        sock.recv(65536)
        sock.sendall(HELLO)
        assert answered(sock)


@pytest.mark.promise(
    "metrics.md", "On each page of `/metrics` every accepted connection is active, waiting, held or closed."
)
@pytest.mark.promise(
    "limits-operation.md", "The audit topic has an event of kind `throttle` for each address, limit and second."
)
def test_addresses_have_limits_of_their_own_and_the_audit_and_the_log_say_who_met_them(
    limited: Limited, cluster: ClusterState
) -> None:
    name = f"audit-{uuid.uuid4().hex[:8]}"
    settings = {
        "internal.bootstrap.servers": cluster.internal_bootstrap,
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": name},
        "observer.shutdown.timeout.ms": 20_000,  # the events of the end have no spool
    }
    ips = {"<default>": {"connection_creation_rate": 2}, "127.0.0.3": {"connection_creation_rate": 1000}}
    quotas = {"ip.store": "file", "ips": ips, "max.connections.per.ip.overrides": "127.0.0.4:1"}
    site = limited(workers=2, quotas=quotas, **settings)
    crowd = site.dial_at_once(30)
    assert unbalanced(site.sidecar.metrics()) == []
    others = [site.dial(source="127.0.0.3") for _ in range(30)]
    assert all(map(answered, others))
    # 2 a second over 10 windows at once, one after its hold, and no other.
    assert sum(map(answered, crowd)) == 21
    assert answered(site.dial(source="127.0.0.4"))
    assert not answered(site.dial(source="127.0.0.4"))
    while site.metric("connections_held"):
        assert unbalanced(site.sidecar.metrics()) == []
    assert site.throttled(scope="ip", action="hold") == 10
    assert site.metric("ip_connection_accept_throttle_time_seconds_count", listener="CLIENT") == 10
    assert site.metric("acceptor_blocked_seconds_total") == 0, "limits of addresses never block a listener"
    assert site.throttled(scope="ip", quota="connection_creation_rate", action="drop") == 9
    assert site.throttled(scope="ip", quota="connections", action="drop") == 1
    assert site.metric("connections_closed_total", cause="quota_exceeded") == 10
    view = admin_client.get_quotas(site.admin)
    assert {one.address: one.connections for one in view.addresses} == {
        "127.0.0.1": 21,
        "127.0.0.3": 30,
        "127.0.0.4": 1,
    }
    assert site.sidecar.stop()
    found = Counter[tuple[str, str, str]]()
    for event in throttles(cluster.internal_bootstrap, name):
        assert (event.listener, event.scope) == ("CLIENT", "ip")
        assert event.observed >= event.limit
        found[event.client_ip, event.quota, event.action] += event.count
    rate = "connection_creation_rate"
    assert found == {
        ("127.0.0.1", rate, "hold"): 10,
        ("127.0.0.1", rate, "drop"): 9,
        ("127.0.0.4", "connections", "drop"): 1,
    }
    lines = site.lines("connections_throttled")
    assert {line["top_address"] for line in lines} == {"127.0.0.1", "127.0.0.4"}
    assert sum(line["connections"] for line in lines if line["action"] == "drop") == 10


@pytest.mark.promise("limits.md", "A reload applies new limits, and closes no connection that is open.")
def test_limits_are_tried_first_and_then_enforced_by_a_reload_that_closes_no_connection(limited: Limited) -> None:
    site = limited(
        quotas={
            "max.connection.creation.rate": 1,
            "max.connection.creation.rate.action": "observe",
            "max.connections": 1,
            "max.connections.action": "observe",
            "max.connections.per.ip": 1,
            "max.connections.per.ip.action": "observe",
            "ips": {"<default>": {"connection_creation_rate": 1, "action": "observe"}},
        }
    )
    crowd = [site.dial() for _ in range(30)]
    assert all(map(answered, crowd))
    assert site.throttled(action="observe", scope="ip") > 30
    assert site.throttled(action="observe", scope="broker") > 30
    for action in ("delay", "hold", "drop"):
        assert site.throttled(action=action) == 0, action
    site.reload(**{"max.connections.per.ip": 1})
    assert not answered(site.dial())
    assert answered(site.dial(source="127.0.0.2"))
    site.reload(**{"max.connections": 1})
    outside = site.dial()
    until(lambda: site.metric("connections_waiting") == 1)
    for sock in crowd:
        sock.recv(65536)
        sock.sendall(HELLO)
        assert answered(sock)
    site.reload()
    assert answered(outside)
    assert site.metric("connections_active") == 32


@pytest.mark.promise(
    "limits-operation.md",
    "How long connections waited, and how long the listener accepted nothing, are metrics of that listener.",
)
@pytest.mark.promise(
    "limits.md", "Beyond the rate of a listener real clients only wait longer: none of them is refused."
)
def test_real_clients_only_wait_longer_at_the_rate_of_a_listener(
    limited: Limited, cluster: ClusterState, topic: str
) -> None:
    name = "listener.name.client.max.connection.creation.rate"
    site = limited(quotas={name: 1, "quota.window.num": 2})
    records = [f"r{number}".encode() for number in range(100)]
    produce(f"127.0.0.1:{site.client}", topic, records)
    assert sorted(consume(cluster.internal_bootstrap, topic, len(records))) == sorted(records)
    assert all(map(answered, site.dial_at_once(3)))
    delays = site.throttled(action="delay", scope="listener")
    assert delays >= 1
    assert site.metric("connection_accept_throttle_time_seconds_count", listener="CLIENT") == delays
    waited = site.metric("connection_accept_throttle_time_seconds_sum", listener="CLIENT")
    assert 0 < waited <= delays
    assert site.metric("acceptor_blocked_seconds_total", listener="CLIENT") >= waited - 0.001 * delays
    assert site.metric("ip_connection_accept_throttle_time_seconds_count") == 0
    assert site.metric("connections_throttled_total", action="drop") == 0
