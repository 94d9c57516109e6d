"""Keys of connection limits: what they may be, what is said where they are wrong, and the limits they come to."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from proxy.config import Config, host_names, load, redacted
from proxy.config.limits import limits_of
from proxy.errors import ConfigError
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas, ListenerLimits, Quota
from proxy.reload import ConfigFileMonitor, Reloader

HEAD = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
  - {name: My.Other, bind: "127.0.0.1:9093", upstream: "127.0.0.1:19093"}
"""
CLUSTER = "internal.bootstrap.servers: 127.0.0.1:19094\n"
PROTECTED = HEAD.replace("My.Other,", "My.Other, inter.broker: true,")
SASL = HEAD.replace("My.Other,", "My.Other, security.protocol: SASL_PLAINTEXT,")
OAUTH = CLUSTER + "internal: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}\n"

DOCUMENTED = """\
quotas:
  quota.window.num: 11
  quota.window.size.seconds: 1
  max.connection.creation.rate: 200
  max.connections: 5000
  max.connections.per.ip: 500
  max.connections.per.ip.overrides: "10.0.0.7:50"
  listener.name.client.max.connection.creation.rate: 100
  listener.name.client.max.connections: 4000
  ips: {"<default>": {connection_creation_rate: 20}, "10.0.0.7": {connection_creation_rate: 5}}
"""

Load = Callable[..., Config]


@pytest.fixture
def config(tmp_path: Path) -> Load:
    def config(text: str, **environ: str) -> Config:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return load(path, environ)

    return config


def problem(config: Load, text: str, **environ: str) -> str:
    try:
        config(text, **environ)
    except ConfigError as error:
        (only,) = error.problems
        return str(only)
    raise AssertionError(f"there is no mistake in {text}")


def quotas(*lines: str, head: str = HEAD) -> str:
    return head + "quotas:\n" + "".join(f"  {line}\n" for line in lines)


@pytest.mark.promise(
    "config/quotas.md", "The keys of quotas limit all listeners, each listener and addresses, as documented."
)
def test_the_quotas_as_they_are_documented(config):
    more = "  listener.name.my.other.max.connections.action: observe\n  source: min\n"
    loaded = config(HEAD + CLUSTER + DOCUMENTED + more)
    limits = limits_of(loaded)
    assert (limits.rate, limits.connections, limits.ip_connections) == (Quota(200), Quota(5000), Quota(500))
    assert limits.ip_connections_overrides == {"10.0.0.7": 50}
    assert limits.ip_rates == {DEFAULT_ADDRESS: Quota(20), "10.0.0.7": Quota(5)}
    assert limits.listeners["CLIENT"] == ListenerLimits(rate=Quota(100), connections=Quota(4000))
    assert limits.listeners["My.Other"] == ListenerLimits(Quota(200), Quota(UNLIMITED, "observe"))
    shown = redacted(loaded)
    assert shown["quotas"]["listener.name.my.other.max.connections.action"] == "observe"
    assert "listener.name" not in shown["quotas"]
    assert config(yaml.safe_dump(shown)) == loaded, "what is shown can be loaded again"
    short, long = (config(quotas(f"ips: {{<default>: {rate}}}")) for rate in ("50", "{connection_creation_rate: 50}"))
    assert limits_of(short).ip_rates == {DEFAULT_ADDRESS: Quota(50)}
    assert redacted(short) == redacted(long)


