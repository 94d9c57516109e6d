"""Groups of consumers, from end to end: a broker, a sidecar process that coordinates, and the Python client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from observers.event import RequestEvent, decoder
from proxy.client.consumer import ConsumerFailed, CoordinatedConsumer
from proxy.client.consumer.streams import MessageStream
from proxy.local import broker, process
from proxy.local.cluster import ClusterState
from proxy.local.ports import free_ports
from proxy.local.sidecars import SidecarProcess
from tests.brokers import Acl, SharedBroker
from tests.integration.feature_fleet import FeatureFleet
from tests.integration.logins import DECISION
from tests.integration.sidecars import until
from tests.integration.topics import committed
from tests.tools.admin import get
from tests.tools.quick_groups import QUICK_GROUPS
from tests.tools.topic import create, messages

pytestmark = pytest.mark.kafka

AUDIT = "audit-coordinating"
COORDINATOR = {"enabled": True, "partitions": 3, "max.consumers": 100, "offset.commit.interval.ms": 1000}

MESSAGES = 400
"""Messages of a topic of four partitions at its beginning."""


class NotingConsumer:
    """A consumer of one topic with one stream, which it reads on a thread until ``shut_down``.

    ``got``: the offsets of each partition, in order. ``changes``: ``assigned`` and ``revoked`` with their partitions.
    ``failure``: why it has ended by itself. ``every``: that were made in a test; all are shut down at its end.
    """

    every: ClassVar[list[NotingConsumer]] = []

    def __init__(self, address: str | list[str], group: str, consumer_id: str, topic: str, **arguments: Any) -> None:
        self.every.append(self)
        self.got: dict[int, list[int]] = {}
        self.changes: list[tuple[str, list[int]]] = []
        self.failure: str | None = None
        self._owned: set[int] = set()
        self._consumer = CoordinatedConsumer(
            address,
            group,
            consumer_id,
            on_assigned=lambda found: self._note("assigned", found),
            on_revoked=lambda found: self._note("revoked", found),
            **arguments,
        )
        (stream,) = self._consumer.create_message_streams({topic: 1})[topic]
        self._thread = threading.Thread(target=self._read, args=[stream])
        self._thread.start()

    @property
    def owned(self) -> set[int]:
        return set(self._owned)

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in list(self.got.values()))

    def shut_down(self) -> None:
        self._consumer.shutdown()
        self._thread.join()

    def _note(self, what: str, found: Any) -> None:
        partitions = sorted(partition for _, partition in found)
        self.changes.append((what, partitions))
        self._owned = self._owned | set(partitions) if what == "assigned" else self._owned - set(partitions)

    def _read(self, stream: MessageStream) -> None:
        try:
            for message in stream:
                self.got.setdefault(message.partition(), []).append(message.offset())
        except ConsumerFailed as error:
            self.failure = str(error)


def shut_down() -> None:
    """Let all consumers leave, at the same time: each waits for two pings."""
    with ThreadPoolExecutor(8) as pool:
        for left in [pool.submit(one.shut_down) for one in NotingConsumer.every]:
            left.result()


def handed_out(*consumers: NotingConsumer) -> Counter[tuple[int, int]]:
    """How often each message was handed out, by partition and offset."""
    return Counter(
        (partition, offset) for one in consumers for partition, offsets in list(one.got.items()) for offset in offsets
    )


def once(ends: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The same where each message of these partitions was handed out once. ``ends``: their numbers."""
    return {(partition, offset): 1 for partition, end in ends.items() for offset in range(end)}


