"""Limits on connections in a whole sidecar before a real broker: who waits, who is closed, who is reported."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
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
from tests.integration.metrics import sample
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

PATIENCE = 60.0
HELLO = request(API_VERSIONS, 0, 7)
PROTECTED = "INTER"

Limited = Callable[..., "Site"]


class Site:
    """One sidecar with listeners CLIENT and, protected where it is asked for, INTER, before the same broker."""

    def __init__(self, cluster: ClusterState, folder: Path, settings: dict[str, Any]) -> None:
        node = cluster.nodes[0]
        self.client = int(node.advertised.rpartition(":")[2])
        self.inter, admin = free_ports(2)
        self.path = folder / f"limits-{uuid.uuid4().hex[:8]}.yaml"
        listeners: list[dict[str, Any]] = [{"name": "CLIENT", "bind": node.advertised, "upstream": node.upstream}]
        if settings.pop("protected", False):
            listeners.append(
                {
                    "name": PROTECTED,
                    "bind": f"127.0.0.1:{self.inter}",
                    "advertised": node.advertised,
                    "upstream": node.upstream,
                    "inter.broker": True,
                }
            )
        listeners[0].update(settings.pop("listener", {}))
        self.config = {"broker.id": 1, "listeners": listeners, "admin": {"bind": f"127.0.0.1:{admin}"}, **settings}
        self.sockets: list[socket.socket] = []
        self.admin = Endpoint("127.0.0.1", admin)
        self.log = self.path.with_suffix(".log")
        self.write()

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.config))

    def start(self) -> None:
        self.sidecar = SidecarProcess.start(self.path, self.log, str(self.admin))

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

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for text in self.log.read_text().splitlines() if (line := json.loads(text))["event"] == event]


@pytest.fixture
def limited(cluster: ClusterState, tmp_path: Path) -> Iterator[Limited]:
    sites: list[Site] = []

    def start(**settings: Any) -> Site:
        sites.append(Site(cluster, tmp_path, settings))
        sites[-1].start()
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


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_beyond_a_listeners_limit_wait_for_a_slot(limited: Limited, workers: int) -> None:
    site = limited(workers=workers, quotas={"max.connections": 3})
    inside = [site.dial() for _ in range(3)]
    assert all(map(answered, inside))
    outside = site.dial()
    until(lambda: site.metric("connections_waiting") == 1)
    assert waits(outside)
    assert site.metric("connections_active") == 3
    inside.pop().close()
    assert answered(outside)
    assert site.metric("connections_throttled_total", quota="connections", action="delay", scope="broker") == 1
    for sock in [*inside, outside]:
        sock.close()
    until(lambda: not site.metric("connections_active"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_protected_listener_gets_the_slot_of_the_longest_idle_connection(limited: Limited, workers: int) -> None:
    site = limited(workers=workers, protected=True, quotas={"max.connections": 3})
    clients = [site.dial() for _ in range(3)]
    assert all(map(answered, clients))
    for sock in (clients[0], clients[2]):
        sock.recv(65536)
        time.sleep(0.05)
        sock.sendall(HELLO)
        assert answered(sock)
    inter = site.dial(site.inter)
    assert answered(inter)
    clients[1].settimeout(PATIENCE)
    while clients[1].recv(65536):  # what is left of its only answer
        pass
    until(lambda: site.metric("connections_active") == 3)
    assert site.metric("connections_closed_total", cause="evicted", listener="CLIENT") == 1
    for sock in (clients[0], clients[2], inter):
        sock.recv(65536)
        sock.sendall(HELLO)
        assert answered(sock)
        sock.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_addresses_have_limits_of_their_own(limited: Limited, workers: int) -> None:
    ips = {"<default>": {"connection_creation_rate": 2}, "127.0.0.3": {"connection_creation_rate": 1000}}
    site = limited(workers=workers, quotas={"ips": ips, "max.connections.per.ip.overrides": "127.0.0.4:1"})
    crowd = site.dial_at_once(30)
    others = [site.dial(source="127.0.0.3") for _ in range(30)]
    assert all(map(answered, others))
    # 2 a second over 10 windows at once, one after its hold, and no other.
    assert sum(map(answered, crowd)) == 21
    single = site.dial(source="127.0.0.4")
    assert answered(single)
    assert not answered(site.dial(source="127.0.0.4"))
    until(lambda: not site.metric("connections_held"))
    assert site.metric("connections_throttled_total", scope="ip", action="hold") == 10
    assert site.metric("connections_throttled_total", scope="ip", quota="connection_creation_rate", action="drop") == 9
    assert site.metric("connections_throttled_total", scope="ip", quota="connections", action="drop") == 1
    assert site.metric("connections_closed_total", cause="quota_exceeded") == 10
    view = admin_client.get_quotas(site.admin)
    assert {one.address: one.connections for one in view.addresses} == {
        "127.0.0.1": 21,
        "127.0.0.3": 30,
        "127.0.0.4": 1,
    }


def test_a_dry_run_counts_and_does_nothing(limited: Limited) -> None:
    quotas = {
        "max.connection.creation.rate": 1,
        "max.connection.creation.rate.action": "observe",
        "max.connections": 1,
        "max.connections.action": "observe",
        "max.connections.per.ip": 1,
        "max.connections.per.ip.action": "observe",
        "ips": {"<default>": {"connection_creation_rate": 1, "action": "observe"}},
    }
    site = limited(quotas=quotas)
    crowd = [site.dial() for _ in range(30)]
    assert all(map(answered, crowd))
    assert site.metric("connections_throttled_total", action="observe", scope="ip") > 30
    assert site.metric("connections_throttled_total", action="observe", scope="broker") > 30
    for action in ("delay", "hold", "drop"):
        assert site.metric("connections_throttled_total", action=action) == 0


def test_the_audit_and_the_log_say_who_was_throttled(limited: Limited, cluster: ClusterState) -> None:
    name = f"audit-{uuid.uuid4().hex[:8]}"
    settings = {
        "internal.bootstrap.servers": cluster.internal_bootstrap,
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": name},
        "observer.shutdown.timeout.ms": 20_000,  # the events of the end have no spool
        "quotas": {"ip.store": "file", "ips": {"127.0.0.5": {"connection_creation_rate": 1}}},
    }
    site = limited(**settings)
    crowd = site.dial_at_once(300, "127.0.0.5")
    admitted = sum(map(answered, crowd))
    assert 10 <= admitted < 20
    until(lambda: not site.metric("connections_held"))
    assert site.sidecar.stop()
    reported: dict[str, int] = {}
    for event in throttles(cluster, name):
        assert (event.listener, event.client_ip, event.scope) == ("CLIENT", "127.0.0.5", "ip")
        assert event.limit == 1
        assert event.observed > 1
        reported[event.action] = reported.get(event.action, 0) + event.count
    assert reported == {"hold": 290, "drop": 300 - admitted}
    lines = site.lines("connections_throttled")
    assert 2 <= len(lines) <= 6
    assert {line["top_address"] for line in lines} == {"127.0.0.5"}
    assert sum(line["connections"] for line in lines if line["action"] == "drop") == 300 - admitted


def throttles(cluster: ClusterState, topic: str) -> Iterator[ThrottleEvent]:
    for message in messages(cluster.internal_bootstrap, topic):
        events = decoder.decode(message.value()).events
        yield from (event for event in events if isinstance(event, ThrottleEvent))


def test_limits_see_the_address_behind_a_balancer(limited: Limited) -> None:
    site = limited(
        listener={"proxy.protocol": "required", "proxy.protocol.trusted": ["127.0.0.0/30"]},
        quotas={"max.connections.per.ip": 1},
    )
    first = site.dial(first=b"PROXY TCP4 192.0.2.1 192.0.2.9 1111 9092\r\n")
    other = site.dial(first=b"PROXY TCP4 192.0.2.2 192.0.2.9 1111 9092\r\n")
    assert answered(first)
    assert answered(other)
    assert not answered(site.dial(first=b"PROXY TCP4 192.0.2.1 192.0.2.9 1112 9092\r\n"))
    assert not answered(site.dial())
    assert not answered(site.dial(source="127.0.0.5", first=b"PROXY TCP4 192.0.2.3 192.0.2.9 1 9092\r\n"))
    for cause, count in {"quota_exceeded": 1, "invalid_proxy_header": 1, "untrusted_proxy": 1}.items():
        assert site.metric("connections_closed_total", cause=cause) == count
    assert {one.address for one in admin_client.get_quotas(site.admin).addresses} == {"192.0.2.1", "192.0.2.2"}


def test_clients_that_give_up_waiting_cost_the_broker_nothing(limited: Limited) -> None:
    site = limited(quotas={"max.connections": 1})
    inside = site.dial()
    assert answered(inside)
    first = site.dial()
    until(lambda: site.metric("connections_waiting") == 1)
    for _ in range(5):
        site.dial().close()  # with a request of theirs in the queue, as clients have
    first.close()
    last = site.dial()
    until(lambda: site.metric("connections_queued") == 6)
    inside.close()
    assert answered(last)
    assert site.metric("connections_closed_total", cause="client_closed", listener="CLIENT") == 6
    assert site.metric("connections_admitted_total") == 2


def test_a_shutdown_closes_whoever_waits(limited: Limited) -> None:
    ips = {"<default>": {"connection_creation_rate": 1}}
    site = limited(quotas={"max.connections": 9, "ips": ips}, **{"drain.timeout.ms": 500})
    crowd = [site.dial() for _ in range(20)]
    assert sum(answered(sock) for sock in crowd[:9]) == 9
    assert site.sidecar.stop()
    assert not any(map(answered, crowd[9:]))


def test_real_clients_only_wait_longer(limited: Limited, cluster: ClusterState, topic: str) -> None:
    site = limited(quotas={"max.connection.creation.rate": 1, "quota.window.num": 2})
    records = [f"r{number}".encode() for number in range(100)]
    produce(f"127.0.0.1:{site.client}", topic, records)
    assert sorted(consume(cluster.internal_bootstrap, topic, len(records))) == sorted(records)
    assert all(map(answered, site.dial_at_once(3)))
    assert site.metric("connections_throttled_total", action="delay") >= 1


def test_a_listener_without_a_rate_has_the_broker_wide_one(limited: Limited) -> None:
    site = limited(quotas={"max.connection.creation.rate": 7})
    sock = site.dial()
    assert answered(sock)
    found = admin_client.get_quotas(site.admin)
    assert [one.limit for one in found.limits if one.quota == "connection_creation_rate"] == [7, 7, None, None]