@pytest.mark.promise(
    "config/quotas.md", "A wrong key or value of quotas is an error that names what is allowed, and its line."
)
def test_one_wrong_line(config):
    for line, expected in (
        ("max.connections: 0", "max.connections: 0 is out of range (allowed: 1–2147483647 connections)"),
        ("max.connections: 1.5", "max.connections: 1.5 is not a whole number"),
        ("max.connection.creation.rate.action: drop", "action: 'drop' is not known (allowed: enforce or observe)"),
        ("max.connections.per.ip: -1", "max.connections.per.ip: -1 is out of range (allowed: 0–2147483647"),
        ("max.connections.per.ip: 0", "max.connections.per.ip: 0 lets nobody in (allowed: 1 or more, or 0 with"),
        ("max.connections.per.ip.overrides: '[kafka]:5'", "names '[kafka]', which is not an IP address"),
        ("max.connections.per.ip.overrides: 10.0.0.7=50", "lacks :connections behind '10.0.0.7=50' (allowed: address:"),
        ("max.connections.per.ip.overrides: '10.0.0.1:2147483648'", "gives 10.0.0.1 '2147483648' connections"),
        ("max.connections.per.ip.overrides: '::1:1,[0::1]:2'", "names ::1 twice"),
        ("quota.window.num: 0", "quota.window.num: 0 is out of range (allowed: 1–1000 windows)"),
        ("ip.throttle.recheck: 1", "ip.throttle.recheck: 1 is not true or false (allowed: true or false)"),
        ("ip.store: broker", "ip.store: 'broker' needs internal.bootstrap.servers, which is missing (allowed: file)"),
        ("source: min", "source: 'min' needs internal.bootstrap.servers, which is missing (allowed: file)"),
        ("source: max", "source: 'max' is not known (allowed: file, broker or min"),
        ("ips: {10.0.0.1: 0}", "ips.10.0.0.1.connection_creation_rate: 0 is out of range"),
        ("ips: {10.0.0.1: {connection_creation_rate: 1, action: x}}", "ips.10.0.0.1.action: 'x' is not known"),
        ("ips: {10.0.0.0/8: {connection_creation_rate: 1}}", "ips.10.0.0.0/8: '10.0.0.0/8' is not an IP address"),
        ("max.conections: 1", "max.conections: unknown key (did you mean max.connections?)"),
        ("listener.name.client.max.conections: 1", "conections: unknown key (did you mean max.connections?)"),
        ("listener.name.client.max.connections.per.ip: 1", "client.max.connections.per.ip: unknown key"),
        ("listener.name: {client: {max.connections: 1}}", "listener.name: unknown key (allowed: listener.name.<l"),
        ("listener.name.x.max.connections: 1", "max.connections: 'x' is no listener (allowed: client, my.other)"),
    ):
        found = problem(config, quotas("max.connections.action: observe", line))
        assert found.startswith("quotas."), line
        assert expected in found, line
        assert re.search(r" at line 7, column \d+$", found), line
    assert problem(config, HEAD + "max.connections: 5\n") == (
        "max.connections: unknown key (write it under quotas) at line 5, column 1"
    )
    twice = ["ips:", "  '::1': {connection_creation_rate: 1}", "  0:0::1: {connection_creation_rate: 1}"]
    assert "is the address ::1 once more (allowed: one spelling) at line 8, column 5" in problem(config, quotas(*twice))
    twice = ["listener.name.client.max.connections: 1", "listener.name.Client.max.connections.action: observe"]
    assert "names listener client in another spelling (allowed: one" in problem(config, quotas(*twice))


def test_the_keys_of_a_listener(config):
    keys = (
        "proxy.protocol: required, proxy.protocol.trusted: [10.0.0.0/8, 192.0.2.7, 'FD00::/8'], upstream.source: 0::1"
    )
    listener = config(HEAD.replace("name: CLIENT,", f"name: CLIENT, {keys},")).listeners[0]
    assert listener.proxy_protocol == "required"
    assert listener.proxy_protocol_trusted == ("10.0.0.0/8", "192.0.2.7/32", "fd00::/8")
    assert listener.upstream_source == "::1"
    for wrong, expected in (
        ("inter.broker: 1", "inter.broker: 1 is not true or false (allowed: true or false)"),
        ("proxy.protocol: v2", "proxy.protocol: 'v2' is not known (allowed: disabled or required)"),
        ("proxy.protocol: required", "proxy.protocol.trusted: is missing, and proxy.protocol: required needs it"),
        ("proxy.protocol: required, proxy.protocol.trusted: []", "proxy.protocol.trusted: is missing, and"),
        ("proxy.protocol.trusted: [10.0.0.1/8]", "proxy.protocol.trusted[0]: '10.0.0.1/8' has bits set behind its"),
        ("proxy.protocol.trusted: [lb]", "proxy.protocol.trusted[0]: 'lb' is no network (allowed: a list of networks"),
        ("upstream.source: localhost", "upstream.source: 'localhost' is not an IP address"),
    ):
        found = problem(config, HEAD.replace("name: CLIENT,", f"name: CLIENT, {wrong},"))
        assert found.startswith(f"listeners[0].{expected}"), wrong
        assert re.search(r" at line 3, column \d+$", found), wrong
    found = problem(config, PROTECTED.replace("name: CLIENT,", "name: CLIENT, inter.broker: true,"))
    assert found.startswith("listeners[1].inter.broker: true is given to another listener already (allowed: one")