class Coordinating(FeatureFleet):
    """The sidecar before the broker."""

    prefix = "coordinating"

    def __init__(self, cluster: ClusterState) -> None:
        takeover = {"takeover.socket.path": str(cluster.nodes[0].home.parent / "coordinating.sock")}
        super().__init__(cluster, {**takeover, "drain.timeout.ms": 2000, "coordinator": COORDINATOR})
        config = yaml.safe_load(self.config(1).read_text())
        self.config(1).write_text(yaml.safe_dump(config | {"audit": {"topic": AUDIT}}))
        self.through = cluster.nodes[0].advertised
        self.bootstrap = cluster.internal_bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.start(1, program=QUICK_GROUPS)
        until(lambda: self.get("/coordinator")["partitions"])

    @property
    def sidecar(self) -> SidecarProcess:
        return self.sidecars[1]

    def configure(self, **coordinator: Any) -> None:
        config = yaml.safe_load(self.config(1).read_text())
        config["coordinator"] |= coordinator
        self.config(1).write_text(yaml.safe_dump(config))
        self.command("reload")

    def get(self, path: str) -> dict[str, Any]:
        return self.ask(1, path, timeout=50)

    def group(self, group: str) -> dict[str, Any]:
        (found,) = self.get(f"/groups?group={group}")["groups"]
        return dict(found)

    def state_of(self, group: str) -> str | None:
        """The state of a group; None if it is not coordinated."""
        return {one["group_id"]: str(one["state"]) for one in self.get("/groups")["groups"]}.get(group)

    def command(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "proxy", *arguments, "--admin", self.sidecar.admin]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def fetched_since(self, at: int, topic: str) -> set[tuple[str | None, int]]:
        """Who has fetched messages of which partition with a request after ``at``, in µs since 1970: client ids."""
        envelopes = (decoder.decode(message.value() or b"") for message in messages(self.bootstrap, AUDIT))
        requests = (event for one in envelopes for event in one.events if isinstance(event, RequestEvent))
        found = [event for event in requests if event.api == "Fetch" and event.ts_request > at]
        return {(event.client_id, part.partition) for event in found for part in event.topics if part.topic == topic}

    def create_topic(self, name: str | None = None) -> str:
        name = name or f"t-{uuid.uuid4().hex[:8]}"
        create(self.admin, NewTopic(name, 4, 1))
        produce(self.bootstrap, name, MESSAGES)
        return name

    def consumer(self, group: str, consumer_id: str, topic: str, **arguments: Any) -> NotingConsumer:
        """A consumer that fetches from the broker itself, so that it can do so without its sidecar."""
        kafka = {"bootstrap.servers": self.bootstrap}
        return NotingConsumer(self.through, group, consumer_id, topic, kafka=kafka, **arguments)


