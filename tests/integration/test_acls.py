"""The ACLs of docs/security.md are what sidecars and jobs need: no more, and no less."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from observers.cluster_events import InventoryEvent
from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.local import broker
from proxy.local.cluster import Node
from proxy.local.sidecars import SidecarProcess
from tests.brokers import secured_broker
from tests.integration.authorizer import DECISION, login
from tests.integration.quotas import ALTER, RATE, Peer, alter
from tests.integration.test_admin_requests import run_job
from tests.integration.test_audit import envelopes, events, until
from tests.tools.fragments import blocks
from tests.tools.kafka_tools import KafkaTools

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

IMPLIED: Mapping[str, Set[str]] = {
    "Read": {"Describe"},
    "Write": {"Describe"},
    "AlterConfigs": {"DescribeConfigs"},
}
"""What an operation that is allowed allows as well, in Kafka's authorizer."""


class Right(NamedTuple):
    """An operation of one principal on a resource; names and types as in Kafka's AclOperation and ResourceType."""

    principal: str
    operation: str
    resource_type: str
    resource_name: str
    prefixed: bool = False

    def covers(self, used: Right) -> bool:
        """Whether this ACL is one by which ``used`` was allowed."""
        if self.resource_name != "*" and self.prefixed != (self.resource_name != used.resource_name):
            return False
        return (
            (self.principal, self.resource_type) == (used.principal, used.resource_type)
            and used.resource_name.startswith(self.resource_name.removesuffix("*"))
            and used.operation in {self.operation, *IMPLIED.get(self.operation, ())}
        )


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory, tools: KafkaTools) -> Iterator[list[tuple[str, Right]]]:
    """What the authorizer decided: ``Allowed`` or ``Denied``, and the right that was asked for.

    A sidecar ran with the audit, the registry and the cluster's quotas, before and after a restart, and then the jobs.
    """
    folder = tmp_path_factory.mktemp("acls")
    with secured_broker(folder) as made:
        node, internal = made.node, made.listeners["OWN"].address
        with made.logging("kafka.authorizer.logger"):  # what is allowed; what is denied it logs anyway
            run_documented_commands(folder, node, tools)
            use_everything(folder, node, internal)
            run_job(internal, folder / "tables", "--only", "traffic", "--command-config", str(login("jobs", folder)))
        yield [
            (one["decision"], Right(one["principal"], camel(one["operation"]), one["type"], one["name"]))
            for one in DECISION.finditer(made.log())
            if one["principal"] in ("User:sidecar", "User:jobs")
        ]


def documented_commands() -> str:
    """The commands of docs/security.md."""
    (block,) = [one for one in blocks("sh", page="docs/security.md") if "kafka-acls.sh" in one.text]
    return block.text


def run_documented_commands(folder: Path, node: Node, tools: KafkaTools) -> None:
    """Bash reads the commands, and one JVM runs them all."""
    (folder / "kafka-acls.sh").write_text('#!/bin/bash\necho "${@@Q}" >> called\n')
    (folder / "kafka-acls.sh").chmod(0o755)
    (folder / "admin.properties").touch()
    commands = documented_commands().replace("kafka-1.example:19094", node.internal)
    commands = commands.replace("admin.properties", str(folder / "admin.properties"))
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, timeout=60, check=True)
    for line in (folder / "called").read_text().splitlines():
        done = tools.run("acls", *shlex.split(line))
        assert done.returncode == 0, done.stdout + done.stderr
    # The controller has them all, and the authorizer of the broker a moment later.
    admin = AdminClient({"bootstrap.servers": node.internal})
    kinds = ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    until(lambda: len(admin.describe_acls(AclBindingFilter(*kinds)).result(60)) == len(granted()))


def use_everything(folder: Path, node: Node, internal: str) -> None:
    """Run a sidecar that creates its topics, and again on topics that a release before this one created."""
    config = broker.sidecar_config(node) | {
        "internal.bootstrap.servers": internal,
        "internal": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "sidecar",
            "sasl.password": {"file": str(folder / "password")},
        },
        "quotas": {"source": "min"},
    }
    config["audit"]["inventory.interval.ms"] = 1000
    (folder / "password").write_text("sidecar-secret")
    path = folder / "acls.yaml"
    path.write_text(yaml.safe_dump(config))
    admin = AdminClient({"bootstrap.servers": node.internal})
    for run in (1, 2):
        sidecar = SidecarProcess.start(path, folder / f"acls-{run}.log", node.admin)
        try:
            producer = Producer({"bootstrap.servers": node.advertised})
            producer.produce(f"orders-{run}", b"one")
            assert producer.flush(60) == 0
            until(lambda run=run: f"orders-{run}" in inventory(node))  # type: ignore[misc]
            until(lambda: REGISTRY in admin.list_topics(timeout=60).topics)
            with Peer(node.internal) as peer:
                peer.ask(ALTER, 0, alter([("ip", None)], (RATE, 1000.0, False)))
            until(lambda: "upstream_protected" in (folder / "acls-1.log").read_text())
            until(lambda: '"change": "taken"' in sidecar.log.read_text())  # noqa: B023 - called at once
            until(lambda: {largest_record(admin, topic) for topic in (REGISTRY, FEATURES)} == {"1048576"})
        finally:
            assert sidecar.stop()
        for topic in (REGISTRY, FEATURES):
            resource: Any = ConfigResource(ResourceType.TOPIC, topic)
            resource.add_incremental_config(
                ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
            )
            admin.incremental_alter_configs([resource])[resource].result(30)
            until(lambda topic=topic: largest_record(admin, topic) == "2000000")  # type: ignore[misc]


def largest_record(admin: AdminClient, topic: str) -> str | None:
    """The setting, as the broker knows it."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(60)["max.message.bytes"].value)


def inventory(node: Node) -> set[str]:
    """The topics that an inventory has."""
    found: list[InventoryEvent] = events(envelopes(node.internal, broker.AUDIT_TOPIC), InventoryEvent)
    return {topic.topic for event in found for topic in event.inventory}


def camel(operation: str) -> str:
    """Return an operation as the tools name it: ``DescribeConfigs`` of ``DESCRIBE_CONFIGS``."""
    return operation.title().replace("_", "")


def granted() -> set[Right]:
    """What the commands grant."""
    found = set()
    for command in re.findall(r"^acls (.*)$", documented_commands().replace("\\\n", ""), re.MULTILINE):
        words = shlex.split(command)
        options = list(zip(words, [*words[1:], ""], strict=True))
        names = ("allow-principal", "operation", "topic", "group", "transactional-id", "resource-pattern-type")
        of = {key: [value for option, value in options if option == f"--{key}"] for key in names}
        resources = [("Topic", name) for name in of["topic"]] + [("Group", name) for name in of["group"]]
        resources += [("TransactionalId", name) for name in of["transactional-id"]]
        resources += [("Cluster", "kafka-cluster")] if "--cluster" in words else []
        found |= {
            Right(principal, operation, *resource, prefixed=of["resource-pattern-type"] == ["prefixed"])
            for principal in of["allow-principal"]
            for operation in of["operation"]
            for resource in resources
        }
    return found


@pytest.mark.promise("security.md", "The ACLs of the page are what sidecars and jobs need: no more, and no less.")
def test_nothing_is_denied_and_every_acl_is_needed(decisions: list[tuple[str, Right]]) -> None:
    assert {right for decision, right in decisions if decision == "Denied"} == set()
    used = {right for decision, right in decisions if decision == "Allowed"}
    assert {right for right in granted() if not any(right.covers(one) for one in used)} == set()
