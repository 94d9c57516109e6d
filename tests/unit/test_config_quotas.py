"""Keys of connection limits: what they may be, what is said where they are wrong, and the limits they come to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from proxy.config import Config, load, redacted
from proxy.config.limits import limits_of
from proxy.errors import ConfigError
from proxy.limits.model import DEFAULT_ADDRESS, UNLIMITED, ClusterQuotas, ListenerLimits, Quota

HEAD = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
  - {name: My.Other, bind: "127.0.0.1:9093", upstream: "127.0.0.1:19093"}
"""
CLUSTER = "internal.bootstrap.servers: 127.0.0.1:19094\n"
PROTECTED = HEAD.replace("My.Other,", "My.Other, inter.broker: true,")

ONCE = "(allowed: one spelling) at line 7, column 3"

DESIGN = """\
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
"""As it stands in the design."""


@pytest.fixture
def config(tmp_path: Path):
    """Load a text with its environment."""

    def config(text: str, **environ: str) -> Config:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return load(path, environ)

    return config


@pytest.fixture
def problem(config):
    """The one mistake of a text."""

    def problem(text: str, **environ: str) -> str:
        with pytest.raises(ConfigError) as raised:
            config(text, **environ)
        (only,) = raised.value.problems
        return only

    return problem


def quotas(*lines: str) -> str:
    return HEAD + "quotas:\n" + "".join(f"  {line}\n" for line in lines)


def test_without_quotas_nothing_is_limited(config):
    loaded = config(HEAD)
    limits = limits_of(loaded)

    assert limits.listeners == {"CLIENT": ListenerLimits(), "My.Other": ListenerLimits()}
    assert not any(quota.limited for quota in (limits.rate, limits.connections, limits.ip_connections))
    assert (limits.ip_rates, limits.ip_connections_overrides) == ({}, {})
    assert (limits.samples, limits.window_ms, limits.recheck, limits.max_held) == (11, 1000, True, 1000)
    assert (loaded.quotas.source, loaded.quotas.protect_upstream) == ("file", True)
    for listener in loaded.listeners:
        assert (listener.inter_broker, listener.proxy_protocol) == (False, "disabled")
        assert (listener.proxy_protocol_trusted, listener.upstream_source) == ((), None)


def test_the_quotas_of_the_design(config):
    limits = limits_of(config(HEAD + DESIGN))

    assert limits.rate == Quota(200)
    assert limits.connections == Quota(5000)
    assert limits.ip_connections == Quota(500)
    assert limits.ip_connections_overrides == {"10.0.0.7": 50}
    assert limits.ip_rates == {DEFAULT_ADDRESS: Quota(20), "10.0.0.7": Quota(5)}
    assert limits.listeners["CLIENT"] == ListenerLimits(rate=Quota(100), connections=Quota(4000))
    assert limits.listeners["My.Other"] == ListenerLimits(rate=Quota(200))


def test_a_rate_of_an_address_may_be_a_plain_number(config):
    short, long = (config(quotas(f"ips: {{<default>: {rate}}}")) for rate in ("50", "{connection_creation_rate: 50}"))

    assert limits_of(short).ip_rates == {DEFAULT_ADDRESS: Quota(50)}
    assert redacted(short) == redacted(long)


def test_quotas_that_are_all_commented_out_limit_nothing(config):
    assert config(HEAD + "quotas:\n  # max.connections: 5\n") == config(HEAD)
    assert config(HEAD + CLUSTER + "quotas:\n").quotas.ip_store == "broker"
    assert config(quotas("ips:", "# 10.0.0.7: 5")) == config(HEAD)
    assert config(HEAD + "quotas:\n", BROKERSIDE_QUOTAS__MAX_CONNECTIONS="7").quotas.max_connections == 7


def test_what_was_loaded_can_be_shown_and_loaded_again(config):
    more = "  listener.name.my.other.max.connections.action: observe\n  source: min\n"
    loaded = config(HEAD + CLUSTER + DESIGN + more)

    shown = redacted(loaded)

    assert shown["quotas"]["listener.name.my.other.max.connections.action"] == "observe"
    assert "listener.name" not in shown["quotas"]
    assert config(yaml.safe_dump(shown)) == loaded


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max.connections: 0", "max.connections: 0 is out of range (allowed: 1–2147483647 connections)"),
        ("max.connections: -1", "max.connections: -1 is out of range"),
        ("max.connections: 2147483648", "max.connections: 2147483648 is out of range"),
        ("max.connections: 1.5", "max.connections: 1.5 is not a whole number"),
        ("max.connections: yes", "max.connections: true is not a whole number"),
        ("max.connection.creation.rate: 0", "max.connection.creation.rate: 0 is out of range (allowed: 1–2147483647"),
        ("max.connection.creation.rate: '5'", "max.connection.creation.rate: '5' is not a whole number"),
        ("max.connection.creation.rate.action: drop", "action: 'drop' is not known (allowed: enforce or observe)"),
        ("max.connections.per.ip: -1", "max.connections.per.ip: -1 is out of range (allowed: 0–2147483647"),
        ("max.connections.per.ip: 0", "max.connections.per.ip: 0 lets nobody in (allowed: 1 or more, or 0 with"),
        ("max.connections.per.ip.overrides: 5", "max.connections.per.ip.overrides: 5 is not text"),
        ("max.connections.per.ip.overrides: '[kafka]:5'", "names '[kafka]', which is not an IP address"),
        (
            "max.connections.per.ip.overrides: 10.0.0.1",
            "lacks :connections behind '10.0.0.1' (allowed: address:connections or host name:conn",
        ),
        ("max.connections.per.ip.overrides: 10.0.0.7=50", "lacks :connections behind '10.0.0.7=50'"),
        ("max.connections.per.ip.overrides: ':5'", "names '', which is not an IP address"),
        ("max.connections.per.ip.overrides: '10.0.0.1:'", "gives 10.0.0.1 '' connections"),
        ("max.connections.per.ip.overrides: '10.0.0.1:-1'", "gives 10.0.0.1 '-1' connections"),
        ("max.connections.per.ip.overrides: '10.0.0.1:2147483648'", "gives 10.0.0.1 '2147483648' connections"),
        ("max.connections.per.ip.overrides: '10.0.0.1:1,'", "lacks :connections behind ''"),
        ("max.connections.per.ip.overrides: '::1:1,[0::1]:2'", "names ::1 twice"),
        ("quota.window.num: 0", "quota.window.num: 0 is out of range (allowed: 1–1000 windows)"),
        ("quota.window.size.seconds: 0", "quota.window.size.seconds: 0 is out of range (allowed: 1–3600 s)"),
        ("ip.throttle.recheck: 1", "ip.throttle.recheck: 1 is not true or false (allowed: true or false)"),
        ("ip.throttle.max.delayed: -1", "ip.throttle.max.delayed: -1 is out of range"),
        ("protect.upstream: maybe", "protect.upstream: 'maybe' is not true or false"),
        ("ip.store: topic", "ip.store: 'topic' is not known (allowed: broker"),
        ("ip.store: broker", "ip.store: 'broker' needs internal.bootstrap.servers, which is missing (allowed: file)"),
        ("source: min", "source: 'min' needs internal.bootstrap.servers, which is missing (allowed: file)"),
        ("source: max", "source: 'max' is not known (allowed: file, broker or min"),
        ("ips: [a]", "ips: the value is not a mapping"),
        ("ips: {10.0.0.1: '5'}", "ips.10.0.0.1: '5' is not a mapping"),
        ("ips: {10.0.0.1: 0}", "ips.10.0.0.1.connection_creation_rate: 0 is out of range"),
        ("ips: {10.0.0.1: 5.5}", "ips.10.0.0.1.connection_creation_rate: 5.5 is not a whole number"),
        ("ips: {10.0.0.1: yes}", "ips.10.0.0.1.connection_creation_rate: true is not a whole number"),
        ("ips: {10.0.0.1: {}}", "ips.10.0.0.1.connection_creation_rate: is missing"),
        ("ips: {10.0.0.1: {connection_creation_rate: 0}}", "connection_creation_rate: 0 is out of range"),
        ("ips: {10.0.0.1: {connection_creation_rate: 1, rate: 2}}", "ips.10.0.0.1.rate: unknown key"),
        ("ips: {10.0.0.1: {connection_creation_rate: 1, action: x}}", "ips.10.0.0.1.action: 'x' is not known"),
        ("ips: {kafka-1: {connection_creation_rate: 1}}", "ips.kafka-1: 'kafka-1' is not an IP address (allowed: an"),
        ("ips: {10.0.0.0/8: {connection_creation_rate: 1}}", "ips.10.0.0.0/8: '10.0.0.0/8' is not an IP address"),
        ("max.conections: 1", "max.conections: unknown key (did you mean max.connections?)"),
        ("max.connection.creation.rate.per.ip: 1", "max.connection.creation.rate.per.ip: unknown key"),
        ("max.connection.creation.rate.per.ip.overrides: ''", "rate.per.ip.overrides: unknown key"),
        ("listener.name.client.max.connections: 0", "listener.name.client.max.connections: 0 is out of range"),
        ("listener.name.client.max.connections.action: 1", "client.max.connections.action: 1 is not known"),
        ("listener.name.client.max.conections: 1", "conections: unknown key (did you mean max.connections?)"),
        ("listener.name.client.max.connections.per.ip: 1", "client.max.connections.per.ip: unknown key"),
        ("listener.name.client: 1", "listener.name.client: unknown key (allowed: listener.name.<listener>.max.conn"),
        ("listener.name: {client: {max.connections: 1}}", "listener.name: unknown key (allowed: listener.name.<l"),
        ("listener.name.x.max.connections: 1", "max.connections: 'x' is no listener (allowed: client, my.other)"),
    ],
)
def test_one_wrong_line(problem, line, expected):
    found = problem(quotas("max.connections.action: observe", line))

    assert found.startswith("quotas.")
    assert expected in found
    assert re.search(r" at line 7, column \d+$", found)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["ips:", "  '::1': {connection_creation_rate: 1}", "  0:0::1: {connection_creation_rate: 1}"],
            "quotas.ips.0:0::1: is the address ::1 once more (allowed: one spelling) at line 8, column 5",
        ),
        (
            ["listener.name.client.max.connections: 1", "listener.name.Client.max.connections.action: observe"],
            f"quotas.listener.name.Client.max.connections.action: names listener client in another spelling {ONCE}",
        ),
    ],
)
def test_one_thing_in_two_spellings(problem, lines, expected):
    assert problem(quotas(*lines)) == expected


def test_quotas_at_the_top_are_reported_where_they_belong(problem):
    found = problem(HEAD + "max.connections: 5\n")
    assert found == "max.connections: unknown key (write it under quotas) at line 5, column 1"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("inter.broker: 1", "inter.broker: 1 is not true or false (allowed: true or false)"),
        ("proxy.protocol: v2", "proxy.protocol: 'v2' is not known (allowed: disabled or required)"),
        ("proxy.protocol: required", "proxy.protocol.trusted: is missing, and proxy.protocol: required needs it"),
        ("proxy.protocol: required, proxy.protocol.trusted: []", "proxy.protocol.trusted: is missing, and"),
        ("proxy.protocol.trusted: 10.0.0.0/8", "proxy.protocol.trusted: '10.0.0.0/8' is not a list"),
        ("proxy.protocol.trusted: [10.0.0.1/8]", "proxy.protocol.trusted[0]: '10.0.0.1/8' has bits set behind its"),
        ("proxy.protocol.trusted: [lb]", "proxy.protocol.trusted[0]: 'lb' is no network (allowed: a list of networks"),
        ("proxy.protocol.trusted: [10]", "proxy.protocol.trusted[0]: 10 is not text"),
        ("upstream.source: localhost", "upstream.source: 'localhost' is not an IP address"),
        ("upstream.source: 127.0.0.1/32", "upstream.source: '127.0.0.1/32' is not an IP address"),
    ],
)
def test_a_wrong_key_of_a_listener(problem, keys, expected):
    found = problem(HEAD.replace("name: CLIENT,", f"name: CLIENT, {keys},"))

    assert found.startswith(f"listeners[0].{expected}")
    assert re.search(r" at line 3, column \d+$", found)


def test_one_listener_is_for_the_brokers(problem):
    assert problem(PROTECTED.replace("name: CLIENT,", "name: CLIENT, inter.broker: true,")) == (
        "listeners[1].inter.broker: true is given to another listener already (allowed: one listener for it)"
        " at line 4, column 22"
    )


def test_the_keys_of_a_listener(config):
    keys = (
        "proxy.protocol: required, proxy.protocol.trusted: [10.0.0.0/8, 192.0.2.7, 'FD00::/8'], upstream.source: 0::1"
    )
    listener = config(HEAD.replace("name: CLIENT,", f"name: CLIENT, {keys},")).listeners[0]

    assert listener.proxy_protocol == "required"
    assert listener.proxy_protocol_trusted == ("10.0.0.0/8", "192.0.2.7/32", "fd00::/8")
    assert listener.upstream_source == "::1"


def test_variables_set_quotas(config, problem):
    loaded = config(
        HEAD + DESIGN,
        BROKERSIDE_QUOTAS__MAX_CONNECTIONS="7",
        BROKERSIDE_QUOTAS__MAX_CONNECTIONS_PER_IP_OVERRIDES="::1:5",
        BROKERSIDE_QUOTAS__IPS="{10.0.0.9: {connection_creation_rate: 9}}",
    )

    assert loaded.quotas.max_connections == 7
    assert limits_of(loaded).ip_connections_overrides == {"::1": 5}
    assert limits_of(loaded).ip_rates == {"10.0.0.9": Quota(9)}
    assert problem(HEAD, BROKERSIDE_QUOTAS__SOURCE="none").endswith(" from BROKERSIDE_QUOTAS__SOURCE")
    assert "is no key" in problem(HEAD, BROKERSIDE_QUOTAS__LISTENER_NAME="{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("10.0.0.7:50", {"10.0.0.7": 50}),
        (" 10.0.0.7 : 50 , 10.0.0.8:0", {"10.0.0.7": 50, "10.0.0.8": 0}),
        ("[fd00::7]:20,::1:5", {"fd00::7": 20, "::1": 5}),
        ("::ffff:10.0.0.7:1", {"10.0.0.7": 1}),
    ],
)
def test_overrides_are_read_as_kafka_does(config, text, expected):
    assert limits_of(config(quotas(f"max.connections.per.ip.overrides: '{text}'"))).ip_connections_overrides == expected


@pytest.mark.parametrize(("more", "expected"), [("", "file"), (CLUSTER, "broker")])
def test_rates_of_addresses_are_kept_in_the_cluster_where_there_is_one(config, more, expected):
    assert config(HEAD + more).quotas.ip_store == expected
    assert config(HEAD + more + DESIGN).quotas.ip_store == expected
    assert config(HEAD + more + "quotas: {ip.store: file}\n").quotas.ip_store == "file"


class TestListeners:
    """What one listener is limited to, by what is said of it and of all."""

    @pytest.mark.parametrize(
        ("lines", "rate", "connections"),
        [
            ([], Quota(), Quota()),
            (["max.connection.creation.rate: 50"], Quota(50), Quota()),
            (["listener.name.my.other.max.connection.creation.rate: 20"], Quota(20), Quota()),
            (
                ["max.connection.creation.rate: 50", "listener.name.MY.other.max.connection.creation.rate: 80"],
                Quota(80),
                Quota(),
            ),
            (
                ["max.connection.creation.rate: 50", "max.connection.creation.rate.action: observe"],
                Quota(50, "observe"),
                Quota(),
            ),
            (
                [
                    "max.connection.creation.rate.action: observe",
                    "listener.name.my.other.max.connection.creation.rate: 20",
                ],
                Quota(20, "observe"),
                Quota(),
            ),
            (
                [
                    "max.connection.creation.rate: 50",
                    "listener.name.my.other.max.connection.creation.rate.action: observe",
                ],
                Quota(50, "observe"),
                Quota(),
            ),
            (["listener.name.my.other.max.connections: 3"], Quota(), Quota(3)),
            (
                ["listener.name.my.other.max.connections: 3", "listener.name.my.other.max.connections.action: observe"],
                Quota(),
                Quota(3, "observe"),
            ),
            (["listener.name.client.max.connections: 3"], Quota(), Quota()),
        ],
    )
    def test_of_its_own_or_inherited(self, config, lines, rate, connections):
        text = quotas(*lines) if lines else HEAD

        assert limits_of(config(text)).listeners["My.Other"] == ListenerLimits(rate, connections)

    def test_the_inter_broker_one_beside_others_is_protected(self, config):
        lines = "quotas: {max.connection.creation.rate: 50, max.connections: 9}\n"

        limits = limits_of(config(PROTECTED + lines))

        assert limits.listeners["CLIENT"] == ListenerLimits(rate=Quota(50))
        assert limits.listeners["My.Other"] == ListenerLimits(rate=Quota(50), connections=Quota(9), protected=True)

    def test_the_inter_broker_one_alone_is_not(self, config):
        alone = "".join(line for line in PROTECTED.splitlines(keepends=True) if "CLIENT" not in line)

        assert limits_of(config(alone)).listeners == {"My.Other": ListenerLimits()}


class TestUnheeded:
    """Settings with which the cluster's quotas cannot be read."""

    OAUTH = "internal: {security.protocol: SASL_SSL, sasl.mechanism: OAUTHBEARER}\n"
    WHY = "internal: sasl.mechanism OAUTHBEARER is not supported for reading the cluster's quotas"

    def test_by_default_only_the_file_counts(self, config):
        loaded = config(HEAD + CLUSTER + self.OAUTH)

        assert loaded.quotas.ip_store == "file"
        assert loaded.quotas_unread.startswith(self.WHY)

    def test_without_a_cluster_nothing_is_missed(self, config):
        assert config(HEAD + self.OAUTH).quotas_unread is None
        assert config(HEAD + CLUSTER).quotas_unread is None

    @pytest.mark.parametrize("line", ["ip.store: broker", "source: broker", "source: min"])
    def test_what_depends_on_them_is_a_mistake(self, problem, line):
        key, value = line.split(": ")

        found = problem(f"{HEAD}{CLUSTER}{self.OAUTH}quotas:\n  {line}\n")

        assert found.startswith(f"quotas.{key}: {value!r} is not possible (allowed: file), {self.WHY}")
        assert found.endswith(" at line 8, column 3")

    @pytest.mark.parametrize("wrong", ["sasl.password.file: /run/password", "sasl.pasword: {file: nowhere}"])
    def test_what_is_wrong_by_itself_is_reported_once(self, problem, wrong):
        own = f"security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: me, {wrong}"

        found = problem(f"{HEAD}{CLUSTER}internal: {{{own}}}\nquotas: {{ip.store: broker}}\n")

        assert found.startswith(f"internal.{wrong.split(':')[0]}: ")

    def test_a_secret_in_its_file_is_there(self, config, tmp_path):
        (tmp_path / "secret").write_text("hunter2")
        own = "sasl.mechanism: PLAIN, sasl.username: me, sasl.password: {file: secret}"

        loaded = config(f"{HEAD}{CLUSTER}internal: {{security.protocol: SASL_SSL, {own}}}\n")

        assert (loaded.quotas.ip_store, loaded.quotas_unread) == ("broker", None)


