"""What Kafka's authorizer logs: the rights that sidecars and jobs use are the ACLs of docs/security.md, and what
Kafka's own tools are denied is in the events."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from observers.cluster_events import InventoryEvent
from observers.event import RequestEvent, Resource
from proxy.core.encode import NO_TAGGED_FIELDS, encode
from proxy.core.protected_topics import FEATURES, REGISTRY
from proxy.core.schema import layout
from proxy.local import broker
from proxy.local.cluster import Node
from proxy.local.sidecars import SidecarProcess
from spark_jobs.query import query
from tests import frames, sasl
from tests.brokers import secured_broker
from tests.integration.logins import DECISION, login
from tests.integration.quotas import ALTER, RATE, Peer, alter
from tests.integration.test_audit import envelopes, events, until
from tests.tools.fragments import blocks
from tests.tools.kafka_tools import KafkaTools
from tests.tools.topic import create

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

IMPLIED: Mapping[str, Set[str]] = {"Read": {"Describe"}, "Write": {"Describe"}, "AlterConfigs": {"DescribeConfigs"}}
"""What an operation that is allowed allows as well, in Kafka's authorizer."""


class Right(NamedTuple):
    """An operation of one principal on a resource; names and types as in Kafka's AclOperation and ResourceType."""

    principal: str
    operation: str
    resource_type: str
    resource_name: str
    prefixed: bool = False

    def covers(self, used: "Right") -> bool:
        if self.resource_name != "*" and self.prefixed != (self.resource_name != used.resource_name):
            return False
        return (
            (self.principal, self.resource_type) == (used.principal, used.resource_type)
            and used.resource_name.startswith(self.resource_name.removesuffix("*"))
            and used.operation in {self.operation, *IMPLIED.get(self.operation, ())}
        )


@pytest.fixture(scope="module")
def decisions(tmp_path_factory, tools):
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
        return [
            (decision, Right(principal, operation.title().replace("_", ""), kind, name))
            for principal, decision, operation, kind, name, _ in DECISION.findall(made.log())
            if principal in ("User:sidecar", "User:jobs")
        ]


(COMMANDS,) = [one.text for one in blocks("sh", page="docs/security.md") if "kafka-acls.sh" in one.text]


