"""The properties of local brokers, and the configuration of their sidecars."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from proxy.config import load
from proxy.local import broker
from proxy.local.readiness import known_brokers
from tests.integration.conftest import free_port
from tests.unit.local.samples import planned


@pytest.mark.promise("local-cluster.md", "A local broker advertises its sidecar's address.")
def test_properties_are_those_of_a_broker_behind_a_sidecar(tmp_path: Path) -> None:
    state = planned(tmp_path, 1)
    properties = broker.server_properties(state, state.nodes[0], {})
    assert properties["listeners"] == (
        "CLIENT://127.0.0.1:19092,INTERNAL://127.0.0.1:29092,CONTROLLER://127.0.0.1:39092"
    )
    assert properties["advertised.listeners"] == "CLIENT://127.0.0.1:9092,INTERNAL://127.0.0.1:29092"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:39092"
    assert properties["offsets.topic.replication.factor"] == "1"
    assert properties["transaction.state.log.min.isr"] == "1"
    three = planned(tmp_path, 3)
    properties = broker.server_properties(three, three.nodes[2], {})
    assert properties["node.id"] == "3"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:39092,2@127.0.0.1:39093,3@127.0.0.1:39094"
    assert properties["offsets.topic.replication.factor"] == "3"
    assert properties["transaction.state.log.min.isr"] == "2"

    extra = {"num.network.threads": "3", "message.max.bytes": "60000000"}
    broker.write_properties(state, state.nodes[0], extra)
    lines = state.nodes[0].properties.read_text().splitlines()
    assert {"num.network.threads=3", "message.max.bytes=60000000"} <= set(lines), "given ones have the last word"
    assert "num.network.threads=1" not in lines

    node, file = state.nodes[0], tmp_path / "sidecar-1.yaml"
    broker.write_sidecar_config(file, node)
    config = load(file)
    assert config.broker_id == 1
    assert [str(listener.bind) for listener in config.listeners] == [node.advertised]
    assert [str(listener.upstream) for listener in config.listeners] == [node.upstream]


def test_ids_are_kafkas_and_nobody_is_a_broker_where_nobody_listens() -> None:
    ids = {broker.new_id() for _ in range(300)}
    assert len(ids) == 300
    assert all(len(base64.urlsafe_b64decode(text + "==")) == 16 and text[0] != "-" for text in ids)
    assert known_brokers(f"127.0.0.1:{free_port()}") == set()


def test_last_words_are_errors_without_stack_frames() -> None:
    said = "INFO start\nERROR no (x)\njava.lang.Exception: why\n\tat a.b(c)\n\nINFO end\nERROR " + "y" * 1000
    assert broker.error_lines(said).splitlines() == ["ERROR no (x)", "java.lang.Exception: why", "ERROR " + "y" * 294]
    assert broker.error_lines("one\ntwo\n") == "one\ntwo"
    assert broker.error_lines("Picked up JAVA_TOOL_OPTIONS: -Dpassword=hidden Exception\none") == "one"
    assert broker.error_lines("\n".join(f"line {n}" for n in range(30))).splitlines()[0] == "line 20"
