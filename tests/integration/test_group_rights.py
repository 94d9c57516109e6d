"""A coordinated group whose consumers log in, from end to end: all rights, the sidecar's too, are those of the docs."""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are exported, untyped
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from proxy.local import broker, process
from proxy.local import cluster as local_cluster
from proxy.local.sidecars import SidecarProcess
from tests.integration.authorizer import DECISION, secured_properties
from tests.integration.consuming import NotingConsumer, fetch, handed_out, shut_down, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

USERS = ("sidecar", "alice", "bob")
PARTITIONS = 4
MESSAGES = 400

IS_FULL = bool(os.environ.get("GROUPS_FULL"))
"""With one worker as well, and until another consumer has the partitions: 4T/3 after the last request."""

WORKERS = [1, 2] if IS_FULL else [2]

DOCS = Path(__file__).parents[2] / "docs"

ROW = re.compile(r"^\| `User:sidecar` \| (.+?) \| (\w+) \| (.+?) \|", re.MULTILINE)
"""Of the tables of ACLs: operations, type of the resource, names and pattern."""


Right = tuple[str, str, str, str]
"""Operation, type of the resource as Kafka's AclOperation and ResourceType name them; name, and type of the pattern."""


class Secured:
    """A broker with an authorizer, and the sidecar before it."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.node = local_cluster.plan(folder).nodes[0]
        properties, self.behind, self.before = secured_properties(self.node, USERS)
        properties["advertised.listeners"] = properties["advertised.listeners"].replace(self.before, self.behind)
        local_cluster.up(folder, broker_properties=properties, progress=False)
        self.admin = AdminClient({"bootstrap.servers": self.node.internal})
        self._config = folder / "rights.yaml"
        self._log = folder / "rights.log"
        self._config.write_text(yaml.safe_dump(self._settings(folder, workers)))
        self.sidecar: SidecarProcess | None = None

    def _settings(self, folder: Path, workers: int) -> dict[str, Any]:
        (folder / "password").write_text("sidecar-secret")
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "sidecar",
            "sasl.password": {"file": str(folder / "password")},
        }
        config = broker.sidecar_config(self.node) | {
            "workers": workers,
            "internal.bootstrap.servers": self.behind,
            "internal": login,
            "coordinator": {"enabled": True, "partitions": 3, "max.consumers": 100, "offset.commit.interval.ms": 1000},
        }
        del config["observer.class.names"]
        (listener,) = config["listeners"]
        secured = {"name": "SASL", "bind": self.before, "upstream": self.behind, "security.protocol": "SASL_PLAINTEXT"}
        config["listeners"] = [listener, {**secured, "rewrite.addresses": True}]
        return config

    def start(self) -> None:
        """Start the sidecar, and wait until it coordinates."""
        command = [sys.executable, "-m", "tests.tools.quick_rights", "run", "-c", str(self._config)]
        self.sidecar = SidecarProcess(process.spawn(command, self._log), self._config, self._log, self.node.admin)
        self.sidecar.wait_ready()
        until(lambda: fetch(f"http://{self.node.admin}/coordinator")["partitions"] == 3)

    def allow(self, user: str, *rights: Right) -> None:
        """Create ACLs. The controller has them with its response, the broker when it shows them."""
        for future in self.admin.create_acls([self._acl(AclBinding, user, right) for right in rights]).values():
            future.result(30)
        until(lambda: all(self._is_allowed(user, right) for right in rights))

    def revoke(self, user: str, right: Right) -> None:
        """Delete an ACL; see ``allow``."""
        acl = self._acl(AclBindingFilter, user, right)
        (future,) = self.admin.delete_acls([acl]).values()
        assert future.result(30)
        until(lambda: not self._is_allowed(user, right))

    def _is_allowed(self, user: str, right: Right) -> bool:
        return bool(self.admin.describe_acls(self._acl(AclBindingFilter, user, right)).result(30))

    @staticmethod
    def _acl(make: Any, user: str, right: Right) -> Any:
        operation, kind, name, pattern = right
        return make(
            ResourceType[TYPES[kind]],
            name,
            ResourcePatternType[pattern.upper()],
            f"User:{user}",
            "*",
            AclOperation[re.sub(r"\B([A-Z])", r"_\1", operation).upper()],
            AclPermissionType.ALLOW,
        )

    def consumer(self, user: str, group: str, topic: str) -> NotingConsumer:
        """A consumer of this user, whose id is the user's name."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        kafka = {**login, "sasl.username": user, "sasl.password": f"{user}-secret"}
        return NotingConsumer(self.before, group, user, topic, kafka=kafka)

    def produce(self, topic: str) -> None:
        """Append messages to all partitions in turn."""
        producer = Producer({"bootstrap.servers": self.node.internal})
        for number in range(MESSAGES):
            producer.produce(topic, str(number), partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def committed(self, group: str) -> list[int]:
        """The offsets that Kafka has of a group."""
        asked = [ConsumerGroupTopicPartitions(group)]
        found = self.admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions
        return [one.offset for one in found if one.offset >= 0]

    def denied(self) -> set[tuple[str, str]]:
        """Principals, and what they were not allowed to use, by the authorizer's log."""
        found = DECISION.finditer(self.node.log.read_text())
        return {(one["principal"], one["name"]) for one in found if one["decision"] == "Denied"}


TYPES: Mapping[str, str] = {
    "Topic": "TOPIC",
    "Group": "GROUP",
    "TransactionalId": "TRANSACTIONAL_ID",
    "Cluster": "BROKER",
}
"""librdkafka names the cluster so."""


def documented(group: str, topic: str) -> Iterator[Right]:
    """The rights that the docs give to ``User:sidecar``."""
    for page in ("security.md", "coordinator.md"):
        for operations, kind, resources in ROW.findall((DOCS / page).read_text()):
            names = re.findall("`(.+?)`", resources) or [group if kind == "Group" else topic]
            pattern = "prefixed" if "prefixed" in resources else "literal"
            for operation in re.findall(r"`(\w+)`", operations):
                for name in names:
                    yield operation, kind, name, pattern


@pytest.mark.parametrize("workers", WORKERS)
def test_consumers_get_what_they_may_read_for_as_long_as_they_may(tmp_path: Path, workers: int) -> None:
    group, topic = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in "gt")
    secured = Secured(tmp_path, workers)
    consumers: list[NotingConsumer] = []
    try:
        secured.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        secured.allow("sidecar", *documented(group, topic))
        secured.start()
        _consume(secured, group, topic, consumers)
        assert not {name for principal, name in secured.denied() if principal == "User:sidecar"}
    finally:
        shut_down(*consumers)
        if secured.sidecar is not None:
            assert secured.sidecar.stop()
        local_cluster.down(tmp_path)
    assert "Traceback" not in (log := secured._log.read_text()), log