def run_documented_commands(folder: Path, node: Node, tools: KafkaTools) -> None:
    """Bash reads the commands, and one JVM runs them all."""
    (folder / "kafka-acls.sh").write_text('#!/bin/bash\necho "${@@Q}" >> called\n')
    (folder / "kafka-acls.sh").chmod(0o755)
    (folder / "admin.properties").touch()
    commands = COMMANDS.replace("kafka-1.example:19094", node.internal)
    commands = commands.replace("admin.properties", str(folder / "admin.properties"))
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", commands], cwd=folder, env=environment, timeout=60, check=True)
    for line in (folder / "called").read_text().splitlines():
        done = tools.run("acls", *shlex.split(line))
        assert done.returncode == 0, done.stdout + done.stderr
    # The controller has them all, and the authorizer of the broker a moment later.
    admin = AdminClient({"bootstrap.servers": node.internal})
    kinds = ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    until(lambda: len(admin.describe_acls(AclBindingFilter(*kinds)).result(180)) == len(granted()))


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

    def largest_record(topic: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(admin.describe_configs([resource])[resource].result(180)["max.message.bytes"].value)

    for run in (1, 2):
        sidecar = SidecarProcess.start(path, folder / f"acls-{run}.log", node.admin)
        try:
            producer = Producer({"bootstrap.servers": node.advertised})
            producer.produce(f"orders-{run}", b"one")
            assert producer.flush(60) == 0
            until(lambda run=run: f"orders-{run}" in inventory(node))
            until(lambda: REGISTRY in admin.list_topics(timeout=60).topics)
            with Peer(node.internal) as peer:
                peer.ask(ALTER, 0, alter([("ip", None)], (RATE, 1000.0, False)))
            until(lambda: "upstream_protected" in (folder / "acls-1.log").read_text())
            until(lambda: '"change": "taken"' in sidecar.log.read_text())  # noqa: B023 - called at once
            until(lambda: {largest_record(topic) for topic in (REGISTRY, FEATURES)} == {"1048576"})
        finally:
            assert sidecar.stop()
        for topic in (REGISTRY, FEATURES):
            resource: Any = ConfigResource(ResourceType.TOPIC, topic)
            resource.add_incremental_config(
                ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
            )
            admin.incremental_alter_configs([resource])[resource].result(180)
            until(lambda topic=topic: largest_record(topic) == "2000000")


def inventory(node: Node) -> set[str]:
    found: list[InventoryEvent] = events(envelopes(node.internal, broker.AUDIT_TOPIC), InventoryEvent)
    return {topic.topic for event in found for topic in event.inventory}


def granted() -> set[Right]:
    found = set()
    for command in re.findall(r"^acls (.*)$", COMMANDS.replace("\\\n", ""), re.MULTILINE):
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
def test_nothing_is_denied_and_every_acl_is_needed(decisions):
    assert {right for decision, right in decisions if decision == "Denied"} == set()
    used = {right for decision, right in decisions if decision == "Allowed"}
    assert {right for right in granted() if not any(right.covers(one) for one in used)} == set()


DENIALS = {29: "topic", 30: "group", 31: "cluster", 53: "transactional_id", 65: "delegation_token"}
"""TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN_AUTHORIZATION_FAILED."""

CHANGES: Sequence[tuple[str, ...]] = (
    ("topics", "--create", "--topic", "orders", "--partitions", "2", "--config", "retention.ms=60000"),
    ("topics", "--alter", "--topic", "orders", "--partitions", "3"),
    ("configs", "--alter", "--entity-type", "topics", "--entity-name", "orders", "--add-config", "max.message.bytes=9"),
    ("configs", "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "background.threads=3"),
    ("configs", "--alter", "--entity-type", "users", "--entity-name", "eve", "--add-config",
     "SCRAM-SHA-256=[password=canary-1]"),
    ("configs", "--alter", "--entity-type", "users", "--entity-name", "eve", "--add-config", "producer_byte_rate=5000"),
    ("acls", "--add", "--allow-principal", "User:eve", "--operation", "Read", "--topic", "orders"),
    ("acls", "--add", "--deny-principal", "User:eve", "--deny-host", "10.9.8.7", "--operation", "All", "--group", "re",
     "--resource-pattern-type", "prefixed"),
    ("acls", "--remove", "--force", "--allow-principal", "User:eve", "--operation", "Read", "--topic", "orders"),
    ("acls", "--remove", "--force", "--group", "readers", "--resource-pattern-type", "match"),
    ("configs", "--alter", "--entity-type", "topics", "--entity-name", "orders", "--delete-config",
     "max.message.bytes"),
    ("configs", "--alter", "--entity-type", "users", "--entity-name", "eve", "--delete-config", "SCRAM-SHA-256"),
    ("configs", "--alter", "--entity-type", "users", "--entity-name", "eve", "--delete-config", "producer_byte_rate"),
    ("groups", "--reset-offsets", "--group", "readers", "--topic", "orders", "--to-earliest", "--execute"),
    ("groups", "--delete", "--group", "readers"),
    ("topics", "--delete", "--topic", "orders"),
)  # fmt: skip

READS: Sequence[tuple[str, ...]] = (
    ("topics", "--describe", "--topic", "orders"),
    ("configs", "--describe", "--entity-type", "topics", "--entity-name", "orders"),
    ("acls", "--list"),
    ("groups", "--describe", "--group", "readers"),
    ("transactions", "describe", "--transactional-id", "pay"),
    ("transactions", "list"),
    ("log-dirs", "--describe"),
)

EXPECTED = {
    ("CreateTopics", "Create", "topic", "orders"),
    ("CreateTopics", "Create", "config", "retention.ms"),
    ("CreatePartitions", "Alter", "topic", "orders"),
    ("IncrementalAlterConfigs", "AlterConfigs", "topic", "orders"),
    ("IncrementalAlterConfigs", "AlterConfigs", "broker", "1"),
    ("AlterUserScramCredentials", "Alter", "user", "eve"),
    ("AlterClientQuotas", "AlterConfigs", "user", "eve"),
    ("CreateAcls", "Alter", "user", "User:eve"),
    ("DeleteAcls", "Alter", "user", "User:eve"),
    ("DeleteGroups", "Delete", "group", "readers"),
    ("DeleteTopics", "Delete", "topic", "orders"),
}


READ = ("ALLOW", "Read", "*", "LITERAL")
DENY = ("DENY", "All", "10.9.8.7", "PREFIXED")
ANY = ("ANY", "Any", None, "MATCH")
ACLS = {
    ("CreateAcls", "User:eve", "topic", "orders", None, *READ),
    ("CreateAcls", "User:eve", "group", "re", None, *DENY),
    ("DeleteAcls", "User:eve", "topic", "orders", None, *READ),
    ("DeleteAcls", "User:eve", "topic", "orders", "DELETE", *READ),
    ("DeleteAcls", None, "group", "readers", None, *ANY),
    ("DeleteAcls", "User:eve", "group", "re", "DELETE", *DENY),
}
"""Api, principal, type and name of the resource, what was done, and what the ACL says: filters, and what they found."""

ALTERED = {
    ("config", "max.message.bytes", "SET", None),
    ("config", "max.message.bytes", "DELETE", None),
    ("config", "background.threads", "SET", None),
    ("config", "producer_byte_rate", "SET", None),
    ("config", "producer_byte_rate", "DELETE", None),
    ("user", "eve", "SET", "SCRAM-SHA-256"),
    ("user", "eve", "DELETE", "SCRAM-SHA-256"),
}


PARTITIONS = [{"Name": "orders", "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 5}]}]
RAW: Sequence[tuple[int, int, dict[str, Any]]] = (
    (8, 7, {"GroupId": "payments", "GenerationId": -1, "MemberId": "", "Topics": PARTITIONS}),
    (9, 7, {"GroupId": "payments", "Topics": [{"Name": "orders", "PartitionIndexes": [0]}]}),
    (28, 3, {"TransactionalId": "pay", "GroupId": "payments", "GenerationId": -1, "Topics": PARTITIONS}),
    (24, 3, {"V3AndBelowTransactionalId": "pay", "V3AndBelowTopics": [{"Name": "orders", "Partitions": [0]}]}),
    (20, 5, {"TopicNames": [f"denied-{number}" for number in range(200)], "TimeoutMs": 9_000}),
    (20, 0, {"TopicNames": ["ghost"], "TimeoutMs": 9_000}),
)
"""Api key, version and body of requests that no tool sends where it has no right: OffsetCommit, OffsetFetch,
TxnOffsetCommit, AddPartitionsToTxn, DeleteTopics of many topics, and in a version that Kafka 4 does not have."""


@dataclass(frozen=True)
class Seen:
    events: list[RequestEvent]
    tables: Path
    """What the job made of them."""
    log: str

    def ask(self, sql: str) -> set[tuple[Any, ...]]:
        return set(query(self.tables, sql)[1])


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All events of the tools, which ran as the administrator, and then as a user without any right."""
    folder = tmp_path_factory.mktemp("admin")
    with secured_broker(folder) as made:
        node, (behind, before) = made.node, made.listeners["SASL"]
        for name in ("admin", "bob"):
            login(name, folder)
        Producer({"bootstrap.servers": node.internal, "transactional.id": "pay"}).init_transactions(120)
        config = broker.sidecar_config(node)
        config["listeners"] = [
            {"name": "SASL", "bind": before, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
        ]
        config["observer.shutdown.timeout.ms"] = 15_000  # all events come, also where the broker takes its time
        path = folder / "admin.yaml"
        path.write_text(yaml.safe_dump(config))
        sidecar = SidecarProcess.start(path, folder / "admin.log", node.admin)
        try:
            run_tools(before, folder, node.internal)
        finally:
            assert sidecar.stop()
        found = events(envelopes(node.internal, broker.AUDIT_TOPIC), RequestEvent)
        run_job(node.internal, folder / "tables", "--only", "changes")
        return Seen(found, folder / "tables", made.log())


def run_tools(bootstrap: str, folder: Path, internal: str) -> None:
    """Run each tool as the administrator, then as the other one. ``internal``: where the broker needs no login."""

    def run(user: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        name, *arguments = command
        options = ("--bootstrap-server", bootstrap, "--command-config", str(folder / f"{user}.properties"))
        return tools.run(name, *options, *arguments)

    client = AdminClient({"bootstrap.servers": internal})
    with KafkaTools() as tools:
        for number, command in enumerate((*CHANGES[:-2], *READS, *CHANGES[-2:])):
            done = run("admin", command)
            assert done.returncode == 0, done.stdout + done.stderr
            # The next tools ask the broker, which learns of all changes in their order, a moment later.
            create(client, NewTopic(f"known-{number}", 1, 1))
            until(lambda last=f"known-{number}": last in client.list_topics(timeout=60).topics)
        run("admin", CHANGES[0])
        for command in (*CHANGES, *READS):
            run("bob", command)
    ask_raw(bootstrap)


def ask_raw(bootstrap: str) -> None:
    host, _, port = bootstrap.partition(":")
    bodies = [(17, 1, sasl.handshake("PLAIN")), (36, 1, sasl.authenticate(sasl.plain("bob", "bob-secret"), 1))]
    for key, version, asked in RAW:
        made = layout(key, version, response=False)
        bodies.append((key, version, (NO_TAGGED_FIELDS if made.flexible else b"") + encode(made, asked)))
    with socket.create_connection((host, int(port)), 30) as client, client.makefile("rb") as answers:
        for number, (key, version, body) in enumerate(bodies):
            client.sendall(frames.request(key, version, number, body, "raw"))
            size = int.from_bytes(answers.read(4), "big")
            assert answers.read(size)[:4] == number.to_bytes(4, "big")


def run_job(bootstrap: str, tables: Path, *more: str) -> None:
    options = ("--available-now", "--bootstrap-servers", bootstrap, "--tables", str(tables), *more)
    command = [sys.executable, "-m", "proxy", "jobs", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("changes.md", "Every change by Kafka's own tools is in the events, without values.")
def test_every_change_is_in_the_events(seen):
    changed = {
        (event.api, event.operation, one.resource_type, one.resource_name)
        for event in seen.events
        for one in event.resources
        if event.principal == "User:admin" and one.error_code == 0
    }
    assert changed >= EXPECTED
    assert not any("canary" in str(event) for event in seen.events)
    by_hand = (event for event in seen.events if event.api == "OffsetCommit" and event.client_id != "raw")
    assert {event.group_id for event in by_hand} == {"readers"}


@pytest.mark.promise("changes.md", "Each ACL that is given or taken away has a row that says all of it.")
def test_acls_that_are_given_and_taken_away_say_who_may_do_what(seen):
    reported = seen.ask(
        "SELECT api, resource_name, parent_type, parent_name, op_type, acl_permission_type, acl_operation, acl_host,"
        " acl_pattern_type FROM changes"
        " WHERE principal = 'User:admin' AND acl_operation IS NOT NULL AND result = 'success'"
    )
    assert reported == ACLS
    refused = seen.ask(
        "SELECT resource_name, parent_name, op_type, acl_permission_type, acl_operation FROM changes"
        " WHERE principal = 'User:bob' AND api = 'DeleteAcls' AND acl_operation IS NOT NULL AND result = 'denied'"
    )
    assert refused == {("User:eve", "orders", None, "ALLOW", "Read"), (None, "readers", None, "ANY", "Any")}


@pytest.mark.promise("changes.md", "Changed settings, quotas and SCRAM users say whether they were set or deleted.")
def test_settings_quotas_and_users_say_whether_they_were_set_or_deleted(seen):
    reported = seen.ask(
        "SELECT resource_type, resource_name, op_type, mechanism FROM changes"
        " WHERE principal = 'User:admin' AND op_type IS NOT NULL AND acl_operation IS NULL"
    )
    assert reported == ALTERED
    assert not any("canary" in str(row) for row in seen.ask("SELECT * FROM changes"))


@pytest.mark.promise("changes.md", "Items of a long list whose result is not kept have the result unknown.")
def test_of_a_long_list_no_topic_is_said_to_be_deleted(seen):
    """All 200 were denied, and an event keeps the errors of 100."""
    found = seen.ask(
        "SELECT result, count(DISTINCT resource_name) FROM changes"
        " WHERE client_id = 'raw' AND api = 'DeleteTopics' AND resource_name LIKE 'denied-%' GROUP BY ALL"
    )
    assert found == {("denied", 100), ("unknown", 100)}
    unsupported = seen.ask("SELECT DISTINCT result, error FROM changes WHERE resource_name = 'ghost'")
    assert unsupported == {("failed", "UNSUPPORTED_VERSION")}


@pytest.mark.promise("changes.md", "The denials in changes are those that the broker's authorizer logs.")
def test_denials_are_those_that_the_authorizer_logs(seen):
    """By api and resource: what the tools retry is logged again. ListTransactions answers without an error, and leaves
    out transactions that the client has no right to see."""
    logged = {
        (one["api"], one["type"].lower().replace("transactionalid", "transactional_id"), one["name"])
        for one in DECISION.finditer(seen.log)
        if one["principal"] == "User:bob" and one["api"] != "ListTransactions"
    }
    assert {("OffsetCommit", "group", "payments"), ("AddPartitionsToTxn", "transactional_id", "pay")} <= logged
    denied = {
        (event.api, *resource)
        for event in seen.events
        for one in (Resource("cluster", error_code=event.error_code), *event.resources)
        if (resource := asked_for(one)) is not None
    }
    # Of 200 topics an event keeps the errors of 100.
    assert {one for one in denied if not one[2].startswith("denied-")} == {
        one for one in logged if not one[2].startswith("denied-")
    }
    named = seen.ask(
        "SELECT DISTINCT api, resource_type, resource_name FROM changes"
        " WHERE result = 'denied' AND client_id = 'raw' AND api != 'DeleteTopics'"
    )
    assert named == {one for one in logged if one[0] in {"TxnOffsetCommit", "AddPartitionsToTxn"}} | {
        ("OffsetCommit", "group", "payments"), ("OffsetFetch", "group", "payments"),
    }  # fmt: skip


def asked_for(one: Resource) -> tuple[str, str] | None:
    """Return what Kafka's authorizer was asked for, by the error code that says no, for many requests on the cluster;
    None for any other."""
    kind = DENIALS.get(one.error_code)
    if kind is None or (kind in {"group", "transactional_id"} and one.resource_type in {"topic", "cluster"}):
        return None
    if kind == "cluster":
        return kind, "kafka-cluster"
    return kind, (one.resource_name if one.parent_type != kind else one.parent_name) or ""