@pytest.mark.promise(
    "limits.md", "A listener without a rate of its own has that of all listeners, and the same action."
)
def test_limits_of_a_listener_are_its_own_or_inherited(config):
    rate, own = "max.connection.creation.rate", "listener.name.my.other.max.connection.creation.rate"
    connections = "listener.name.my.other.max.connections"
    for lines, expected in (
        ([f"{rate}: 50"], ListenerLimits(Quota(50))),
        ([f"{own}: 20"], ListenerLimits(Quota(20))),
        ([f"{rate}: 50", f"{own.replace('my', 'MY')}: 80"], ListenerLimits(Quota(80))),
        ([f"{rate}: 50", f"{rate}.action: observe"], ListenerLimits(Quota(50, "observe"))),
        ([f"{rate}.action: observe", f"{own}: 20"], ListenerLimits(Quota(20, "observe"))),
        ([f"{rate}: 50", f"{own}.action: observe"], ListenerLimits(Quota(50, "observe"))),
        ([f"{connections}: 3"], ListenerLimits(connections=Quota(3))),
        ([f"{connections}: 3", f"{connections}.action: observe"], ListenerLimits(connections=Quota(3, "observe"))),
        (["listener.name.client.max.connections: 3"], ListenerLimits()),
    ):
        assert limits_of(config(quotas(*lines))).listeners["My.Other"] == expected, lines
    limits = limits_of(config(quotas(f"{rate}: 50", "max.connections: 9", head=PROTECTED)))
    assert limits.listeners["CLIENT"] == ListenerLimits(rate=Quota(50))
    assert limits.listeners["My.Other"] == ListenerLimits(rate=Quota(50), connections=Quota(9), protected=True)
    alone = "".join(line for line in PROTECTED.splitlines(keepends=True) if "CLIENT" not in line)
    assert limits_of(config(alone)).listeners == {"My.Other": ListenerLimits()}, "alone it is not protected"


@pytest.mark.promise(
    "limits.md", "Where the settings under `internal` do not allow to ask the cluster, only the file's quotas count."
)
def test_where_the_cluster_cannot_be_asked_only_the_file_counts(config, tmp_path):
    why = "internal: sasl.mechanism OAUTHBEARER is not supported for reading the cluster's quotas"
    for head, store in ((HEAD, "file"), (HEAD + CLUSTER, "broker"), (HEAD + OAUTH, "file")):
        assert config(head).quotas.ip_store == config(head + DOCUMENTED).quotas.ip_store == store, head
        assert config(quotas("ip.store: file", head=head)).quotas.ip_store == "file", head
    assert (config(HEAD + OAUTH).quotas_unread or "").startswith(why)
    assert config(HEAD + CLUSTER).quotas_unread is None
    assert config((HEAD + OAUTH).replace(CLUSTER, "")).quotas_unread is None, "without a cluster nothing is missed"
    for key, value in (("ip.store", "broker"), ("source", "broker"), ("source", "min")):
        found = problem(config, quotas(f"{key}: {value}", head=HEAD + OAUTH))
        assert found.startswith(f"quotas.{key}: {value!r} is not possible (allowed: file), {why}"), (key, value)
    login = "security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: me"
    for wrong in ("sasl.password.file: /run/password", "sasl.pasword: {file: nowhere}"):
        found = problem(config, f"{HEAD}{CLUSTER}internal: {{{login}, {wrong}}}\nquotas: {{ip.store: broker}}\n")
        assert found.startswith(f"internal.{wrong.split(':')[0]}: "), "what is wrong by itself is reported once"
    (tmp_path / "secret").write_text("hunter2")
    loaded = config(f"{HEAD}{CLUSTER}internal: {{{login}, sasl.password: {{file: secret}}}}\n")
    assert (loaded.quotas.ip_store, loaded.quotas_unread) == ("broker", None)


