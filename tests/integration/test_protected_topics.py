"""Real clients and requests of every version on the sidecars' own topics: refused, and the broker's logs stay as they
are."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import kafka.errors
import pytest
import yaml
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from kafka import KafkaProducer
from kafka.record import MemoryRecordsBuilder

from proxy.core.accessors import Accessors
from proxy.interceptors.topic_protection import (
    ADD_PARTITIONS_TO_TXN,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    WRITE_TXN_MARKERS,
)
from proxy.local import cluster as local_cluster
from proxy.local.cluster import ClusterState
from proxy.local.sidecars import SidecarProcess
from tests.cases import each
from tests.frames import batch
from tests.integration.metrics import sample
from tests.integration.quotas import Asker
from tests.integration.sidecars import config_of, running, until
from tests.tools.topic import messages

pytestmark = pytest.mark.kafka

REGISTRY = "__brokerside_registry"
REFUSED, PRODUCE, METADATA = 29, 0, 3


@dataclass(frozen=True)
class Site:
    """A broker with a sidecar. ``topic``: a protected one of two partitions; ``other``: one like it that is not."""

    cluster: ClusterState
    sidecar: SidecarProcess
    topic: str
    other: str
    admin: AdminClient

    def ends(self, topic: str) -> list[int]:
        """The end offset of each partition, asked past the sidecar."""
        latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in (0, 1)}
        return [one.result(180).offset for one in self.admin.list_offsets(latest).values()]

    def denied(self, api: str) -> float:
        labels = {"listener": "CLIENT", "api": api, "verdict": "denied"}
        return sample(self.sidecar.metrics(), "brokerside_intercepted_requests_total", **labels)

    def denied_before(self, api: str) -> float:
        """The same once all connections have ended: a worker that has reported these has reported what they asked."""
        until(lambda: not sample(self.sidecar.metrics(), "brokerside_connections_active"))
        return self.denied(api)


@pytest.fixture(scope="module")
def site(cluster: ClusterState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    admin = AdminClient({"bootstrap.servers": cluster.internal_bootstrap})
    number = uuid.uuid4().hex[:8]
    topic, other = f"__brokerside_{number}", f"my-brokerside-{number}"
    for created in admin.create_topics([NewTopic(topic, 2, 1), NewTopic(other, 2, 1)]).values():
        created.result(180)
    with running(config_of(cluster.nodes[0], workers=2), tmp_path_factory.mktemp("protected")) as sidecar:
        yield Site(cluster, sidecar, topic, other, admin)
    admin.delete_topics([topic, other])


def produced(topic: str, acks: int = -1) -> dict[str, Any]:
    """A Produce of one record that the broker takes."""
    made = MemoryRecordsBuilder(2, 0, 1 << 16)
    made.append(timestamp=1, key=None, value=b"hostile")
    made.close()
    partition = {"Index": 0, "Records": bytes(made.buffer())}
    return {"Acks": acks, "TimeoutMs": 10_000, "TopicData": [{"Name": topic, "PartitionData": [partition]}]}


def codes(answer: Any) -> list[int]:
    """Every error code of an answer but the topmost."""
    if isinstance(answer, tuple):
        return [code for one in answer for code in codes(one)]
    if not isinstance(answer, Accessors):
        return []
    found = [answer.get(name) for name in ("ErrorCode", "PartitionErrorCode") if answer.has_field(name)]
    return found + [code for name in answer.field_names() for code in codes(answer.get(name))]


def changes(topic: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Each of the requests that change a topic, on this one and another."""
    both = (topic, "honest")
    configs = [{"Name": "retention.ms", "Value": "1"}]
    resources = {"Resources": [{"ResourceType": 2, "ResourceName": one, "Configs": configs} for one in both]}
    created = [{"Name": f"{one}-new", "NumPartitions": 1, "ReplicationFactor": 1} for one in both]
    emptied = [{"Name": one, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]} for one in both]
    grown = [{"Name": one, "Count": 5} for one in both]
    added = [{"Name": one, "Partitions": [0, 1]} for one in both]
    deleted = {"TopicNames": both, "Topics": [{"Name": one} for one in both], "TimeoutMs": 1000}
    begun = {
        "V3AndBelowTransactionalId": "t",
        "V3AndBelowTopics": added,
        "Transactions": [{"TransactionalId": "t", "Topics": added}],
    }
    return [
        (CREATE_TOPICS, "CreateTopics", {"Topics": created, "timeoutMs": 1000}),
        (DELETE_TOPICS, "DeleteTopics", deleted),
        (DELETE_RECORDS, "DeleteRecords", {"Topics": emptied, "TimeoutMs": 1000}),
        (ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", begun),
        (ALTER_CONFIGS, "AlterConfigs", resources),
        (CREATE_PARTITIONS, "CreatePartitions", {"Topics": grown, "TimeoutMs": 1000}),
        (INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", resources),
    ]


@pytest.mark.promise(
    "protected-topics.md",
    "Every version of a request that changes a protected topic is refused as a whole, and nothing is applied.",
)
@each("index", range(7))
def test_every_version_of_a_change_is_refused_as_a_whole(site: Site, index: int) -> None:
    key, name, values = changes(site.topic)[index]
    honest = changes(site.other)[index][2] | {"ValidateOnly": True}
    before, denied = described(site), site.denied_before(name)
    with Asker(site.cluster.bootstrap) as asker:
        versions = list(asker.versions()[key])
        for version in versions:
            answer = codes(asker.answer(key, version, values))
            assert answer.count(REFUSED) >= 2, (version, answer)
            assert set(answer) <= {REFUSED, 0}, (version, answer)
        until(lambda: site.denied(name) == denied + len(versions))
        # What names no protected topic is the broker's to answer.
        if key not in (CREATE_TOPICS, DELETE_TOPICS):
            assert REFUSED not in codes(asker.answer(key, versions[-1], honest))
    assert described(site) == before
    assert site.denied(name) == denied + len(versions)


def described(site: Site) -> Any:
    topics = site.admin.list_topics(timeout=30).topics
    resource = ConfigResource(ConfigResource.Type.TOPIC, site.topic)
    configs = site.admin.describe_configs([resource])[resource].result(180)
    found = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(site.topic)}
    return found, configs["retention.ms"].value, site.ends(site.topic)


@pytest.mark.promise(
    "protected-topics.md", "A Produce without acks to a protected topic ends the connection and appends nothing."
)
def test_acks_0_ends_the_connection_and_nothing_is_appended(site: Site) -> None:
    before = site.ends(site.topic)
    for version in (3, 9, 12):
        with Asker(site.cluster.bootstrap) as asker, pytest.raises(ConnectionError, match="closed"):
            asker.ask(PRODUCE, version, produced(site.topic, acks=0))
        with Asker(site.cluster.bootstrap) as asker:
            assert codes(asker.answer(PRODUCE, version, produced(site.other))) == [0], "the records are good"
    assert site.ends(site.topic) == before
    ended = {"listener": "CLIENT", "cause": "protected_topic"}
    until(lambda: sample(site.sidecar.metrics(), "brokerside_connections_closed_total", **ended) >= 3)


@pytest.mark.promise(
    "protected-topics.md",
    "librdkafka reports TOPIC_AUTHORIZATION_FAILED for a protected topic, and goes on with others.",
)
@pytest.mark.promise(
    "protected-topics.md", "aiokafka and kafka-python raise TopicAuthorizationFailedError for a protected topic."
)
def test_clients_get_the_authorization_error_of_a_broker(site: Site) -> None:
    before = site.ends(site.topic)
    reports: list[KafkaError | None] = []
    for value in (b"v", b"v" * 900_000):
        producer = Producer({"bootstrap.servers": site.cluster.bootstrap})
        producer.produce(site.topic, value, on_delivery=lambda error, message: reports.append(error))
        producer.flush(30)
    assert [error and error.code() for error in reports] == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    producer.produce(site.other, b"v", on_delivery=lambda error, message: reports.append(error))
    producer.flush(30)
    assert reports[2] is None, "the same producer serves other topics"
    admin = AdminClient({"bootstrap.servers": site.cluster.bootstrap})
    asked = [
        admin.delete_topics([site.topic])[site.topic],
        admin.create_partitions([NewPartitions(site.topic, 5)])[site.topic],
        *admin.delete_records([TopicPartition(site.topic, 0, -1)]).values(),
    ]
    for one in asked:
        with pytest.raises(KafkaException) as raised:
            one.result(180)
        assert raised.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=site.cluster.bootstrap) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(site.topic, b"v")

    asyncio.run(send())
    refused = pytest.raises(kafka.errors.TopicAuthorizationFailedError)
    with closing(KafkaProducer(bootstrap_servers=site.cluster.bootstrap)) as of_python, refused:
        of_python.send(site.topic, b"v").get(30)
    assert site.ends(site.topic) == before


