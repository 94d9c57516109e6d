"""BrokerMetadata of a fleet: three brokers, one of them of another version, and a sidecar before each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from proxy.client import (
    BrokerEntry,
    BrokerIdMismatch,
    BrokerMetadataClient,
    endpoints,
    producer_settings,
    protocol_range,
    versions_for,
)
from proxy.core.protected_topics import REGISTRY
from proxy.errors import BrokersideError
from proxy.fleet.connection import BrokerUnreachable
from proxy.interceptors.api_versions import decode_api_versions
from proxy.interceptors.tags import TAGS_BY_NAME
from proxy.local import broker, cluster, process
from proxy.local.ports import HOST, free_ports
from proxy.local.readiness import known_brokers
from proxy.local.sidecars import SidecarProcess
from proxy.local.state import ClusterState, save
from proxy.protocol.versions import floored, ranges
from tests.brokers import SharedBroker, start_again
from tests.integration import sidecars
from tests.integration.feature_fleet import FeatureFleet
from tests.integration.quotas import ALTER_CONFIGS, Peer, error_of, set_config
from tests.integration.sidecars import running
from tests.integration.tap import tap

pytestmark = pytest.mark.kafka

OLD, NEW = "3.9.2", "4.3.1"
LARGEST = "message.max.bytes"
UPGRADED = 3
"""The node of the newer version."""

SEED_TAGS = "tag.aws.zone: eu-central-1\ntag.rack: r8a9\ntag.cluster: kafka3\n"


class Fleet(FeatureFleet):
    def brokers(self, node_id: int, *wanted: int) -> dict[int, BrokerEntry]:
        """What the sidecar before this node says, by node id."""
        with BrokerMetadataClient(self.address(node_id)) as client:
            return {one.node_id: one for one in client.brokers(wanted)}

    def registries_made(self) -> int:
        """How often a sidecar has made the registry's topic."""
        return sum(REGISTRY in str(line) for line in self.logged("topic_created"))

    def settled(self) -> bool:
        answers = [self.brokers(node_id) for node_id in self.sidecars]
        return all(
            answer.keys() == {1, 2, 3}
            and {one.tags.get("protocol.version.source") for one in answer.values()} == {"sidecar"}
            for answer in answers
        )


def until(fits: Callable[[], Any]) -> None:
    sidecars.until(fits, 150)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    # A broker that is paused for a while stays one of the cluster: what is asserted is of all three.
    patient = {"broker.session.timeout.ms": "18000"}
    state = cluster.up(folder, nodes=3, kafka_version=OLD, broker_properties=patient, progress=False)
    without = {"observer.class.names": None, "audit": None}
    found = Fleet(state, {"internal.bootstrap.servers": state.internal_bootstrap, **without})
    found.config(1).write_text(found.config(1).read_text() + SEED_TAGS)
    try:
        cluster.stop_node(folder, UPGRADED)
        found.state = upgraded(folder, UPGRADED)
        # With the first request that a broker forwards, its versions become those that the controller has, too.
        alter(found.state.node(UPGRADED).internal, UPGRADED, None)
        found.start(1, 2, 3)
        until(found.settled)
        yield found
    finally:
        process.stop([sidecar.process for sidecar in found.sidecars.values()], 15)
        for node in found.state.nodes:
            cluster.stop_node(folder, node.id, kill=True)


def upgraded(folder: Path, node_id: int) -> ClusterState:
    """Start one node with the newer version, on the data it has."""
    broker.broker_jars(NEW, progress=False)

    def save_version(version: str) -> None:
        state = cluster.status(folder)
        save(folder, replace(state, kafka_version=version))

    save_version(NEW)
    try:
        return start_again(folder, node_id)
    finally:
        save_version(OLD)


@pytest.mark.slow
@pytest.mark.promise(
    "broker-metadata.md", "Every sidecar answers for all brokers of the cluster, or for those that are asked for."
)
@pytest.mark.promise(
    "broker-metadata.md", "The address that BrokerMetadata returns for each broker leads a client to that broker."
)
def test_all_brokers_or_those_that_are_asked_for_and_the_address_of_each_leads_to_it(fleet: Fleet) -> None:
    assert list(fleet.brokers(2)) == [1, 2, 3]
    assert list(fleet.brokers(1, 2, 2, 99, -1)) == [1, 2]
    assert list(fleet.brokers(3, -1)) == [3]
    assert fleet.brokers(1, 99) == {}
    until(lambda: fleet.brokers(1) == fleet.brokers(2) == fleet.brokers(3))  # once each has heard of the last change
    for entry in fleet.brokers(1).values():
        assert f"{entry.host}:{entry.port}" == fleet.address(entry.node_id)
        with BrokerMetadataClient(f"{entry.host}:{entry.port}") as client:
            assert client.this_broker().node_id == entry.node_id