@pytest.mark.promise(
    "limits.md",
    "For one address the cluster's rate overrides the file's; when it is deleted, the file's applies again.",
)
def test_rates_of_addresses_in_the_cluster(config):
    default, own = Quota(20, "observe"), Quota(5)
    ips = "ips: {<default>: {connection_creation_rate: 20, action: observe}, 10.0.0.7: {connection_creation_rate: 5}}"
    for store, stored, expected in (
        ("broker", {}, {DEFAULT_ADDRESS: default, "10.0.0.7": own}),
        ("broker", {"10.0.0.7": 9}, {DEFAULT_ADDRESS: default, "10.0.0.7": Quota(9)}),
        ("broker", {"::1": 9}, {DEFAULT_ADDRESS: default, "10.0.0.7": own, "::1": Quota(9)}),
        ("broker", {DEFAULT_ADDRESS: 3}, {DEFAULT_ADDRESS: Quota(3, "observe"), "10.0.0.7": own}),
        ("broker", {"10.0.0.7": UNLIMITED}, {DEFAULT_ADDRESS: default, "10.0.0.7": Quota(UNLIMITED)}),
        ("file", {"10.0.0.7": 9}, {DEFAULT_ADDRESS: default, "10.0.0.7": own}),
    ):
        loaded = config(quotas(f"ip.store: {store}", ips, head=HEAD + CLUSTER))
        limits = limits_of(loaded, ClusterQuotas(ip_rates=stored))
        assert {address: limits.ip_rate(address) for address in expected} == expected, (store, stored)
        assert limits.ip_rate("192.0.2.1") == expected[DEFAULT_ADDRESS], (store, stored)
    loaded = config(quotas("connection_creation_rate.action: observe", head=HEAD + CLUSTER))
    limits = limits_of(loaded, ClusterQuotas({"10.0.0.7": 9}))
    assert limits.ip_rate("10.0.0.7") == Quota(9, "observe")
    assert not limits.ip_rate("10.0.0.8").limited


@pytest.mark.promise("limits.md", "With `source: min` the lower one of the file's and the broker's rate counts.")
def test_the_source_of_rates(config):
    for source, file, of_broker, expected in (
        ("file", 50, 20, 50),
        ("file", None, 20, UNLIMITED),
        ("broker", 50, 20, 20),
        ("broker", 20, 50, 50),
        ("broker", 50, None, 50),
        ("broker", None, None, UNLIMITED),
        ("min", 50, 20, 20),
        ("min", 20, 50, 20),
        ("min", 50, None, 50),
        ("min", None, 20, 20),
    ):
        case = (source, file, of_broker)
        lines = [f"source: {source}", f"max.connection.creation.rate: {file}"][: 2 if file else 1]
        limits = limits_of(config(quotas(*lines, head=HEAD + CLUSTER)), ClusterQuotas(rate=of_broker))
        assert limits.rate.limit == limits.listeners["CLIENT"].rate.limit == expected, case
        lines = [line.replace("max.", "listener.name.client.max.") for line in lines]
        rates = {} if of_broker is None else {"client": of_broker}
        limits = limits_of(config(quotas(*lines, head=HEAD + CLUSTER)), ClusterQuotas(listener_rates=rates))
        assert limits.listeners["CLIENT"].rate.limit == expected, case
        assert (limits.rate.limited, limits.listeners["My.Other"].rate.limited) == (False, False), case


@pytest.mark.promise("config/quotas.md", "Limits of principals need a listener on which clients log in.")
def test_limits_of_principals(config):
    lines = [
        "max.connections.per.principal: 100",
        "max.connections.per.principal.overrides: 'alice:10, a:b:20'",
        "max.connections.per.principal.action: observe",
        "users: {<default>: 20, alice: {connection_creation_rate: 5, action: enforce}}",
        "user.connection_creation_rate.action: observe",
    ]
    loaded = config(quotas(*lines, head=SASL))
    limits = limits_of(loaded)
    assert limits.any_of_principals
    for user, number, rate in (
        ("bob", Quota(100, "observe"), Quota(20, "observe")),
        ("alice", Quota(10, "observe"), Quota(5)),
        ("a:b", Quota(20, "observe"), Quota(20, "observe")),
    ):
        assert limits.principal_connection_quota(f"User:{user}") == number, user
        assert limits.principal_rate(f"User:{user}") == rate, user
    assert config(yaml.safe_dump(redacted(loaded))) == loaded
    none = limits_of(config(SASL))
    assert none.principal_rate("User:alice") == none.principal_connection_quota("User:alice") == Quota()
    for line in (lines[0], lines[1], "users: {alice: 5}"):
        found = problem(config, quotas(line))
        assert "limits nobody: no client is known by its login (allowed: with security.protocol" in found, line
    overrides = "max.connections.per.principal.overrides"
    for line, expected in (
        ("max.connections.per.principal: 0", "per.principal: 0 lets nobody in (allowed: 1 or more, or 0 with"),
        (f"{overrides}: alice", "lacks :connections behind 'alice'"),
        (f"{overrides}: ':5'", "names '', which is no user"),
        (f"{overrides}: 'alice:-1'", "gives alice '-1' connections"),
        (f"{overrides}: 'alice:1,alice:2'", "names alice twice"),
        (f"{overrides}: 'User:alice:1'", "'User:alice' with a type (allowed: a name without"),
        ("users: {alice: 0}", "users.alice.connection_creation_rate: 0 is out of range (allowed: 1–2147483647"),
        ("users: {'': 5}", "names '', which is no user"),
        ("users: {'User:alice': 5}", "with a type (allowed: a name without User:)"),
    ):
        with pytest.raises(ConfigError) as raised:
            config(quotas(line, head=SASL))
        assert expected in "\n".join(map(str, raised.value.problems)), line


