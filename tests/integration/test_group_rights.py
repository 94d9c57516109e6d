"""A coordinated group whose consumers log in, from end to end: all rights, the sidecar's too, are those of the docs."""

from __future__ import annotations

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
    AclOperation,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from proxy.local import broker, process
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.brokers import Acl, SharedBroker
from tests.integration.authorizer import DECISION
from tests.integration.consuming import NotingConsumer, fetch, handed_out, shut_down, until
from tests.tools.quick_groups import QUICK_GROUPS

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 4
MESSAGES = 400

DOCS = Path(__file__).parents[2] / "docs"

ROW = re.compile(r"^\| `User:sidecar` \| (.+?) \| (\w+) \| (.+?) \|", re.MULTILINE)
"""Of the tables of ACLs: operations, type of the resource, names and pattern."""

TYPES: Mapping[str, str] = {
    "Topic": "TOPIC",
    "Group": "GROUP",
    "TransactionalId": "TRANSACTIONAL_ID",
    "Cluster": "BROKER",
}
"""librdkafka names the cluster so."""


def documented(group: str, topic: str) -> Iterator[Acl]:
    """The rights that the docs give to ``User:sidecar``."""
    for page in ("security.md", "coordinator.md"):
        for operations, kind, resources in ROW.findall((DOCS / page).read_text()):
            names = re.findall("`(.+?)`", resources) or [group if kind == "Group" else topic]
            pattern = ResourcePatternType.PREFIXED if "prefixed" in resources else ResourcePatternType.LITERAL
            for operation in re.findall(r"`(\w+)`", operations):
                of_kafka = AclOperation[re.sub(r"\B([A-Z])", r"_\1", operation).upper()]
                for name in names:
                    yield Acl("User:sidecar", of_kafka, ResourceType[TYPES[kind]], name, pattern)


class Secured:
    """A sidecar before the broker with an authorizer, that logs in to it as well."""

    def __init__(self, secured: SharedBroker, folder: Path) -> None:
        self.broker = secured
        self.admin = secured.admin()
        behind = secured.listeners["OWN"].address
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        (folder / "password").write_text("sidecar-secret")
        config: dict[str, Any] = broker.sidecar_config(secured.node) | {
            "workers": 2,
            "internal.bootstrap.servers": behind,
            "internal": {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "sidecar",
                "sasl.password": {"file": str(folder / "password")},
            },
            "coordinator": {"enabled": True, "partitions": 3, "max.consumers": 100, "offset.commit.interval.ms": 1000},
        }
        del config["observer.class.names"]
        of_sasl = {"name": "SASL", "bind": self.address, "upstream": behind, "security.protocol": "SASL_PLAINTEXT"}
        config["listeners"].append({**of_sasl, "rewrite.addresses": True})
        self.config, self.log = folder / "rights.yaml", folder / "rights.log"
        self.config.write_text(yaml.safe_dump(config))
        self._logged_before = len(secured.log())

    def start(self) -> SidecarProcess:
        """Start the sidecar, and wait until it coordinates."""
        command = [sys.executable, *QUICK_GROUPS, "run", "-c", str(self.config)]
        sidecar = SidecarProcess(process.spawn(command, self.log), self.config, self.log, self.broker.node.admin)
        sidecar.wait_ready()
        until(lambda: self.get("/coordinator")["partitions"])
        return sidecar

    def get(self, path: str) -> dict[str, Any]:
        return fetch(f"http://{self.broker.node.admin}{path}")

    def consumer(self, user: str, group: str, topic: str) -> NotingConsumer:
        """A consumer of this user, whose id is the user's name."""
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        kafka = {**login, "sasl.username": user, "sasl.password": f"{user}-secret"}
        return NotingConsumer(self.address, group, user, topic, kafka=kafka)

    def committed(self, group: str) -> list[int]:
        """The offsets that Kafka has of a group."""
        asked = [ConsumerGroupTopicPartitions(group)]
        found = self.admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions
        return [one.offset for one in found if one.offset >= 0]

    def denied(self) -> set[str]:
        """What the sidecar was not allowed to use, by the authorizer's log."""
        found = DECISION.finditer(self.broker.log()[self._logged_before :])
        return {one["name"] for one in found if (one["decision"], one["principal"]) == ("Denied", "User:sidecar")}


@pytest.mark.promise(
    "coordinator.md", "The listed ACLs are all that the sidecar and its consumers need, and who loses one is closed."
)
def test_consumers_get_what_they_may_read_for_as_long_as_they_may(tmp_path: Path, secured: SharedBroker) -> None:
    group, topic = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in "gt")
    running = Secured(secured, tmp_path)
    consumers: list[NotingConsumer] = []
    sidecar = None
    try:
        running.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        secured.allow(*documented(group, topic))
        sidecar = running.start()
        _consume(running, group, topic, consumers)
        assert not running.denied()
    finally:
        shut_down(*consumers)
        if sidecar is not None:
            assert sidecar.stop()
        secured.forget_acls()
    assert "Traceback" not in (log := running.log.read_text()), log


def _consume(running: Secured, group: str, topic: str, consumers: list[NotingConsumer]) -> None:
    def read(user: str, kind: ResourceType, name: str) -> Acl:
        return Acl(f"User:{user}", AclOperation.READ, kind, name)

    def ended(one: NotingConsumer) -> str:
        until(lambda: one.failure is not None)
        return str(one.failure)

    no_group = f"group {group}: not authorized to read the group (error 30)"
    no_topic = f"group {group}: not authorized to read a topic (error 29)"
    of_group, of_topic = (ResourceType.GROUP, group), (ResourceType.TOPIC, topic)
    consumers.append(running.consumer("alice", group, topic))
    assert ended(consumers[0]) == no_group
    running.broker.allow(read("alice", *of_group))
    consumers.append(running.consumer("alice", group, topic))
    assert ended(consumers[1]) == no_topic

    running.broker.allow(read("alice", *of_topic), read("bob", *of_group), read("bob", *of_topic))
    producer = Producer({"bootstrap.servers": running.broker.node.internal})
    for number in range(MESSAGES):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    alice, bob = (running.consumer(user, group, topic) for user in ("alice", "bob"))
    consumers += [alice, bob]
    until(lambda: len(alice.owned) == len(bob.owned) == PARTITIONS // 2)
    count = MESSAGES // PARTITIONS
    until(lambda: running.committed(group) == [count] * PARTITIONS)

    running.broker.revoke(read("bob", *of_topic))
    assert ended(bob) == no_topic
    running.broker.revoke(read("alice", *of_group))
    assert ended(alice) == no_group
    assert handed_out(alice, bob) == {
        (partition, offset): 1 for partition in range(PARTITIONS) for offset in range(count)
    }
    until(lambda: not running.get("/groups")["groups"][0]["members"])