@pytest.mark.slow
@pytest.mark.promise(
    "protocol.md", "During an upgrade each broker is reported with the range of ProtocolVersions of its own release."
)
def test_each_broker_has_the_range_of_its_own_version(fleet: Fleet) -> None:
    entries = fleet.brokers(1)
    assert entries[1].tags["broker.version"] == "3.9.x (inferred)"
    assert entries[UPGRADED].tags["broker.version"] == "4.3.x (inferred)"
    assert protocol_range(entries[1]) == protocol_range(entries[2]) != protocol_range(entries[UPGRADED])
    for node_id, entry in entries.items():
        with Peer(fleet.state.node(node_id).upstream) as peer:
            supported = decode_api_versions(peer.ask(18, 0, b""))
        assert protocol_range(entry) == ranges(supported)
        helped, real = versions_for(protocol_range(entry)), floored(supported)
        assert helped
        for key, (first, last) in helped.items():
            assert real[key][0] <= first <= last <= real[key][1]


@pytest.mark.slow
@pytest.mark.promise("tags.md", "Tags of one's own reach the other sidecars and change without a restart.")
def test_tags_of_one_s_own_reach_the_other_sidecars_and_change_with_the_file(fleet: Fleet) -> None:
    path = fleet.config(1)
    wanted = {"aws.zone": "eu-central-1", "rack": "r8a9", "cluster": "kafka3"}
    assert wanted.items() <= fleet.brokers(1, -1)[1].tags.items()
    assert wanted.items() <= fleet.brokers(2, 1)[1].tags.items()
    assert not wanted.keys() & fleet.brokers(1, 2)[2].tags.keys()
    text = path.read_text()
    path.write_text(text.replace("r8a9", "r9"))
    try:
        until(lambda: fleet.brokers(1, -1)[1].tags["rack"] == "r9")
        until(lambda: fleet.brokers(2, 1)[1].tags.get("rack") == "r9")
        path.write_text(f"{text}tag.broker.id: 9\n")
        until(lambda: "tag.broker.id: is the name of a built-in tag" in fleet.sidecars[1].log.read_text())
        assert fleet.brokers(1, -1)[1].tags["rack"] == "r9"
    finally:
        path.write_text(text)
    until(lambda: fleet.brokers(2, 1)[1].tags.get("rack") == "r8a9")


@pytest.mark.slow
@pytest.mark.promise("tags.md", "The tag `message.max.bytes` follows every change of the broker's configuration.")
@pytest.mark.parametrize("through", ["sidecar", "INTERNAL"])
def test_the_largest_batch_follows_the_broker_s_configuration(fleet: Fleet, through: str) -> None:
    address = fleet.address(2) if through == "sidecar" else fleet.state.node(2).internal
    largest = 2_000_000 if through == "sidecar" else 3_000_000
    alter(address, 2, largest)
    try:
        until(lambda: fleet.brokers(2, -1)[2].tags[LARGEST] == str(largest))
        until(lambda: fleet.brokers(1, 2)[2].tags[LARGEST] == str(largest))
        producer = Producer({"bootstrap.servers": fleet.address(2), **producer_settings(fleet.brokers(2, -1)[2])})
        with pytest.raises(KafkaException) as raised:
            producer.produce("any", b"x" * (largest + 1))
        assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    finally:
        alter(address, 2, None)


def alter(address: str, node_id: int, value: int | None) -> None:
    """Set ``message.max.bytes`` of a broker; None: remove it."""
    with Peer(address) as peer:
        answer = peer.ask(ALTER_CONFIGS, 0, set_config(node_id, LARGEST, value and str(value)))
    assert error_of(ALTER_CONFIGS, 0, answer) == (0, "")


@pytest.mark.slow
@pytest.mark.promise(
    "broker-metadata.md", "A registry that is deleted is made again, and the sidecars find each other in it."
)
@pytest.mark.promise(
    "broker-metadata.md",
    "The first sidecar makes the registry's topic with one compacted partition of up to three replicas.",
)
def test_the_registry_is_compacted_and_replicated_and_made_again_where_it_is_deleted(fleet: Fleet) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.state.internal_bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, REGISTRY)
    config = admin.describe_configs([resource])[resource].result(180)
    [partition] = admin.list_topics(REGISTRY, timeout=20).topics[REGISTRY].partitions.values()
    assert len(partition.replicas) == 3
    assert (config["cleanup.policy"].value, config["min.insync.replicas"].value) == ("compact", "2")
    made = fleet.registries_made()
    admin.delete_topics([REGISTRY])[REGISTRY].result(180)
    until(lambda: fleet.registries_made() > made)
    until(lambda: REGISTRY in admin.list_topics(timeout=20).topics)
    path = fleet.config(1)
    text = path.read_text()
    path.write_text(text.replace("kafka3", "kafka4"))
    try:
        until(lambda: fleet.brokers(3, 1)[1].tags.get("cluster") == "kafka4")
    finally:
        path.write_text(text)
    until(lambda: fleet.brokers(3, 1)[1].tags.get("cluster") == "kafka3")