KEY = "quotas.max.connections.per.ip.overrides"
FILE = """\
broker.id: 1
listeners:
  - {{name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}}
quotas:
  max.connections.per.ip.overrides: "{}"
"""


class NameService:
    """Answers in place of the machine's."""

    def __init__(self) -> None:
        self.addresses = {
            "gateway.example": ["2001:db8::7", "10.0.0.7", "10.0.0.8"],
            "v6.example": ["2001:DB8:0::9"],
            "other.example": ["10.0.0.9"],
        }
        self.asked: list[str] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, host, port, family=0, type=0, proto=0, flags=0):
        self.asked.append(host)
        self.threads.add(threading.current_thread())
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, 0)) for address in self.addresses[host]]


@pytest.fixture
def names(monkeypatch):
    names = NameService()
    monkeypatch.setattr(host_names.socket, "getaddrinfo", names)
    return names


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "sidecar.yaml"


def overrides(path: Path, text: str, **environ: str) -> dict[str, int]:
    path.write_text(FILE.format(text))
    return limits_of(load(path, environ)).ip_connections_overrides


@pytest.mark.promise("config/quotas.md", "A host name in an override stands for its first address, as in the broker.")
def test_a_name_stands_for_its_first_address_ipv4_before_ipv6(names, path):
    found = overrides(path, "gateway.example:50, v6.example:5,[fd00::7]:20,10.1.2.3:1")
    assert found == {"10.0.0.7": 50, "2001:db8::9": 5, "fd00::7": 20, "10.1.2.3": 1}
    assert sorted(names.asked) == ["gateway.example", "v6.example"]

    names.asked.clear()
    found = overrides(path, "010.0.0.7:1,10.8:2,[::1]:3,::ffff:10.0.0.9:4")
    assert found == {"10.0.0.7": 1, "10.0.0.8": 2, "::1": 3, "10.0.0.9": 4}
    assert names.asked == [], "the broker reads these as addresses"

    variable = {"BROKERSIDE_QUOTAS__MAX_CONNECTIONS_PER_IP_OVERRIDES": "other.example:3"}
    assert overrides(path, "gateway.example:50", **variable) == {"10.0.0.9": 3}

    names.threads.clear()
    names.addresses = {f"host-{number}.example": [f"10.0.1.{number}"] for number in range(200)}
    assert len(overrides(path, ",".join(f"{name}:1" for name in names.addresses))) == 200
    assert len(names.threads) <= host_names.CONCURRENT_LOOKUPS


@pytest.mark.promise("config/quotas.md", "A reload looks host names up again, and the event loop never does.")
async def test_a_reload_asks_again_and_never_in_the_event_loop(names, path):
    path.write_text(FILE.format("gateway.example:50"))
    applied = []

    async def apply(config):
        applied.append(config)
        return True

    reloader = Reloader(ConfigFileMonitor(path), await asyncio.to_thread(load, path, {}), apply)
    assert (await reloader.reload("test")).result == "unchanged"

    names.addresses["gateway.example"] = ["10.0.0.17"]
    result = await reloader.reload("test")

    assert (result.result, result.changed) == ("applied", (KEY,))
    assert limits_of(applied[0]).ip_connections_overrides == {"10.0.0.17": 50}
    assert threading.main_thread() not in names.threads
    del names.addresses["gateway.example"]
    assert (await reloader.reload("test")).result == "rejected"
    assert limits_of(reloader.config).ip_connections_overrides == {"10.0.0.17": 50}
