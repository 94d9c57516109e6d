"""Each folder of ``deploy/examples/`` that has a broker's and a sidecar's configuration, with both started."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from tests.brokers import start_again
from tests.deploy.lab import Lab, host, lab, localized
from tests.deploy.running import Running, configuration, transfer, until
from tests.integration.quotas import Peer
from tests.tools import fetched
from tests.tools.authority import Authority

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
STARTED = {"plaintext", "scram", "mtls", "balancer", "unchanged-brokers"}
NAMES = {f"kafka-{number}.example": host(number) for number in (1, 2, 3)}
BALANCER = host(9)

UNCHANGED = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters=1@kafka-1.example:19093,2@kafka-2.example:19093,3@kafka-3.example:19093
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
listeners=CLIENT://0.0.0.0:9092,CONTROLLER://0.0.0.0:19093
advertised.listeners=CLIENT://kafka-{number}.example:9092
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
"""
"""Brokers as they are without any sidecar."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path / "lab") as made:
        yield made


def read(path: str, number: int = 1, **names: str) -> str:
    return localized((EXAMPLES / path).read_text(), number, NAMES | {k.replace("_", "."): v for k, v in names.items()})


def start(site: Lab, example: str, **names: str) -> Running:
    site.start_brokers({1: read(f"{example}/server.properties", **names)})
    return site.start_sidecar(1, read(f"{example}/brokerside.yaml", **names))


def test_each_example_with_a_configuration_is_started_here() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/brokerside*.yaml")} == STARTED


@pytest.mark.promise("install.md", "The example plaintext starts, with events and limits.")
def test_plaintext(site: Lab) -> None:
    sidecar = start(site, "plaintext")
    transfer(f"{host(1)}:9092", "orders")
    until(lambda: sidecar.metric("brokerside_audit_delivered_total") > 0, "events are delivered")
    assert sidecar.metric("brokerside_quota_limit", scope="ip", quota="connections") == 500


def has_connection(sidecar: Running, principal: str) -> bool:
    return bool(json.loads(sidecar.get(f"connections?principal={principal}") or "{}").get("connections"))


@pytest.mark.promise("install.md", "The example scram starts, and clients log in with SCRAM.")
def test_scram(site: Lab) -> None:
    sidecar = start(site, "scram")
    admin = AdminClient({"bootstrap.servers": f"{host(1)}:19094"})
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("alice", credential, password=b"alice-secret")
    admin.alter_user_scram_credentials([change])["alice"].result(180)
    login = {
        "bootstrap.servers": f"{host(1)}:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    producer = Producer(login)
    producer.produce("orders", b"one")
    assert producer.flush(30) == 0
    consumer = Consumer({**login, "group.id": "orders", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    until(lambda: consumer.poll(1.0) is not None, "the record is read")
    until(lambda: has_connection(sidecar, "User:alice"), "the sidecar knows who it is")
    consumer.close()


@pytest.mark.promise("install.md", "The example mtls starts, and only clients with a certificate get in.")
def test_mtls(site: Lab) -> None:
    tls = site.folder / "tls"
    authority, of_clients = Authority(tls), Authority(tls, "clients-ca")
    own = authority.issue("kafka-1", "CN=kafka-1", names=[host(1)])
    authority.issue("sidecar", "CN=sidecar")
    (tls / "kafka-1.pem").write_text(own.key.read_text() + own.certificate.read_text())
    sidecar = start(site, "mtls", **{"/etc/kafka": str(site.folder)})
    secured = {"security.protocol": "SSL", "ssl.ca.location": str(authority.ca)}

    def as_client(issuer: Authority, name: str) -> dict[str, str]:
        pair = issuer.issue(name, f"CN={name},OU=Billing")
        return secured | {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}

    alice = as_client(of_clients, "alice")
    transfer(f"{host(1)}:9092", "orders", **alice)
    until(lambda: sidecar.metric("brokerside_audit_delivered_total") > 0, "events are delivered")
    with contextlib.closing(
        Consumer({**alice, "bootstrap.servers": f"{host(1)}:9092", "group.id": "mtls"})
    ) as consumer:
        consumer.list_topics(timeout=30)
        until(lambda: has_connection(sidecar, "User:alice"), "the sidecar knows who it is")
    for port, refused in ((9092, secured), (9092, as_client(authority, "mallory")), (19092, alice)):
        admin = AdminClient({**refused, "bootstrap.servers": f"{host(1)}:{port}"})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)


@pytest.mark.promise("install.md", "The example balancer starts, and sees the clients' own addresses.")
def test_behind_a_balancer(site: Lab, tmp_path: Path) -> None:
    names = {"balancer_example": BALANCER, "10_1_0_0/24": "127.0.0.0/8"}
    site.start_brokers({1: read("balancer/server.properties", **names)})
    (tmp_path / "haproxy.cfg").write_text(read("balancer/haproxy.cfg", **names))
    try:
        program, unpacked = fetched.debian("haproxy", ["haproxy"])
    except fetched.MissingError as missing:
        pytest.skip(f"no HAProxy: {missing}")
    with (tmp_path / "haproxy.log").open("wb") as log:
        balancer = subprocess.Popen(
            [program, "-db", "-f", tmp_path / "haproxy.cfg"], env=fetched.environment_of(unpacked) or None, stderr=log
        )
    try:
        sidecar = site.start_sidecar(1, read("balancer/brokerside.yaml", **names))
        transfer(f"{BALANCER}:9092", "orders")
        with Peer(f"{BALANCER}:9092", source="127.0.0.77") as peer:
            peer.ask(3, 1, b"\0\0\0\0")
            found = json.loads(sidecar.get("connections?client_ip=127.0.0.77") or "{}")
            assert len(found["connections"]) == 1
    finally:
        balancer.terminate()
        balancer.wait(30)


@pytest.mark.promise("install.md", "The example unchanged-brokers starts, and its clients see sidecars.")
def test_three_brokers_that_cannot_be_changed(site: Lab) -> None:
    site.start_brokers({n: localized(UNCHANGED.format(number=n), n, NAMES) for n in (1, 2, 3)})
    for number in (1, 2, 3):
        site.start_sidecar(number, read(f"unchanged-brokers/brokerside-{number}.yaml", number))
    admin = AdminClient({"bootstrap.servers": f"{host(1)}:9292"})
    wanted = {number: f"{host(number)}:9292" for number in (1, 2, 3)}

    def sidecars() -> dict[int, str]:
        return {one.id: f"{one.host}:{one.port}" for one in admin.list_topics(timeout=30).brokers.values()}

    until(lambda: sidecars() == wanted, "the sidecars know each other")
    transfer(f"{host(2)}:9292", "orders")


@pytest.mark.promise("operations.md", "A native sidecar starts before its broker, and ends well after it.")
def test_it_lives_without_a_broker_is_ready_with_it_and_ends_well_after_it(
    cluster: ClusterState, topic: str, tmp_path: Path
) -> None:
    node = cluster.nodes[0]
    folder = node.home.parent
    config = configuration(cluster)
    config["audit"]["spool.path"] = str(tmp_path / "spool")
    (tmp_path / "brokerside.yaml").write_text(yaml.safe_dump(config))
    sidecar = Running(node.admin)
    local_cluster.stop_node(folder, node.id)
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "run", "-c", tmp_path / "brokerside.yaml"], stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: sidecar.get("livez"), "the startup probe succeeds")
        assert not sidecar.ready()
        start_again(folder, node.id)
        sidecar.wait_ready()
        transfer(node.advertised, topic, 50)
        local_cluster.stop_node(folder, node.id)
        until(lambda: not sidecar.ready(), "the readiness probe fails")
        assert sidecar.get("livez"), "the liveness probe does not"
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        start_again(folder, node.id)
