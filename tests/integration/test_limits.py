"""Limits in a whole sidecar before a real broker, of connections and of principals: who waits, who is closed, who is
reported."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from observers.event import ThrottleEvent, decoder
from proxy import admin_client
from proxy.config import Endpoint
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.frames import API_VERSIONS, METADATA, request
from tests.integration.librdkafka import consume, produce
from tests.integration.metrics import sample, unbalanced
from tests.integration.quotas import Peer, text
from tests.integration.sidecars import until
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

HELLO = request(API_VERSIONS, 0, 7)
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
NUMBER, RATE = "connections", "connection_creation_rate"


class Site:
    def __init__(self, folder: Path, listeners: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        self.admin = Endpoint("127.0.0.1", free_ports(1)[0])
        self.config = {"broker.id": 1, "listeners": listeners, "admin": {"bind": str(self.admin)}, **settings}
        self.path = folder / f"limits-{uuid.uuid4().hex[:8]}.yaml"
        self.log = self.path.with_suffix(".log")
        self.path.write_text(yaml.safe_dump(self.config))
        self.sidecar = SidecarProcess.start(self.path, self.log, str(self.admin))
        self.address = str(listeners[0]["bind"])
        self.sockets: list[socket.socket] = []

    def reload(self, **quotas: Any) -> None:
        self.path.write_text(yaml.safe_dump({**self.config, "quotas": quotas}))
        assert admin_client.post_reload(self.admin).result == "applied"

    def metric(self, name: str, **labels: str) -> float:
        return sample(self.sidecar.metrics(), f"brokerside_{name}", **labels)

    def throttled(self, **labels: str) -> float:
        return self.metric("connections_throttled_total", **labels)

    def throttle_lines(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in found if line["event"] == "connections_throttled"]

    def dial(self, address: str = "", source: str = "127.0.0.1") -> socket.socket:
        self.sockets.append(Peer(address or self.address, source=source).sock)
        self.sockets[-1].sendall(HELLO)
        return self.sockets[-1]

    def dial_at_once(self, count: int) -> list[socket.socket]:
        """Connect while nobody accepts: for the sidecar all come within one moment, however long it takes here."""
        os.kill(self.sidecar.process.pid, signal.SIGSTOP)
        try:
            return [self.dial() for _ in range(count)]
        finally:
            os.kill(self.sidecar.process.pid, signal.SIGCONT)

    def log_in(self, user: str) -> Peer:
        peer = Peer(self.address, user=(user, f"{user}-secret"))
        self.sockets.append(peer.sock)
        return peer

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        until(lambda: not self.metric("connections_active"))
        until(lambda: not self.metric("quota_principals", quota=NUMBER))
        assert self.connections() == {}

    def closed(self) -> float:
        return self.metric("connections_closed_total", cause="principal_quota_exceeded")

    def connections(self) -> dict[str, int]:
        return {one.principal: one.connections for one in admin_client.get_quotas(self.admin).principals}


@pytest.fixture
def sites(tmp_path):
    made: list[Site] = []

    def start(listeners, **settings):
        made.append(Site(tmp_path, listeners, settings))
        return made[-1]

    yield start
    for site in made:
        for sock in site.sockets:
            sock.close()
        assert site.sidecar.stop()
        assert "-secret" not in site.log.read_text()


@pytest.fixture
def limited(cluster, sites):
    """With listeners CLIENT and, protected where it is asked for, INTER, before the same broker."""
    node = cluster.nodes[0]

    def start(inter="", **settings):
        upstream = {"advertised": node.advertised, "upstream": node.upstream}
        listeners: list[dict[str, Any]] = [{"name": "CLIENT", "bind": node.advertised, **upstream}]
        if inter:
            listeners.append({"name": "INTER", "bind": inter, "inter.broker": True, **upstream})
        return sites(listeners, **settings)

    return start


@pytest.fixture
def logged_in(secured, sites):
    def start(**settings):
        listener = {"name": "SASL", "bind": f"127.0.0.1:{free_ports(1)[0]}", "security.protocol": "SASL_PLAINTEXT"}
        return sites([listener | {"upstream": secured.listeners["SASL"].address}], **settings)

    return start


def answered(sock: socket.socket) -> bool:
    """Whether the broker answers through it; False where it is closed instead."""
    try:
        return bool(sock.recv(4))
    except ConnectionResetError:
        return False


def asks_again(sock: socket.socket) -> bool:
    sock.recv(65536)
    time.sleep(0.05)
    sock.sendall(HELLO)
    return answered(sock)


def waits(sock: socket.socket) -> bool:
    """Whether nothing has happened to it in a while."""
    sock.settimeout(0.5)
    try:
        return bool(sock.recv(4)) and False
    except TimeoutError:
        return True
    finally:
        sock.settimeout(60)


def throttles(bootstrap: str, topic: str) -> list[ThrottleEvent]:
    found = [event for message in messages(bootstrap, topic) for event in decoder.decode(message.value()).events]
    return [event for event in found if isinstance(event, ThrottleEvent)]


@pytest.mark.promise(
    "limits.md", "At `max.connections`, new connections wait until another one ends, and nobody is refused."
)
@pytest.mark.promise(
    "limits.md",
    "For an inter-broker connection beyond `max.connections` the sidecar closes the client connection "
    "that has been idle for longest.",
)
def test_connections_beyond_the_number_wait_for_a_slot_and_those_that_give_up_cost_the_broker_nothing(
    limited,
):
    inter = f"127.0.0.1:{free_ports(1)[0]}"
    site = limited(inter, quotas={"max.connections": 3}, **{"drain.timeout.ms": 500})
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
    assert asks_again(inside[0])
    between = site.dial(inter)
    assert answered(between)
    while inside[1].recv(65536):  # what is left of its only answer
        pass
    until(lambda: site.metric("connections_active") == 3)
    assert site.metric("connections_closed_total", cause="evicted", listener="CLIENT") == 1
    assert all(map(asks_again, (inside[0], last, between)))
    assert waits(never)
    assert site.sidecar.stop()
    assert not answered(never), "a shutdown closes whoever waits"


@pytest.mark.promise(
    "metrics.md", "On each page of `/metrics` every accepted connection is active, waiting, held or closed."
)
@pytest.mark.promise(
    "limits-operation.md", "The audit topic has an event of kind `throttle` for each address, limit and second."
)
def test_addresses_have_limits_of_their_own_and_the_audit_and_the_log_say_who_met_them(limited, cluster):
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
    assert found == {
        ("127.0.0.1", RATE, "hold"): 10,
        ("127.0.0.1", RATE, "drop"): 9,
        ("127.0.0.4", "connections", "drop"): 1,
    }
    lines = site.throttle_lines()
    assert {line["top_address"] for line in lines} == {"127.0.0.1", "127.0.0.4"}
    assert sum(line["connections"] for line in lines if line["action"] == "drop") == 10


@pytest.mark.promise(
    "limits-operation.md",
    "How long connections waited, and how long the listener accepted nothing, are metrics of that listener.",
)
@pytest.mark.promise(
    "limits.md", "Beyond the rate of a listener real clients only wait longer: none of them is refused."
)
def test_real_clients_only_wait_longer_at_the_rate_of_a_listener(limited, cluster, topic):
    name = "listener.name.client.max.connection.creation.rate"
    site = limited(quotas={name: 1, "quota.window.num": 2})
    records = [f"r{number}".encode() for number in range(100)]
    produce(site.address, topic, records)
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


ROOT = Path(__file__).parents[2]
STRANGER = "127.0.0.251"
"""A client's address without a quota."""