def _consume(secured: Secured, group: str, topic: str, consumers: list[NotingConsumer]) -> None:
    read_group, read_topic = ("Read", "Group", group, "literal"), ("Read", "Topic", topic, "literal")
    consumers.append(secured.consumer("alice", group, topic))
    until(lambda: consumers[0].failure is not None)
    assert consumers[0].failure == f"group {group}: not authorized to read the group (error 30)"
    secured.allow("alice", read_group)
    consumers.append(secured.consumer("alice", group, topic))
    until(lambda: consumers[1].failure is not None)
    assert consumers[1].failure == f"group {group}: not authorized to read a topic (error 29)"

    secured.allow("alice", read_topic)
    secured.allow("bob", read_group, read_topic)
    secured.produce(topic)
    alice, bob = (secured.consumer(user, group, topic) for user in ("alice", "bob"))
    consumers += [alice, bob]
    until(lambda: len(alice.owned) == len(bob.owned) == PARTITIONS // 2)
    count = MESSAGES // PARTITIONS
    until(lambda: secured.committed(group) == [count] * PARTITIONS)

    secured.revoke("bob", read_topic)
    until(lambda: bob.failure is not None)
    assert bob.failure == f"group {group}: not authorized to read a topic (error 29)"
    if IS_FULL:
        until(lambda: len(alice.owned) == PARTITIONS)
        secured.produce(topic)
        count *= 2
        until(lambda: alice.count + bob.count >= 2 * MESSAGES)

    secured.revoke("alice", read_group)
    until(lambda: alice.failure is not None)
    assert alice.failure == f"group {group}: not authorized to read the group (error 30)"
    expected = {(partition, offset): 1 for partition in range(PARTITIONS) for offset in range(count)}
    assert handed_out(alice, bob) == expected
    until(lambda: not fetch(f"http://{secured.node.admin}/groups")["groups"][0]["members"])
