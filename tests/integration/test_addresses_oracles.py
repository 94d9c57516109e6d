"""Responses whose addresses were replaced, read by others: a client, Kafka's own classes, and kio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from proxy.core.struct import view
from proxy.interceptors.address_rewriter import METADATA
from proxy.local import broker
from proxy.local.cluster import ClusterState
from proxy.local.ports import HOST, free_ports
from proxy.local.sidecars import SidecarProcess
from tests.integration.asking import Asker
from tests.integration.librdkafka import consume, produce
from tests.integration.test_struct_oracles import compare, defines, reencoded
from tests.tools.addressed import all_addressed, drawn, rewriting, rewritten

EACH = 10


@pytest.mark.promise(
    "addresses.md",
    "A broker that advertises its own address gets clients that dial the sidecar, with `rewrite.addresses` alone.",
)
@pytest.mark.kafka
def test_a_client_gets_the_address_of_its_listener_and_works(cluster: ClusterState, topic: str, tmp_path: Path) -> None:
    """The broker advertises an address where nobody listens."""
    node = cluster.nodes[0]
    address, admin = (f"{HOST}:{port}" for port in free_ports(2))
    config = broker.sidecar_config(node)
    config["listeners"][0] |= {"bind": address, "advertised": address, "rewrite.addresses": True}
    config["admin"] = {"bind": admin}
    del config["observer.class.names"], config["audit"]
    path = tmp_path / "rewriting.yaml"
    path.write_text(yaml.safe_dump(config))
    sidecar = SidecarProcess.start(path, path.with_suffix(".log"), admin)
    try:
        client = AdminClient({"bootstrap.servers": address})
        nodes = client.describe_cluster().result(60).nodes
        assert [(one.id, f"{one.host}:{one.port}") for one in nodes] == [(node.id, address)]
        values = [str(number).encode() for number in range(100)]
        assert produce(address, topic, values) == 100
        assert sorted(consume(address, topic, 100)) == sorted(values)
        with Asker(address) as asker:
            for version in asker.versions()[METADATA]:
                brokers = asker.answer(METADATA, version, {"Topics": None}).get("Brokers")
                assert [(one.get("Host"), one.get("Port")) for one in brokers] == [parsed(address)], version
        assert sidecar.metric("brokerside_intercept_errors_total") == 0
    finally:
        assert sidecar.stop()


def parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.promise(
    "addresses.md", "Kafka's own classes read every rewritten response, with the same values but the addresses."
)
@pytest.mark.slow
@pytest.mark.kafka
def test_kafkas_own_classes_read_the_same() -> None:
    """Of every version the newest release that has it: each field, and the bytes when it writes them again."""
    compared = changed = 0
    left = all_addressed()
    for kafka in ("4.4.0", "3.9.2"):
        mine = [one for one in left if defines(kafka, (*one, True))]
        left = [one for one in left if one not in mine]
        before = [drawn(number, *one) for one in mine for number in range(EACH)]
        after = [one._replace(body=rewritten(rewriting(), one)) for one in before]
        changed += sum(one.body != other.body for one, other in zip(before, after, strict=True))
        for one, line in zip(after, reencoded(kafka, after), strict=True):
            where = f"Kafka {kafka}, api key {one.key}, version {one.version}"
            assert line.startswith("{"), f"{where}: {line}"
            ours = view(one.key, one.version, one.body, response=True)
            compared += compare(ours, json.loads(line), where)
    assert left == []
    assert changed > 100
    assert compared > 1_000