@pytest.mark.promise("limits-operation.md", "The MBeans that the page names are a real broker's.")
def test_the_table_names_what_a_broker_has(cluster):
    page = (ROOT / "docs" / "limits-operation.md").read_text()
    table = re.findall(r"^\| `(kafka\.[^`]*)` \| `([^`]*)` \|", page, re.MULTILINE)
    assert len(table) == 6
    java = shutil.which("java")
    node = cluster.nodes[0]
    host, _, port = node.upstream.rpartition(":")
    patterns = ["kafka.server:type=socket-server-metrics,*", "kafka.network:type=Acceptor,*"]
    with socket.create_connection((host, int(port)), source_address=(STRANGER, 0)):
        listed = subprocess.run(
            [java, str(ROOT / "tests" / "tools" / "Mbeans.java"), str(node.pid), *patterns],
            capture_output=True,
            check=True,
            text=True,
            timeout=200,
        )
    names = (line.rpartition(" ") for line in listed.stdout.splitlines())
    mbeans = {(name, attribute) for name, _, attribute in names}

    for name, attribute in table:
        if ",ip=" not in name:
            assert (name.replace("listener=…", "listener=CLIENT"), attribute) in mbeans
    # A listener has its rate without a limit, an address has none.
    rates = {name for name, attribute in mbeans if attribute == "connection-accept-rate"}
    assert "kafka.server:type=socket-server-metrics,listener=CLIENT" in rates
    assert f"kafka.server:type=socket-server-metrics,ip={STRANGER}" not in rates


