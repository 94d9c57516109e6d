"""Local brokers, sidecars and their Java: what they are given, their processes and ports; and the end of a demo."""

import io
import os
import shlex
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from observers.event import Envelope
from proxy.cli import _parser
from proxy.config import load
from proxy.errors import LocalError
from proxy.local import audit_reader, broker, cluster, demo, ports
from proxy.local.archive import archive_of, archive_options, archive_or_draft_options, publish_or_discard
from proxy.local.download import explain
from proxy.local.jars import LOCK_FILE, SETS
from proxy.local.java import java
from proxy.local.pins import Pin, parse, render
from proxy.local.process import spawn, stop
from proxy.local.sidecars import enable_coordinator
from proxy.local.state import ClusterState, Node, save
from tests.spark.envelopes import METADATA, connection, envelope, event, status


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
        assert ports.is_free(chosen[0], "127.0.0.2"), "another address of loopback"
    assert ports.is_free(chosen[0])


def fake_java(folder: Path, banner: str) -> Path:
    """A program that says ``banner`` as Java does, on stderr."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.promise("install.md", "Java 17 or newer is taken of JAVA_HOME or the path; others are refused.")
def test_java_home_wins_over_the_path_and_an_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match=r"no Java .* install Java 17 or newer"):
        java()
    of_path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert java() == of_path
    chosen = fake_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java() == chosen
    old = fake_java(tmp_path / "old" / "bin", 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(LocalError, match=r"is Java 11, and Java 17 or newer is needed; .* set JAVA_HOME") as raised:
        java()
    assert str(old) in str(raised.value)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalError, match="correct it or unset it"):
        java()
    fake_java(tmp_path / "none" / "bin", "hello")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(LocalError, match="does not say its version"):
        java()


def draft_of(options: list[str]) -> Path:
    option, _, path = options[0].partition("=")
    assert option == "-XX:ArchiveClassesAtExit"
    return Path(path)


@pytest.mark.promise("local-cluster.md", "A broker that was killed leaves no half-written archive of classes behind.")
def test_the_draft_of_a_node_that_was_stopped_becomes_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERSIDE_CACHE", str(tmp_path / "cache"))
    java = fake_java(tmp_path / "bin", 'openjdk version "17"')
    archive, home = archive_of(java, [Path("/jars/a.jar"), Path("/jars/b.jar")]), Path("/somewhere/node-1")
    other = draft_of(archive_or_draft_options(archive, Path("/somewhere/node-2")))
    other.write_bytes(b"being written")
    draft = draft_of(archive_or_draft_options(archive, home))
    draft.write_bytes(b"half")
    publish_or_discard(home, complete=False)  # it was killed
    assert (draft.exists(), archive_options(archive)) == (False, [])
    draft = draft_of(archive_or_draft_options(archive, home))
    draft.write_bytes(b"classes")
    assert archive_options(archive) == []
    publish_or_discard(home, complete=True)
    assert archive.read_bytes() == b"classes"
    assert not draft.exists()
    assert other.exists(), "each node settles its own"
    assert archive_or_draft_options(archive, home) == archive_options(archive)
    assert archive_options(archive)[0] == f"-XX:SharedArchiveFile={archive}"


A = Pin("org.example", "thing_2.13", "1.0-rc.1", "a" * 64, 10)
B = Pin("com.example", "other", "2", "b" * 64, 20)


@pytest.mark.promise("dependencies.md", "The jars of Kafka and Spark are locked with versions, checksums and sizes.")
def test_the_committed_lock_is_what_the_lock_command_writes() -> None:
    sets = {"one-1.0": (B, A), "two": (A,)}
    assert parse(render(sets)) == sets
    assert render(SETS) == LOCK_FILE.read_text()
    sizes = {name: len(pins) for name, pins in SETS.items()}
    kafka = {"kafka-4.3.1": 53, "kafka-3.9.2": 63, "kafka-4.4.0": 44, "kafka-clients-2.8.2": 5, "kafka-protocol": 32}
    assert sizes == {**kafka, "spark-4.2.0": 4, "delta-4.4.0": 5, "hadoop-aws-3.5.0": 37, "spark-avro": 1}


@pytest.mark.promise("install.md", "Where jars cannot be downloaded, one sentence says why.")
def test_what_a_client_says_becomes_a_sentence() -> None:
    missing = [Pin("org.example", f"jar{n}", "1.0", "0" * 64, 2_000_000) for n in range(5)]
    others = "org.example:jar0:1.0, org.example:jar1:1.0, org.example:jar2:1.0 and others"
    proxied = "You probably access the destination server through a proxy server that is not well configured."
    for said, reported in (
        ("SSLHandshakeException: PKIX path building failed: …: unable to find valid", "does not trust the TLS cert"),
        ("Server access error at url … (java.net.ConnectException: Connection refused)", "cannot be reached"),
        (proxied, "cannot be reached"),
        ("java.net.UnknownHostException: x: Temporary failure in name resolution", "cannot be reached"),
        ("java.io.IOException: No space left on device", "the disk is full; 11 MB"),
        ("SERVER ERROR: Bad Gateway url=…", "failed while org.example:jar0:1.0 was fetched"),
        (":: org.example#jar0;1.0: not found", f"does not serve {others}"),
    ):
        sentence = explain(said, missing)
        assert reported in sentence, said
        assert "\n" not in sentence


def said() -> list[str]:
    ports = iter(range(1, 6))
    addresses = [f"127.0.0.1:{next(ports)}" for _ in range(5)]
    state = ClusterState("4.3.1", "id", "sidecar", (Node(1, *addresses, Path("/demo/cluster/node-1")),))
    out = io.StringIO()
    demo._explain(Path("/demo"), state, Console(file=out, soft_wrap=True, highlight=False))
    return out.getvalue().splitlines()


@pytest.mark.promise("README.md", "Every command that make demo names at its end can be run.")
def test_every_command_that_it_names_can_be_run(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["brokerside"])
    lines = [line.strip() for line in said() if line.startswith("  brokerside ")]
    named = set()
    for line in lines:
        _, *arguments = shlex.split(line.partition(" && ")[0], comments=True)
        parsed = _parser().parse_args(arguments)  # an argument that there is not would exit
        named.add(arguments[0])
        if "admin" in parsed:
            assert str(parsed.admin) == "127.0.0.1:5"
    assert {"quotas", "reload", "connections", "top", "broker-metadata", "query", "report", "jobs"} <= named


def records(last: Any) -> dict[int, Envelope]:
    """Five events, the status ``last``, and one after it; number 3 was lost."""
    read_totals = [
        envelope([event(METADATA), event(METADATA)]),
        envelope([connection(change="opened", requests=0), connection(requests=2)], first_seq=4),
        envelope([last, event(METADATA)], first_seq=6),
    ]
    return {one.first_seq: one for one in read_totals}


@pytest.mark.promise("README.md", "make demo counts only events that came before the status that it compares with.")
def test_only_what_was_before_the_status_is_counted() -> None:
    found = records(status(emitted=5, dropped={"failed": 1}))
    last = found[6].events[0]
    assert audit_reader._count_missing(found, last) == 0
    reported = audit_reader._count(found, last)
    assert (dict(reported.kinds), reported.requests, reported.lost) == ({"request": 2, "connection": 2}, 2, 1)
    del found[4]
    assert audit_reader._count_missing(found, last) == 2
