"""Local brokers and sidecars: what they are given, and their processes and ports."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from proxy.config import load
from proxy.local import broker, cluster, ports
from proxy.local.process import spawn, stop
from proxy.local.sidecars import enable_coordinator
from proxy.local.state import ClusterState, Node, save


def planned(folder: Path, nodes: int) -> ClusterState:
    """A cluster that was never started.

    Clients dial 9092…, brokers listen on 19092…, INTERNAL on 29092…, CONTROLLER on 39092…, admin on 9644….
    """

    def node(index: int) -> Node:
        dialled, upstream, internal, controller, admin = (
            f"127.0.0.1:{base + index}" for base in (9092, 19092, 29092, 39092, 9644)
        )
        return Node(index + 1, dialled, upstream, internal, controller, admin, folder / f"node-{index + 1}")

    return ClusterState("4.3.1", "ThK9ZFduS0ONy_eg3SRv7w", "sidecar", tuple(node(index) for index in range(nodes)))


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


@pytest.mark.promise("local-cluster.md", "A cluster enables the coordinator, and keeps other keys as edited.")
def test_the_coordinator_is_enabled_and_other_keys_of_an_edited_configuration_stay(tmp_path: Path) -> None:
    state = planned(tmp_path, 3)
    for node in state.nodes:
        broker.write_sidecar_config(tmp_path / f"sidecar-{node.id}.yaml", node)
    config = tmp_path / "sidecar-2.yaml"
    config.write_text(config.read_text() + "workers: 2\ncoordinator:\n  max.consumers: 7\n")
    enable_coordinator(tmp_path, state)
    for number in (1, 3):
        section = load(tmp_path / f"sidecar-{number}.yaml", environ={}).coordinator
        assert (section.enabled, section.max_consumers) == (True, 1000), "as many as a shell has descriptors for"
    edited = yaml.safe_load(config.read_text())
    assert (edited["workers"], edited["coordinator"]) == (2, {"max.consumers": 7, "enabled": True})


@pytest.mark.promise("local-cluster.md", "Another process with a stopped broker's pid is left alone.")
def test_a_reused_pid_is_not_taken_for_the_node(tmp_path: Path) -> None:
    process = spawn(["/bin/sleep", "60"], tmp_path / "out")
    try:
        stale = planned(tmp_path, 1)
        before_reboot = replace(process, started=process.started - 1)
        save(tmp_path, replace(stale, nodes=(replace(stale.nodes[0], process=before_reboot),)))
        found = cluster.status(tmp_path)
        assert found is not None
        assert not found.running
        cluster.down(tmp_path)
        assert process.alive()
    finally:
        stop([process], 10)


def wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in file.read_text():
        assert time.monotonic() < deadline, f"{text!r} did not come"
        time.sleep(0.01)


@pytest.mark.promise("local-cluster.md", "A local process outlives the command that started it, until it is stopped.")
def test_a_process_lives_in_its_own_session_until_it_is_stopped(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("of an earlier run")
    process = spawn(["/bin/sh", "-c", "echo one; echo two >&2; exec sleep 60"], output)
    wait_for(output, "two")
    assert output.read_text() == "one\ntwo\n", "a new file"
    assert process.alive()
    assert os.getsid(process.pid) == process.pid
    assert stop([process], 60)
    assert not process.alive()
    with pytest.raises(FileNotFoundError):
        spawn([str(tmp_path / "nothing")], output)


@pytest.mark.promise("local-cluster.md", "A process that does not end in time is killed.")
def test_one_that_does_not_listen_is_killed_and_reported(tmp_path: Path) -> None:
    stubborn = spawn(["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"], tmp_path / "out")
    wait_for(tmp_path / "out", "ready")
    assert not stop([stubborn], 1)
    assert not stubborn.alive()


@pytest.mark.promise("local-cluster.md", "Ports of a local cluster are free, below those that Linux gives away.")
def test_ports_are_different_free_and_outside_of_what_linux_gives_away() -> None:
    chosen = ports.free_ports(50)
    assert len(set(chosen)) == 50
    assert all(ports.is_free(port) and ports.FIRST <= port <= ports.LAST for port in chosen)
    with socket.create_server((ports.HOST, chosen[0])):
        assert not ports.is_free(chosen[0])
    assert ports.is_free(chosen[0])