def is_served(peer: Peer) -> bool:
    try:
        return bool(peer.ask(METADATA, 1, b"\0\0\0\0"))
    except (ConnectionError, BrokenPipeError):
        return False


def is_closed(peer: Peer) -> bool:
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
def test_one_connection_too_many_of_a_principal_is_closed_and_those_of_another_are_not(logged_in, secured):
    """After a reload, which knows the connections that were open before."""
    topic = f"audit-{uuid.uuid4().hex[:8]}"
    audit = {"observer.class.names": ["observers.audit:AuditObserver"], "audit": {"topic": topic}}
    audit |= {"internal.bootstrap.servers": secured.node.internal, "observer.shutdown.timeout.ms": 20_000}
    site = logged_in(workers=2, **audit)
    alices = [site.log_in("alice") for _ in range(3)]
    assert all(map(is_served, alices))
    assert site.connections() == {}
    quotas = {"ip.store": "file", "max.connections.per.principal": 50}
    site.reload(**quotas, **{"max.connections.per.principal.overrides": "alice:2"})
    until(lambda: site.connections() == {"User:alice": 3})
    assert all(map(is_served, alices))
    alices.pop().sock.close()
    until(lambda: site.connections() == {"User:alice": 2})
    assert all(is_closed(site.log_in("alice")) for _ in range(2))
    bobs = [site.log_in("bob") for _ in range(6)]
    assert all(map(is_served, [*alices, *bobs]))
    until(lambda: site.connections() == {"User:alice": 2, "User:bob": 6})
    assert site.throttled(scope="principal", quota=NUMBER, action="drop") == 2
    until(lambda: site.closed() == 2)
    assert site.metric("quota_principals", quota=NUMBER) == 2
    until(site.throttle_lines)
    line = site.throttle_lines()[0]
    assert (line["scope"], line["action"], line["limit"]) == ("principal", "drop", 2)
    assert (line["top_principal"], line["top_address"]) == ("User:alice", "127.0.0.1")
    alices[0].sock.close()
    until(lambda: site.connections().get("User:alice") == 1)
    assert is_served(site.log_in("alice"))
    site.close()
    site.reload(**{"ip.store": "file", "max.connections.per.principal": 1})
    die_in_their_login(site)
    until(lambda: not site.metric("connections_active"))
    until(lambda: site.connections() == {})
    assert is_served(site.log_in("alice"))
    assert site.throttled(scope="principal", quota=NUMBER, action="drop") == 2
    site.close()
    site.reload(**{"ip.store": "file"})
    assert is_served(site.log_in("alice"))
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
def test_beyond_its_rate_a_principal_is_held_and_goes_on_or_is_closed(logged_in):
    site = logged_in(quotas={"users": {"alice": 1, "bob": 1000}})
    alices = [site.log_in("alice") for _ in range(30)]  # ten at once, and one in each second
    bobs = [site.log_in("bob") for _ in range(13)]
    assert all(map(is_served, bobs))
    worked = list(map(is_served, alices))
    assert all(worked[:10])
    closed = worked.count(False)
    assert closed > 0
    until(lambda: site.connections() == {"User:alice": 30 - closed, "User:bob": 13})
    held = site.metric("principal_connection_throttle_time_seconds_count")
    assert held == site.throttled(scope="principal", quota=RATE, action="hold") >= closed
    assert 0 < site.metric("principal_connection_throttle_time_seconds_sum") <= held
    assert site.throttled(scope="principal", quota=RATE, action="drop") == closed
    until(lambda: site.closed() == closed)
    view = {one.principal: one for one in admin_client.get_quotas(site.admin).principals}
    assert (view["User:alice"].rate_limit, view["User:bob"].rate_limit) == (1, 1000)
    window = {"quota.window.num": 2, "quota.window.size.seconds": 30}
    site = logged_in(workers=2, quotas={"users": {"alice": 1}, **window})
    alices = [site.log_in("alice") for _ in range(30)]
    until(lambda: site.connections() == {"User:alice": 30})
    while not site.throttled(scope="principal", quota=RATE, action="hold"):
        alices.append(site.log_in("alice"))
        until(lambda: site.connections().get("User:alice") == len(alices))
    assert is_served(alices[-1]), "held, and then allowed"
    assert site.throttled(scope="principal", quota=RATE, action="drop") == site.closed() == 0
