"""One node of a local cluster: its configuration, its formatted storage, and the command that runs it."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from proxy.errors import LocalError
from proxy.local.archive import archive_of, archive_options, archive_or_draft_options
from proxy.local.jars import java, resolve
from proxy.local.state import ClusterState, Node

KAFKA_VERSIONS = ("3.9.2", "4.3.1", "4.4.0")

HEAP = "512m"
"""Room for a record of 50 MB, and for two requests of ``socket.request.max.bytes`` (100 MiB) at once. For other needs
there is ``KAFKA_HEAP_OPTS`` in the environment, as for Kafka's own scripts."""

AUDIT_TOPIC = "brokerside-audit"

FORMAT_TIMEOUT = 60.0
LOG_TAIL_LINES = 10
LOG_LINE_LENGTH = 300
"""Lines of a log that an error shows, and characters of each."""

# The first compiler alone and one thread to collect garbage: a broker on a small machine beside everything else.
JVM = (
    "-Xms32m",
    f"-Xmx{HEAP}",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=48m",
)

CHECKPOINTS = ("bootstrap.checkpoint", "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint")
"""What a formatted storage begins with: until Kafka 4.3, and since 4.4 (KIP-1170)."""


def new_id() -> str:
    """Return a random id as Kafka writes them: 22 characters of URL-safe base64, the first no dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def server_properties(state: ClusterState, node: Node, extra: Mapping[str, str]) -> dict[str, str]:
    """Return Kafka's configuration of a node; ``extra`` overrides it."""
    replicas = str(len(state.nodes))
    in_sync = str(min(2, len(state.nodes)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{other.id}@{other.controller}" for other in state.nodes),
        "listeners": f"CLIENT://{node.upstream},INTERNAL://{node.internal},CONTROLLER://{node.controller}",
        "advertised.listeners": f"CLIENT://{node.advertised},INTERNAL://{node.internal}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.data),
        # Internal topics on every node, each with as many partitions as spread them over all nodes.
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": replicas,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": replicas,
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker is let in again when its session has ended: 3 s in place of 9.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # Small: 140 MB of memory in place of 380.
        "num.network.threads": "1",
        "num.io.threads": "2",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "2097152",
        "log.cleaner.io.buffer.size": "65536",
        **extra,
    }


def sidecar_config(node: Node) -> dict[str, Any]:
    """Return the configuration of the sidecar in front of ``node``."""
    return {
        "broker.id": node.id,
        "internal.bootstrap.servers": node.internal,
        "listeners": [
            {
                "name": "CLIENT",
                "bind": node.advertised,
                "upstream": node.upstream,
                "security.protocol": "PLAINTEXT",
            }
        ],
        "observer.class.names": ["observers.audit:AuditObserver"],
        "audit": {"topic": AUDIT_TOPIC, "spool.path": str(node.home.parent / "spool")},
        "admin": {"bind": node.admin},
    }


def write_properties(state: ClusterState, node: Node, extra: Mapping[str, str]) -> None:
    """Write a node's configuration file."""
    node.home.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={value}" for key, value in server_properties(state, node, extra).items()]
    node.properties.write_text("\n".join(lines) + "\n")


def write_sidecar_config(path: Path, node: Node) -> None:
    """Write the configuration file of the sidecar in front of ``node``."""
    path.write_text(yaml.safe_dump(sidecar_config(node), sort_keys=False))


def format_storage(state: ClusterState, jars: Sequence[Path]) -> None:
    """Format the storage of every node that has none. Raises LocalError with the output of Kafka's tool."""
    first = state.nodes[0]
    identity = "meta.properties"
    if not (first.data / identity).exists():
        run = [
            str(java()),
            *JVM,
            *archive_options(archive_of(java(), jars)),
            "-cp",
            class_path(jars),
            "kafka.tools.StorageTool",
        ]
        done = subprocess.run(
            [*run, "format", "-t", state.cluster_id, "-c", str(first.properties)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise LocalError(f"Kafka cannot format {first.data}:\n{error_lines(done.stdout + done.stderr)}")
    for node in state.nodes[1:]:
        if not (node.data / identity).exists():
            # What the tool would write, without another JVM.
            checkpoint = next(path for path in CHECKPOINTS if (first.data / path).exists())
            (node.data / checkpoint).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(first.data / checkpoint, node.data / checkpoint)
            (node.data / identity).write_text(
                f"version=1\ncluster.id={state.cluster_id}\nnode.id={node.id}\ndirectory.id={new_id()}\n"
            )


def command(node: Node, kafka_version: str, jars: Sequence[Path]) -> list[str]:
    """Return the command line that runs a node."""
    option, name = (
        ("log4j.configuration", "log4j.properties")
        if kafka_version.startswith("3.")
        else ("log4j2.configurationFile", "log4j2.properties")
    )
    logging = Path(__file__).with_name(name).as_uri()
    archive = archive_or_draft_options(archive_of(java(), jars), node.home)
    heap = os.environ.get("KAFKA_HEAP_OPTS", "").split()
    return [
        str(java()), *JVM, *heap, *archive, f"-D{option}={logging}", f"-Dbrokerside.log={node.log}",
        "-cp", class_path(jars), "kafka.Kafka", str(node.properties),
    ]  # fmt: skip


def error_lines(output: str) -> str:
    """Return the last lines of a JVM's output that are errors; without any, its last lines."""
    # "Picked up JAVA_TOOL_OPTIONS: …" may hold a password.
    dull = ("\tat ", "Picked up ")
    lines = [line[:LOG_LINE_LENGTH] for line in output.splitlines() if line.strip() and not line.startswith(dull)]
    errors = [line for line in lines if re.search("ERROR|FATAL|Exception|Error:", line)]
    return "\n".join((errors or lines)[-LOG_TAIL_LINES:])


def class_path(jars: Sequence[Path]) -> str:
    """Return the class path of ``jars``. Archives hold for one order of them only."""
    return ":".join(map(str, jars))


def broker_jars(kafka_version: str, *, progress: bool) -> list[Path]:
    """Return the jars of a Kafka version. Raises LocalError for one that is not known."""
    if kafka_version not in KAFKA_VERSIONS:
        raise LocalError(f"Kafka {kafka_version} is not known here; known are {', '.join(KAFKA_VERSIONS)}")
    return resolve(f"kafka-{kafka_version}", progress=progress)