@pytest.mark.promise("protected-topics.md", "A transaction on a protected topic is refused and leaves no marker there.")
def test_a_transaction_is_refused_and_leaves_no_marker(site: Site) -> None:
    before = site.ends(site.topic), site.ends(site.other)
    settings = {"bootstrap.servers": site.cluster.bootstrap, "transactional.id": f"x-{uuid.uuid4()}"}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(site.topic, b"v")
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    producer = Producer(settings)  # librdkafka gives up on the first, as with any broker
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(site.other, b"v")
    producer.commit_transaction(60)
    until(lambda: sum(site.ends(site.other)) >= sum(before[1]) + 2)  # the record, and the marker
    assert site.ends(site.topic) == before[0]


def test_a_client_does_not_fence_a_sidecar(site: Site) -> None:
    own = {"transactional.id": "brokerside-groups-0"}
    sidecar = Producer({"bootstrap.servers": site.cluster.internal_bootstrap, **own})
    sidecar.init_transactions(60)
    with pytest.raises(KafkaException) as raised:
        Producer({"bootstrap.servers": site.cluster.bootstrap, **own}).init_transactions(60)
    assert raised.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    sidecar.begin_transaction()
    sidecar.produce(site.other, b"v")
    sidecar.commit_transaction(60)
    with Asker(site.cluster.bootstrap) as asker, pytest.raises(ConnectionError):
        asker.answer(WRITE_TXN_MARKERS, 1, {"Markers": []})