@pytest.mark.slow
@pytest.mark.promise(
    "broker-metadata.md",
    "The command `broker-metadata` shows brokers with their addresses and tags, and says why it cannot.",
)
def test_the_command_shows_them(fleet: Fleet) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "proxy", "broker-metadata", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    shown = run(fleet.address(1), "--broker", "2", "--broker", "-1")
    reported = run(fleet.address(1), "--output", "json")
    refused = run(fleet.address(1), "--api-key", "30100")
    direct = run(fleet.state.node(1).upstream)
    found = re.findall(r"^broker (\d)  (\S+)$", shown.stdout, re.MULTILINE)
    assert found == [(str(one), fleet.address(one)) for one in (1, 2)]
    assert re.search(r"^  rack +r8a9$", shown.stdout, re.MULTILINE)
    assert [one["node_id"] for one in json.loads(reported.stdout)] == [1, 2, 3]
    said = "brokerside: Request not supported by server: BrokerMetadata v0\n"
    assert (refused.returncode, refused.stderr) == (1, said)
    assert (direct.returncode, "the connection was closed" in direct.stderr) == (1, True)


@pytest.mark.slow
class TestClient:
    @pytest.mark.promise(
        "broker-metadata.md", "A client that moves to a broker keeps its connection where that leads there already."
    )
    @pytest.mark.promise(
        "broker-metadata.md", "A client moves to another broker by the address that BrokerMetadata returned."
    )
    def test_moves_where_its_connection_leads_elsewhere(self, fleet: Fleet) -> None:
        bind = f"{HOST}:{free_ports(1)[0]}"
        with tap(bind, fleet.address(1)) as connections, BrokerMetadataClient(bind) as client:
            assert client.move_to(1).node_id == 1
            assert len(client.brokers()) == 3
            assert (str(client.address), len(connections)) == (bind, 1)
            assert client.move_to(UPGRADED).node_id == UPGRADED
            assert str(client.address) == fleet.address(UPGRADED)

    @pytest.mark.promise(
        "broker-metadata.md",
        "A sidecar before another broker than `broker.id` is not ready, and a client's check raises BrokerIdMismatch.",
    )
    def test_finds_out_that_it_was_led_to_another_broker(self, fleet: Fleet) -> None:
        bind, admin = (f"{HOST}:{port}" for port in free_ports(2))
        config = yaml.safe_load(fleet.config(2).read_text())
        config["admin"]["bind"] = admin
        wrong = {"bind": bind, "advertised": fleet.address(2), "upstream": fleet.state.node(1).upstream}
        config["listeners"][0] |= wrong
        path = fleet.folder / "miswired.yaml"
        path.write_text(yaml.safe_dump(config))
        sidecar = SidecarProcess.spawn(path, path.with_suffix(".log"), admin)
        try:
            until(lambda: "wrong_broker" in sidecar.log.read_text())
            until(lambda: '"started"' in sidecar.log.read_text())
            assert not sidecar.ready()
            mismatch = pytest.raises(BrokerIdMismatch, match=r"^broker id mismatch: expected 2, got 1$")
            with BrokerMetadataClient(bind) as client, mismatch:
                client.check(2)
        finally:
            sidecar.stop()


@pytest.mark.slow
class TestLosses:
    @pytest.mark.promise(
        "broker-metadata.md",
        "The broker of a killed sidecar is returned with the sidecar's last address and the tag `sidecar=absent`.",
    )
    def test_a_sidecar_that_is_killed_is_absent_and_its_broker_is_not(self, fleet: Fleet) -> None:
        before = fleet.brokers(1, 2)[2]
        fleet.stop(2, kill=True)
        until(lambda: fleet.brokers(1)[2].tags.get("sidecar") == "absent")
        entries = fleet.brokers(3)
        assert list(entries) == [1, 2, 3]
        until(lambda: fleet.brokers(1)[2].tags["protocol.version.source"] == "broker")
        absent = fleet.brokers(1)[2]
        assert protocol_range(absent) == protocol_range(before)
        assert (absent.host, absent.port) == (before.host, before.port)
        fleet.start(2)
        until(fleet.settled)

    @pytest.mark.promise("broker-metadata.md", "A broker that does not run is left out of BrokerMetadata.")
    def test_a_broker_that_is_stopped_is_not_returned(self, fleet: Fleet) -> None:
        cluster.stop_node(fleet.folder, 2)
        until(lambda: list(fleet.brokers(1)) == [1, 3])
        start_again(fleet.folder, 2)
        until(lambda: known_brokers(fleet.state.node(1).internal) == {1, 2, 3})
        until(fleet.settled)

    @pytest.mark.promise(
        "broker-metadata.md", "While the cluster does not answer, BrokerMetadata returns what was known."
    )
    def test_the_own_broker_is_returned_whatever_is_down(self, fleet: Fleet) -> None:
        own = fleet.brokers(1, -1)[1]
        for node_id in (2, UPGRADED):
            cluster.stop_node(fleet.folder, node_id, kill=True)
        try:
            time.sleep(3)  # several looks at a cluster that does not answer
            assert fleet.brokers(1, -1) == {1: own}
        finally:
            start_again(fleet.folder, 2)
            upgraded(fleet.folder, UPGRADED)
            until(lambda: known_brokers(fleet.state.node(1).internal) == {1, 2, 3})
            until(fleet.settled)


