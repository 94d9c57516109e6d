"""Quotas of addresses, set through sidecars: what is answered, where it acts, whom it spares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.ip_quotas import IP_MESSAGE, POLICY_VIOLATION
from proxy.local import cluster as local_cluster
from proxy.local import sidecars
from proxy.local.cluster import ClusterState, Node
from proxy.local.sidecars import SidecarProcess
from proxy.protocol.private import BASE, moved
from proxy.rpc import messages
from tests.integration.asking import Asker
from tests.integration.conftest import free_port
from tests.integration.quotas import (
    ALTER,
    ANY,
    CREATION,
    DESCRIBE,
    EXACT,
    RATE,
    Peer,
    alter,
    cases,
    describe,
    error_of,
    served,
)
from tests.tools.kafka_tools import KafkaTools
from tests.tools.random_messages import read_all

pytestmark = pytest.mark.kafka

BURST = 30
"""Connections at once; a limit of 1/s lets some 11 of them in (11 windows of a second), and then one a second."""

LIMITED = 20
"""Fewer than so many of a burst are served where the limit acts."""

CROWD = 100
"""Connections at once that are all served where it does not: within ``PATIENCE``, it would let some 71 of them in."""

DESCRIBE_CONFIGS, OF_BROKER, DYNAMIC_BROKER_CONFIG = 32, 4, 2

KAFKA_NO_LIMIT = 2_147_483_647

PATIENCE = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quotas")


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[ClusterState]:
    """Three brokers, each behind its sidecar."""
    state = local_cluster.up(folder, nodes=3, progress=False)
    try:
        sidecars.start_all(folder, state)
        yield state
    finally:
        sidecars.stop_all(folder)
        local_cluster.discard(folder)


@pytest.fixture(scope="module")
def by_file(folder: Path, fleet: ClusterState) -> Iterator[str]:
    """One more sidecar before broker 1 that takes quotas of addresses from its file alone; yields its address."""
    config = yaml.safe_load((folder / "sidecar-1.yaml").read_text())
    bind, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config["listeners"][0] |= {"bind": bind, "advertised": fleet.nodes[0].advertised}
    config |= {"admin": {"bind": admin}, "quotas": {"ip.store": "file"}}
    (folder / "by-file.yaml").write_text(yaml.safe_dump(config))
    process = SidecarProcess.start(folder / "by-file.yaml", folder / "by-file.log", admin)
    yield bind
    assert process.stop()


@pytest.fixture(autouse=True)
def no_quotas(fleet: ClusterState) -> Iterator[None]:
    """Take away what a test has set."""
    yield
    with Peer(fleet.nodes[0].internal) as peer:
        wait(lambda: not removed(peer), PATIENCE)


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


def wait(condition: Callable[[], bool], seconds: float) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)


def limited(address: str, source: str) -> bool:
    return served(address, source, BURST, 1.5) < LIMITED


def dynamic_rates(node: Node) -> list[str]:
    """The rates of connections of its own that a broker goes by."""
    wanted = {"Resources": [{"ResourceType": OF_BROKER, "ResourceName": str(node.id)}]}
    with Asker(node.upstream) as asker:
        [found] = read_all(asker.answer(DESCRIBE_CONFIGS, 4, wanted))["Results"]
    assert found["ErrorCode"] == 0
    return [
        one["Name"]
        for one in found["Configs"]
        if CREATION in one["Name"] and one["ConfigSource"] == DYNAMIC_BROKER_CONFIG
    ]


def replay(peer: Peer, broker: int) -> list[bytes]:
    """The answers to all of the tables, each as the table says."""
    answers = []
    for case in cases(broker):
        if case.key == DESCRIBE:
            wait(lambda: not removed(peer), PATIENCE)  # what sidecars have stored to be spared
        answer = peer.ask(case.key, case.version, case.body)
        code, said = error_of(case.key, case.version, answer)
        assert (case.name, code) == (case.name, case.code)
        assert case.said in said, case.name
        answers.append(answer)
    return answers


def test_every_answer_about_quotas_is_the_broker_s(fleet: ClusterState) -> None:
    node = fleet.nodes[0]

    def are_the_same() -> bool:
        answers = []
        for address in (node.advertised, node.upstream):
            wait(lambda: not dynamic_rates(node), PATIENCE)  # else it words its refusals differently
            with Peer(address) as peer:
                answers.append(replay(peer, node.id))
        return answers[0] == answers[1]

    # A sidecar that has not heard yet that a default was removed stores in between what spares it.
    wait(are_the_same, PATIENCE)


@pytest.mark.parametrize("version", [0, 1])
def test_a_sidecar_that_goes_by_its_file_refuses_what_it_would_not_apply(
    fleet: ClusterState, by_file: str, version: int
) -> None:
    with Peer(by_file) as peer, Peer(fleet.nodes[0].upstream) as direct:
        for entity in ([("ip", "10.0.0.7")], [("ip", None)]):
            answer = peer.ask(ALTER, version, alter(entity, (RATE, 5.0, False), version=version))
            assert error_of(ALTER, version, answer) == (POLICY_VIOLATION, IP_MESSAGE)
        of_a_user = alter([("user", "philip")], ("producer_byte_rate", 1e6, False), version=version)
        assert error_of(ALTER, version, peer.ask(ALTER, version, of_a_user)) == (0, "")
        removed_again = alter([("user", "philip")], ("producer_byte_rate", 0.0, True), version=version)
        assert error_of(ALTER, version, peer.ask(ALTER, version, removed_again)) == (0, "")
        assert peer.ask(DESCRIBE, 0, describe(("ip", ANY, None))) == direct.ask(
            DESCRIBE, 0, describe(("ip", ANY, None))
        )
        assert not {"10.0.0.7", None} & stored(direct).keys()


def test_one_wrong_entry_does_not_keep_the_others_out(fleet: ClusterState) -> None:
    body = alter([("ip", "93.284.53.13")], (RATE, 5.0, False))
    good = alter([("ip", "10.0.0.9")], (RATE, 5.0, False))
    both = b"\0\0\0\2" + body[4:-1] + good[4:]
    with Peer(fleet.nodes[0].advertised) as peer:
        with pytest.raises(messages.RequestRefused, match=r"93\.284\.53\.13"):
            messages.check_quotas_altered(peer.ask(ALTER, 0, both))
        wait(lambda: stored(peer) == {"10.0.0.9": 5.0}, PATIENCE)


def test_the_versions_of_the_apis_are_the_broker_s(fleet: ClusterState) -> None:
    node = fleet.nodes[0]
    private = {key: api.versions for key, api in moved(BASE, coordinator=False).items()}
    with Peer(node.upstream) as direct, Peer(node.advertised) as through:
        assert decode_api_versions(through.ask(18, 0, b"")) == {
            **decode_api_versions(direct.ask(18, 0, b"")),
            **private,
        }


def test_the_standard_tool_works_through_a_sidecar(fleet: ClusterState, tools: KafkaTools) -> None:
    address = fleet.nodes[0].advertised

    def configs(*args: str) -> tuple[int, str]:
        """Exit code and output of kafka-configs."""
        done = tools.run("configs", "--bootstrap-server", address, *args)
        return done.returncode, done.stdout + done.stderr

    add = ("--alter", "--add-config", f"{RATE}=100")
    for invalid in (("--entity-name", "93.284.53.13", "--entity-type", "ips"), ("--ip", "93.284.53.13")):
        code, said = configs(*add, *invalid)
        assert code != 0
        assert "93.284.53.13" in said
    for valid in (
        ("--entity-name", "93.184.53.13", "--entity-type", "ips"),
        ("--ip", "93.184.53.14"),
        ("--entity-type", "ips", "--entity-default"),
        ("--ip-defaults",),
    ):
        code, said = configs(*add, *valid)
        assert (code, "Completed updating" in said) == (0, True), said
    for node in fleet.nodes:  # the tool asks any of them, and they learn of it later than the controller
        with Peer(node.internal) as peer:
            wait(lambda peer=peer: stored(peer).keys() >= {"93.184.53.13", "93.184.53.14", None}, PATIENCE)  # type: ignore[misc]
    code, said = configs("--describe", "--entity-type", "ips")
    assert code == 0
    for line in ("ip '93.184.53.13'", "ip '93.184.53.14'", "the default ip"):
        assert f"{line} are connection_creation_rate=100.0" in said
    code, said = configs("--alter", "--delete-config", RATE, "--ip", "93.184.53.14")
    assert code == 0, said
    with Peer(address) as peer:
        wait(lambda: "93.184.53.14" not in stored(peer), PATIENCE)
        assert stored(peer)["93.184.53.13"] == 100.0


def test_a_quota_set_through_one_sidecar_acts_on_all_and_outlives_them(folder: Path, fleet: ClusterState) -> None:
    source = "127.0.0.5"
    assert [served(node.advertised, source, BURST, PATIENCE) for node in fleet.nodes] == 3 * [BURST]
    with Peer(fleet.nodes[0].advertised) as peer:
        set_rate(peer, source, 1)
    for node in fleet.nodes:  # 2 s and 11 s are promised; it may be longer on a machine with much else to do
        wait(lambda address=node.advertised: limited(address, source), PATIENCE)
        assert served(node.advertised, "127.0.0.6", CROWD, PATIENCE) == CROWD

    sidecars.stop_all(folder)
    sidecars.start_all(folder, fleet)
    assert all(limited(node.advertised, source) for node in fleet.nodes)


def test_the_broker_spares_the_sidecar_and_the_sidecar_limits_clients(fleet: ClusterState) -> None:
    node = fleet.nodes[0]
    with Peer(node.advertised) as peer:
        set_rate(peer, "127.0.0.8", 1000)
        set_rate(peer, None, 1)
        wait(lambda: stored(peer).get("127.0.0.1") == KAFKA_NO_LIMIT, PATIENCE)
    wait(lambda: limited(node.advertised, "127.0.0.7"), PATIENCE)
    # The broker has all of them come from 127.0.0.1, and the default quota would let some 11 of them in.
    assert served(node.advertised, "127.0.0.8", CROWD, PATIENCE) == CROWD
    # The override is for the sidecar, not for clients of the same address.
    assert limited(node.advertised, "127.0.0.1")


def test_a_sidecar_that_goes_by_its_file_is_spared_too(fleet: ClusterState, by_file: str) -> None:
    with Peer(fleet.nodes[0].internal) as peer:  # no sidecar sees it pass: they have to look
        set_rate(peer, None, 1)
        wait(lambda: stored(peer).get("127.0.0.1") == KAFKA_NO_LIMIT, PATIENCE)
        exactly = peer.ask(DESCRIBE, 0, describe(("ip", EXACT, "127.0.0.1")))
    assert list(messages.decode_ip_quotas(exactly)) == [("127.0.0.1", KAFKA_NO_LIMIT)]
    assert served(by_file, "127.0.0.9", CROWD, PATIENCE) == CROWD
