"""Quotas of addresses, set through sidecars: what is answered, where it acts, whom it spares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from proxy.admin_client import get_quotas
from proxy.config.values import Endpoint
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.ip_quotas import IP_MESSAGE, POLICY_VIOLATION
from proxy.local import cluster as local_cluster
from proxy.local import sidecars
from proxy.local.cluster import ClusterState, Node
from proxy.local.sidecars import SidecarProcess
from proxy.protocol.private import BASE, moved
from proxy.rpc import messages
from tests.integration.conftest import free_port
from tests.integration.quotas import (
    ALTER,
    ALTER_CONFIGS,
    ANY,
    CREATION,
    DEFAULT,
    DESCRIBE,
    EXACT,
    RATE,
    Peer,
    alter,
    describe,
    error_of,
    served,
    set_config,
)
from tests.integration.sidecars import until
from tests.tools.kafka_tools import KafkaTools

pytestmark = pytest.mark.kafka

BURST = 30
"""Connections at once; a limit of 1/s lets some 11 of them in (11 windows of a second), and then one a second."""

LIMITED = 20
"""Fewer than so many of a burst are served where the limit acts."""

CROWD = 100
"""Connections at once that are all served where it does not: within ``PATIENCE``, it would let some 71 of them in."""

KAFKA_NO_LIMIT = 2_147_483_647
PATIENCE = 60.0

TABLE = [  # name, api key, entity or filter, rate and whether it is removed, and what Kafka answers
    ("of the KIP", ALTER, [("ip", "93.284.53.13")], (100, False), 42, "is not a valid IP or resolvable host."),
    ("an address", ALTER, [("ip", "93.184.53.13")], (100, False), 0, ""),
    ("and without it", ALTER, [("ip", "93.184.53.13")], (0, True), 0, ""),
    ("a network", ALTER, [("ip", "10.0.0.0/8")], (5, False), 42, "is not a valid IP or resolvable host."),
    ("with a user", ALTER, [("ip", "10.0.0.1"), ("user", "u")], (1, False), 42, "Invalid quota entity combination"),
    ("no entity", ALTER, [], (1, False), 42, "Invalid empty client quota entity"),
    ("of a user", ALTER, [("user", "u")], (5, False), 42, "Invalid configuration key"),
    ("0", ALTER, [("ip", "10.0.0.1")], (0, False), 42, "must be greater than 0"),
    ("half", ALTER, [("ip", "10.0.0.1")], (1.5, False), 42, "cannot be a fractional value."),
    ("too much", ALTER, [("ip", "10.0.0.1")], (3e9, False), 42, "is too large for an INT."),
    ("all addresses", DESCRIBE, [("ip", ANY, None)], None, 0, ""),
    ("everything", DESCRIBE, [], None, 0, ""),
    ("with users", DESCRIBE, [("ip", ANY, None), ("user", ANY, None)], None, 42, "should not be used with user"),
    ("another type", DESCRIBE, [("host", ANY, None)], None, 35, ""),
    ("the default with a name", DESCRIBE, [("ip", DEFAULT, "x")], None, 42, "but also specified a match string."),
    ("another match", DESCRIBE, [("ip", 7, None)], None, 42, "Unknown match type 7"),
]


@pytest.fixture
def node(cluster: ClusterState, bare_sidecar: SidecarProcess) -> Iterator[Node]:
    """A broker without quotas, behind a sidecar that knows that there are none."""
    node = cluster.nodes[0]
    host, _, port = bare_sidecar.admin.rpartition(":")

    def there_are_none() -> bool:
        with Peer(node.advertised, source="127.0.0.250") as peer:  # the sidecar that it passes acts on it at once
            return not removed(peer) and not limits_of_addresses(Endpoint(host, int(port)))

    until(there_are_none)
    yield node
    until(there_are_none)


@pytest.fixture
def by_file(node: Node, bare_sidecar: SidecarProcess, tmp_path: Path) -> Iterator[str]:
    """One more sidecar before the broker that takes quotas of addresses from its file alone; yields its address."""
    config = yaml.safe_load(bare_sidecar.config.read_text())
    bind, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config["listeners"][0] |= {"bind": bind, "advertised": node.advertised}
    config |= {"admin": {"bind": admin}, "quotas": {"ip.store": "file"}, "features": {"enabled": False}}
    (tmp_path / "by-file.yaml").write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(tmp_path / "by-file.yaml", tmp_path / "by-file.log", admin)
    yield bind
    assert process.stop()


def limits_of_addresses(admin: Endpoint) -> list[int]:
    """What the sidecar applies: to all addresses, and to those that it has seen."""
    quotas = get_quotas(admin)
    limits = [limit.limit for limit in quotas.limits if limit.scope == "ip"]
    return list(filter(None, limits + [address.rate_limit for address in quotas.addresses]))


def stored(peer: Peer) -> dict[str | None, float]:
    answer = peer.ask(DESCRIBE, 0, describe(("ip", ANY, None)))
    return dict(filter(None, messages.decode_ip_quotas(answer)))


def removed(peer: Peer) -> dict[str | None, float]:
    """Remove what is stored; return what there was. The default goes first, so that nobody protects itself again."""
    there = stored(peer)
    for name in sorted(there, key=lambda name: name or ""):
        peer.ask(ALTER, 0, alter([("ip", name)], (RATE, 0.0, True)))
    return there


def set_rate(peer: Peer, address: str | None, rate: int) -> None:
    assert error_of(ALTER, 0, peer.ask(ALTER, 0, alter([("ip", address)], (RATE, rate, False)))) == (0, "")


def limited(address: str, source: str) -> bool:
    return served(address, source, BURST, 1.5) < LIMITED


def replay(peer: Peer) -> list[bytes]:
    """The answers to all of the table, each as the table says."""
    answers = []
    for version in (0, 1):
        for name, key, subject, change, expected, said in TABLE:
            if key == DESCRIBE:
                until(lambda: not removed(peer))  # what sidecars have stored to be spared
                body = describe(*subject, version=version)
            else:
                body = alter(subject, (RATE, *change), version=version)
            answers.append(peer.ask(key, version, body))
            code, message = error_of(key, version, answers[-1])
            assert (name, code) == (name, expected)
            assert said in message, name
    answers += [peer.ask(ALTER_CONFIGS, 0, set_config(1, CREATION, value)) for value in ("2000000000", None)]
    return answers


@pytest.mark.promise("limits.md", "Requests about quotas pass unchanged, and the answers are those of the broker.")
def test_every_answer_about_quotas_is_the_broker_s(node: Node) -> None:
    def are_the_same() -> bool:
        answers = []
        for address in (node.advertised, node.upstream):
            with Peer(address) as peer:
                answers.append(replay(peer))
        return answers[0] == answers[1]

    # A sidecar that has not heard yet that a default was removed stores in between what spares it.
    until(are_the_same)
    one, other = (alter([("ip", address)], (RATE, 5.0, False)) for address in ("93.284.53.13", "10.0.0.9"))
    with Peer(node.advertised) as peer:
        with pytest.raises(messages.RequestRefused, match=r"93\.284\.53\.13"):
            messages.check_quotas_altered(peer.ask(ALTER, 0, b"\0\0\0\2" + one[4:-1] + other[4:]))
        until(lambda: stored(peer).get("10.0.0.9") == 5.0)  # one wrong entry does not keep the others out
    private = {key: api.versions for key, api in moved(BASE, coordinator=False).items()}
    with Peer(node.upstream) as direct, Peer(node.advertised) as through:
        versions = decode_api_versions(direct.ask(18, 0, b""))
        assert decode_api_versions(through.ask(18, 0, b"")) == {**versions, **private}


@pytest.mark.promise(
    "limits.md", "With `ip.store: file` the sidecar refuses to store rates of addresses, with POLICY_VIOLATION (44)."
)
def test_a_sidecar_that_goes_by_its_file_refuses_what_it_would_not_apply_and_is_spared_all_the_same(
    node: Node, by_file: str
) -> None:
    with Peer(by_file) as peer, Peer(node.upstream) as direct:
        for version in (0, 1):
            for entity in ([("ip", "10.0.0.7")], [("ip", None)]):
                answer = peer.ask(ALTER, version, alter(entity, (RATE, 5.0, False), version=version))
                assert error_of(ALTER, version, answer) == (POLICY_VIOLATION, IP_MESSAGE), (entity, version)
            for change in ((1e6, False), (0.0, True)):
                body = alter([("user", "philip")], ("producer_byte_rate", *change), version=version)
                assert error_of(ALTER, version, peer.ask(ALTER, version, body)) == (0, ""), (change, version)
        assert not {"10.0.0.7", None} & stored(direct).keys()
    with Peer(node.internal) as peer:  # no sidecar sees it pass: they have to look
        set_rate(peer, None, 1)
        until(lambda: stored(peer).get("127.0.0.1") == KAFKA_NO_LIMIT)
        exactly = peer.ask(DESCRIBE, 0, describe(("ip", EXACT, "127.0.0.1")))
        assert list(messages.decode_ip_quotas(exactly)) == [("127.0.0.1", KAFKA_NO_LIMIT)]
        assert served(by_file, "127.0.0.9", CROWD, PATIENCE) == CROWD


@pytest.mark.promise(
    "limits.md", "Rates of addresses that `kafka-configs.sh` stores through a sidecar limit its clients."
)
def test_the_standard_tool_stores_quotas_through_a_sidecar(node: Node, tools: KafkaTools) -> None:
    def configs(*args: str) -> tuple[int, str]:
        """Exit code and output of kafka-configs."""
        done = tools.run("configs", "--bootstrap-server", node.advertised, *args)
        return done.returncode, done.stdout + done.stderr

    add = ("--alter", "--add-config", f"{RATE}=1")
    code, said = configs(*add, "--ip", "93.284.53.13")
    assert (code != 0, "93.284.53.13" in said) == (True, True), said
    with Peer(node.internal) as peer:
        for valid in (("--entity-name", "127.0.0.5", "--entity-type", "ips"), ("--ip", "127.0.0.6")):
            code, said = configs(*add, *valid)
            assert (code, "Completed updating" in said) == (0, True), said
        until(lambda: stored(peer).keys() >= {"127.0.0.5", "127.0.0.6"})
        until(lambda: limited(node.advertised, "127.0.0.5"))
        assert served(node.advertised, "127.0.0.7", CROWD, PATIENCE) == CROWD
        code, said = configs("--describe", "--entity-type", "ips")
        assert code == 0
        assert "ip '127.0.0.6' are connection_creation_rate=1.0" in said
        code, said = configs("--alter", "--delete-config", RATE, "--ip", "127.0.0.5")
        assert code == 0, said
        until(lambda: "127.0.0.5" not in stored(peer))
        until(lambda: served(node.advertised, "127.0.0.5", CROWD, PATIENCE) == CROWD)


@pytest.mark.promise(
    "limits.md",
    "The sidecar exempts its own address from rates in the cluster; the exemption is not for clients of that address.",
)
def test_the_broker_spares_the_sidecar_and_the_sidecar_limits_clients(node: Node) -> None:
    with Peer(node.advertised) as peer:
        set_rate(peer, "127.0.0.8", 1000)
        set_rate(peer, None, 1)
        until(lambda: stored(peer).get("127.0.0.1") == KAFKA_NO_LIMIT)
    until(lambda: limited(node.advertised, "127.0.0.7"))
    # The broker has all of them come from 127.0.0.1, and the default quota would let some 11 of them in.
    assert served(node.advertised, "127.0.0.8", CROWD, PATIENCE) == CROWD
    assert limited(node.advertised, "127.0.0.1")


@pytest.mark.slow
@pytest.mark.promise("limits.md", "A rate that is set through one sidecar acts on all of them, and outlives them.")
def test_a_quota_set_through_one_sidecar_acts_on_all_and_outlives_them(tmp_path: Path) -> None:
    fleet = local_cluster.up(tmp_path, nodes=3, progress=False)
    source = "127.0.0.5"
    try:
        sidecars.start_all(tmp_path, fleet)
        assert [served(node.advertised, source, BURST, PATIENCE) for node in fleet.nodes] == 3 * [BURST]
        with Peer(fleet.nodes[0].advertised) as peer:
            set_rate(peer, source, 1)
        for node in fleet.nodes:  # 2 s and 11 s are promised; it may be longer on a machine with much else to do
            until(lambda address=node.advertised: limited(address, source))  # type: ignore[misc]
            assert served(node.advertised, "127.0.0.6", CROWD, PATIENCE) == CROWD
        sidecars.stop_all(tmp_path)
        sidecars.start_all(tmp_path, fleet)
        assert all(limited(node.advertised, source) for node in fleet.nodes)
    finally:
        sidecars.stop_all(tmp_path)
        local_cluster.discard(tmp_path)