# ---- with logins ----------------------------------------------------------------------------------------------------


LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "alice-secret",
}


@contextmanager
def sidecar(secured: SharedBroker, folder: Path, **values: object) -> Iterator[str]:
    """Gives the address of its plain listener; there is one with SASL beside it."""
    node, sasl = secured.node, secured.listeners["SASL"]
    listener = {"name": "SASL", "bind": sasl.advertised, "upstream": sasl.address}
    listener["security.protocol"] = "SASL_PLAINTEXT"
    config = {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "listeners": [{"name": "CLIENT", "bind": node.advertised, "upstream": node.upstream}, listener],
        "admin": {"bind": node.admin},
        **values,
    }
    with running(config, folder):
        yield node.advertised


@pytest.fixture
def address(secured: SharedBroker, tmp_path: Path) -> Iterator[str]:
    with sidecar(secured, tmp_path, workers=2) as found:
        yield found


@pytest.mark.promise(
    "broker-metadata.md",
    "A client finds the secured endpoint over a plain connection; there, BrokerMetadata needs a login.",
)
def test_a_client_goes_from_a_plain_connection_to_one_with_a_login(secured: SharedBroker, address: str) -> None:
    with BrokerMetadataClient(address) as client:
        plain = client.this_broker()
        assert [one.node_id for one in client.brokers()] == [plain.node_id]
    target = endpoints(plain)["sasl_plaintext"]
    assert str(target) == secured.listeners["SASL"].advertised
    with BrokerMetadataClient(target, LOGIN) as client:
        logged_in = client.check(plain.node_id)
        with BrokerMetadataClient(address) as other:  # they change until the sidecar, and each worker, knows all
            until(lambda: client.this_broker().tags == other.this_broker().tags)
    assert (logged_in.host, logged_in.port) == (target.host, target.port)
    assert (plain.host, plain.port) != (target.host, target.port)
    with BrokerMetadataClient(target) as client, pytest.raises(BrokerUnreachable, match="the connection was closed"):
        client.this_broker()
    wrong = {**LOGIN, "sasl.password": "wrong"}
    with BrokerMetadataClient(target, wrong) as client, pytest.raises(BrokersideError, match="SASL"):
        client.this_broker()


@pytest.mark.promise(
    "broker-metadata.md",
    "With `broker.metadata.before.authentication` BrokerMetadata is answered before the login, too.",
)
def test_before_the_login_where_that_is_configured(secured: SharedBroker, tmp_path: Path) -> None:
    values = {"broker.metadata.before.authentication": True}
    with (
        sidecar(secured, tmp_path, **values) as address,
        BrokerMetadataClient(secured.listeners["SASL"].advertised) as client,
        BrokerMetadataClient(address) as other,
    ):
        until(lambda: client.this_broker().tags == other.this_broker().tags)


@pytest.mark.promise("tags.md", "Every built-in tag of a broker is documented and has the format that its page gives.")
@pytest.mark.slow
def test_every_tag_is_as_documented(secured: SharedBroker, address: str) -> None:
    with BrokerMetadataClient(address) as client:
        builtin = TAGS_BY_NAME.keys() - {"sidecar"}
        until(lambda: client.this_broker().tags.keys() >= builtin)
        tags = client.this_broker().tags
    assert all(re.fullmatch(TAGS_BY_NAME[name].grammar, tags[name]) for name in builtin), tags
    assert (tags["broker.id"], tags["broker.version"]) == (str(secured.node.id), "4.3.x (inferred)")
    assert tags["cluster.id"] == secured.state.cluster_id
    assert f"plaintext://{address}" in tags["endpoints"].split(",")
    page = (Path(__file__).parents[2] / "docs" / "tags.md").read_text()
    assert all(f"## `{name}`\n" in page for name in builtin)
