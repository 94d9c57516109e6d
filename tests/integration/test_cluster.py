"""A real Kafka, started and stopped by ``proxy.local.cluster``."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is exported, untyped

from proxy.errors import LocalError
from proxy.local import cluster
from proxy.local.ports import HOST
from proxy.local.readiness import known_brokers
from proxy.local.state import save
from tests.integration.conftest import free_port
from tests.integration.sidecars import until
from tests.tools.topic import create
from tests.unit.local.test_cluster import planned

pytestmark = pytest.mark.kafka


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    cluster.discard(tmp_path / "cluster")


def topics(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return set(admin.list_topics(timeout=20).topics)


def create_topic(bootstrap: str, topic: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, NewTopic(topic, 1, replicas))
    for address in bootstrap.split(","):  # the controller has it, and brokers learn of it a moment later
        until(lambda address=address: topic in topics(address))  # type: ignore[misc]


@pytest.mark.promise("local-cluster.md", "A cluster that is started again has its addresses and its data.")
@pytest.mark.slow
def test_up_kill_down_and_up_again(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    properties = {"num.partitions": "2"}
    state = cluster.up(folder, client_ports=[port], advertise="broker", broker_properties=properties)
    assert state.running
    assert state.bootstrap == state.broker_bootstrap == f"{HOST}:{port}"
    assert cluster.status(folder) == state
    create_topic(state.bootstrap, "kept")
    listed = subprocess.run(
        cluster.tool("topics", "--bootstrap-server", state.bootstrap, "--list"),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert listed.stdout.split() == ["kept"]
    assert "starting Kafka 4.3.1, 1 node" in capfd.readouterr().err
    assert cluster.up(folder, broker_properties=properties) == state
    assert "already runs" in capfd.readouterr().err
    with pytest.raises(LocalError, match=r"holds a cluster of 1 node\(s\) with Kafka 4.3.1, not of 3"):
        cluster.up(folder, nodes=3, progress=False)
    with pytest.raises(LocalError, match="has its clients dial"):
        cluster.up(folder, client_ports=[free_port()], progress=False)
    assert cluster.stop_node(folder, 1, kill=True).nodes[0].pid is None
    with pytest.raises(LocalError, match="there is no node 2"):
        cluster.start_node(folder, 2)
    again = cluster.start_node(folder, 1)
    assert again.running
    assert cluster.start_node(folder, 1) == again
    assert "kept" in topics(again.internal_bootstrap)
    assert "num.partitions=2" in again.nodes[0].properties.read_text()
    cluster.down(folder)
    cluster.down(folder)
    stopped = cluster.status(folder)
    assert not stopped.running
    assert stopped.bootstrap == state.bootstrap
    again = cluster.up(folder, progress=False)
    assert (again.cluster_id, again.bootstrap) == (state.cluster_id, state.bootstrap)
    assert again.nodes[0].pid != state.nodes[0].pid
    assert "kept" in topics(again.internal_bootstrap)
    until(lambda: bool(list(again.nodes[0].data.glob("kept-0/*.log"))))


@pytest.mark.promise("local-cluster.md", "What of a cluster cannot be started is named, and nothing is started.")
def test_what_cannot_be_started_is_reported(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        cases: list[tuple[dict[str, object], str]] = [
            ({"nodes": 2}, "a cluster of 2 nodes cannot be started; allowed are 1 and 3"),
            ({"kafka_version": "2.8.0"}, "Kafka 2.8.0 is not known here; known are 3.9.2, 4.3.1, 4.4.0"),
            ({"client_ports": [1, 2]}, "client ports 1, 2: there must be 1, one for each node"),
            ({"client_ports": [70_000]}, "client port 70000: allowed is 1 to 65535"),
            ({"nodes": 3, "client_ports": [9092, 9092, 9093]}, "there must be 3, one for each node, all different"),
            ({"client_ports": [taken]}, f"client port {taken} is taken by another process"),
        ]
        for arguments, why in cases:
            with pytest.raises(LocalError) as raised:
                cluster.up(folder, **arguments, progress=False)  # type: ignore[arg-type]  # wrong on purpose
            assert why in str(raised.value)
            assert cluster.status(folder) is None
        folder.mkdir(exist_ok=True)
        internal = f"{HOST}:{taken}"
        state = planned(folder, 1)
        nodes = (replace(state.nodes[0], upstream=f"{HOST}:{free_port()}", internal=internal),)
        save(folder, replace(state, nodes=nodes))
        said = f"{internal}, the INTERNAL listener of node 1, is taken by another process"
        with pytest.raises(LocalError, match=said):
            cluster.up(folder, broker_properties={}, progress=False)
    with pytest.raises(LocalError, match=r"no tool named 'nothing'; there are .*producer-perf"):
        cluster.tool("nothing")


@pytest.mark.slow
@pytest.mark.promise("local-cluster.md", "A broker that does not start shows its log, and the next up recovers.")
def test_a_broker_that_does_not_start_shows_its_log_and_the_next_run_recovers(folder: Path) -> None:
    with pytest.raises(LocalError, match=r"(?s)Kafka cannot format .*num.io.threads"):
        cluster.up(folder, broker_properties={"num.io.threads": "0"}, progress=False)
    with pytest.raises(LocalError, match=r"(?s)node 1 ended while it started; .*broker.log says:.*no.such.Reporter"):
        cluster.up(folder, broker_properties={"metric.reporters": "no.such.Reporter"}, progress=False)
    failed = cluster.status(folder)
    assert failed.nodes[0].pid is None
    assert cluster.up(folder, broker_properties={}, progress=False).running


@pytest.mark.slow
@pytest.mark.promise("local-cluster.md", "Three nodes replicate, and survive the loss of one.")
def test_three_nodes_replicate_and_survive_one(folder: Path) -> None:
    state = cluster.up(folder, nodes=3, progress=False)
    create_topic(state.internal_bootstrap, "everywhere", replicas=3)
    admin = AdminClient({"bootstrap.servers": state.internal_bootstrap})
    partition = admin.list_topics("everywhere", 20).topics["everywhere"].partitions[0]
    assert sorted(partition.replicas) == [1, 2, 3]
    cluster.stop_node(folder, 1, kill=True)
    rest = cluster.status(folder)
    assert [node.id for node in rest.nodes if node.pid] == [2, 3]
    until(lambda: known_brokers(state.nodes[1].internal) == {2, 3})
    create_topic(",".join(node.internal for node in state.nodes[1:]), "without-one", replicas=2)
    whole = cluster.up(folder, nodes=3, progress=False)
    assert whole.running
    assert [node.pid for node in whole.nodes[1:]] == [node.pid for node in state.nodes[1:]]
    cluster.discard(folder)
    thrown_away = cluster.status(folder)
    assert not thrown_away.running


@pytest.mark.slow
@pytest.mark.promise("local-cluster.md", "A cluster of Kafka 3.9.2 or 4.4.0 is started as one of the default.")
def test_older_and_newer_brokers(folder: Path) -> None:
    for version in ("3.9.2", "4.4.0"):
        state = cluster.up(folder / version, kafka_version=version, progress=False)
        try:
            create_topic(state.internal_bootstrap, "old-or-new")
            until(lambda log=state.nodes[0].log, said=version: f"Kafka version: {said}" in log.read_text())  # type: ignore[misc]
        finally:
            cluster.discard(folder / version)