@pytest.mark.promise(
    "protected-topics.md",
    "Java's clients are refused on the sidecars' topics by name, and by a topic id that the sidecar has asked for.",
)
def test_java_is_refused_by_name_and_by_topic_id(site: Site) -> None:
    def run(name: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = local_cluster.tool(name, "--bootstrap-server", site.cluster.bootstrap, *arguments)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)

    with Asker(site.cluster.bootstrap) as asker:
        (about,) = asker.answer(METADATA, 12, {"Topics": [{"Name": REGISTRY}]}).get("Topics")
        topic_id = urlsafe_b64decode(about.get("TopicId") + "==")
        damaged = {"TopicId": topic_id, "PartitionData": [{"Index": 0, "Records": batch(1, b"x")}]}  # never appended
        until_answered(site, 13, {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [damaged]}, REFUSED)
        by_id = {"Topics": [{"Name": None, "TopicId": topic_id}], "TimeoutMs": 1000}
        assert codes(asker.answer(DELETE_TOPICS, 6, by_id)) == [REFUSED]
    value, denied = f"hostile {uuid.uuid4()}", site.denied_before("Produce")
    run("console-producer", "--topic", REGISTRY, text=f"{value}\n")  # it sends version 13, and only logs the error
    until(lambda: site.denied("Produce") > denied)
    done = run("topics", "--delete", "--topic", site.topic)
    assert done.returncode != 0
    assert "TopicAuthorizationException" in done.stdout
    assert value.encode() not in [one.value() for one in messages(site.cluster.bootstrap, REGISTRY)]


@pytest.mark.promise(
    "protected-topics.md", "`internal.topics.protected` turns the protection off and on while the sidecar runs."
)
def test_it_can_be_turned_off_while_it_runs(site: Site) -> None:
    config = yaml.safe_load(site.sidecar.config.read_text())
    for protected, expected in ((False, 0), (True, REFUSED)):
        site.sidecar.config.write_text(yaml.safe_dump(config | {"internal.topics.protected": protected}))
        until_answered(site, 9, produced(site.topic), expected)


def until_answered(site: Site, version: int, values: dict[str, Any], expected: int) -> None:
    """Wait until every worker answers a Produce of one partition so."""
    with Asker(site.cluster.bootstrap) as asker:

        def is_answered() -> bool:
            with Asker(site.cluster.bootstrap) as another:
                return [codes(one.answer(PRODUCE, version, values)) for one in (asker, another)] == [[expected]] * 2

        until(lambda: all(is_answered() for _ in range(8)))  # on any worker


@pytest.mark.promise(
    "protected-topics.md", "The audit has an event with error 29 for each refused change of a protected topic."
)
def test_the_audit_says_who_was_refused(site: Site) -> None:
    client_id = f"spoofer-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": site.cluster.bootstrap, "client.id": client_id, "acks": "all"})
    producer.produce(site.topic, b"v" * 50)
    producer.flush(30)
    admin = AdminClient({"bootstrap.servers": site.cluster.bootstrap, "client.id": client_id})
    assert admin.delete_topics([site.topic])[site.topic].exception(30)

    def found() -> list[dict[str, Any]]:
        audited = messages(site.cluster.bootstrap, "brokerside-audit")  # to read stays allowed, through the sidecar
        every = [one for message in audited for one in json.loads(message.value() or b"")["events"]]
        mine = {one["api"]: one for one in every if one.get("client_id") == client_id and one["kind"] == "request"}
        return [mine[api] for api in ("Produce", "DeleteTopics")] if mine.keys() >= {"Produce", "DeleteTopics"} else []

    event, deleted = until(found)
    assert (event["synthesized"], event["error_code"], event.get("outcome", "answered")) == (True, REFUSED, "answered")
    assert [(one["topic"], one["error_code"]) for one in event["topics"]] == [(site.topic, REFUSED)]
    assert (deleted["synthesized"], deleted["error_code"]) == (True, REFUSED)