class TestCluster:
    """What the cluster has stored beside what the file says."""

    IPS = (
        "  ips: {<default>: {connection_creation_rate: 20, action: observe}, 10.0.0.7: {connection_creation_rate: 5}}\n"
    )

    @pytest.mark.parametrize(
        ("store", "stored", "expected"),
        [
            ("broker", {}, {DEFAULT_ADDRESS: Quota(20, "observe"), "10.0.0.7": Quota(5)}),
            ("broker", {"10.0.0.7": 9}, {DEFAULT_ADDRESS: Quota(20, "observe"), "10.0.0.7": Quota(9)}),
            ("broker", {"::1": 9}, {DEFAULT_ADDRESS: Quota(20, "observe"), "10.0.0.7": Quota(5), "::1": Quota(9)}),
            ("broker", {DEFAULT_ADDRESS: 3}, {DEFAULT_ADDRESS: Quota(3, "observe"), "10.0.0.7": Quota(5)}),
            (
                "broker",
                {"10.0.0.7": UNLIMITED},
                {DEFAULT_ADDRESS: Quota(20, "observe"), "10.0.0.7": Quota(UNLIMITED)},
            ),
            ("file", {"10.0.0.7": 9}, {DEFAULT_ADDRESS: Quota(20, "observe"), "10.0.0.7": Quota(5)}),
        ],
    )
    def test_rates_of_addresses(self, config, store, stored, expected):
        loaded = config(f"{HEAD}{CLUSTER}quotas:\n  ip.store: {store}\n{self.IPS}")

        limits = limits_of(loaded, ClusterQuotas(ip_rates=stored))
        assert {address: limits.ip_rate(address) for address in expected} == expected
        assert limits.ip_rate("192.0.2.1") == expected[DEFAULT_ADDRESS]

    def test_the_action_for_all_rates_holds_for_the_stored_ones_too(self, config):
        loaded = config(f"{HEAD}{CLUSTER}quotas: {{connection_creation_rate.action: observe}}\n")

        limits = limits_of(loaded, ClusterQuotas({"10.0.0.7": 9}))
        assert limits.ip_rate("10.0.0.7") == Quota(9, "observe")
        assert not limits.ip_rate("10.0.0.8").limited

    @pytest.mark.parametrize(
        ("source", "file", "broker", "expected"),
        [
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
        ],
    )
    def test_the_source_of_rates(self, config, source, file, broker, expected):
        def text(key: str) -> str:
            return f"{HEAD}{CLUSTER}quotas:\n  source: {source}\n" + (f"  {key}: {file}\n" if file else "")

        of_all = config(text("max.connection.creation.rate"))
        limits = limits_of(of_all, ClusterQuotas(rate=broker))
        assert limits.rate.limit == limits.listeners["CLIENT"].rate.limit == expected

        of_one = config(text("listener.name.client.max.connection.creation.rate"))
        limits = limits_of(of_one, ClusterQuotas(listener_rates={} if broker is None else {"client": broker}))
        assert limits.listeners["CLIENT"].rate.limit == expected
        assert not limits.rate.limited
        assert not limits.listeners["My.Other"].rate.limited


