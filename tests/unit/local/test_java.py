"""Which Java and which jars a local cluster takes, and what ``KEEP=1 make demo`` says at its end."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from observers.event import Envelope
from proxy.cli import _parser
from proxy.errors import LocalError
from proxy.local import audit_reader, demo
from proxy.local.archive import archive_of, archive_options, archive_or_draft_options, publish_or_discard
from proxy.local.download import explain
from proxy.local.jars import LOCK_FILE, SETS
from proxy.local.java import java
from proxy.local.pins import Pin, parse, render
from proxy.local.state import ClusterState, Node
from tests.spark.envelopes import METADATA, connection, envelope, event, status


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