def produce(bootstrap: str, topic: str, count: int, partitions: int = 4) -> None:
    """Append messages to all partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def coordinating(cluster: ClusterState) -> Iterator[Coordinating]:
    running = Coordinating(cluster)
    yield running
    assert running.sidecar.stop(), "SIGTERM was not enough"
    assert not running.logged("coordinator_failed")
    running.check_logs()


@pytest.fixture
def group() -> Iterator[str]:
    yield f"g-{uuid.uuid4().hex[:8]}"
    shut_down()
    NotingConsumer.every.clear()


@pytest.mark.promise(
    "README.md", "Sidecars coordinate groups: they push the assignment, and no message is skipped or repeated."
)
def test_partitions_move_when_a_consumer_joins_and_leaves_and_no_message_is_skipped_or_repeated(
    coordinating: Coordinating, group: str
) -> None:
    """Offsets move, and are exact after StopFetcher and a clean end; a topic that grows is read whole."""
    topic = coordinating.create_topic()
    first = coordinating.consumer(group, "c1", topic)
    until(lambda: first.count == MESSAGES)
    assert first.owned == {0, 1, 2, 3}
    until(lambda: committed(coordinating.admin, group) == dict.fromkeys(range(4), MESSAGES // 4))
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: first.count == 2 * MESSAGES)
    second = coordinating.consumer(group, "c2", topic)
    until(lambda: len(second.owned) == len(first.owned) == 2)
    moved = dict.fromkeys(second.owned, MESSAGES // 2)
    until(lambda: committed(coordinating.admin, group).items() >= moved.items())
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: first.count + second.count == 3 * MESSAGES)
    second.shut_down()
    until(lambda: first.owned == {0, 1, 2, 3})
    until(lambda: committed(coordinating.admin, group) == dict.fromkeys(range(4), 3 * MESSAGES // 4))
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: first.count + second.count == 4 * MESSAGES)
    coordinating.admin.create_partitions([NewPartitions(topic, 6)])[topic].result(180)
    until(lambda: first.owned == set(range(6)))
    produce(coordinating.bootstrap, topic, 60, partitions=6)
    until(lambda: first.count + second.count >= 4 * MESSAGES + 60)
    shut_down()
    assert handed_out(first, second) == once({**dict.fromkeys(range(4), MESSAGES + 10), 4: 10, 5: 10})
    (joined,) = coordinating.logged("rebalance", group=group, reason="joined", generation=2)
    assert (joined["members"], joined["partitions"], joined["moved"], joined["result"]) == (2, 4, 2, "done")


@pytest.mark.promise("coordinator.md", "The audit shows who fetches messages of a partition after StopFetcher.")
def test_the_audit_shows_who_fetches_a_partition_after_stop_fetcher(coordinating: Coordinating, group: str) -> None:

    def settings(client_id: str) -> dict[str, str]:
        return {"bootstrap.servers": coordinating.through, "client.id": client_id}

    topic = coordinating.create_topic()
    reads_on = Consumer({**settings("reads-on"), "group.id": "none", "enable.auto.commit": False})
    reads_on.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    consumers = [NotingConsumer(coordinating.through, group, "c1", topic, kafka=settings("c1"))]
    until(lambda: consumers[0].count == MESSAGES)
    consumers.append(NotingConsumer(coordinating.through, group, "c2", topic, kafka=settings("c2")))
    until(lambda: [len(one.owned) for one in consumers] == [2, 2])
    stopped_at = time.time_ns() // 1000
    for rounds in (2, 3):  # a Fetch of before may return the messages of the first one
        produce(coordinating.bootstrap, topic, MESSAGES)
        until(lambda expected=rounds * MESSAGES: sum(one.count for one in consumers) == expected)
    assert len(reads_on.consume(3 * MESSAGES, 60)) == 3 * MESSAGES
    reads_on.close()
    owners = {
        (client, partition) for client, one in zip(("c1", "c2"), consumers, strict=True) for partition in one.owned
    }
    others = {("reads-on", partition) for partition in range(4)}
    until(lambda: coordinating.fetched_since(stopped_at, topic) >= owners | others)
    assert coordinating.fetched_since(stopped_at, topic) == owners | others


@pytest.mark.promise(
    "consumer.md", "A topic of a consumer, by name or pattern, is read once it exists, and anew once it is recreated."
)
def test_topics_are_read_once_they_exist_and_again_once_they_are_recreated(
    coordinating: Coordinating, group: str
) -> None:
    topic, other = f"t-{group}", f"p{group[1:]}"
    kafka = {"bootstrap.servers": coordinating.bootstrap}
    by_name, by_pattern = (CoordinatedConsumer(coordinating.through, one, "c1", kafka=kafka) for one in (group, other))
    with by_name, by_pattern:
        streams = by_name.create_message_streams({topic: 1})[topic] + by_pattern.create_message_streams_by_filter(
            f"*1*t-{group}.*"
        )
        for _ in range(2):
            until(lambda: all(coordinating.state_of(one) == "stable" for one in (group, other)))
            assert [coordinating.group(one)["owned"] for one in (group, other)] == [0, 0]
            coordinating.create_topic(topic)
            for stream in streams:
                messages = [next(stream) for _ in range(MESSAGES)]
                assert {(one.partition(), one.offset()) for one in messages} == {
                    (partition, offset) for partition in range(4) for offset in range(MESSAGES // 4)
                }
            coordinating.admin.delete_topics([topic])[topic].result(180)
            until(lambda: not any(coordinating.group(one)["owned"] for one in (group, other)))


@pytest.mark.promise(
    "coordinator.md", "Consumers go on reading while their coordinator is killed, and nobody is stopped."
)
@pytest.mark.parametrize("ending", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_consumers_read_on_without_their_coordinator_and_nobody_is_stopped(
    coordinating: Coordinating, group: str, ending: str
) -> None:
    topic = coordinating.create_topic()
    consumers = [coordinating.consumer(group, name, topic, session_timeout_ms=20_000) for name in ("c1", "c2")]
    until(lambda: sum(one.count for one in consumers) == MESSAGES)
    until(lambda: [len(one.owned) for one in consumers] == [2, 2])
    until(lambda: coordinating.state_of(group) == "stable")
    changes = [list(one.changes) for one in consumers]
    if ending == "killed":
        coordinating.stop(1, kill=True)
    else:
        assert coordinating.sidecar.stop()
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: sum(one.count for one in consumers) == 2 * MESSAGES)
    coordinating.start(1, program=QUICK_GROUPS)
    until(lambda: coordinating.logged("rebalance", group=group, result="resumed"))
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: sum(one.count for one in consumers) == 3 * MESSAGES)
    assert [one.changes for one in consumers] == changes, "nobody was stopped or started"
    assert max(handed_out(*consumers).values()) == 1
    found = coordinating.group(group)
    assert (found["state"], found["members"], found["owned"]) == ("stable", 2, 4)


@pytest.mark.slow
@pytest.mark.promise(
    "restart.md", "After a hot restart coordinated consumers register with the successor, and nothing is read twice."
)
def test_consumers_register_with_the_successor_and_no_message_is_missing(
    coordinating: Coordinating, group: str
) -> None:
    topic = coordinating.create_topic()
    consumers = [coordinating.consumer(group, name, topic) for name in ("c1", "c2")]
    config = yaml.safe_load(coordinating.config(1).read_text())
    until(lambda: [len(one.owned) for one in consumers] == [2, 2])
    for rounds, workers in ((1, 2), (2, 1)):
        until(lambda expected=rounds * MESSAGES: sum(one.count for one in consumers) == expected)
        coordinating.config(1).write_text(yaml.safe_dump(config | {"workers": workers}))
        predecessor = coordinating.sidecar
        coordinating.spawn(1, QUICK_GROUPS, "--takeover")
        until(lambda old=predecessor: not old.process.alive())
        until(coordinating.sidecar.ready)
        until(lambda: coordinating.state_of(group) == "stable")
        until(lambda: len(coordinating.group(group)["consumers"]) == 2)
        produce(coordinating.bootstrap, topic, MESSAGES)
        until(lambda expected=(rounds + 1) * MESSAGES: sum(one.count for one in consumers) >= expected)
        until(lambda: "brokerside_predecessor_connections 0" in coordinating.sidecar.metrics())
    shut_down()
    expected = once(dict.fromkeys(range(4), 3 * MESSAGES // 4))
    assert handed_out(*consumers) == expected, "nobody was stopped: nothing is read twice"


@pytest.mark.promise("coordinator.md", "A reload holds a group still, and another one ends that.")
def test_a_frozen_group_is_rebalanced_once_it_is_thawed(coordinating: Coordinating, group: str) -> None:
    topic = coordinating.create_topic()
    first = coordinating.consumer(group, "c1", topic)
    until(lambda: first.count == MESSAGES)
    until(lambda: coordinating.state_of(group) == "stable")
    coordinating.configure(groups={group: {"rebalance.enabled": False}})
    second = coordinating.consumer(group, "c2", topic)
    until(lambda: coordinating.group(group)["members"] == 2)
    until(lambda: coordinating.logged("rebalance", group=group, reason="joined", result="resumed"))
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: first.count == 2 * MESSAGES)
    found = coordinating.group(group)
    assert (found["frozen"], found["generation"], first.owned) == (True, 1, {0, 1, 2, 3})
    coordinating.configure(groups={})
    until(lambda: len(second.owned) == 2)
    until(lambda: coordinating.logged("rebalance", group=group, reason="enabled"))


@pytest.mark.promise(
    "coordinator.md", "After `evacuate` a sidecar coordinates nothing; after `return` its consumers are back."
)
@pytest.mark.slow
def test_what_an_operator_sees_and_does(coordinating: Coordinating, group: str) -> None:
    topic = coordinating.create_topic()
    one = coordinating.consumer(group, "c1", topic)
    until(lambda: one.count == MESSAGES)
    until(lambda: coordinating.state_of(group) == "stable")
    every = {topic: {str(partition): MESSAGES // 4 for partition in range(4)}}
    until(lambda: coordinating.group(group)["consumers"][0]["offsets"] == every)
    assert f"{topic}          3     100  c1-0" in coordinating.command("groups", group)
    assert coordinating.sidecar.metric("brokerside_coordinator_consumers") == 1
    assert coordinating.sidecar.metric("brokerside_coordinator_rebalances_total") >= 1
    status = coordinating.get("/coordinator")
    assert (status["consumers"], status["fields"]["ping_scheduler"]) == (1, 1)
    assert status["fields"]["elector"] == status["partitions"]
    coordinating.command("groups", "evacuate")
    until(lambda: coordinating.get("/coordinator")["held"] == [])
    assert coordinating.get("/groups")["groups"] == []
    coordinating.command("groups", "return")
    until(lambda: coordinating.state_of(group) == "stable")
    produce(coordinating.bootstrap, topic, MESSAGES)
    until(lambda: one.count >= 2 * MESSAGES)
    fields = ("ping_purgatory", "stop_fetcher_purgatory", "start_fetcher_purgatory")
    until(lambda: not any(coordinating.get("/coordinator")["fields"][name] for name in fields))


@pytest.mark.promise("consumer.md", "A consumer of a group with members of Kafka's own protocols fails, and says so.")
def test_a_group_with_a_member_of_kafka_s_own_protocol_is_not_coordinated(
    coordinating: Coordinating, group: str
) -> None:
    topic = coordinating.create_topic()
    ordinary = Consumer({"bootstrap.servers": coordinating.bootstrap, "group.id": group})
    try:
        ordinary.subscribe([topic])
        until(lambda: ordinary.poll(0.1) is not None or ordinary.assignment())
        one = coordinating.consumer(group, "c1", topic)
        until(lambda: one.failure is not None)
        assert f"group {group} has members of Kafka's own group protocols" in str(one.failure)
        assert one.count == 0
    finally:
        ordinary.close()


# ---- with logins and ACLs -------------------------------------------------------------------------------------------

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


@pytest.mark.slow
@pytest.mark.promise(
    "coordinator.md", "The listed ACLs are all that the sidecar and its consumers need, and who loses one is closed."
)
def test_consumers_get_what_they_may_read_for_as_long_as_they_may(
    tmp_path: Path, secured: SharedBroker, group: str
) -> None:
    """The sidecar logs in as well."""
    topic, admin, behind = f"t-{uuid.uuid4().hex[:8]}", secured.admin(), secured.listeners["OWN"].address
    (port,) = free_ports(1)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    (tmp_path / "password").write_text("sidecar-secret")
    config: dict[str, Any] = broker.sidecar_config(secured.node) | {
        "workers": 2,
        "internal.bootstrap.servers": behind,
        "internal": {**login, "sasl.username": "sidecar", "sasl.password": {"file": str(tmp_path / "password")}},
        "coordinator": COORDINATOR,
    }
    del config["observer.class.names"]
    listener = {"name": "SASL", "bind": f"127.0.0.1:{port}", "upstream": behind, "rewrite.addresses": True}
    config["listeners"].append({**listener, "security.protocol": "SASL_PLAINTEXT"})
    path, log = tmp_path / "rights.yaml", tmp_path / "rights.log"
    path.write_text(yaml.safe_dump(config))
    logged_before = len(secured.log())

    def consumer(user: str, password: str = "") -> NotingConsumer:
        kafka = {**login, "sasl.username": user, "sasl.password": password or f"{user}-secret"}
        return NotingConsumer(f"127.0.0.1:{port}", group, user, topic, kafka=kafka)

    def ended(one: NotingConsumer) -> str:
        until(lambda: one.failure is not None)
        return str(one.failure)

    def read(user: str, kind: ResourceType, name: str) -> Acl:
        return Acl(f"User:{user}", AclOperation.READ, kind, name)

    no_group = f"group {group}: not authorized to read the group (error 30)"
    no_topic = f"group {group}: not authorized to read a topic (error 29)"
    of_group, of_topic = (ResourceType.GROUP, group), (ResourceType.TOPIC, topic)
    sidecar = None
    try:
        create(admin, NewTopic(topic, 4, 1))
        secured.allow(*documented(group, topic))
        command = [sys.executable, *QUICK_GROUPS, "run", "-c", str(path)]
        sidecar = SidecarProcess(process.spawn(command, log), path, log, secured.node.admin)
        sidecar.wait_ready()
        until(lambda: json.loads(get(f"http://{secured.node.admin}/coordinator", 50)[1])["partitions"])
        said = ended(consumer("alice", "another-secret"))
        assert ("Authentication failed" in said, "another-secret" in said) == (True, False), said
        assert ended(consumer("alice")) == no_group
        secured.allow(read("alice", *of_group))
        assert ended(consumer("alice")) == no_topic
        secured.allow(read("alice", *of_topic), read("bob", *of_group), read("bob", *of_topic))
        produce(secured.node.internal, topic, MESSAGES)
        alice, bob = consumer("alice"), consumer("bob")
        until(lambda: len(alice.owned) == len(bob.owned) == 2)
        until(lambda: committed(admin, group) == dict.fromkeys(range(4), MESSAGES // 4))
        secured.revoke(read("bob", *of_topic))
        assert ended(bob) == no_topic
        secured.revoke(read("alice", *of_group))
        assert ended(alice) == no_group
        assert handed_out(alice, bob) == once(dict.fromkeys(range(4), MESSAGES // 4))
        until(lambda: not json.loads(get(f"http://{secured.node.admin}/groups", 50)[1])["groups"][0]["members"])
        found = DECISION.finditer(secured.log()[logged_before:])
        refused = [one["name"] for one in found if (one["decision"], one["principal"]) == ("Denied", "User:sidecar")]
        assert refused == []
    finally:
        shut_down()
        if sidecar is not None:
            assert sidecar.stop()
        secured.forget_acls()
    assert "Traceback" not in (logged := log.read_text()), logged