SASL = HEAD.replace("My.Other,", "My.Other, security.protocol: SASL_PLAINTEXT,")


def principals(*lines: str) -> str:
    return SASL + "quotas:\n" + "".join(f"  {line}\n" for line in lines)


def test_limits_of_principals(config):
    loaded = config(
        principals(
            "max.connections.per.principal: 100",
            "max.connections.per.principal.overrides: 'alice:10, a:b:20'",
            "max.connections.per.principal.action: observe",
            "users: {<default>: 20, alice: {connection_creation_rate: 5, action: enforce}}",
            "user.connection_creation_rate.action: observe",
        )
    )
    limits = limits_of(loaded)

    assert limits.any_of_principals
    assert limits.principal_connection_quota("User:bob") == Quota(100, "observe")
    assert limits.principal_connection_quota("User:alice") == Quota(10, "observe")
    assert limits.principal_connection_quota("User:a:b") == Quota(20, "observe")
    assert limits.principal_rate("User:bob") == Quota(20, "observe")
    assert limits.principal_rate("User:alice") == Quota(5)
    assert config(yaml.safe_dump(redacted(loaded))) == loaded


def test_principals_have_no_limit_without_a_key(config):
    limits = limits_of(config(SASL))

    assert not limits.any_of_principals
    assert limits.principal_rate("User:alice") == limits.principal_connection_quota("User:alice") == Quota()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max.connections.per.principal: -1", "per.principal: -1 is out of range (allowed: 0–2147483647 connections)"),
        ("max.connections.per.principal: 0", "per.principal: 0 lets nobody in (allowed: 1 or more, or 0 with"),
        ("max.connections.per.principal.action: drop", "'drop' is not known (allowed: enforce or observe)"),
        ("max.connections.per.principal.overrides: 5", "overrides: 5 is not text (allowed: user:connections, several"),
        ("max.connections.per.principal.overrides: alice", "lacks :connections behind 'alice'"),
        ("max.connections.per.principal.overrides: ':5'", "names '', which is no user"),
        ("max.connections.per.principal.overrides: 'alice:-1'", "gives alice '-1' connections"),
        ("max.connections.per.principal.overrides: 'alice:1,alice:2'", "names alice twice"),
        ("max.connections.per.principal.overrides: 'alice:1,'", "lacks :connections behind ''"),
        (
            "max.connections.per.principal.overrides: 'User:alice:1'",
            "'User:alice' with a type (allowed: a name without",
        ),
        ("users: {alice: 0}", "users.alice.connection_creation_rate: 0 is out of range (allowed: 1–2147483647"),
        ("users: {alice: {}}", "users.alice.connection_creation_rate: is missing"),
        ("users: {alice: {rate: 1}}", "users.alice.rate: unknown key"),
        ("users: {'': 5}", "names '', which is no user"),
        ("users: {'User:alice': 5}", "with a type (allowed: a name without User:)"),
        ("user.connection_creation_rate.action: off", "(allowed: enforce or observe)"),
    ],
)
def test_wrong_limits_of_principals(config, line, expected):
    with pytest.raises(ConfigError) as raised:
        config(principals(line))
    assert expected in "\n".join(map(str, raised.value.problems))


@pytest.mark.parametrize(
    "line",
    ["max.connections.per.principal: 5", "max.connections.per.principal.overrides: 'alice:1'", "users: {alice: 5}"],
)
def test_principals_are_limited_only_where_somebody_logs_in(problem, line):
    assert "limits nobody: no client is known by its login (allowed: with security.protocol" in problem(quotas(line))
